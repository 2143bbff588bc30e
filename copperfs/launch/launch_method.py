"""Launch method: decides how the nodes find each other: ``--hostfile``, ``--rendezvous``, an MPI
launcher that started more than one process, or this node alone, in this order. ``--bootstrap``
overrules.

The daemon gets the ``Launch`` over the private channel on which it gets its settings, never in its
arguments or its environment, which others can read.
"""

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TextIO

from copperfs.config.settings import Settings
from copperfs.launch.hostfile import (
    PORT_DEFAULT,
    HostLine,
    check_names_this_node,
    launch_by_hostfile,
    read_hostfile,
)
from copperfs.launch.launcher_variables import Surroundings, look_around
from copperfs.launch.mpi_launch import launch_by_mpi
from copperfs.launch.node_identity import Invitation, check, invite, own_name
from copperfs.launch.rendezvous import Meeting, meet
from copperfs.model.errors import CopperError, LaunchError
from copperfs.model.roster import BadRoster, Roster
from copperfs.model.types import NodeId
from copperfs.node.routing.trees import Trees


@dataclass(frozen=True, slots=True)
class Launch:
    roster: Roster
    me: NodeId
    listener: socket.socket
    """Bound, listening, and this node's endpoint in the roster."""
    secret_key: str = field(default="", repr=False)
    """CURVE, in z85; empty without security."""

    def to_json(self) -> str:
        values = {
            "roster": self.roster.to_json(),
            "me": self.me,
            "listener": self.listener.fileno(),
            "secret_key": self.secret_key,
        }
        return json.dumps(values)

    @classmethod
    def receive_from(cls, lines: TextIO) -> "Launch | None":
        line = lines.readline()
        values = json.loads(line)
        if values is None:
            return None
        listener = socket.socket(fileno=values["listener"])
        listener.set_inheritable(False)
        return cls.from_json(line, listener)

    @classmethod
    def from_json(cls, line: str, listener: socket.socket) -> "Launch":
        values = json.loads(line)
        roster = Roster.from_json(values["roster"])
        return cls(roster, NodeId(values["me"]), listener, values["secret_key"])


def trees_of(settings: Settings, launch: Launch) -> Trees:
    nodes = len(launch.roster)
    return Trees(nodes, launch.me, settings.fanout, settings.push_fanout, settings.trees)


def line_of(launch: Launch | None) -> str:
    """One line for the daemon; ``null`` for a node alone."""
    return "null" if launch is None else launch.to_json()


# ---- the four ways -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alone:
    """One node; no roster."""


@dataclass(frozen=True, slots=True)
class ByMpi:
    processes: int


@dataclass(frozen=True, slots=True)
class ByRendezvous:
    directory: str
    nodes: int


@dataclass(frozen=True, slots=True)
class ByHostfile:
    hosts: tuple[HostLine, ...]


Way = Alone | ByMpi | ByRendezvous | ByHostfile


def find_way(settings: Settings, around: Surroundings) -> Way:
    if settings.bootstrap == "none":
        return Alone()
    if settings.rendezvous is not None and settings.hostfile is not None:
        raise LaunchError("--rendezvous and --hostfile are two ways to launch; give one of them")
    if settings.bootstrap == "mpi":
        if around.mpi_processes is None:
            raise LaunchError(
                "--bootstrap mpi needs an MPI launcher, and the environment has none; start it "
                "with mpiexec or srun --mpi=pmix"
            )
        return ByMpi(around.mpi_processes)
    if settings.hostfile is not None:
        hosts = read_hostfile(settings.hostfile, settings.port or PORT_DEFAULT)
        _check_count(settings, len(hosts), f"the hostfile {settings.hostfile} names")
        if len(hosts) > 1:
            return ByHostfile(hosts)
        check_names_this_node(settings, hosts[0])
        return Alone()
    if settings.rendezvous is not None:
        nodes = settings.nodes or around.nodes
        if nodes is None:
            raise LaunchError(
                "--rendezvous needs the number of nodes, which the environment does not say; give "
                "--nodes N"
            )
        return ByRendezvous(settings.rendezvous, nodes) if nodes > 1 else Alone()
    if around.mpi_processes is not None and around.mpi_processes > 1:
        return ByMpi(around.mpi_processes)
    if around.processes_without_mpi is not None and around.processes_without_mpi > 1:
        raise LaunchError(
            f"{around.processes_without_mpi} processes were started in a way that MPI cannot use; "
            "give --rendezvous DIR, srun --mpi=pmix or pmi2, or --bootstrap none if each node is "
            "to mount alone"
        )
    if settings.nodes is not None and settings.nodes > 1:
        raise LaunchError(
            f"--nodes {settings.nodes} needs a way for the nodes to find each other; give "
            "--rendezvous DIR or --hostfile FILE, or start them with mpiexec or srun"
        )
    return Alone()


def launch(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    prepare: Callable[[], None],
    tell: Callable[[str], None],
    rank_is_node: bool = True,
) -> tuple[Way, Launch | None]:
    """LaunchError is one sentence.

    ``prepare`` has to succeed on a node before it takes part; ``tell`` is given progress.
    ``rank_is_node``: the launcher started one process on each node, so its ranks order them, and
    one of those that meet has rank 0.
    """
    around = look_around(environ, names_wanted=settings.rendezvous is not None)
    way = find_way(settings, around)
    if isinstance(way, ByMpi):
        return way, _by_mpi(settings, way, around, prepare, tell)
    prepare()
    try:
        if isinstance(way, Alone):
            return way, None
        if isinstance(way, ByHostfile):
            roster, me, own = launch_by_hostfile(settings, way.hosts, around.job)
        else:
            own = invite(settings)
            names = around.names if len(around.names) == way.nodes else ()
            timeout_s = settings.launch_timeout_s
            meeting = Meeting(way.directory, around.job, way.nodes, names, timeout_s)
            roster, me = meet(meeting, own.member, around.rank if rank_is_node else None, tell)
        check(roster)
    except BadRoster as error:
        raise LaunchError(str(error)) from error
    return way, Launch(roster, me, own.listener, own.secret_key)


def _by_mpi(
    settings: Settings,
    way: ByMpi,
    around: Surroundings,
    prepare: Callable[[], None],
    tell: Callable[[str], None],
) -> Launch | None:
    own: Invitation | LaunchError
    try:
        _check_count(settings, way.processes, "the launcher started one process on each of")
        prepare()
        own = invite(settings)
    except CopperError as error:
        own = LaunchError(str(error))
    roster, me = launch_by_mpi(own_name(settings), own, around, settings.launch_timeout_s, tell)
    assert isinstance(own, Invitation), "launch_by_mpi fails on all ranks if one has none"
    if len(roster) == 1:
        own.listener.close()
        return None
    return Launch(roster, me, own.listener, own.secret_key)


def _check_count(settings: Settings, found: int, who: str) -> None:
    if settings.nodes is not None and settings.nodes != found:
        raise LaunchError(f"{who} {found} nodes, and --nodes says {settings.nodes}")
