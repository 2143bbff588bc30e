"""Chunk layout: where the chunks of one file lie.

Adjacent chunks make a *group* of ``GROUP_BYTES``, which has one owner (``chunk_owners.py``). All
arithmetic with the size of a chunk is here.
"""

from dataclasses import dataclass

GROUP_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    file_bytes: int
    chunk_bytes: int

    @property
    def count(self) -> int:
        return -(-self.file_bytes // self.chunk_bytes)

    @property
    def last(self) -> int:
        return self.count - 1

    def size_of(self, index: int) -> int:
        """0 or less if there is no such chunk."""
        return min(self.chunk_bytes, self.file_bytes - self.offset_of(index))

    def offset_of(self, index: int) -> int:
        return index * self.chunk_bytes

    def at(self, offset: int) -> int:
        """The last chunk for an offset beyond the end."""
        return min(offset // self.chunk_bytes, self.last)

    def spanned(self, begin: int, end: int) -> range:
        """The chunks with bytes from *begin* up to, but without, *end*."""
        if begin >= end:
            return range(0)
        return range(begin // self.chunk_bytes, (end - 1) // self.chunk_bytes + 1)

    def group_of(self, index: int) -> int:
        return self.offset_of(index) // GROUP_BYTES

    def group_end(self, index: int) -> int:
        """The index after the group's last chunk."""
        end_bytes = (self.group_of(index) + 1) * GROUP_BYTES
        return min(self.count, -(-end_bytes // self.chunk_bytes))
