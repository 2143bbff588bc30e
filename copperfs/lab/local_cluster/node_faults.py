"""Node faults: kills and restarts, or stops and continues, single nodes of a cluster.

A restarted node keeps its name, place in the roster, address and keys. ``node_networks.py`` has the
faults of links.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from copperfs.lab.local_cluster.cluster_state import Cluster, ClusterNode, locked, running
from copperfs.lab.local_cluster.start_nodes import StartingNode, start_daemon, told, wait_mounted
from copperfs.lab.local_cluster.teardown import (
    KILLED_WITHIN_S,
    signal_node,
    unmount_node,
    wait_for_end,
)
from copperfs.model.errors import ClusterError

# Another command holds the cluster's lock until the daemon that it starts has begun.
LOCKED_FOR_S = 10.0
POLL_S = 0.02


def kill(directory: str, names: Sequence[str], *, leave: bool = False) -> None:
    """Kill the daemons and unmount the dead mounts. With *leave* these stay and answer with an
    error."""
    cluster = running(directory)
    nodes = [cluster.node(name) for name in names]
    for each in nodes:
        signal_node(each, signal.SIGKILL)
    wait_for_end(nodes, KILLED_WITHIN_S)
    for each in nodes:
        if each.is_alive():
            raise ClusterError(f"the daemon of {each.name} does not end: it hangs in the source")
        if not leave:
            unmount_node(each)


def start(directory: str, names: Sequence[str], environ: Mapping[str, str]) -> None:
    """Start ended daemons again, clean up their mounts first, and wait until they have mounted."""
    with ExitStack() as stack:
        with ExitStack() as lock:
            # The lock is not held during the wait: a node may need another that returns, too.
            _lock(directory, lock)
            cluster = running(directory)
            nodes = list({each.name: each for each in map(cluster.node, names)}.values())
            alive = [each.name for each in nodes if each.is_alive()]
            if alive:
                raise ClusterError(f"{alive[0]} runs already; kill it first")
            started = [_start(cluster, each, environ, stack) for each in nodes]
        wait_mounted(started)


def stop(directory: str, names: Sequence[str]) -> None:
    _signal(directory, names, signal.SIGSTOP)


def cont(directory: str, names: Sequence[str]) -> None:
    _signal(directory, names, signal.SIGCONT)


def _signal(directory: str, names: Sequence[str], number: signal.Signals) -> None:
    cluster = running(directory)
    nodes = [cluster.node(name) for name in names]
    ended = [each.name for each in nodes if not each.is_alive()]
    if ended:
        raise ClusterError(f"the daemon of {ended[0]} has ended")
    for each in nodes:
        signal_node(each, number)


def _start(
    cluster: Cluster, node: ClusterNode, environ: Mapping[str, str], stack: ExitStack
) -> StartingNode:
    unmount_node(node)
    settings, launch = told(cluster, node)
    if launch is not None:
        stack.callback(launch.listener.close)
    return start_daemon(cluster, node, settings, launch, environ, stack)


def _lock(directory: str, stack: ExitStack) -> None:
    deadline = time.monotonic() + LOCKED_FOR_S
    running(directory)  # its error says more than the lock's
    while True:
        try:
            stack.enter_context(locked(os.path.realpath(directory)))
        except ClusterError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        else:
            return
