"""Surroundings: the lab's processes, mounts and namespaces that make the nodes of a cluster differ.

Each node may have *its own client of the source*: one ``pfs-sim`` shows the directory at a mount
point for each node, and the node's daemon runs in a mount namespace in which that mount lies over
the directory. Applications run outside of these namespaces. They see what a daemon mounts, since
the cluster's directory is a shared mount, but not the client over the source, whose mount point is
private there.

A library for LD_PRELOAD (``skewed_clock.c``) shifts a node's *wall clock*; time namespaces shift
only the monotonic ones. ``prlimit`` limits its *descriptors*. glibc's resolver looks up *names* at
``name_server.py``, by the ``/etc`` that the node sees.
"""

import importlib.util
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from copperfs.fuse.daemon_start import let_live, start_of, started
from copperfs.fuse.mounting import PFS_SIM_FSTYPE, mount_at, unmount
from copperfs.lab.local_cluster.cluster_state import Cluster, ClusterNode, Helper
from copperfs.lab.local_cluster.node_networks import NodeNetworks
from copperfs.model.errors import ClusterError, MountError
from copperfs.startup.bundle import environment_python

SKEW_VARIABLE = "COPPER_LAB_SKEW_NS"
CLOCK_MODULE = "copperfs.lab.local_cluster._skewed_clock"
CLIENTS, NAMES = "clients", "names"
DOMAIN = "copperfs.test"
NAME_SERVER = "127.0.53.53"
WITHIN_S = 30.0
POLL_S = 0.02


def check_possible(cluster: Cluster) -> None:
    if needs_namespaces(cluster):
        if os.geteuid() != 0:
            raise ClusterError(
                "--mixed and --own-clients make mount namespaces, which needs root; try it with: "
                "unshare --user --map-root-user --mount"
            )
        _check_tools("unshare", "mount", "umount")
    if any(each.conditions.descriptors is not None for each in cluster.nodes):
        _check_tools("prlimit")
    if any(each.conditions.skew for each in cluster.nodes):
        _clock_library()
    if is_named(cluster) and cluster.network is None:
        raise ClusterError("a resolver for each node needs networks of their own; add --netns")
    if cluster.clients_at is not None:
        at, directory = cluster.clients_at, cluster.directory
        if not os.path.isdir(at):
            raise ClusterError(f"{at} is no directory of which the nodes could have clients")
        if os.path.commonpath((at, directory)) in (at, directory):
            raise ClusterError(
                f"{at} and {directory} must not contain each other; give the cluster another --dir"
            )


def needs_namespaces(cluster: Cluster) -> bool:
    return cluster.clients_at is not None or is_named(cluster)


def is_named(cluster: Cluster) -> bool:
    """Whether the nodes get each other's names, not addresses."""
    return any(each.conditions.resolver is not None for each in cluster.nodes)


def host_of(node: ClusterNode) -> str:
    return f"{node.name}.{DOMAIN}"


# ---- all nodes -----------------------------------------------------------------------------------


def make(cluster: Cluster, own_inodes: bool) -> None:
    """Call it before the first node starts; ``remove`` undoes whatever exists."""
    if not needs_namespaces(cluster):
        return
    cluster.is_shared_mount = True
    cluster.save()
    _run("mount", "--bind", cluster.directory, cluster.directory)
    _run("mount", "--make-shared", cluster.directory)
    if cluster.clients_at is not None:
        _start_clients(cluster, own_inodes)


def _start_clients(cluster: Cluster, own_inodes: bool) -> None:
    assert cluster.clients_at is not None
    for each in cluster.nodes:
        os.makedirs(each.client, exist_ok=True)
    # As fast as the directory itself; ``copperfs pfs-ask`` makes it slow or faulty.
    settings = {
        "directory": cluster.clients_at,
        "mountpoints": [each.client for each in cluster.nodes],
        **dict.fromkeys(("latency_s", "read_latency_s", "cache_s"), 0.0),
        **dict.fromkeys(("servers", "bandwidth_bytes"), 0),
        "page_cache": False,
        "permissions": False,  # the mounts above check them
        "allow_other": True,
        "own_inodes": own_inodes,
    }
    with started(
        "copperfs.lab.pfs_sim.pfs_daemon",
        [json.dumps(settings)],
        shown=cluster.clients_at,
        stderr=subprocess.DEVNULL,
        timeout_s=WITHIN_S,
    ) as daemon:
        let_live(daemon)
        _keep_helper(cluster, CLIENTS, daemon.process.pid)


