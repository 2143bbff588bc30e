"""``copperfs cluster heal``: restores the network link of a node of a cluster."""

import argparse

from copperfs.cli.cluster_arguments import add_node

NAME = "cluster heal"
HELP = "mend the link of a node that was cut"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_node(parser)


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.local_cluster.cluster_state import running
    from copperfs.lab.local_cluster.node_networks import network_of

    network, index = network_of(running(arguments.dir), arguments.node)
    network.heal(index)
    return 0
