"""Reed-Solomon code: computes M parity chunks of K data chunks, and any lost chunk from K others.

A *coding group* has data chunks at positions 0 to K-1 and parity chunks at K to K+M-1. Chunks stay
whole (CoREC codes across objects as well), so a healthy read is one request to one node. Any K
positions give all others (``native/erasure.h`` says by which matrix).

Data chunks may differ in size. The code treats a shorter one as if zeroes followed, without
storing, sending or copying them. The parity chunks are as long as the longest data chunk. A group
that was closed with fewer than K members has chunks of size 0 in their places, and these are always
known.

The code works on each byte by itself. A range of a lost chunk is therefore decoded from the same
range of K others. A chunk that ends before the range gives no bytes: its buffer is empty, and no
node need be asked.

ISA-L computes, in threads that gave up the GIL if there is much to do. All functions may be called
from several threads at once, as long as no two calls write to one buffer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from copperfs.native import (
    ERASURE_DATA_MAX,
    ERASURE_PARITY_MAX,
    erasure_missing,
    rebuild_chunks,
)

DATA_MAX = ERASURE_DATA_MAX
PARITY_MAX = ERASURE_PARITY_MAX


def available() -> bool:
    return why_unavailable() is None


def why_unavailable() -> str | None:
    """A sentence that says what is missing here, and what to install."""
    return erasure_missing()


@dataclass(frozen=True, slots=True)
class ReedSolomon:
    data: int
    """K: a group survives the loss of any chunks while K are left."""
    parity: int
    """M"""

    def __post_init__(self) -> None:
        if not 1 <= self.data <= DATA_MAX:
            raise ValueError(f"a group has 1 to {DATA_MAX} data chunks, not {self.data}")
        if not 1 <= self.parity <= PARITY_MAX:
            raise ValueError(f"a group has 1 to {PARITY_MAX} parity chunks, not {self.parity}")

    def encode(self, chunks: Sequence[memoryview], parities: Sequence[memoryview]) -> None:
        """Fill *parities*, each as long as the longest of *chunks*."""
        if len(parities) != self.parity:
            raise ValueError(f"there are {self.parity} parity chunks, not {len(parities)}")
        known = dict(enumerate(chunks))
        wanted = dict(enumerate(parities, self.data))
        self.decode([chunk.nbytes for chunk in chunks], known, wanted)

    def decode(
        self,
        sizes: Sequence[int],
        known: Mapping[int, memoryview],
        lost: Mapping[int, memoryview],
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        """Fill the buffers of *lost* chunks from exactly K *known* ones, both by position.

        *sizes* are those of the data chunks. Each buffer has the bytes of its chunk from *begin* to
        *end*, or to the end of the chunk: a range that a peer cut short would give wrong bytes.
        """
        wanted = self._range_bytes(sizes, begin, end)
        for chunks in known, lost:
            for position, buffer in chunks.items():
                # A position that does not exist is refused below.
                if 0 <= position < len(wanted) and buffer.nbytes != wanted[position]:
                    raise ValueError(
                        f"chunk {position} has {wanted[position]} bytes in this range, "
                        f"its buffer {buffer.nbytes}"
                    )
        rebuild_chunks(self.data, self.parity, dict(known), dict(lost))

    def _range_bytes(self, sizes: Sequence[int], begin: int, end: int | None) -> list[int]:
        """How many bytes of this range each chunk has."""
        if len(sizes) != self.data or min(sizes) < 0:
            raise ValueError(f"a group has the sizes of {self.data} data chunks, not {sizes}")
        longest = max(sizes)
        end = longest if end is None else end
        if not 0 <= begin <= end <= longest:
            raise ValueError(f"there is no range from {begin} to {end} in {longest} bytes")
        length = end - begin
        counts = [length if size >= end else max(0, size - begin) for size in sizes]
        return counts + [length] * self.parity