def start_name_server(cluster: Cluster) -> None:
    """Call it once the addresses are known. The server has a socket in the network of each node."""
    if not is_named(cluster):
        return
    addresses = {host_of(each): _address_of(each.endpoint) for each in cluster.nodes}
    assert cluster.network is not None
    network = NodeNetworks(cluster.network)
    told: list[dict[str, object]] = []
    sockets: list[socket.socket] = []
    try:
        for index, node in enumerate(cluster.nodes):
            sockets.append(network.within(index, _open_for_names))
            how = node.conditions.resolver or "quick"
            told.append({"fd": sockets[-1].fileno(), "how": how, "seed": node.name})
        process = subprocess.Popen(
            [environment_python(), "-P", "-m", "copperfs.lab.local_cluster.name_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[each.fileno() for each in sockets],
            start_new_session=True,
            cwd="/",
            text=True,
        )
        process.returncode = 0  # it lives on
        _keep_helper(cluster, NAMES, process.pid)
        assert process.stdin is not None
        _tell(process.stdin, {"addresses": addresses, "sockets": told})
    finally:
        for each in sockets:
            each.close()
    for node in cluster.nodes:
        files = {
            "hosts": "127.0.0.1 localhost\n",
            "nsswitch.conf": "hosts: files dns\n",
            "resolv.conf": f"nameserver {NAME_SERVER}\n",
        }
        os.makedirs(node.etc, exist_ok=True)
        for name, text in files.items():
            with open(os.path.join(node.etc, name), "w", encoding="ascii") as file:
                file.write(text)


def _open_for_names() -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.bind((NAME_SERVER, 53))
    except OSError:
        opened.close()
        raise
    return opened


def _tell(pipe: IO[str], what: Mapping[str, object]) -> None:
    with pipe:
        json.dump(what, pipe)


def _keep_helper(cluster: Cluster, what: str, pid: int) -> None:
    cluster.helpers.append(Helper(what, pid, start_of(pid) or 0))
    cluster.save()


def end_helpers(cluster: Cluster) -> None:
    """Processes that wait for a helper get an error."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        alive = [each for each in cluster.helpers if start_of(each.pid) == each.started]
        for each in alive:
            with suppress(ProcessLookupError):
                os.kill(each.pid, number)
        deadline = time.monotonic() + WITHIN_S / 2
        while any(start_of(each.pid) == each.started for each in alive):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)


def remove(cluster: Cluster) -> None:
    """Call when all processes have ended."""
    for node in cluster.nodes:
        while (found := mount_at(node.client)) is not None and found.fstype == PFS_SIM_FSTYPE:
            with suppress(MountError):  # it may be gone by now
                unmount(node.client, lazy=True)
        for name in ("hosts", "nsswitch.conf", "resolv.conf"):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(os.path.join(node.etc, name))
        for each in (node.etc, node.client):
            with suppress(OSError):
                os.rmdir(each)
    if cluster.is_shared_mount and mount_at(cluster.directory) is not None:
        _run("umount", "--lazy", cluster.directory)


# ---- one node ------------------------------------------------------------------------------------


def inside(cluster: Cluster, node: ClusterNode) -> list[str]:
    """The command prefix to run another command in a node's surroundings."""
    words = [] if cluster.network is None else NodeNetworks(cluster.network).inside(node.index)
    over: dict[str, str] = {}
    if cluster.clients_at is not None:
        over[cluster.clients_at] = node.client
    if node.conditions.resolver is not None:
        for name in ("hosts", "nsswitch.conf", "resolv.conf"):
            over[os.path.realpath(f"/etc/{name}")] = os.path.join(node.etc, name)
    if over:
        lines = [["mount", "--make-private", each] for each in sorted(set(map(_mount_of, over)))]
        lines += [["mount", "--bind", ours, theirs] for theirs, ours in over.items()]
        script = " && ".join(shlex.join(each) for each in lines)
        # The shell replaces itself, so the process keeps its known id.
        words += ["unshare", "--mount", "--propagation", "unchanged"]
        words += ["sh", "-c", f'{script} && exec "$@"', "sh"]
    if node.conditions.descriptors is not None:
        limit = node.conditions.descriptors
        words += ["prlimit", f"--nofile={limit}:{limit}", "--"]
    return words


def environment(node: ClusterNode, environ: Mapping[str, str]) -> dict[str, str]:
    if not node.conditions.skew:
        return dict(environ)
    before = environ.get("LD_PRELOAD", "")
    return {
        **environ,
        "LD_PRELOAD": f"{_clock_library()} {before}".strip(),
        SKEW_VARIABLE: str(round(node.conditions.skew * 1e9)),
    }


def _clock_library() -> str:
    found = importlib.util.find_spec(CLOCK_MODULE)
    if found is None or found.origin is None:
        raise ClusterError(
            "clocks cannot be made wrong: copperfs was installed without its C part; install it "
            "again where there is a compiler"
        )
    return found.origin


def _mount_of(path: str) -> str:
    while mount_at(path) is None and path != "/":
        path = os.path.dirname(path)
    return path


def _address_of(endpoint: str) -> str:
    return endpoint.removeprefix("tcp://").rpartition(":")[0]


def _check_tools(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise ClusterError(f"a mixed cluster needs the command {tool}; install util-linux")


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(command)}: no end within {WITHIN_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ClusterError(f"{' '.join(command)}: {said[0]}")
