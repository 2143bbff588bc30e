"""Teardown: ends a cluster that runs, is half started, or has killed daemons."""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from copperfs.fuse.mounting import FSTYPE, PFS_SIM_FSTYPE, answers, mounts, unmount
from copperfs.lab.local_cluster import surroundings
from copperfs.lab.local_cluster.cluster_state import FILE_NAME, Cluster, ClusterNode, load, locked
from copperfs.lab.local_cluster.node_networks import NodeNetworks
from copperfs.model.errors import ClusterError, MountError

ENDS_WITHIN_S = 15.0
KILLED_WITHIN_S = 5.0
POLL_S = 0.02


def down(directory: str) -> int | None:
    """Returns the number of nodes it had; None if there is no cluster."""
    directory = os.path.realpath(directory)
    if not os.path.isdir(directory):
        return None
    with locked(directory):
        cluster = load(directory)
        if cluster is None:
            remove_leftovers(directory)
            return None
        take_down(cluster)
        return len(cluster.nodes)


def take_down(cluster: Cluster) -> None:
    """The state goes last, so that the command can be repeated if a removal fails."""
    for each in cluster.nodes:
        signal_node(each, signal.SIGTERM)
        signal_node(each, signal.SIGCONT)  # a stopped process would not handle the next signal
    wait_for_end(cluster.nodes, ENDS_WITHIN_S)
    surroundings.end_helpers(cluster)
    for each in cluster.nodes:
        signal_node(each, signal.SIGKILL)
        unmount_node(each)
    wait_for_end(cluster.nodes, KILLED_WITHIN_S)
    stuck = [each for each in cluster.nodes if each.is_alive()]
    if stuck:
        raise ClusterError(
            f"the daemon of {stuck[0].name}, process {stuck[0].pid}, cannot be ended: it hangs in "
            "the source"
        )
    surroundings.remove(cluster)
    if cluster.network is not None:
        NodeNetworks(cluster.network).remove()
    for each in cluster.nodes:
        _remove_tier(each)
        _remove_directory(Path(each.directory))
    if cluster.made_tier_top is not None:
        with suppress(OSError):  # it has other files, or was never made
            os.rmdir(cluster.made_tier_top)
    cluster.forget()
    if cluster.made_directory:
        with suppress(OSError):  # it has other files, or was never made
            os.rmdir(cluster.directory)


def remove_leftovers(directory: str) -> None:
    """Remove the mounts of a cluster whose state is gone. ClusterError if one is alive."""
    below = os.fsencode(directory) + b"/node"
    for each in mounts():
        if each.fstype == FSTYPE and each.mountpoint.startswith(below):
            mountpoint = os.fsdecode(each.mountpoint)
            if answers(mountpoint) is not False:
                raise ClusterError(
                    f"something is mounted at {mountpoint}, which is of no cluster that is known; "
                    f"unmount it with: copperfs umount {mountpoint}"
                )
            _unmount(mountpoint)
        elif each.fstype == PFS_SIM_FSTYPE and each.mountpoint.startswith(below):
            mountpoint = os.fsdecode(each.mountpoint)
            if answers(mountpoint) is not False:
                raise ClusterError(
                    f"a pfs-sim of no cluster that is known is mounted at {mountpoint}; end it "
                    f"with: copperfs pfs-ask {mountpoint} stop"
                )
            _unmount(mountpoint, PFS_SIM_FSTYPE)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, f"{FILE_NAME}.new"))


def signal_node(node: ClusterNode, number: int) -> None:
    if node.is_alive():
        with suppress(ProcessLookupError):
            os.kill(node.pid, number)


def wait_for_end(nodes: list[ClusterNode], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while any(each.is_alive() for each in nodes) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def unmount_node(node: ClusterNode) -> None:
    _unmount(node.mountpoint)


def _unmount(mountpoint: str, fstype: str = FSTYPE) -> None:
    """Remove every mount of ours there; crashes can leave several."""
    wanted = os.fsencode(mountpoint)
    for each in mounts():
        if each.mountpoint == wanted and each.fstype == fstype:
            with suppress(MountError):  # it may be gone by now
                unmount(mountpoint, lazy=True)
    if any(each.mountpoint == wanted and each.fstype == fstype for each in mounts()):
        raise ClusterError(
            f"{mountpoint} cannot be unmounted; try: copperfs umount --lazy {mountpoint}"
        )


def _remove_tier(node: ClusterNode) -> None:
    """Remove its chunk directory, unless it existed before the cluster."""
    if node.tier_dir is None or not node.made_tier_dir:
        return
    try:
        shutil.rmtree(node.tier_dir)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ClusterError(
            f"the chunks in {node.tier_dir} cannot be removed: {error.strerror}"
        ) from None


def _remove_directory(directory: Path) -> None:
    """Remove only our own files."""
    for name in ("log", "events", "told"):
        with suppress(FileNotFoundError, IsADirectoryError):
            (directory / name).unlink()
    for each in (directory / "mnt", directory):
        with suppress(OSError):
            each.rmdir()
