"""``copperfs cluster heal``: plug the cable of a node in again."""

import argparse

from copperfs.cli.cluster_words import add_node

NAME = "cluster heal"
HELP = "mend the link of a node that was cut"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_node(parser)


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cluster.network import network_of
    from copperfs.cluster.state import running

    network, index = network_of(running(arguments.dir), arguments.node)
    network.heal(index)
    return 0
