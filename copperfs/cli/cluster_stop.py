"""``copperfs cluster stop``: freeze daemons of a cluster."""

import argparse

NAME = "cluster stop"
HELP = "freeze the daemons of nodes: they do nothing, and say nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="+", metavar="NODE", help="node3, or just 3")
    parser.add_argument("--dir", required=True, metavar="D", help="where the cluster lives")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cluster.hurt import stop

    stop(arguments.dir, arguments.nodes)
    return 0
