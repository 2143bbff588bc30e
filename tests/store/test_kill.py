"""kill -9 while the mover writes: real processes, at random moments and before every operation.

What a store finds afterwards is either all of a chunk or nothing; nothing half-written stays, the
budget holds, and the directory is free. A run at random is told apart by its seed; where exactly it
hits the writer is up to the machine, which is why every single operation is hit as well.
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

from copperfs.store.layout import parsed
from tests.store.lab import COST, chunk_files, disk_bytes, disk_store, holds_bytes, key, limits
from tests.store.writer import KEYS, size_of

CHUNKS = 30
"""Of the 60 that are written, most of which are larger: it evicts all the time."""
WITHIN_S = 60.0


def command(path: FilePath, seed: int, *steps: int) -> list[str]:
    numbers = map(str, (CHUNKS, seed, *steps))
    return [sys.executable, "-m", "tests.store.writer", str(path), *numbers]


def wait_for(process: subprocess.Popen[bytes], dots: int) -> None:
    """Until it is ready, and has printed so many dots."""
    assert process.stdout is not None
    seen = b""
    deadline = time.monotonic() + WITHIN_S
    while seen.count(b".") < dots or b"ready" not in seen:
        assert select.select([process.stdout], [], [], max(0, deadline - time.monotonic()))[0]
        new = os.read(process.stdout.fileno(), 65536)
        assert new, "it ended by itself"
        seen += new


def judge(path: FilePath) -> int:
    """Open what was left; how many chunks are served."""

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
    """The same directory all the time, so that each life begins with what others left."""
    served = []
    for seed in range(times):
        rng = random.Random(seed)
        process = subprocess.Popen(command(path, seed), stdout=subprocess.PIPE)
        try:
            wait_for(process, rng.randrange(0, 30))
            select.select([], [], [], rng.random() * 0.02)  # somewhere in between
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
    served = kill_at_random(tmp_path / "store", 200)
    assert sum(served) > 500, "it was about something"


def test_killed_before_each_operation_of_writing_a_chunk(tmp_path: FilePath) -> None:
    """From opening the directory for the first time to well into evicting."""
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
