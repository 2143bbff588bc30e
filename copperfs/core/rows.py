"""Reading in rows: chunks that will be asked for, because those before them were.

Who reads one chunk after the other is given the next ones before it asks, twice as many with each
read, up to ``ROW_BYTES_MAX``. Who begins with all of the first chunk has begun a row with that, or
most of a dataset's files would be over before one is seen. Who jumps about in a file gets what it
asks for and nothing else, also if a read begins in one chunk and ends in another: the kernel reads
around a fault of a mapping, and hardly ever within one chunk.

A row is known by the chunk that would come next in it, so that any number of readers may go through
one file at different places, and one that asks for a chunk again does not break its row.

What is fetched ahead is published as it comes, so that it is read without anybody being asked; but
for one in the middle of it, the *marker*: who asks for that has come so far, and is read ahead for
again. At the end of a file there is nothing more to read ahead, and no marker.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from copperfs.types import ChunkKey, Path

# Of an owner 1 MiB takes some milliseconds; with 8 of them under way a reader waits for none at
# 1 GB/s.
ROW_BYTES_MAX = 8 << 20
ROWS_MAX = 4096


@dataclass(slots=True)
class Rows:
    chunk_bytes: int
    _rows: OrderedDict[tuple[Path, int], int] = field(default_factory=OrderedDict)
    """By path and the chunk that comes next, or that is a marker: how many there are behind it."""
    _markers: OrderedDict[tuple[Path, int], None] = field(default_factory=OrderedDict)

    def is_marker(self, key: ChunkKey) -> bool:
        """Whether it is to be asked for."""
        return (key.path, key.index) in self._markers

    def next(self, key: ChunkKey, ends_in: int, *, begins: bool = False) -> list[ChunkKey]:
        """Somebody asks for *key*, and reads until chunk *ends_in*; what to fetch with that. It
        *begins* a row if it takes the first chunk in one piece."""
        here, then = (key.path, key.index), (key.path, ends_in + 1)
        self._markers.pop(here, None)
        # Again the last one, or one more.
        behind = max(self._rows.pop(here, 0), self._rows.pop(then, 0) - 1, begins) + 1
        self._rows[then] = behind
        if len(self._rows) > ROWS_MAX:
            self._rows.popitem(last=False)
        if behind < 2:
            return []
        chunks = -(-key.version.size // self.chunk_bytes)
        count = min(1 << (behind - 1), ROW_BYTES_MAX // self.chunk_bytes)
        last = min(ends_in + count, chunks - 1)
        if last < chunks - 1:
            middle = (key.path, (ends_in + 1 + last) // 2)
            self._rows[middle] = behind
            self._markers[middle] = None
            for table in (self._rows, self._markers):
                while len(table) > ROWS_MAX:
                    table.popitem(last=False)
        return [ChunkKey(key.path, key.version, each) for each in range(ends_in + 1, last + 1)]
