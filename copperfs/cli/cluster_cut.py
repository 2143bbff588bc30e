"""``copperfs cluster cut``: cuts the network link of a node of a cluster."""

import argparse

from copperfs.cli.cluster_arguments import add_node

NAME = "cluster cut"
HELP = "cut the link of a node: what it sends is lost, and so is what is sent to it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_node(parser)


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.local_cluster.cluster_state import running
    from copperfs.lab.local_cluster.node_networks import network_of

    network, index = network_of(running(arguments.dir), arguments.node)
    network.cut(index)
    return 0
