"""``copperfs cluster cont``: resumes the frozen daemons of a cluster."""

import argparse

from copperfs.cli.cluster_arguments import add_nodes

NAME = "cluster cont"
HELP = "let the daemons of nodes that were stopped go on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_nodes(parser)


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.local_cluster.node_faults import cont

    cont(arguments.dir, arguments.nodes)
    return 0
