"""Hurting single nodes, and healing them: killed and started again, stopped and continued.

A node that is started again is the same node: name, place in the roster, address and keys; only
what it held is gone. Links are hurt in ``network.py``.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from copperfs.cluster.daemons import StartingNode, start_daemon, told, wait_mounted
from copperfs.cluster.down import KILLED_WITHIN_S, signal_node, unmount_node, wait_for_end
from copperfs.cluster.state import Cluster, ClusterNode, locked, running
from copperfs.errors import ClusterError

# Another command that starts a daemon holds the cluster for as long as that takes to begin.
LOCKED_FOR_S = 10.0
POLL_S = 0.02


def kill(directory: str, names: Sequence[str], *, leave: bool = False) -> None:
    """End the daemons at once, as a crash would, and unmount what is then dead; with *leave* it
    stays, and answers every application with an error."""
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
    """Start the daemons of nodes that have ended, and wait until they have mounted. What a killed
    one has left of its mount is cleaned up first."""
    with ExitStack() as stack:
        with ExitStack() as lock:
            # Not while they are waited for: a node that returns may need another that does.
            _lock(directory, lock)
            cluster = running(directory)
            nodes = list({each.name: each for each in map(cluster.node, names)}.values())
            alive = [each.name for each in nodes if each.is_alive()]
            if alive:
                raise ClusterError(f"{alive[0]} runs already; kill it first")
            started = [_start(cluster, each, environ, stack) for each in nodes]
        wait_mounted(started)


def stop(directory: str, names: Sequence[str]) -> None:
    """The daemons do nothing more, and say nothing (SIGSTOP)."""
    _signal(directory, names, signal.SIGSTOP)


def cont(directory: str, names: Sequence[str]) -> None:
    """They go on where they were (SIGCONT)."""
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
    running(directory)  # a better sentence than that of the lock
    while True:
        try:
            stack.enter_context(locked(os.path.realpath(directory)))
        except ClusterError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        else:
            return
