"""``python -m tests.mutants``: draw mutants, and see whether tests and seeds notice them."""

import argparse
import gc
import importlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.baseline import SEEDS, TESTS, Baseline, files_of, measure
from tests.mutants.loading import ROOT, modules
from tests.mutants.operators import Mutation, draw
from tests.mutants.trial import Outcome, try_seeds, try_tests

FIRST_TESTS, FIRST_FILES = 60, 5
"""Most mutants die of one of the quickest tests that reach them."""
STEPS = UNIT, SCENARIO, SEED = "unit", "scenario", "seed"
SURVIVED = "survived"


@dataclass(slots=True)
class Trials:
    baseline: Baseline
    scratch: Path
    budget_s: float
    """CPU time of a healthy tree, for the tests, the scenarios and the seeds."""

    def judge(self, mutation: Mutation) -> dict[str, object]:
        began = time.monotonic()
        reaching = self.baseline.reaching(mutation)
        tests, stories, seeds = (self._affordable(reaching, each) for each in STEPS)
        first = _first(tests)
        others = [each for each in tests if each not in set(first)]
        cpu_s = 0.0
        for wanted in (first, others, stories):
            outcome = self._tests(mutation, wanted)
            cpu_s += outcome.cpu_s
            if outcome.by is not None:
                break
        else:
            numbers = [int(each.split()[1]) for each in seeds]
            outcome = try_seeds(mutation, numbers, self.baseline.limits, self.scratch)
            cpu_s += outcome.cpu_s
        return {
            **asdict(mutation),
            "reached_by": len(reaching),
            "tried": len(tests) + len(stories) + len(seeds),
            "killed_by": outcome.by,
            "verdict": verdict_of(outcome),
            "detail": outcome.detail,
            "cpu_s": round(cpu_s, 1),
            "wall_s": round(time.monotonic() - began, 1),
        }

    def _affordable(self, reaching: Sequence[str], kind: str) -> list[str]:
        left, found = self.budget_s, []
        for name in reaching:
            if kind_of(name) == kind:
                left -= self.baseline.limits[name].cpu_s
                if left < 0:
                    break
                found.append(name)
        return found

    def _tests(self, mutation: Mutation, wanted: Sequence[str]) -> Outcome:
        left = list(wanted)
        while left:
            outcome = try_tests(mutation, left, self.baseline.limits, self.scratch)
            if outcome.by is None or outcome.detail == "SIGPROF":
                return outcome
            is_test = outcome.by in left  # and not an import, or the collection of the tests
            suspects = [outcome.by] if is_test else left
            again = try_tests(mutation, suspects, self.baseline.limits, self.scratch)
            if again.by is not None:
                return again
            left = left[left.index(outcome.by) + 1 :] if is_test else []
        return Outcome(None, "passed", "", 0.0)


def kind_of(name: str) -> str:
    if name.startswith("seed"):
        return SEED
    is_story = name.startswith(("tests/sim/", "tests/unit/test_scenarios.py"))
    return SCENARIO if is_story else UNIT


def verdict_of(outcome: Outcome) -> str:
    if outcome.by is None:
        return SURVIVED
    return "timeout" if outcome.how == "timeout" else kind_of(outcome.by)


def _first(names: Sequence[str]) -> list[str]:
    files: dict[str, None] = {}
    first: list[str] = []
    for name in names:
        file = name.partition("::")[0]
        if len(first) < FIRST_TESTS and (file in files or len(files) < FIRST_FILES):
            files[file] = None
            first.append(name)
    return first


# --- many of them ---------------------------------------------------------------------------------


