"""Replay a scenario or a seed, and print the trace: ``copperfs sim replay`` with fewer imports."""

import argparse
import sys
from pathlib import Path

from copperfs.lab.sim.replay import replay_scenario, replay_seed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m copperfs.lab.sim", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="a random run, as tests/sim/test_seeds.py has them")
    what.add_argument("scenario", nargs="?", type=Path, help="a file of tests/scenarios/jobs/")
    parser.add_argument("--node", type=int, help="print only what happened to this one")
    parser.add_argument("--last", type=int, default=200, help="so many lines (0: none)")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        replayed = replay_seed(chosen.seed)
    else:
        replayed = replay_scenario(chosen.scenario)
    for line in replayed.lines(chosen.node, chosen.last):
        print(line)
    print(f"FAILED: {replayed.fault}" if replayed.fault else "well", file=sys.stderr)
    return 1 if replayed.fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
