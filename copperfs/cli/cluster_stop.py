"""``copperfs cluster stop``: freezes daemons of a cluster."""

import argparse

from copperfs.cli.cluster_arguments import add_nodes

NAME = "cluster stop"
HELP = "freeze the daemons of nodes: they do nothing, and say nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_nodes(parser)


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.local_cluster.node_faults import stop

    stop(arguments.dir, arguments.nodes)
    return 0
