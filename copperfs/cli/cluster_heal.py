"""``copperfs cluster heal``: plug the cable of a node in again."""

import argparse

NAME = "cluster heal"
HELP = "mend the link of a node that was cut"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="node3, or just 3")
    parser.add_argument("--dir", required=True, metavar="D", help="where the cluster lives")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cluster.network import network_of
    from copperfs.cluster.state import running

    network, index = network_of(running(arguments.dir), arguments.node)
    network.heal(index)
    return 0
