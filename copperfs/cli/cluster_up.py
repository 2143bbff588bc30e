"""``copperfs cluster up``: N real daemons with N mounts on this machine."""

import argparse
import os
from dataclasses import replace

from copperfs.cli.cluster_status import as_json, show
from copperfs.cli.ending import ended_by_sigterm
from copperfs.cli.options import add_option_flags, resolve_options
from copperfs.cli.output import print_json, waiting
from copperfs.config import MIB, Origin, check_tier, settings_of

NAME = "cluster up"
HELP = "start a whole job on this machine, each node a daemon with a mount, for trying it out"

NODES_MAX = 256
MEMORY_MIN_BYTES = 64 * MIB
# The cluster sees to these: how nodes find each other, and what each node has for itself.
OWN = frozenset(
    [
        *("bootstrap", "rendezvous", "nodes", "hostfile", "key_file"),
        *("node_name", "listen", "port", "foreground", "log_file", "events"),
        "metrics",
    ]
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--nodes", type=_nodes, required=True, metavar="N", help="how many")
    parser.add_argument(
        "--dir",
        required=True,
        metavar="D",
        help="where it lives; the mounts are at D/node0/mnt, D/node1/mnt and so on, the logs "
        "beside them. It is made if it is missing",
    )
    parser.add_argument(
        "--netns",
        action="store_true",
        help="give each node a network namespace with an address of its own, so that links can be "
        "cut (copperfs cluster cut); needs root",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_option_flags(parser, without=OWN)


def run(arguments: argparse.Namespace) -> int:
    nodes: int = vars(arguments).pop("nodes")  # here it is no setting of the daemons
    resolved = resolve_options(arguments)
    settings = settings_of("", resolved)
    by_default = {each.option.name for each in resolved if each.origin is Origin.DEFAULT}
    memory_bytes, tier_memory_bytes = settings.memory_bytes, settings.tier_memory_bytes
    if "memory_bytes" in by_default:  # all nodes together have that of one
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
    )
    from copperfs.cluster.status import status_of
    from copperfs.cluster.up import up

    with ended_by_sigterm(), waiting(f"0 of {nodes} nodes are up") as say:
        cluster = up(
            arguments.dir,
            nodes,
            settings,
            own_networks=arguments.netns,
            environ=os.environ,
            tell=lambda ready: say(f"{ready} of {nodes} nodes are up"),
        )
    found = status_of(cluster)
    if arguments.json:
        print_json(as_json(cluster, found))
    else:
        show(cluster, found)
    return 0


def _tier_size_bytes(tier_dir: str | None, given: int | None, nodes: int) -> int | None:
    """The nodes share one disk."""
    if tier_dir is None or given is not None:
        return given
    from copperfs.store.room import default_budget_bytes

    return default_budget_bytes(tier_dir) // nodes


def _nodes(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:6]) <= NODES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of nodes from 1 to {NODES_MAX}")
    return int(text)
