"""``copperfs cluster kill``: kills daemons of a cluster, as a crash would."""

import argparse

from copperfs.cli.cluster_arguments import add_nodes

NAME = "cluster kill"
HELP = "kill the daemons of nodes, as a crash would, and unmount what is then dead"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_nodes(parser)
    parser.add_argument(
        "--leave", action="store_true", help="leave the dead mounts, which answer with errors"
    )


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.local_cluster.node_faults import kill

    kill(arguments.dir, arguments.nodes, leave=arguments.leave)
    return 0
