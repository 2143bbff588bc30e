"""A process that does nothing but use a store, until it is killed.

``python -m tests.store.writer DIR CHUNKS SEED [STEP]``: room for so many chunks; which are put,
read and dropped, and when, follows from the seed. Prints ``ready``, then a dot whenever it has put
some. With STEP it kills itself just before that operation on the disk, counted from the first.
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


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(path: FilePath, chunks: int, seed: int, step: int | None) -> None:
    rng = random.Random(seed)
    ready = {number: chunk(number, size_of(number)) for number in range(KEYS)}
    files = FaultyFiles(at={} if step is None else {step: die})
    async with disk_store(path, limits(chunks), files) as store:
        os.write(1, b"ready\n")
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
            os.write(1, b".")


if __name__ == "__main__":
    _, where, room, which, *at = sys.argv
    trio.run(main, FilePath(where), int(room), int(which), int(at[0]) if at else None)
