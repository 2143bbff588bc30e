"""Steps of ``make sanitize``: programs of this directory under clang's sanitizers and its fuzzer.

A step is built once and then runs for a given time. It fails if a sanitizer reports anything, or
the program itself. ``test_planted.py`` plants a defect for each step.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.front.build import (
    FUZZERS,
    HERE,
    STRESS,
    STRESS_ERASURE,
    STRESS_SOURCE,
    build,
    failed_before,
    run,
)
from tests.front.seeds import write_seeds

PROJECT = HERE.parents[1]
MEMORY, THREADS = "address,undefined", "thread"
FUZZING = f"fuzzer,{MEMORY}"
STRESS_REQUESTS, SOURCE_ROUNDS, ERASURE_ROUNDS = 20_000, 40, 500
"""Some seconds of work, repeated as long as there is time."""
NOT_ALL = "not all kinds came"
"""Of a run in which the order of the threads left out a kind of work (stress.c)."""
AT_ONCE_S = 600.0
"""After this time, on a busy machine, a run counts as hung."""

Parts = list[str | Path]
Play = Callable[[Path, Path, float], str]


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    sanitizers: str
    parts: Parts
    play: Play

    def program(self, directory: Path, root: Path = PROJECT) -> Path:
        parts = [
            each if isinstance(each, str) else root / each.relative_to(PROJECT)
            for each in self.parts
        ]
        return build("clang", self.sanitizers, parts, directory / "program")


def _again(within_s: float, once: Callable[[], str]) -> str:
    deadline = time.monotonic() + within_s
    said: list[str] = []
    while not said or time.monotonic() < deadline:
        said.append(once())
    return f"{len(said)} times {said[0].splitlines()[0]}"


def _stress(program: Path, _: Path, seconds: float) -> str:
    def once() -> str:
        way: list[str | Path] = ["memory"] if len(outputs) % 2 else []
        output = run([program, str(STRESS_REQUESTS), *way], timeout_s=AT_ONCE_S)
        requests, word, *_ = output.split(maxsplit=2)
        assert word == "requests,", output
        assert int(requests) >= STRESS_REQUESTS, output
        assert "WARNING" not in output, output  # reports of ThreadSanitizer begin so
        outputs.append(output)
        return output

    outputs: list[str] = []
    done = _again(seconds, once)
    assert any(NOT_ALL not in each for each in outputs), outputs[-1]
    return done


def _stress_source(program: Path, directory: Path, seconds: float) -> str:
    source = directory / "source"

    def once() -> str:
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        output = run([program, source, str(SOURCE_ROUNDS)], timeout_s=AT_ONCE_S)
        assert output == f"{SOURCE_ROUNDS} rounds\n", output
        return output

    return _again(seconds, once)


def _stress_erasure(program: Path, _: Path, seconds: float) -> str:
    def once() -> str:
        output = run([program, str(ERASURE_ROUNDS)], timeout_s=AT_ONCE_S)
        assert output == f"{ERASURE_ROUNDS} rounds\n", output
        return output

    return _again(seconds, once)


def _fuzz(fuzzer: str) -> Play:
    def play(program: Path, directory: Path, seconds: float) -> str:
        found, seeds = directory / "found", directory / "seeds"
        found.mkdir(exist_ok=True)
        shutil.rmtree(seeds, ignore_errors=True)
        write_seeds(fuzzer, seeds)
        for path in failed_before(fuzzer):
            shutil.copy(path, seeds)
        limits = [f"-max_total_time={max(1, round(seconds))}", "-max_len=1500", "-timeout=20"]
        artifacts = f"-artifact_prefix={directory}/"
        command: list[str | Path] = [program, *limits, artifacts, found, seeds]
        output = run(command, timeout_s=seconds + AT_ONCE_S)
        done = [line for line in output.splitlines() if line.startswith("Done ")]
        assert done, output[-6000:]
        return done[-1]

    return play


STEPS: list[Step] = [
    Step("front-threads", THREADS, STRESS, _stress),
    Step("source-threads", THREADS, STRESS_SOURCE, _stress_source),
    Step("erasure-threads", THREADS, STRESS_ERASURE, _stress_erasure),
    Step("front-memory", MEMORY, STRESS, _stress),
    Step("source-memory", MEMORY, STRESS_SOURCE, _stress_source),
    Step("erasure-memory", MEMORY, STRESS_ERASURE, _stress_erasure),
    *(Step(f"fuzz-{name}", FUZZING, parts, _fuzz(name)) for name, parts in sorted(FUZZERS.items())),
]
