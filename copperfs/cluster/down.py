"""Ending a cluster, however it is: running, half started, or with daemons that were killed."""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from copperfs.cluster.network import Network
from copperfs.cluster.state import FILE_NAME, Cluster, ClusterNode, load, locked
from copperfs.errors import ClusterError, MountError
from copperfs.fuse.mounting import FSTYPE, answers, mounts, unmount

ENDS_WITHIN_S = 15.0
KILLED_WITHIN_S = 5.0
POLL_S = 0.02


def down(directory: str) -> int | None:
    """End the cluster in *directory* and remove what it made; how many nodes it had, None if there
    is no cluster."""
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
    """The state goes last: if anything cannot be removed, it can be tried again."""
    for each in cluster.nodes:
        signal_node(each, signal.SIGTERM)
        signal_node(each, signal.SIGCONT)  # one that was stopped would not hear it
    wait_for_end(cluster.nodes, ENDS_WITHIN_S)
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
    if cluster.network is not None:
        Network(cluster.network).remove()
    for each in cluster.nodes:
        _remove_tier(each)
        _remove_directory(Path(each.directory))
    if cluster.made_tier_top is not None:
        with suppress(OSError):  # something else is in it, or it was never made
            os.rmdir(cluster.made_tier_top)
    cluster.forget()
    if cluster.made_directory:
        with suppress(OSError):  # something else is in it
            os.rmdir(cluster.directory)


def remove_leftovers(directory: str) -> None:
    """Mounts of a cluster whose state is gone. ClusterError if one of them is alive."""
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
    """What is mounted for it goes at once, also if it is in use."""
    _unmount(node.mountpoint)


def _unmount(mountpoint: str) -> None:
    """Every mount of ours there: one on top of another is possible after crashes."""
    wanted = os.fsencode(mountpoint)
    for each in mounts():
        if each.mountpoint == wanted and each.fstype == FSTYPE:
            with suppress(MountError):  # it may just have gone by itself
                unmount(mountpoint, lazy=True)
    if any(each.mountpoint == wanted and each.fstype == FSTYPE for each in mounts()):
        raise ClusterError(
            f"{mountpoint} cannot be unmounted; try: copperfs umount --lazy {mountpoint}"
        )


def _remove_tier(node: ClusterNode) -> None:
    """What was there before stays, for the next cluster."""
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
    """Only what is ours: what somebody else put there stays."""
    for name in ("log", "events", "told"):
        with suppress(FileNotFoundError):
            (directory / name).unlink()
    for each in (directory / "mnt", directory):
        with suppress(OSError):
            each.rmdir()
