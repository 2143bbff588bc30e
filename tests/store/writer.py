"""Store writer: a process that only uses a store, until it is killed.

``python -m tests.store.writer DIR CHUNKS SEED`` makes a store with room for CHUNKS chunks, and
puts, reads and drops by the seed. It prints ``ready``, then a dot whenever it has put some.

For each further number it forks a process, in DIR with that number appended, which kills itself
just before that operation on the disk. It prints how each ended.
"""

import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath

import trio

from tests.store.faulty import FaultyFiles
from tests.store.lab import chunk, disk_store, holds_bytes, key, limits

KEYS = 60
SIZE_MAX = 200_000
HASTY = "COPPERFS_TEST_HASTY"


@dataclass
class HastyFiles(FaultyFiles):
    """A planted defect: a chunk gets its name before its bytes are written."""

    _late: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """The writes still owed, by thread."""

    def writev(self, fd: int, buffers: Sequence[bytes | memoryview]) -> int:
        content = b"".join(buffers)
        self._late[threading.get_ident()] = os.dup(fd), content
        return len(content)

    def rename(self, old: str, old_directory: int, new: str, new_directory: int) -> None:
        super().rename(old, old_directory, new, new_directory)
        fd, content = self._late.pop(threading.get_ident())
        super().writev(fd, [content])
        self.close(fd)


def size_of(number: int) -> int:
    return random.Random(number).choice([0, 100, 5_000, 50_000, SIZE_MAX])


def say(text: bytes, step: int | None) -> None:
    if step is None:  # the test reads only how the forked processes end
        os.write(1, text)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(path: FilePath, chunks: int, seed: int, step: int | None) -> None:
    rng = random.Random(seed)
    ready = {number: chunk(number, size_of(number)) for number in range(KEYS)}
    kind = HastyFiles if HASTY in os.environ else FaultyFiles
    files = kind(at={} if step is None else {step: die})
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
