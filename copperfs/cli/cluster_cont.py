"""``copperfs cluster cont``: let daemons of a cluster that were stopped go on."""

import argparse

NAME = "cluster cont"
HELP = "let the daemons of nodes that were stopped go on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="+", metavar="NODE", help="node3, or just 3")
    parser.add_argument("--dir", required=True, metavar="D", help="where the cluster lives")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cluster.hurt import cont

    cont(arguments.dir, arguments.nodes)
    return 0
