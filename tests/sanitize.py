"""``make sanitize``: sanitizers, fuzzers and kill -9, for as many minutes as they are given.

The steps of ``tests/front/steps.py``, and the tests that kill processes in the midst of writing or
plant defects, each get a share of the time. The next run begins with what the fuzzers found, in
``build/sanitize``.

    python -m tests.sanitize [--minutes N] [--jobs N] [--only PART-OF-A-NAME]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from tests.front.steps import PROJECT, STEPS, Step

KEPT = PROJECT / "build" / "sanitize"
MINUTES, JOBS = 6.0, 2
KILLS_S = 60.0
"""For two hundred kills of the store and forty of a daemon, on an idle machine."""
PLANTED_S = 120.0
BUILD_S = 12.0


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    failed: bool
    took_s: float
    said: str


Task = tuple[str, Callable[[], str]]


def play(step: Step, seconds: float) -> str:
    directory = KEPT / step.name
    directory.mkdir(parents=True, exist_ok=True)
    return step.play(step.program(directory), directory, seconds)


def pytest_of(paths: list[str], times: float, *options: str) -> str:
    with tempfile.TemporaryDirectory() as base:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "--basetemp",
                f"{base}/pytest",
                *options,
                *paths,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=PROJECT,
            env={**os.environ, "COPPERFS_KILLS": f"{times:.2f}"},
            check=False,
        )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout.strip().splitlines()[-1]


def tasks_for(seconds: float, only: str) -> list[Task]:
    """Longest first, so that they end together. *seconds* is their sum."""
    left = seconds - PLANTED_S - len(STEPS) * BUILD_S
    kills = max(0.1, left * 0.25 / (2 * KILLS_S))
    each = max(5.0, left * 0.75 / len(STEPS))
    store, daemon = "tests/store/test_kill.py", "tests/mount/test_tier_disk.py"
    tasks: list[Task] = [
        ("planted defects", lambda: pytest_of(["tests/front/test_planted.py"], 1.0)),
        ("kill -9 of the store", lambda: pytest_of([store], kills, "-k", "two_hundred or planted")),
        ("kill -9 of a daemon", lambda: pytest_of([daemon], kills, "-k", "forty")),
    ]
    tasks += [(step.name, lambda step=step: play(step, each)) for step in STEPS]  # type: ignore[misc]
    return [task for task in tasks if only in task[0]]


def do(task: Task) -> Outcome:
    name, work = task
    started = time.monotonic()
    try:
        said, failed = work(), False
    except (AssertionError, subprocess.TimeoutExpired) as error:
        said, failed = str(error), True
    return Outcome(name, failed, time.monotonic() - started, said)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--only", default="")
    given = parser.parse_args(arguments)
    tasks = tasks_for(given.minutes * 60 * given.jobs, given.only)
    if not tasks:
        parser.error(f"no step has {given.only!r} in its name")
    failures = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for done in as_completed([pool.submit(do, task) for task in tasks]):
            outcome = done.result()
            said = "FAILED" if outcome.failed else outcome.said
            print(f"{outcome.name:22} {outcome.took_s:5.0f} s  {said}", flush=True)
            failures += [outcome] if outcome.failed else []
    for outcome in failures:
        print(f"\n--- {outcome.name}\n{outcome.said}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
