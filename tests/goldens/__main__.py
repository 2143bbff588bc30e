"""Freezes the goldens, compares with them, and shows one run in full.

python -m tests.goldens check [PART...]      what differs from what is frozen
python -m tests.goldens freeze [PART...]     what copperfs does now is right from now on
python -m tests.goldens trace seed 17        all lines of one run, for diff with another tree
python -m tests.goldens trace scenario parent-hangs
"""

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

from tests.goldens import commands, counted, simulated

FROZEN = Path(__file__).parent / "frozen"
PARTS: dict[str, Callable[[], str]] = {
    "scenarios": simulated.scenarios,
    "seeds": simulated.seeds,
    "help": commands.help_texts,
    "documents": commands.documents,
    "counts": counted.counts,
}
ROWS_SHOWN = 40


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    below = parser.add_subparsers(dest="what", required=True)
    for what in ("check", "freeze"):
        below.add_parser(what).add_argument("part", nargs="*", choices=[[], *PARTS], default=[])
    trace = below.add_parser("trace")
    trace.add_argument("kind", choices=["seed", "scenario"])
    trace.add_argument("name")
    chosen = parser.parse_args(words)
    if chosen.what == "trace":
        run = simulated.run_seed if chosen.kind == "seed" else simulated.run_scenario
        for line in simulated.lines_of(lambda: run(chosen.name)):
            print(line)
        return 0
    parts = chosen.part or list(PARTS)
    if chosen.what == "freeze":
        FROZEN.mkdir(exist_ok=True)
        for part in parts:
            (FROZEN / f"{part}.txt").write_text(PARTS[part]())
        return 0
    return max([_check(part) for part in parts])


def _check(part: str) -> int:
    frozen = FROZEN / f"{part}.txt"
    if not frozen.exists():
        print(f"{part}: nothing is frozen; freeze it on the tree to compare with")
        return 1
    before, now = frozen.read_text().splitlines(), PARTS[part]().splitlines()
    if before == now:
        print(f"{part}: {len(now)} lines are as they were")
        return 0
    rows = list(difflib.unified_diff(before, now, "frozen", "now", lineterm="", n=0))[2:]
    changed = [row for row in rows if not row.startswith("@@")]
    print(f"{part}: {len(changed)} lines differ")
    print(*changed[:ROWS_SHOWN], sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
