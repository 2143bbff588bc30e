"""``copperfs cluster down``: ends a cluster, or removes what is left of one."""

import argparse

from copperfs.cli.output import console, print_json, waiting
from copperfs.lab.commands.cluster_status import add_directory

NAME = "cluster down"
HELP = "end a cluster, and remove all that it made, also after it was killed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.local_cluster.teardown import down

    with waiting("ending the nodes"):
        nodes = down(arguments.dir)
    if arguments.json:
        print_json({"directory": arguments.dir, "nodes": nodes})
    elif nodes is None:
        console().print(f"there is no cluster in {arguments.dir}")
    else:
        console().print(f"{nodes} nodes are down")
    return 0