def carry_out(mutants: Sequence[Mutation], trials: Trials, jobs: int, results: Path) -> None:
    """Each worker takes the next number from a pipe, which holds them all."""
    reading, writing = os.pipe()
    os.write(writing, b"".join(number.to_bytes(4, "big") for number in range(len(mutants))))
    os.close(writing)
    workers = []
    for at in range(jobs):
        worker = os.fork()
        if worker:
            workers.append(worker)
            continue
        status = 1
        try:
            trials.scratch = trials.scratch / f"worker{at}"
            trials.scratch.mkdir(exist_ok=True)
            while number := os.read(reading, 4):
                _one(int.from_bytes(number, "big"), mutants, trials, results)
            status = 0
        finally:
            os._exit(status)
    os.close(reading)
    statuses = [os.waitpid(worker, 0)[1] for worker in workers]
    assert not any(statuses), f"a worker ended with {statuses}"


def _one(number: int, mutants: Sequence[Mutation], trials: Trials, results: Path) -> None:
    mutation = mutants[number]
    result = trials.judge(mutation)
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    where = f"{mutation.module}:{mutation.line}"
    what = f"{result['verdict']:8} {result['cpu_s']:>6} s  {where:28} {mutation.shown()[:70]}"
    print(f"{number + 1}/{len(mutants)} {what}", flush=True)


def table(results: Sequence[dict[str, object]]) -> str:
    kinds = (UNIT, SCENARIO, SEED, "timeout", SURVIVED)
    lines = ["| module | drawn | " + " | ".join(kinds) + " |", "| --- |" + " --- |" * 6]
    rows = {str(each["module"]): [] for each in results}  # type: dict[str, list[object]]
    for each in results:
        rows[str(each["module"])].append(each["verdict"])
    for name, found in [*sorted(rows.items()), ("all", [each["verdict"] for each in results])]:
        count = Counter(found)
        cells = [str(len(found)), *(str(count[kind] or "") for kind in kinds)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    killed = sum(each["verdict"] != SURVIVED for each in results)
    return "\n".join(
        [*lines, "", f"{killed} of {len(results)}: {killed / len(results):.1%} killed"]
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which mutants are drawn")
    parser.add_argument("--count", type=int, default=300, help="how many")
    parser.add_argument(
        "--only", nargs="+", metavar="MODULE", help="draw in node/routing/route.py alone"
    )
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="of the simulator")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="DIRECTORY")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on with these results")
    parser.add_argument("--again", action="store_true", help="try those that survived once more")
    parser.add_argument(
        "--budget", type=float, default=float("inf"), metavar="S", help="of CPU time a step"
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "mutants", metavar="DIRECTORY"
    )
    return parser.parse_args()


def main() -> int:
    given = arguments()
    # the order of a set may decide what is tried
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.mutants", *sys.argv[1:]])
    given.work.mkdir(parents=True, exist_ok=True)
    sources = {
        name: source for name, source in modules().items() if not given.only or name in given.only
    }
    mutants = draw(sources, given.seed, given.count)
    results = given.resume or given.work / f"seed-{given.seed}-{time.strftime('%H%M%S')}.jsonl"
    done = read(results)
    ended = {key(row) for row in done if row["verdict"] != SURVIVED or not given.again}
    left = [each for each in mutants if key(asdict(each)) not in ended]
    print(f"{len(mutants)} mutants, {len(left)} of them to be tried; results in {results}")
    baseline = measure(given.work, files_of(given.tests), SEEDS[: given.seeds])
    for name, why in baseline.left_out.items():
        print(f"left out: {name}: {' '.join(why.split())[:120]}")
    print(f"{len(baseline.reach)} tests and seeds reach the node or the codec", flush=True)
    for name in baseline.libraries:
        with suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    carry_out(left, Trials(baseline, given.work, given.budget), given.jobs, results)
    print(table(read(results)))
    return 0


def read(results: Path) -> list[dict[str, object]]:
    if not results.exists():
        return []
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    return [*{key(row): row for row in rows}.values()]


def key(row: dict[str, object]) -> tuple[object, ...]:
    return row["module"], row["start"], row["operator"], row["old"], row["new"]


if __name__ == "__main__":
    sys.exit(main())
