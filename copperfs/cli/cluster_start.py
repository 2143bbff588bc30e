"""``copperfs cluster start``: bring back nodes of a cluster whose daemons have ended."""

import argparse
import os

from copperfs.cli.cluster_words import add_nodes
from copperfs.cli.ending import ended_by_sigterm
from copperfs.cli.output import waiting

NAME = "cluster start"
HELP = "start nodes again that were killed or unmounted: the same nodes, with nothing cached"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_nodes(parser)


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cluster.hurt import start

    with ended_by_sigterm(), waiting("waiting until they answer"):
        start(arguments.dir, arguments.nodes, os.environ)
    return 0
