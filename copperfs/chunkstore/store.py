"""The store's interface to the engine, as a contract.

A store is called on trio's thread and never blocks it. It promises nothing: for a chunk that it
cannot hold, no longer has, or finds damaged it returns False or None, and the caller reads the
source. So there is no error for a full, slow or broken disk, only numbers in the statistics and a
warning in the log.

- ``put_nowait`` accepts a chunk or refuses it at once; the chunk is readable from then on, before
  it is written anywhere. *over* is called once for an accepted chunk: it is written, or was given
  up. After the store ends it is not called, and ending does not wait for it.
- The content of a key does not change until it is evicted or dropped: chunks are immutable, and a
  second put of the same key changes nothing.
- ``read`` gives the bytes with the digest that was computed where the source was read, so that they
  go to other nodes without a new one. A store that keeps bytes where they can rot checks them
  first; a chunk that fails is an *erasure*: dropped, counted, None.
- ``held_bytes`` never exceeds the budget. Reading counts as use; the least recently used chunk goes
  first, and never one that is being read.

Chunks of another version of a file have other keys: they are never requested again, age, and are
evicted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from copperfs.model.types import ChunkKey
from copperfs.native.blob import Blob

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sealed bytes, and their xxh3-128 as it was computed where the source was read."""

    blob: Blob
    digest: bytes


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """The chunks that a scrub has checked, and how many of them were damaged."""

    chunks: int
    bytes: int
    erasures: int


@dataclass(slots=True)
class StoreStats:
    """Counts since the store was made; *held* is the current content."""

    held_bytes: int = 0
    """Compared with the budget: whole pages, headers, and chunks still to be deleted."""
    held_chunks: int = 0
    hits: int = 0
    misses: int = 0
    late: int = 0
    """Reads that were given up because the disk did not answer in time; also counted as misses."""
    writes: int = 0
    written_bytes: int = 0
    backlog_chunks: int = 0
    backlog_bytes: int = 0
    """Accepted, and not written yet."""
    refused: int = 0
    """Puts that found no room in the backlog, or a store that takes none."""
    evictions: int = 0
    evicted_bytes: int = 0
    is_outgrown: bool = False
    """A chunk that was put since the store was opened was evicted for others: the chunks put are
    more than the budget holds. It stays so until the store is opened again."""
    erasures: int = 0
    degradations: int = 0
    """How often it stopped taking chunks because of its disk."""
    degraded_since: float | None = None
    """A time of ``trio.current_time``; None while all is well."""


Over = Callable[[bool], object]


class Store(Protocol):
    """Holds chunks within a budget. Call it on trio's thread only."""

    def holds(self, key: ChunkKey) -> bool:
        """Whether a read would probably find it; does not count as use."""
        ...

    def touch(self, key: ChunkKey) -> bool:
        """Whether it is held; counts as use if so."""
        ...

    def put_nowait(self, key: ChunkKey, chunk: Chunk, over: Over = ...) -> bool:
        """Hold it from now on. False: refused. True also for a chunk that is held already. *over*
        is called if it is not refused, perhaps before this returns; its argument is whether the
        chunk is written."""
        ...

    async def read(self, key: ChunkKey) -> Chunk | None:
        """The chunk under *key*, or None."""
        ...

    def drop(self, key: ChunkKey) -> bool:
        """Hold it no longer; returns whether it was held."""
        ...

    async def scrub(
        self, rate_bytes_s: int = 0, so_far: Callable[[ScrubReport], object] = ...
    ) -> ScrubReport:
        """Check all chunks held now, at most at that rate in bytes a second (0: no limit), and drop
        the damaged ones. *so_far* is called after each chunk."""
        ...

    async def wait_moved(self) -> None:
        """Wait until all accepted chunks are written, or were given up."""
        ...

    def statistics(self) -> StoreStats: ...
    def reset_counts(self) -> None:
        """Restart the counts; the current sizes, backlog and degradation stay."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """The store's background work; started when it has found its earlier content. It ends only
        by being cancelled, and the store with it."""
        ...


def in_pages(size: int) -> int:
    """*size* bytes as the budget counts them."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES
