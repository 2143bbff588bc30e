"""``copperfs sim replay``: prints the events of a random run or a scenario."""

import argparse
import sys
from pathlib import Path

from copperfs.cli.output import print_json, waiting

NAME = "sim replay"
HELP = "repeat a random run or a scenario, and print its trace"
EPILOG = "exit codes: 0 if all was well; 1 if a promise was broken; 2 wrong usage; 130 interrupted."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, metavar="N", help="a random run of sim sweep seeds")
    what.add_argument("scenario", nargs="?", type=Path, help="a file of tests/scenarios/jobs/")
    parser.add_argument("--node", type=int, metavar="N", help="only events of this node")
    parser.add_argument(
        "--last", type=int, default=200, metavar="N", help="the last N lines (200; 0: none)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = EPILOG


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.sim.replay import replay_scenario, replay_seed

    with waiting("replaying it"):
        if arguments.seed is not None:
            replayed = replay_seed(arguments.seed)
        else:
            replayed = replay_scenario(arguments.scenario)
    lines = list(replayed.lines(arguments.node, arguments.last))
    if arguments.json:
        print_json(
            {
                "well": not replayed.fault,
                "fault": replayed.fault or None,
                "environment": replayed.environment,
                "trace": lines,
            }
        )
        return 1 if replayed.fault else 0
    for line in lines:
        print(line)
    if replayed.environment is not None:
        print(f"environment: {replayed.environment}", file=sys.stderr)
    print(f"FAILED: {replayed.fault}" if replayed.fault else "well", file=sys.stderr)
    return 1 if replayed.fault else 0
