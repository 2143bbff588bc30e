"""Per-file limit: chunks of one file take turns, so that a file that hangs does not take all
threads.

Each chunk of a file whose server does not answer would hang a thread. Once enough hang, the source
as a whole counts as hung (``pool.c``), and all reads fail. So at most half of the threads read
chunks of one file; other chunks wait here. Once all threads that read the file hang, its other
chunks fail at once.
"""

import errno
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.model.types import FetchId, Path
from copperfs.node.actions import ReadChunk


@dataclass(slots=True)
class _File:
    reading: dict[FetchId, float] = field(default_factory=dict)
    waiting: deque[ReadChunk] = field(default_factory=deque)


@dataclass(slots=True)
class Turns:
    """For trio's thread only."""

    concurrency: int
    deadline_s: float
    begin: Callable[[ReadChunk], object]
    fail: Callable[[FetchId, int], object]
    """Its outcome must not arrive before ``start`` has returned."""
    _files: dict[Path, _File] = field(default_factory=dict)
    _paths: dict[FetchId, Path] = field(default_factory=dict)

    def start(self, fetch: ReadChunk) -> None:
        file = self._files.setdefault(fetch.path, _File())
        if len(file.reading) < max(1, self.concurrency // 2):
            self._read(file, fetch)
        elif self._hangs(file):
            self.fail(fetch.fetch, errno.EIO)
        else:
            file.waiting.append(fetch)

    def ended(self, number: FetchId) -> None:
        """Ignores a fetch that is not of a chunk."""
        path = self._paths.pop(number, None)
        if path is None:
            return
        file = self._files[path]
        del file.reading[number]
        if file.waiting:
            self._read(file, file.waiting.popleft())
        elif not file.reading:
            del self._files[path]

    def give_up_on_stuck(self) -> None:
        """Called once a second."""
        for file in self._files.values():
            if file.waiting and self._hangs(file):
                for fetch in file.waiting:
                    self.fail(fetch.fetch, errno.EIO)
                file.waiting.clear()

    def close(self) -> None:
        """Drop the callbacks: the cycle would keep the reader and its open files."""
        self.begin, self.fail = _nothing, _nothing
        self._files.clear()
        self._paths.clear()

    def _read(self, file: _File, fetch: ReadChunk) -> None:
        file.reading[fetch.fetch] = time.monotonic()
        self._paths[fetch.fetch] = fetch.path
        self.begin(fetch)

    def _hangs(self, file: _File) -> bool:
        return time.monotonic() - max(file.reading.values()) > self.deadline_s


def _nothing(*_: object) -> None:
    """Replaces the callbacks after the end."""
