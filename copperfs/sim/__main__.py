"""Replay a scenario or a seed, and print the trace: ``python -m copperfs.sim --help``."""

import argparse
import sys
from pathlib import Path

from copperfs.sim.random_run import RandomRun
from copperfs.sim.scenario import Scenario, needs
from copperfs.sim.world import World


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m copperfs.sim", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="a random run, as tests/sim/test_seeds.py has them")
    what.add_argument("scenario", nargs="?", type=Path, help="a file of tests/scenarios/jobs/")
    parser.add_argument("--node", type=int, help="print only what happened to this one")
    parser.add_argument("--last", type=int, default=200, help="so many lines (0: none)")
    chosen = parser.parse_args(arguments)
    world, fault = _replay(chosen)
    if world is not None and chosen.last:
        for line in world.trace.lines(chosen.node)[-chosen.last :]:
            print(line)
    print(f"FAILED: {fault}" if fault else "well", file=sys.stderr)
    return 1 if fault else 0


def _replay(chosen: argparse.Namespace) -> tuple[World | None, str | None]:
    if chosen.seed is not None:
        run = RandomRun(chosen.seed)
        run.world.trace.keep(1_000_000)
        try:
            run.run()
        except AssertionError as error:
            return run.world, repr(error)
        return run.world, None
    text = chosen.scenario.read_text()
    if needs(text):
        return None, f"it needs {', '.join(needs(text))}"
    scenario = Scenario()
    try:
        scenario.tell(text)
    except AssertionError as error:
        return scenario.world, repr(error)
    return scenario.world, None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
