"""``copperfs cluster kill``: end daemons of a cluster at once, as a crash would."""

import argparse

NAME = "cluster kill"
HELP = "kill the daemons of nodes, as a crash would, and unmount what is then dead"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="+", metavar="NODE", help="node3, or just 3")
    parser.add_argument("--dir", required=True, metavar="D", help="where the cluster lives")
    parser.add_argument(
        "--leave", action="store_true", help="leave the dead mounts, which answer with errors"
    )


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cluster.hurt import kill

    kill(arguments.dir, arguments.nodes, leave=arguments.leave)
    return 0
