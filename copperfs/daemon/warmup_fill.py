"""Warmup fill: reads this node's own chunks of a dataset into the chunk cache in advance.

All nodes do so at the same time (``warmup_fill_all.py``), each by its own walk over the dataset, so
no node assigns work. If a node dies, the others find its chunks when they walk again.

The first walk counts the chunks, and marks the held ones as used, so that they are not evicted. The
second requests each missing chunk. The last counts what is held in the end. On a node with a disk a
chunk counts as held when the disk has it: memory may be evicted at any time.

A fill never evicts its own chunks: what exceeds the disk, or the memory of a node without one, is
read on demand. It stops when no client has polled its state for ``LEASE_S``.
"""

import logging
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field

import trio

from copperfs.chunkstore.store_interface import PAGE_BYTES, Store, in_pages
from copperfs.daemon.collective_ops import Operation, Result
from copperfs.daemon.engine import Engine
from copperfs.daemon.warmup_walk import (
    DatasetWalk,
    WalkedDirectory,
    files_in,
    left_out,
    path_of,
    where_to_walk,
)
from copperfs.fuse.node_port import Answered, Content, SourceError
from copperfs.model.types import ChunkKey, NodeId, Path, RequestId, Version
from copperfs.node.actions import AnswerChunk
from copperfs.node.cache.chunk_cache import cost_of
from copperfs.node.events import ChunkRequest, Used

log = logging.getLogger(__name__)

# Each node's reads of the source under way: half of the smallest chunk cache.
FILLS_AT_ONCE = 16
FILL_BYTES_AT_ONCE = 16 << 20
# The rest of the disk's backlog (64 MiB) is for applications that read meanwhile.
BACKLOG_BYTES_MAX = 32 << 20
BACKLOG_LOOKS_EVERY_S = 0.02
# A collective that misses a node is repeated well before that.
LEASE_S = 60.0
# After this many files, or groups of chunks, the walk yields to other tasks.
AT_ONCE = 256


@dataclass(slots=True)
class Count:
    """Collectives sum it over all nodes, except the files, which are the same for all."""

    chunks: int = 0
    total_bytes: int = 0
    held_chunks: int = 0
    held_bytes: int = 0
    cost_bytes: int = 0
    """The room that this node's chunks take on the disk or in memory."""
    held_cost_bytes: int = 0
    max_files: int = 0
    max_unlisted: int = 0
    """Files without attributes in their listing, and directories that could not be listed."""
    max_unreadable: int = 0


