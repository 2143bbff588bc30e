"""Crash safety: kill -9 during writes, in real processes, at random moments and before every
operation.

A store finds afterwards either all of a chunk or nothing. Nothing half-written stays, the budget
holds, and the directory is free. The machine decides where a random kill hits the writer, so every
single operation is hit as well.
"""

import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path as FilePath

import pytest
import trio

from copperfs.chunkstore.disk_format import parsed
from tests.store.lab import (
    COST,
    chunk_files,
    disk_bytes,
    disk_store,
    holds_bytes,
    key,
    limits,
    many,
)
from tests.store.writer import HASTY, KEYS, size_of

CHUNKS = 30
"""The writer writes 60 chunks, most of them larger, so it evicts all the time."""
WITHIN_S = 60.0


def command(path: FilePath, seed: int, *steps: int) -> list[str]:
    numbers = map(str, (CHUNKS, seed, *steps))
    return [sys.executable, "-m", "tests.store.writer", str(path), *numbers]


def wait_for(process: subprocess.Popen[bytes], dots: int) -> None:
    assert process.stdout is not None
    seen = b""
    deadline = time.monotonic() + WITHIN_S
    while seen.count(b".") < dots or b"ready" not in seen:
        assert select.select([process.stdout], [], [], max(0, deadline - time.monotonic()))[0]
        new = os.read(process.stdout.fileno(), 65536)
        assert new, "it ended by itself"
        seen += new


def judge(path: FilePath) -> int:
    async def main() -> int:
        async with disk_store(path, limits(CHUNKS)) as store:
            await store.wait_moved()
            assert not list((path / "tmp").iterdir()), "what was not finished is gone"
            files = chunk_files(path)
            assert all(parsed(file.name) for file in files)
            assert len(files) == store.statistics().held_chunks, "nothing that nobody knows"
            assert store.statistics().held_bytes == disk_bytes(path) <= CHUNKS * COST
            held = sum([store.holds(key(number)) for number in range(KEYS)])
            served = 0
            for number in range(KEYS):
                served += await holds_bytes(store, number, size_of(number))
            assert store.statistics().erasures == 0, "what a killed process wrote, the kernel has"
            assert served == held == len(files)
            return served

    return trio.run(main)


def kill_at_random(path: FilePath, times: int) -> list[int]:
    """In one directory, so that each life begins with the remains of others."""
    served = []
    for seed in range(times):
        rng = random.Random(seed)
        process = subprocess.Popen(command(path, seed), stdout=subprocess.PIPE)
        try:
            wait_for(process, rng.randrange(0, 30))
            select.select([], [], [], rng.random() * 0.02)  # at some moment between
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert disk_bytes(path) <= CHUNKS * COST, "also with what was being written"
        served.append(judge(path))
    return served


def test_killed_at_random_moments_it_serves_no_wrong_byte_and_leaves_nothing(
    tmp_path: FilePath,
) -> None:
    served = kill_at_random(tmp_path / "store", 20)
    assert sum(served) > 50, "it was about something"


@pytest.mark.long
def test_killed_at_two_hundred_random_moments(tmp_path: FilePath) -> None:
    served = kill_at_random(tmp_path / "store", times := many(200))
    assert sum(served) > 2.5 * times, "it was about something"


def test_killed_before_each_operation_of_writing_a_chunk(tmp_path: FilePath) -> None:
    """From the first opening of the directory to well into eviction."""
    steps = [*range(1, 60), *range(200, 260)]
    out = subprocess.run(
        command(tmp_path / "store", 0, *steps),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=WITHIN_S,
    )
    assert [int(line) for line in out.stdout.split()] == [-signal.SIGKILL] * len(steps)
    left_half = 0
    for step in steps:
        path = tmp_path / f"store{step}"
        left_half += (path / "tmp").exists() and bool(list((path / "tmp").iterdir()))
        judge(path)
    assert left_half > 10, "some were in the middle of a write"


@pytest.mark.long
def test_planted_defect_of_the_writer_is_found(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HASTY, "1")
    with pytest.raises(ExceptionGroup) as raised:
        test_killed_before_each_operation_of_writing_a_chunk(tmp_path)
    (failure,) = raised.value.exceptions
    assert isinstance(failure, AssertionError)
    assert "held_bytes" in str(failure), "a chunk was there by name and not by its bytes"
