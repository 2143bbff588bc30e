"""A process that does nothing but use a store, until it is killed.

``python -m tests.store.writer DIR CHUNKS SEED``: room for so many chunks; which are put, read and
dropped, and when, follows from the seed. Prints ``ready``, then a dot whenever it has put some.

With further numbers it forks a process for each, in DIR with that number behind it, that kills
itself just before that operation on the disk, counted from the first. It prints how each ended.
"""

import os
import random
import signal
import sys
from pathlib import Path as FilePath

import trio

from tests.store.faulty import FaultyFiles
from tests.store.lab import chunk, disk_store, holds_bytes, key, limits

KEYS = 60
SIZE_MAX = 200_000


def size_of(number: int) -> int:
    """So that a chunk is written in a moment or in some."""
    return random.Random(number).choice([0, 100, 5_000, 50_000, SIZE_MAX])


def say(text: bytes, step: int | None) -> None:
    if step is None:  # nobody listens to the others, only to how they end
        os.write(1, text)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(path: FilePath, chunks: int, seed: int, step: int | None) -> None:
    rng = random.Random(seed)
    ready = {number: chunk(number, size_of(number)) for number in range(KEYS)}
    files = FaultyFiles(at={} if step is None else {step: die})
    async with disk_store(path, limits(chunks), files) as store:
        say(b"ready\n", step)
        while True:
            for _ in range(rng.randrange(1, 6)):
                number = rng.randrange(KEYS)
                store.put_nowait(key(number), ready[number])
            number = rng.randrange(KEYS)
            await holds_bytes(store, number, size_of(number))
            if rng.random() < 0.1:
                store.drop(key(rng.randrange(KEYS)))
            if rng.random() < 0.5:
                await store.wait_moved()
            say(b".", step)


def killed_before(path: str, chunks: int, seed: int, step: int) -> int:
    """How a process ended that was to do so."""
    pid = os.fork()
    if pid == 0:
        try:
            trio.run(main, FilePath(f"{path}{step}"), chunks, seed, step)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    where, *numbers = sys.argv[1:]
    room, which, *steps = map(int, numbers)
    if not steps:
        trio.run(main, FilePath(where), room, which, None)
    for each in steps:
        print(killed_before(where, room, which, each))
