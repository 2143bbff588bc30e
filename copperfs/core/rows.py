"""Reading in rows: chunks that will be asked for, because those before them were.

Who reads one chunk after the other is given the next ones before it asks, twice as many with each
read up to 8 MiB, then 1 MiB more with each, up to as many as *may* be ahead. Who begins with all of
the first chunk has begun a row with that, or most of a dataset's files would be over before one is
seen. Who jumps about in a file gets what it asks for and nothing else, also if a read begins in one
chunk and ends in another: the kernel reads around a fault of a mapping, and hardly ever within one
chunk.

A row is known by the chunk that would come next in it, so that any number of readers may go through
one file at different places, and one that asks for a chunk again does not break its row.

What is fetched ahead is published as it comes, so that it is read without anybody being asked; but
for one in the middle of it, the *marker*: who asks for that has come so far, and is read ahead for
again. At the end of a file there is nothing more to read ahead, and no marker.

How many may be ahead depends on how many read at the same time, since memory is for all of them:
what is ahead of sixteen readers may go before the first comes to it, and has then to be fetched
twice. So it is half as many as soon as somebody has to ask for what was fetched ahead and is gone,
and one more with each marker that is still there; as TCP finds out how much may be on its way.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from copperfs.types import ChunkKey, Path

# One reader of 2 GiB from the disk is a fifth faster with 24 MiB ahead than with 8, and slower with
# 32, for which memory at its least is too small. But in what an import maps rows are short: with 24
# MiB as soon as doubling gets there, `import torch` fetched a tenth more.
SOON_BYTES = 8 << 20
ROW_BYTES_MAX = 24 << 20
ROWS_MAX = 4096

# What was fetched ahead longer ago was so for somebody else.
AHEAD_S = 10.0
NEVER = float("-inf")
BEHIND_MAX = 64

T = TypeVar("T")
_Place = tuple[Path, int]


@dataclass(slots=True)
class Rows:
    chunk_bytes: int
    _may: int = field(init=False)
    """So many chunks may be ahead of one reader."""
    _rows: OrderedDict[_Place, int] = field(default_factory=OrderedDict)
    """By the chunk that comes next, or that is a marker: how many reads there are behind it."""
    _markers: OrderedDict[_Place, None] = field(default_factory=OrderedDict)
    _ahead: OrderedDict[_Place, float] = field(default_factory=OrderedDict)
    """When these were fetched ahead."""

    def __post_init__(self) -> None:
        self._may = self._most

    @property
    def _most(self) -> int:
        return max(1, ROW_BYTES_MAX // self.chunk_bytes) if self.chunk_bytes else 1

    def is_marker(self, key: ChunkKey) -> bool:
        """Whether it is to be asked for."""
        return (key.path, key.index) in self._markers

    def next(
        self, now: float, key: ChunkKey, ends_in: int, *, begins: bool = False, is_there: bool
    ) -> list[ChunkKey]:
        """Somebody asks for *key*, and reads until chunk *ends_in*; what to fetch with that. It
        *begins* a row if it takes the first chunk in one piece. *is_there*: it need not be fetched
        any more."""
        here, then = (key.path, key.index), (key.path, ends_in + 1)
        self._learn(now, here, is_there=is_there)
        # Again the last one, or one more.
        behind = max(self._rows.pop(here, 0), self._rows.pop(then, 0) - 1, begins) + 1
        self._rows[then] = behind = min(behind, BEHIND_MAX)
        _keep_newest(self._rows)
        if behind < 2:
            return []
        chunks = -(-key.version.size // self.chunk_bytes)
        soon = max(1, SOON_BYTES // self.chunk_bytes)
        later = max(0, behind - soon.bit_length()) * max(1, soon // 8)
        count = min(1 << (behind - 1), soon + later, self._may)
        last = min(ends_in + count, chunks - 1)
        if last < chunks - 1:
            middle = (key.path, (ends_in + 1 + last) // 2)
            self._rows[middle] = behind
            self._markers[middle] = None
            _keep_newest(self._rows)
            _keep_newest(self._markers)
        return [ChunkKey(key.path, key.version, each) for each in range(ends_in + 1, last + 1)]

    def goes_ahead(self, now: float, key: ChunkKey) -> bool:
        """It is on its way, or there; False if that was known."""
        place = (key.path, key.index)
        if now <= self._ahead.get(place, NEVER) + AHEAD_S:
            return False
        self._ahead[place] = now
        _keep_newest(self._ahead)
        return True

    def _learn(self, now: float, here: _Place, *, is_there: bool) -> None:
        """From what became of what was fetched ahead."""
        is_marker = self._markers.pop(here, self) is None
        if now > self._ahead.pop(here, NEVER) + AHEAD_S:
            return
        if not is_there:
            self._may = max(1, self._may // 2)
        elif is_marker:
            self._may = min(self._may + 1, self._most)


def _keep_newest(table: OrderedDict[_Place, T]) -> None:
    while len(table) > ROWS_MAX:
        table.popitem(last=False)
