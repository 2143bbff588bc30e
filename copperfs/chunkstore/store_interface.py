"""The store's interface to the engine, as a contract.

A store is called on trio's thread and never blocks it. For a chunk that it cannot hold, no longer
has, or finds damaged it returns False or None, and the caller reads the source. A full, slow or
broken disk shows only in the statistics and the log.

- ``put_nowait``: an accepted chunk is readable from then on, before it is written. *over* is called
  once for it: it is written, or was given up. After the store ends it is not called.
- The content of a key does not change until it is evicted or dropped.
- ``read`` gives the digest that was computed where the source was read, so that the bytes go to
  other nodes without a new one. A chunk that fails its check is an *erasure*: dropped, counted,
  None.
- ``held_bytes`` never exceeds the budget. The least recently used chunk goes first, and never one
  that is being read.
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
    """Sealed bytes, and their xxh3-128 from where the source was read."""

    blob: Blob
    digest: bytes


@dataclass(frozen=True, slots=True)
class ScrubReport:
    chunks: int
    bytes: int
    erasures: int


@dataclass(slots=True)
class StoreStats:
    """Since the store was made; *held* is the current content."""

    held_bytes: int = 0
    """With headers, and chunks still to be deleted, in whole pages."""
    held_chunks: int = 0
    hits: int = 0
    misses: int = 0
    late: int = 0
    """Reads that the disk did not answer in time; also counted as misses."""
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
    """A chunk that was put since the store was opened was evicted for others."""
    erasures: int = 0
    degradations: int = 0
    degraded_since: float | None = None
    """A time of ``trio.current_time``; None: all is well."""


Over = Callable[[bool], object]


class Store(Protocol):
    def holds(self, key: ChunkKey) -> bool:
        """Does not count as use."""
        ...

    def touch(self, key: ChunkKey) -> bool:
        """Counts as use."""
        ...

    def put_nowait(self, key: ChunkKey, chunk: Chunk, over: Over = ...) -> bool:
        """False: refused. *over* may be called before this returns, with whether the chunk is
        written."""
        ...

    async def read(self, key: ChunkKey) -> Chunk | None: ...

    def drop(self, key: ChunkKey) -> bool: ...

    async def scrub(
        self, rate_bytes_s: int = 0, so_far: Callable[[ScrubReport], object] = ...
    ) -> ScrubReport:
        """Drop the damaged ones; a rate of 0 is no limit. *so_far* is called after each chunk."""
        ...

    async def wait_moved(self) -> None:
        """All accepted chunks are written, or were given up."""
        ...

    def statistics(self) -> StoreStats: ...
    def reset_counts(self) -> None:
        """The current sizes, backlog and degradation stay."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when the store has found its earlier content. Cancelling it ends the store."""
        ...


def in_pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