@dataclass(slots=True)
class Filling:
    engine: Engine
    lease_s: float = LEASE_S
    _number: int | None = None
    _paths: list[Path] = field(default_factory=list)
    _check: bool = False
    _count: Count = field(default_factory=Count)
    _phase: str = "idle"
    _files_done: int = 0
    _failed: int = 0
    _left: int = 0
    """Bytes for which there is no room."""
    _gone: Collection[NodeId] = ()
    """The nodes that were dead when the first walk began."""
    _asked_at: float = 0.0
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def operations(self) -> dict[str, Operation]:
        return {"fill": self.begin, "fill state": self.look, "fill stop": self.stop}

    async def begin(self, argument: Result) -> Result:
        number = int(argument["number"])
        if number != self._number:
            self._scope.cancel()
            self._paths = [path_of(str(each)) for each in argument["paths"]]
            self._number, self._check = number, bool(argument.get("check"))
            self._start()
        return await self.look(argument)

    async def look(self, argument: Result) -> Result:
        """If other nodes are dead than at the start, it starts again: this node may own their
        chunks."""
        me = self.engine.node.me
        if int(argument["number"]) != self._number:
            return {"answered": [me]}
        self._asked_at = trio.current_time()
        if self._phase == "done" and self.engine.node.gone() != self._gone:
            self._start()
        count = self._count
        return {
            "answered": [me],
            "begun": [me],
            "planning": [me] if self._phase == "planning" else [],
            "idle": [me] if self._phase == "done" else [],
            "lacking": [me] if count.held_chunks < count.chunks else [],
            "failed": self._failed,
            "left_bytes": self._left,
            "min_files_done": self._files_done,
            "max_gone": len(self._gone),
            "min_gone": len(self._gone),
        } | asdict(count)

    async def stop(self, argument: Result) -> Result:
        if int(argument["number"]) == self._number:
            self._number = None
            self._scope.cancel()
        return {}

    def _start(self) -> None:
        assert self.engine.nursery is not None, "asked of an engine that runs"
        self._gone, self._phase = self.engine.node.gone(), "planning"
        self._files_done = self._failed = self._left = 0
        self._asked_at = trio.current_time()
        self._scope = trio.CancelScope()
        self.engine.nursery.start_soon(self._run, self._scope)

    async def _run(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._give_up_unasked, scope)
                    await self._fill()
                    nursery.cancel_scope.cancel()
        except Exception:
            log.exception("a bug: filling the data tier failed")
        if scope is self._scope:
            self._phase = "done"

    async def _give_up_unasked(self, scope: trio.CancelScope) -> None:
        while True:
            left_s = self._asked_at + self.lease_s - trio.current_time()
            if left_s <= 0:
                break
            await trio.sleep(left_s)
        log.info("nobody asks any more how far the data tier is filled; stopping")
        self._number = None
        scope.cancel()

    async def _fill(self) -> None:
        self._count = await self._counted()
        self._left = max(0, self._count.cost_bytes - self._capacity_bytes())
        if self._check or self._count.held_chunks == self._count.chunks:
            self._files_done = self._count.max_files
            return
        self._phase = "filling"
        await self._have_all()
        if self.engine.tier is not None:
            await self.engine.tier.store.wait_moved()
        self._count = await self._counted()

    async def _counted(self) -> Count:
        count, used, walk = Count(), list[ChunkKey](), DatasetWalk(self.engine)
        async with walk.over(where_to_walk(self._paths)) as found:
            async for each in found:
                unlisted, unreadable = left_out(each.listing, each.names)
                count.max_unlisted += unlisted
                count.max_unreadable += unreadable
                for path, version in self._chunked(each):
                    await self._count_file(count, path, version, used)
                    if len(used) >= AT_ONCE:
                        self.engine.post(Used(tuple(used)))
                        used.clear()
                    if not count.max_files % AT_ONCE:
                        await trio.lowlevel.checkpoint()
        count.max_unlisted += walk.errors.total()
        self.engine.post(Used(tuple(used)))
        return count

    async def _count_file(
        self, count: Count, path: Path, version: Version, used: list[ChunkKey]
    ) -> None:
        count.max_files += 1
        async with aclosing(self._own(path, version)) as own:
            async for key in own:
                size, cost = self._size(key), self._cost(key)
                count.chunks += 1
                count.total_bytes += size
                count.cost_bytes += cost
                if self._is_held(key):
                    count.held_chunks += 1
                    count.held_bytes += size
                    count.held_cost_bytes += cost
                    used.append(key)

    async def _have_all(self) -> None:
        at_once = max(
            1, min(FILLS_AT_ONCE, FILL_BYTES_AT_ONCE // self.engine.node.limits.chunk_bytes)
        )
        slots = trio.Semaphore(at_once)
        taken = self._count.held_cost_bytes
        async with (
            trio.open_nursery() as nursery,
            DatasetWalk(self.engine).over(where_to_walk(self._paths)) as found,
        ):
            async for each in found:
                for path, version in self._chunked(each):
                    async with aclosing(self._own(path, version)) as own:
                        async for key in own:
                            if self._is_held(key):
                                await trio.lowlevel.checkpoint()
                                continue
                            if taken + self._cost(key) > self._capacity_bytes():
                                return
                            taken += self._cost(key)
                            await slots.acquire()
                            await self._wait_backlog()
                            nursery.start_soon(self._have, key, slots)
                    self._files_done += 1

    async def _have(self, key: ChunkKey, slots: trio.Semaphore) -> None:
        def take(answer: Answered, _: Content, __: object) -> None:
            assert isinstance(answer, AnswerChunk)

        def make_request(request: RequestId) -> ChunkRequest:
            return ChunkRequest(request, key, keeps=True)

        try:
            await self.engine.ask(make_request, take)
            self._count.held_chunks += 1
            self._count.held_bytes += self._size(key)
        except SourceError as error:
            # It is no failure if another node owns the chunk by now.
            self._failed += self.engine.node.owns_chunk(key)
            log.info("a chunk of %r cannot be had in advance: errno %d", key.path, error.errno)
        finally:
            slots.release()

    async def _wait_backlog(self) -> None:
        """A store whose disk hangs drops its backlog."""
        store = self._disk()
        if store is None:
            return
        # Chunks of 1 MiB take milliseconds.
        while store.statistics().backlog_bytes > BACKLOG_BYTES_MAX:  # noqa: ASYNC110
            await trio.sleep(BACKLOG_LOOKS_EVERY_S)

    def _chunked(self, found: WalkedDirectory) -> Iterator[tuple[Path, Version]]:
        for path, version in files_in(*found):
            if self.engine.node.is_chunked(path, version):
                yield path, version

    async def _own(self, path: Path, version: Version) -> AsyncGenerator[ChunkKey]:
        """Others own nearly all of a million chunks of a terabyte, so the loop yields while it
        skips them, or peers would suspect this node."""
        layout = self.engine.node.limits.chunk_layout(version.size)
        first = groups = 0
        while first < layout.count:
            end = layout.group_end(first)
            if self.engine.node.owns_chunk(ChunkKey(path, version, first)):
                for index in range(first, end):
                    yield ChunkKey(path, version, index)
            first, groups = end, groups + 1
            if not groups % AT_ONCE:
                await trio.lowlevel.checkpoint()

    def _is_held(self, key: ChunkKey) -> bool:
        """On a disk this marks the chunk as used."""
        tier, in_memory = self.engine.tier, self.engine.node.keeps_chunk(key)
        if tier is None:
            return in_memory
        return tier.store.touch(key) or (in_memory and self._disk() is None)

    def _disk(self) -> Store | None:
        """The disk, if it accepts chunks."""
        tier = self.engine.tier
        if tier is None or tier.store.statistics().degraded_since is not None:
            return None
        return tier.store

    def _capacity_bytes(self) -> int:
        tier = self.engine.tier
        if tier is None or self._disk() is None:
            return self.engine.node.chunks_budget_bytes()
        return tier.store.limits.budget_bytes

    def _size(self, key: ChunkKey) -> int:
        return self.engine.node.limits.chunk_layout(key.version.size).size_of(key.index)

    def _cost(self, key: ChunkKey) -> int:
        size = self._size(key)
        return cost_of(size) if self.engine.tier is None else in_pages(PAGE_BYTES + size)
