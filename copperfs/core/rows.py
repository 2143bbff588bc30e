"""Reading in rows: chunks that will be asked for, because those before them were.

Who reads one chunk after the other is given the next ones before it asks, twice as many with each
read up to 8 MiB, then 1 MiB more with each, up to as many as *may* be ahead. Who begins with all of
the first chunk has begun a row with that, or most of a dataset's files would be over before one is
seen. Who jumps about in a file gets what it asks for and nothing else, also if a read begins in one
chunk and ends in another: the kernel reads around a fault of a mapping, and hardly ever within one
chunk.

A row is known by the places where it may be asked for again: the chunk that comes next, those that
are ahead, and the one behind them. So any number of readers may go through one file at different
places, and one that asks for a chunk again does not break its row.

What is fetched ahead is published as it comes, so that it is read without anybody being asked; but
for one of them, the *marker*: who asks for that has come so far, and is read ahead for again. It is
one that was not ahead before, and so was not published. At the end of a file there is none.

How many may be ahead depends on how many read at the same time, since memory is for all of them:
what is ahead of sixteen readers may go before the first comes to it, and has then to be fetched
twice. So it is half as many when somebody has to ask for what was fetched ahead since the last time
that it was so, and is gone; and one more with a marker that is there, but not more often than each
tenth of a second, however many readers there are.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from copperfs.types import ChunkKey, Path, Version

# One reader of 2 GiB from the disk is a fifth faster with 24 MiB ahead than with 8, and slower with
# 32, for which memory at its least is too small. But in what an import maps rows are short: with 24
# MiB as soon as doubling gets there, `import torch` fetched a tenth more.
SOON_BYTES = 8 << 20
ROW_BYTES_MAX = 24 << 20
# A row has as many as may be ahead, and one: 25 with chunks of 1 MiB, 385 with those of 64 KiB.
PLACES_MAX = 1 << 14

GROWS_EACH_S = 0.1
# What was fetched ahead longer ago is no sign of what memory holds now.
RECENT_S = 10.0
NEVER = float("-inf")


@dataclass(slots=True, eq=False)
class Row:
    version: Version
    reads: int
    read_to: int
    """The last chunk that was read."""
    ahead_to: int
    """The last one that is on its way, or there."""
    marker: int | None = None
    fetched_at: float = NEVER
    """When the latest of them was fetched ahead."""


@dataclass(frozen=True, slots=True)
class Next:
    """What is to be ahead of a reader now."""

    known: range = range(0)
    """It was, with the read before."""
    fresh: range = range(0)


@dataclass(slots=True)
class Rows:
    chunk_bytes: int
    may: int = field(init=False)
    """So many chunks may be ahead of one reader."""
    _places: OrderedDict[tuple[Path, int], Row] = field(default_factory=OrderedDict)
    _halved_at: float = NEVER
    _grown_at: float = NEVER

    def __post_init__(self) -> None:
        self.may = self._most

    @property
    def _most(self) -> int:
        return max(1, ROW_BYTES_MAX // self.chunk_bytes)

    def is_marker(self, key: ChunkKey) -> bool:
        """Whether it is to be asked for."""
        row = self._at(key, key.index)
        return row is not None and row.marker == key.index

    def next(
        self, now: float, key: ChunkKey, ends_in: int, *, begins: bool = False, is_there: bool
    ) -> Next:
        """Somebody asks for *key*, and reads until chunk *ends_in*. It *begins* a row if it takes
        the first chunk in one piece. *is_there*: it need not be fetched any more."""
        row = self._continued(now, key, ends_in, is_there=is_there)
        if row is None:
            row = Row(key.version, 1 + begins, ends_in, ends_in)
        then = ends_in + 1
        row.ahead_to = max(row.ahead_to, ends_in)
        self._put(key.path, row, range(then, then + 1))
        if row.reads < 2:
            return Next()
        chunks = -(-key.version.size // self.chunk_bytes)
        last = min(ends_in + self._wanted(row.reads), chunks - 1)
        known = range(then, row.ahead_to + 1)
        fresh = range(row.ahead_to + 1, last + 1)
        if fresh:
            row.ahead_to, row.fetched_at = last, now
            self._put(key.path, row, range(fresh.start, last + 2))
        if row.marker is None or row.marker <= ends_in:
            middle = max((then + last) // 2, fresh.start)
            row.marker = middle if fresh and last < chunks - 1 else None
        return Next(known, fresh)

    def found_no_room(self, key: ChunkKey) -> None:
        """Nor is anything that comes after it fetched now, but with one of the next reads."""
        row = self._at(key, key.index)
        if row is None:
            return
        for index in range(key.index + 1, row.ahead_to + 2):
            self._drop(key.path, index, row)
        row.ahead_to = key.index - 1
        if row.marker is not None and row.marker > row.ahead_to:
            row.marker = None

    def forget(self) -> None:
        """Nothing is published any more."""
        self._places.clear()

    # --- how -------------------------------------------------------------------------------------

    def _wanted(self, reads: int) -> int:
        soon = max(1, SOON_BYTES // self.chunk_bytes)
        doublings = soon.bit_length()
        if reads <= doublings:
            return min(1 << (reads - 1), soon, self.may)
        return min(soon + (reads - doublings) * max(1, soon // 8), self.may)

    def _at(self, key: ChunkKey, index: int) -> Row | None:
        row = self._places.get((key.path, index))
        return row if row is not None and row.version == key.version else None

    def _continued(self, now: float, key: ChunkKey, ends_in: int, *, is_there: bool) -> Row | None:
        """The row that this read is part of."""
        row = self._at(key, key.index)
        if row is not None:
            if key.index <= row.ahead_to:
                self._learn(now, row, key.index, is_there=is_there)
            for index in range(row.read_to + 1, ends_in + 1):
                self._drop(key.path, index, row)
            row.read_to = ends_in
            row.reads += 1
            return row
        row = self._at(key, ends_in + 1)
        # Again the last one: it is no further than it was.
        return row if row is not None and row.read_to == ends_in else None

    def _learn(self, now: float, row: Row, index: int, *, is_there: bool) -> None:
        """From what became of a chunk that was ahead."""
        if not is_there:
            if max(self._halved_at, now - RECENT_S) < row.fetched_at:
                self.may = max(1, self.may // 2)
                self._halved_at = now
        elif index == row.marker and now >= self._grown_at + GROWS_EACH_S:
            self.may = min(self.may + 1, self._most)
            self._grown_at = now

    def _put(self, path: Path, row: Row, places: range) -> None:
        for index in places:
            self._places[path, index] = row
            self._places.move_to_end((path, index))
        while len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    def _drop(self, path: Path, index: int, row: Row) -> None:
        if self._places.get((path, index)) is row:
            del self._places[path, index]
