"""Start of nodes: starts the daemon of a node, and waits until all that were started have mounted.

The daemon's input (settings, roster, secret key) is also kept in a file beside its log, which only
its owner may read, so ``cluster start`` can bring a killed node back with the same identity.
"""

import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address

from copperfs.config.settings import Settings
from copperfs.fuse.daemon_start import (
    DAEMON_STARTS_WITHIN_S,
    EndedSilentlyError,
    Starting,
    check_answers,
    let_live,
    start_of,
    starting_daemon,
)
from copperfs.lab.local_cluster import surroundings
from copperfs.lab.local_cluster.cluster_state import Cluster, ClusterNode
from copperfs.lab.local_cluster.node_networks import NodeNetworks
from copperfs.launch.launch_method import Launch, line_of
from copperfs.launch.launcher_variables import without_mpi
from copperfs.launch.listen_address import open_listener
from copperfs.model.errors import ClusterError, CopperError, MountError

Tell = Callable[[int], None]
"""Called with the number of nodes that are up."""


@dataclass(frozen=True, slots=True)
class StartingNode:
    node: ClusterNode
    settings: Settings
    daemon: Starting


def start_daemon(
    cluster: Cluster,
    node: ClusterNode,
    settings: Settings,
    launch: Launch | None,
    environ: Mapping[str, str],
    stack: ExitStack,
) -> StartingNode:
    """Start the daemon, and write its process into the state at once. An error that leaves *stack*
    ends it again."""
    daemon = stack.enter_context(
        starting_daemon(
            settings,
            line_of(launch),
            pass_fds=[] if launch is None else [launch.listener.fileno()],
            env=surroundings.environment(node, without_mpi(environ)),
            inside=surroundings.inside(cluster, node),
        )
    )
    node.pid, node.started = daemon.process.pid, start_of(daemon.process.pid) or 0
    cluster.save()
    return StartingNode(node, settings, daemon)


def wait_mounted(started: Sequence[StartingNode], tell: Tell = lambda _: None) -> None:
    """Wait until all have mounted and answer; the first reported failure ends the wait."""
    within_s = DAEMON_STARTS_WITHIN_S + max(each.settings.launch_timeout_s for each in started)
    try:
        _wait(started, within_s, tell)
        for each in started:
            check_answers(each.settings)
    except BaseException:
        for each in started:  # all at once, before the stack waits for each
            each.daemon.process.terminate()
        raise
    for each in started:
        let_live(each.daemon)


def _wait(started: Sequence[StartingNode], within_s: float, tell: Tell) -> None:
    deadline = time.monotonic() + within_s
    ready = 0
    with selectors.DefaultSelector() as selector:
        for index, each in enumerate(started):
            selector.register(each.daemon.channel, selectors.EVENT_READ, index)
        while selector.get_map():
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                missing = [each.data for each in selector.get_map().values()]
                raise ClusterError(
                    f"{len(missing)} of {len(started)} nodes did not mount within {within_s:.0f} "
                    f"s, {started[min(missing)].node.name} among them; is the source hung?"
                )
            for key, _ in events:
                each = started[key.data]
                try:
                    each.daemon.outcome(within_s)
                except EndedSilentlyError:
                    raise MountError(
                        f"the daemon of {each.node.name} ended before it had mounted; the last "
                        f"that it said was: {_last_line(each.node.log)}"
                    ) from None
                except MountError as error:
                    raise MountError(f"{each.node.name}: {error}") from None
                selector.unregister(key.fileobj)
                ready += 1
                tell(ready)


def _last_line(log: str) -> str:
    """Call it before the log is removed with the cluster."""
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        lines = []
    return lines[-1] if lines else "nothing"


# ---- daemon input --------------------------------------------------------------------------------


def keep_told(node: ClusterNode, settings: Settings, launch: Launch | None) -> None:
    try:
        fd = os.open(node.told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            os.fchmod(fd, 0o600)  # an older file may have other modes
            file.write(f"{settings.to_json()}\n{line_of(launch)}\n")
    except OSError as error:
        raise ClusterError(f"{node.told} cannot be written: {error.strerror}") from None


def told(cluster: Cluster, node: ClusterNode) -> tuple[Settings, Launch | None]:
    """The input of *node*'s daemon, with a new socket at its old address; the caller closes it."""
    try:
        with open(node.told, encoding="ascii") as file:
            settings, launch = file.readline(), file.readline()
    except OSError as error:
        raise ClusterError(
            f"{node.name} cannot be started again: {node.told}: {error.strerror}"
        ) from None
    if launch.strip() == "null":
        return Settings.from_json(settings), None
    port = int(node.endpoint.rpartition(":")[2])
    try:
        listener = (
            open_listener(IPv4Address("127.0.0.1"), port)
            if cluster.network is None
            else NodeNetworks(cluster.network).listen(node.index, port)
        )
    except ClusterError:
        raise
    except CopperError as error:
        raise ClusterError(f"{node.name} cannot be started again: {error}") from None
    return Settings.from_json(settings), Launch.from_json(launch, listener)
