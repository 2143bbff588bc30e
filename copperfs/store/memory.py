"""Chunks in the memory of this node: the same contract without a disk.

A chunk that is read is the blob that was put, shared and not copied. When it is evicted while
somebody still reads it, the budget is free and the memory only when that reader is done: readers
are short, and their bytes are bounded elsewhere. Bytes are not checked when they are read, because
the node that receives them does that; ``scrub`` finds what has changed in memory."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from copperfs.store.contract import Chunk, ScrubReport, StoreStats, in_pages
from copperfs.store.pace import Pace
from copperfs.types import ChunkKey
from copperfs.wire.payload import digest


@dataclass(slots=True, eq=False)
class MemoryStore:
    budget_bytes: int
    _held: OrderedDict[ChunkKey, Chunk] = field(default_factory=OrderedDict)
    """What was used longest ago is first."""
    _stats: StoreStats = field(default_factory=StoreStats)

    def holds(self, key: ChunkKey) -> bool:
        return key in self._held

    def put_nowait(self, key: ChunkKey, chunk: Chunk) -> bool:
        if key in self._held:
            return True
        cost = in_pages(len(chunk.blob))
        if cost > self.budget_bytes:
            self._stats.refused += 1
            return False
        while self._stats.held_bytes + cost > self.budget_bytes:
            freed = self._remove(next(iter(self._held)))
            self._stats.evictions += 1
            self._stats.evicted_bytes += freed
        self._held[key] = chunk
        self._stats.held_bytes += cost
        self._stats.writes += 1
        self._stats.written_bytes += len(chunk.blob)
        return True

    async def read(self, key: ChunkKey) -> Chunk | None:
        await trio.lowlevel.checkpoint()
        chunk = self._held.get(key)
        if chunk is None:
            self._stats.misses += 1
        else:
            self._held.move_to_end(key)
            self._stats.hits += 1
        return chunk

    def drop(self, key: ChunkKey) -> bool:
        held = key in self._held
        if held:
            self._remove(key)
        return held

    async def scrub(self, rate_bytes_s: int = 0) -> ScrubReport:
        pace = Pace(rate_bytes_s)
        chunks = size = erasures = 0
        for key, chunk in list(self._held.items()):
            await trio.sleep(pace.delay_s(trio.current_time()))
            if self._held.get(key) is not chunk:
                continue
            pace.spend(trio.current_time(), len(chunk.blob))
            chunks += 1
            size += len(chunk.blob)
            if digest(chunk.blob.view) != chunk.digest:
                erasures += 1
                self._remove(key)
        self._stats.erasures += erasures
        return ScrubReport(chunks, size, erasures)

    async def wait_moved(self) -> None:
        """It is where it belongs as soon as it was taken."""
        await trio.lowlevel.checkpoint()

    def statistics(self) -> StoreStats:
        return replace(self._stats, held_chunks=len(self._held))

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    def _remove(self, key: ChunkKey) -> int:
        freed = in_pages(len(self._held.pop(key).blob))
        self._stats.held_bytes -= freed
        return freed
