"""Reading in rows: chunks that will be asked for, because those before them were.

Who reads one chunk after the other is given the next ones before it asks, twice as many with each
chunk, up to ``ROW_BYTES_MAX``. Who jumps about in a file gets what it asks for and nothing else.

Who jumps about by page faults asks for more than the page, because the kernel reads around it: 1
MiB, which are two chunks of 1 MiB, or five of 256 KiB, one after the other. That is not a row yet.
When two chunks were one, `import torch` fetched 200 MiB of its libraries in chunks of 1 MiB, now
171, and 151 without any rows; in chunks of 256 KiB 207, 136 and 128.

A row is known by the chunk that would come next in it, so that any number of readers may go through
one file at different places, and one that asks for a chunk again does not break its row.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from copperfs.types import ChunkKey, Path

# Of an owner 1 MiB takes some milliseconds; with 8 of them under way a reader waits for none at
# 1 GB/s.
ROW_BYTES_MAX = 8 << 20
ROWS_MAX = 4096
# What the kernel reads around a page, and how many chunks that is at most, whatever their size.
AROUND_BYTES = 1 << 20
AROUND_CHUNKS_MAX = 5


@dataclass(slots=True)
class Rows:
    chunk_bytes: int
    _rows: OrderedDict[tuple[Path, int], int] = field(default_factory=OrderedDict)
    """By path and the chunk that comes next: how many there are behind it."""

    def next(self, key: ChunkKey) -> list[ChunkKey]:
        """Somebody asks for *key*; what to fetch with it."""
        here, then = (key.path, key.index), (key.path, key.index + 1)
        # Again the last one, or one more.
        behind = max(self._rows.pop(here, 0), self._rows.pop(then, 0) - 1) + 1
        self._rows[then] = behind
        if len(self._rows) > ROWS_MAX:
            self._rows.popitem(last=False)
        beyond = behind - min(AROUND_BYTES // self.chunk_bytes + 1, AROUND_CHUNKS_MAX)
        if beyond < 1:
            return []
        chunks = -(-key.version.size // self.chunk_bytes)
        count = min(1 << (beyond - 1), ROW_BYTES_MAX // self.chunk_bytes)
        last = min(key.index + count, chunks - 1)
        return [ChunkKey(key.path, key.version, each) for each in range(key.index + 1, last + 1)]
