"""``copperfs sim start``: shows what the start of copperfs itself costs a shared filesystem."""

import argparse
from dataclasses import asdict

from copperfs.cli.output import print_json, print_table
from copperfs.config.settings import bytes_text
from copperfs.model.errors import SimulationError

NAME = "sim start"
HELP = "show what starting copperfs on all nodes costs the filesystem on which it is installed"

PROCESSES_MAX = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes", type=int, default=2000, metavar="N", help="nodes of the job (%(default)s)"
    )
    parser.add_argument(
        "--ranks", type=int, default=12, metavar="N", help="processes of each node (%(default)s)"
    )
    parser.add_argument(
        "--costs",
        default="slingshot",
        metavar="COSTS",
        help="10gbe, slingshot, or a file by copperfs sim calibrate; default %(default)s",
    )
    parser.add_argument(
        "--skew",
        type=float,
        default=0.3,
        metavar="SECONDS",
        help="seconds over which the processes start (%(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the starts (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.sim.costs import costs_of
    from copperfs.lab.sim.start_storm import BUNDLED, MODULES, start_all

    nodes, ranks = arguments.nodes, arguments.ranks
    if not (nodes > 0 and ranks > 0 and nodes * ranks <= PROCESSES_MAX):
        raise SimulationError(
            f"--nodes {nodes} --ranks {ranks}: give at least 1 of each, and at most "
            f"{PROCESSES_MAX:,} processes"
        )
    if not arguments.skew >= 0:
        raise SimulationError(f"--skew {arguments.skew} is no time; give 0 or more seconds")
    costs = costs_of(arguments.costs).source
    found = {
        how: start_all(each, nodes, ranks, costs, skew_s=arguments.skew, seed=arguments.seed)
        for how, each in (("bundle and joining", BUNDLED), ("module by module", MODULES))
    }
    if arguments.json:
        starts = [{"how": how, **asdict(result)} for how, result in found.items()]
        print_json({"version": 1, "nodes": nodes, "ranks": ranks, "starts": starts})
        return 0
    print_table(
        ("started", "metadata operations", "bytes read", "median", "last node"),
        [
            (
                how,
                f"{result.operations:,}",
                bytes_text(result.read_bytes),
                f"{result.median_s:.2f} s",
                f"{result.last_s:.2f} s",
            )
            for how, result in found.items()
        ],
        right=("metadata operations", "bytes read", "median", "last node"),
    )
    return 0
