"""Chunks of one file take turns, so that a file that hangs does not take all threads.

A file of a parallel filesystem may hang by itself, because the one server that has it does not
answer. Each of its chunks would hang a thread of its own, and when so many hang that the source as
a whole is taken for hung (``pool.py``), nobody reads anything any more. So at most half of those
that work at a time read chunks of one file, whoever wants them; others wait here. Once all that
read it hang, those that wait, and those that come, fail at once.
"""

import errno
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.core.actions import ReadChunk
from copperfs.types import FetchId, Path


@dataclass(slots=True)
class _File:
    reading: dict[FetchId, float] = field(default_factory=dict)
    """Since when."""
    waiting: deque[ReadChunk] = field(default_factory=deque)


@dataclass(slots=True)
class Turns:
    """For trio's thread only."""

    concurrency: int
    deadline_s: float
    begin: Callable[[ReadChunk], object]
    fail: Callable[[FetchId, int], object]
    """Not to be answered before ``start`` has returned."""
    _files: dict[Path, _File] = field(default_factory=dict)
    _paths: dict[FetchId, Path] = field(default_factory=dict)
    """Of what is being read."""

    def start(self, fetch: ReadChunk) -> None:
        file = self._files.setdefault(fetch.path, _File())
        if len(file.reading) < max(1, self.concurrency // 2):
            self._read(file, fetch)
        elif self._hangs(file):
            self.fail(fetch.fetch, errno.EIO)
        else:
            file.waiting.append(fetch)

    def ended(self, number: FetchId) -> None:
        """It was read, or failed; anything else than a chunk is welcome, too."""
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
        """Begin nothing more, and let go of whoever reads: it would keep itself otherwise, and the
        files that it has open."""
        self.begin, self.fail = _nothing, _nothing
        self._files.clear()
        self._paths.clear()

    def _read(self, file: _File, fetch: ReadChunk) -> None:
        file.reading[fetch.fetch] = time.monotonic()
        self._paths[fetch.fetch] = fetch.path
        self.begin(fetch)

    def _hangs(self, file: _File) -> bool:
        """Whether all that read it have been at it for too long."""
        return time.monotonic() - max(file.reading.values()) > self.deadline_s


def _nothing(*_: object) -> None:
    """It has ended."""
