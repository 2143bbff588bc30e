"""``copperfs cluster up``: starts N real daemons with N mounts."""

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from copperfs.cli.options import add_option_flags, argument_type, resolve_options
from copperfs.cli.output import waiting
from copperfs.cli.sigterm import ended_by_sigterm
from copperfs.config.settings import MIB, RUN_ONLY, Origin, check_tier, settings_of, whole_number
from copperfs.lab.commands.cluster_status import report
from copperfs.model.errors import ClusterError

if TYPE_CHECKING:
    from copperfs.lab.local_cluster.bring_up import Differing

NAME = "cluster up"
HELP = "start a job on this machine, with a daemon and a mount for each node"

NODES_MAX = 256
SEED_MAX = 10**12 - 1
MEMORY_MIN_BYTES = 64 * MIB
# The cluster sets these itself.
OWN = frozenset(
    [
        *("bootstrap", "rendezvous", "nodes", "hostfile", "key_file"),
        *("node_name", "listen", "port", "foreground", "log_file", "events"),
        "metrics",
    ]
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--nodes",
        type=argument_type(whole_number(1, NODES_MAX)),
        required=True,
        metavar="N",
        help="how many nodes to start",
    )
    parser.add_argument(
        "--dir",
        required=True,
        metavar="D",
        help="its directory, made if missing; the mounts are D/node0/mnt, D/node1/mnt and so on, "
        "with logs beside them",
    )
    parser.add_argument(
        "--netns",
        action="store_true",
        help="give each node a network namespace and an address, so that links can be cut "
        "(copperfs cluster cut); needs root",
    )
    differing = parser.add_argument_group("nodes that differ, as those of a real cluster do")
    differing.add_argument(
        "--mixed",
        type=argument_type(whole_number(0, SEED_MAX)),
        nargs="?",
        const=1,
        metavar="NUMBER",
        help="draw from NUMBER (1) each node's clock error, memory, descriptors, start, and with "
        "--netns its resolver's delay; implies --own-clients. Needs root",
    )
    differing.add_argument(
        "--own-clients",
        nargs="?",
        const="",
        metavar="PATH",
        help="give each node a client of its own, with its own device number, of PATH, at or "
        "below the source (the source itself). Needs root",
    )
    differing.add_argument(
        "--own-inodes",
        action="store_true",
        help="these clients number files by themselves, as sshfs does",
    )
    differing.add_argument(
        "--with",
        dest="conditions",
        nargs="+",
        default=[],
        metavar="NODE:NAME=VALUE,...",
        help="conditions of single nodes: skew (seconds by which the clock is wrong), "
        "descriptors, memory (a share of the others'), resolver (quick, slow or failing), "
        "start (seconds after the first)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_option_flags(parser, without=OWN | set(RUN_ONLY))


def run(arguments: argparse.Namespace) -> int:
    nodes: int = vars(arguments).pop("nodes")  # here it is no setting of the daemons
    differing = _differing(arguments, nodes)
    resolved = resolve_options(arguments)
    settings = settings_of("", resolved)
    by_default = {each.option.name for each in resolved if each.origin is Origin.DEFAULT}
    memory_bytes, tier_memory_bytes = settings.memory_bytes, settings.tier_memory_bytes
    if "memory_bytes" in by_default:  # all nodes together get the memory of one
        memory_bytes = max(MEMORY_MIN_BYTES, memory_bytes // nodes // MIB * MIB)
    if "tier_memory_bytes" in by_default:
        tier_memory_bytes = min(tier_memory_bytes, memory_bytes)
    check_tier(settings)
    tier_dir = settings.tier_dir and os.path.abspath(settings.tier_dir)
    settings = replace(
        settings,
        source=os.path.abspath(settings.source),
        memory_bytes=memory_bytes,
        tier_memory_bytes=tier_memory_bytes,
        tier_dir=tier_dir,
        tier_size_bytes=_tier_size_bytes(tier_dir, settings.tier_size_bytes, nodes),
        bootstrap="auto",
        **dict.fromkeys(OWN - {"bootstrap", "foreground"}),  # type: ignore[arg-type]
        foreground=False,
        # Who kills a daemon here wants a node to be lost.
        takeover=settings.takeover and "takeover" not in by_default,
    )
    if differing.clients_at == "":
        differing = replace(differing, clients_at=settings.source)
    from copperfs.lab.local_cluster.bring_up import up

    with ended_by_sigterm(), waiting(f"0 of {nodes} nodes are up") as say:
        cluster = up(
            arguments.dir,
            nodes,
            settings,
            own_networks=arguments.netns,
            differing=differing,
            environ=os.environ,
            tell=lambda ready: say(f"{ready} of {nodes} nodes are up"),
        )
    report(cluster, as_json=arguments.json)
    return 0


def _differing(arguments: argparse.Namespace, nodes: int) -> "Differing":
    from copperfs.lab.local_cluster.bring_up import Differing
    from copperfs.lab.local_cluster.conditions import USUAL, draw_conditions, parse_conditions

    conditions = [USUAL] * nodes
    clients: str | None = arguments.own_clients
    if arguments.mixed is not None:
        conditions = draw_conditions(arguments.mixed, nodes)
        if not arguments.netns:  # in one network there is one resolver
            conditions = [replace(each, resolver=None) for each in conditions]
        clients = clients or ""
    if arguments.own_inodes and clients is None:
        raise ClusterError("--own-inodes says how clients number files; add --own-clients")
    return Differing(
        arguments.mixed,
        parse_conditions(arguments.conditions, conditions),
        clients and os.path.abspath(clients),
        arguments.own_inodes,
    )


def _tier_size_bytes(tier_dir: str | None, given: int | None, nodes: int) -> int | None:
    """The nodes share one disk."""
    if tier_dir is None or given is not None:
        return given
    from copperfs.chunkstore.default_budget import default_budget_bytes

    return default_budget_bytes(tier_dir) // nodes
