"""``copperfs cluster start``: restarts nodes of a cluster whose daemons have ended."""

import argparse
import os

from copperfs.cli.cluster_arguments import add_nodes
from copperfs.cli.output import waiting
from copperfs.cli.sigterm import ended_by_sigterm

NAME = "cluster start"
HELP = "start nodes again that were killed or unmounted: the same nodes, with nothing cached"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_nodes(parser)


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.local_cluster.node_faults import start

    with ended_by_sigterm(), waiting("waiting until they answer"):
        start(arguments.dir, arguments.nodes, os.environ)
    return 0
