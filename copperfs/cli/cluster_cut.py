"""``copperfs cluster cut``: pull the cable of a node of a cluster."""

import argparse

from copperfs.cli.cluster_words import add_node

NAME = "cluster cut"
HELP = "cut the link of a node: what it sends is lost, and so is what is sent to it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_node(parser)


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cluster.network import network_of
    from copperfs.cluster.state import running

    network, index = network_of(running(arguments.dir), arguments.node)
    network.cut(index)
    return 0
