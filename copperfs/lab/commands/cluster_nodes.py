"""``copperfs cluster kill``, ``start``, ``stop``, ``cont``, ``cut``, ``drop`` and ``heal``."""

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from copperfs.cli.output import waiting
from copperfs.cli.sigterm import ended_by_sigterm
from copperfs.lab.commands.cluster_status import add_directory

if TYPE_CHECKING:
    from copperfs.lab.local_cluster.node_networks import NodeNetworks

DIRECTIONS = ("both", "towards", "away")


@dataclass(frozen=True, slots=True)
class NodesCommand:
    """See ``copperfs.cli.main.Command``."""

    NAME: str
    HELP: str
    act: Callable[[Namespace], None]
    takes_several: bool = True
    add_more: Callable[[ArgumentParser], object] | None = None

    def add_arguments(self, parser: ArgumentParser) -> None:
        if self.takes_several:
            parser.add_argument("nodes", nargs="+", metavar="NODE", help="node3, or 3")
        else:
            parser.add_argument("node", metavar="NODE", help="node3, or 3")
        add_directory(parser)
        if self.add_more is not None:
            self.add_more(parser)

    def run(self, arguments: Namespace) -> int:
        self.act(arguments)
        return 0


# ---- daemons -------------------------------------------------------------------------------------


def _add_leave(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--leave", action="store_true", help="leave the dead mounts, which answer with errors"
    )


def _kill(arguments: Namespace) -> None:
    from copperfs.lab.local_cluster.node_faults import kill

    kill(arguments.dir, arguments.nodes, leave=arguments.leave)


def _start(arguments: Namespace) -> None:
    from copperfs.lab.local_cluster.node_faults import start

    with ended_by_sigterm(), waiting("waiting until they answer"):
        start(arguments.dir, arguments.nodes, os.environ)


def _stop(arguments: Namespace) -> None:
    from copperfs.lab.local_cluster.node_faults import stop

    stop(arguments.dir, arguments.nodes)


def _cont(arguments: Namespace) -> None:
    from copperfs.lab.local_cluster.node_faults import cont

    cont(arguments.dir, arguments.nodes)


# ---- links ---------------------------------------------------------------------------------------


def _network(arguments: Namespace) -> "tuple[NodeNetworks, int]":
    from copperfs.lab.local_cluster.cluster_state import running
    from copperfs.lab.local_cluster.node_networks import network_of

    return network_of(running(arguments.dir), arguments.node)


def _cut(arguments: Namespace) -> None:
    network, index = _network(arguments)
    network.cut(index)


def _heal(arguments: Namespace) -> None:
    network, index = _network(arguments)
    network.heal(index)


def _add_loss(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--share", type=_share, default=1.0, metavar="S", help="of the packets; default: 1, all"
    )
    parser.add_argument(
        "--direction",
        choices=DIRECTIONS,
        default=DIRECTIONS[0],
        help="towards the node, away from it, or both (the default)",
    )


def _drop(arguments: Namespace) -> None:
    from copperfs.lab.local_cluster.node_networks import check_drop_possible

    network, index = _network(arguments)
    check_drop_possible()
    network.drop(
        index,
        arguments.share,
        towards=arguments.direction != "away",
        away=arguments.direction != "towards",
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ArgumentTypeError(f"{text!r} is not a share above 0 and up to 1")
    return share


COMMANDS = {
    "kill": NodesCommand(
        "cluster kill",
        "kill the daemons of nodes, as a crash would, and unmount",
        _kill,
        add_more=_add_leave,
    ),
    "start": NodesCommand(
        "cluster start",
        "start killed or unmounted nodes again, with nothing cached",
        _start,
    ),
    "stop": NodesCommand("cluster stop", "freeze the daemons of nodes", _stop),
    "cont": NodesCommand("cluster cont", "let frozen daemons go on", _cont),
    "cut": NodesCommand(
        "cluster cut",
        "cut the link of a node in both directions",
        _cut,
        takes_several=False,
    ),
    "drop": NodesCommand(
        "cluster drop",
        "make the link of a node lose packets",
        _drop,
        takes_several=False,
        add_more=_add_loss,
    ),
    "heal": NodesCommand("cluster heal", "mend the link of a node", _heal, takes_several=False),
}
