"""``copperfs cluster drop``: makes the link of a node of a cluster lose packets."""

import argparse

from copperfs.cli.cluster_arguments import add_node

NAME = "cluster drop"
HELP = "make the link of a node lose packets, all or a share, in one direction or both"

DIRECTIONS = ("both", "towards", "away")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_node(parser)
    parser.add_argument(
        "--share", type=_share, default=1.0, metavar="S", help="of the packets; default: 1, all"
    )
    parser.add_argument(
        "--direction",
        choices=DIRECTIONS,
        default=DIRECTIONS[0],
        help="towards the node, away from it, or both; default: both",
    )


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.local_cluster.cluster_state import running
    from copperfs.lab.local_cluster.node_networks import check_drop_possible, network_of

    network, index = network_of(running(arguments.dir), arguments.node)
    check_drop_possible()
    network.drop(
        index,
        arguments.share,
        towards=arguments.direction != "away",
        away=arguments.direction != "towards",
    )
    return 0


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and up to 1")
    return share
