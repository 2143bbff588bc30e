"""What a store does: the seam that the engine knows.

A store is asked on trio's thread and never blocks it. It owes nobody anything: what it cannot hold,
no longer has, or finds damaged it says by False and None, and whoever asked goes to the source. So
there is no error for a full, slow or broken disk, only numbers in the statistics and a warning in
the log.

- ``put_nowait`` takes a chunk or refuses it at once; it is readable from then on, before it has
  been written anywhere. What was taken is told to be *over* once: it is written, or was given up.
  Until the store ends; who ends it does not wait for that.
- What was put under a key stays as it is until it is evicted or dropped: chunks are immutable, and
  a second put of the same key changes nothing.
- ``read`` gives the bytes with the digest that was taken where the source was read, so that they go
  on to other nodes without a new one. A store that keeps bytes where they can rot checks them
  first; what fails is an *erasure*: dropped, counted, None.
- ``held_bytes`` never exceeds the budget. Reading is using; what was used longest ago goes first,
  and never what is being read.

Chunks of another version of a file have other keys: they are never asked for again, grow old, and
go."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from copperfs.blob import Blob
from copperfs.types import ChunkKey

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sealed bytes, and their xxh3-128 as it was taken where the source was read."""

    blob: Blob
    digest: bytes


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """What a scrub has looked at, and what of that was damaged."""

    chunks: int
    bytes: int
    erasures: int


@dataclass(slots=True)
class StoreStats:
    """Since the store was made; *held* is what it has now."""

    held_bytes: int = 0
    """What the budget is compared with: whole pages, headers, and what is still to be deleted."""
    held_chunks: int = 0
    hits: int = 0
    misses: int = 0
    late: int = 0
    """Reads that were given up because the disk did not answer in time; counted as misses, too."""
    writes: int = 0
    written_bytes: int = 0
    backlog_chunks: int = 0
    backlog_bytes: int = 0
    """Taken, and not written yet."""
    refused: int = 0
    """Puts that found no room in the backlog, or a store that takes nothing."""
    evictions: int = 0
    evicted_bytes: int = 0
    is_outgrown: bool = False
    """A chunk that was put since the store was opened has had to go for others: what is put is more
    than the budget holds. It stays so until the store is opened again."""
    erasures: int = 0
    degradations: int = 0
    """How often it stopped taking chunks because of its disk."""
    degraded_since: float | None = None
    """A time of ``trio.current_time``; None while all is well."""


Over = Callable[[bool], object]


class Store(Protocol):
    """Holds chunks within a budget. For trio's thread only."""

    def holds(self, key: ChunkKey) -> bool:
        """Whether a read would probably find it; no use of it."""
        ...

    def touch(self, key: ChunkKey) -> bool:
        """Whether it is held, and taken for used if so."""
        ...

    def put_nowait(self, key: ChunkKey, chunk: Chunk, over: Over = ...) -> bool:
        """Hold it from now on. False: refused. True as well for what is held already. *over* is
        called if it is not refused, perhaps before this returns: whether the chunk is written."""
        ...

    async def read(self, key: ChunkKey) -> Chunk | None:
        """What is held under *key*, or None."""
        ...

    def drop(self, key: ChunkKey) -> bool:
        """Hold it no longer; whether it was held."""
        ...

    async def scrub(
        self, rate_bytes_s: int = 0, so_far: Callable[[ScrubReport], object] = ...
    ) -> ScrubReport:
        """Check all that is held now, at most so many bytes a second (0: as fast as it goes), and
        drop what is damaged. *so_far* is told after each chunk."""
        ...

    async def wait_moved(self) -> None:
        """Until all that was taken is where it belongs, or was given up."""
        ...

    def statistics(self) -> StoreStats: ...
    def reset_counts(self) -> None:
        """Counts begin anew; what is held, waits or is wrong now stays."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """What the store does by itself; started when it has found what it held before. It ends
        only by being cancelled, and the store with it."""
        ...


def in_pages(size: int) -> int:
    """*size* bytes as the budget counts them."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES
