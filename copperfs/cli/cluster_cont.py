"""``copperfs cluster cont``: let daemons of a cluster that were stopped go on."""

import argparse

from copperfs.cli.cluster_words import add_nodes

NAME = "cluster cont"
HELP = "let the daemons of nodes that were stopped go on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_nodes(parser)


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cluster.hurt import cont

    cont(arguments.dir, arguments.nodes)
    return 0
