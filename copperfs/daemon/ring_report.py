"""Ring report: the placement in readable form, for ``copperfs ring``.

One node knows all shares. A collective gathers which chunks each node holds.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby

import trio

from copperfs.daemon.collective_ops import Result
from copperfs.daemon.engine import Engine
from copperfs.fuse.node_port import Answered, Content, SourceError
from copperfs.model.errors import ControlError
from copperfs.model.types import ROOT, ChunkKey, Entry, NodeId, Path, Version, split
from copperfs.node.actions import AnswerEntry, AnswerListing
from copperfs.node.events import LookupRequest
from copperfs.node.limits_and_counters import NodeStats
from copperfs.node.routing.chunk_owners import Owners
from copperfs.node.routing.placement_order import Placement

RANGES_MAX = 1000
"""The ranges of a file that are shown; all chunks are counted."""


@dataclass(slots=True)
class Ownership:
    engine: Engine

    @property
    def placement(self) -> Placement | None:
        return self.engine.node.placement

    async def shares(self) -> dict[NodeId, float]:
        """Empty if no node keeps chunks."""
        placement, gone = self.placement, self.engine.node.gone()
        if placement is None:
            return {NodeId(0): 1.0} if self.engine.node.limits.chunk_bytes else {}
        # With thousands of nodes this would block trio, and peers would suspect this node.
        return await trio.to_thread.run_sync(placement.shares, gone)

    def held_here(self) -> Result:
        node, tier = self.engine.node.statistics(), self.engine.tier
        disk = None if tier is None else tier.store.statistics()
        return {
            "memory_chunks": node.tier_memory_held_count,
            "memory_bytes": node.tier_memory_held_bytes,
            "disk_chunks": 0 if disk is None else disk.held_chunks,
            "disk_bytes": 0 if disk is None else disk.held_bytes,
            "copies_due": node.copies_due,
        }

    async def of_file(self, path: Path) -> Result:
        node = self.engine.node
        entry = await self._lookup(path)
        if entry is None or not entry.attributes.is_file():
            raise ControlError("it is no file")
        version = entry.attributes.version
        copies = node.policy.protection.copies_of(path)
        about = {
            "size": version.size,
            "chunk_bytes": node.limits.chunk_bytes,
            "copies": copies if self.placement is not None else 1,
        }
        if not node.is_chunked(path, version):
            return about | {"chunks": 0, "owners": [], "ranges": []}
        return about | await trio.to_thread.run_sync(self._placed, path, version, node.gone())

    async def _lookup(self, path: Path) -> Entry | None:
        def take(answer: Answered, _: Content, __: object) -> Entry | None:
            if isinstance(answer, AnswerListing):
                return answer.listing.find(split(path)[1])
            assert isinstance(answer, AnswerEntry)
            return answer.entry

        if path == ROOT:
            return None
        try:
            return await self.engine.ask(lambda request: LookupRequest(request, path), take)
        except SourceError as error:
            raise ControlError(f"it cannot be looked at (errno {error.errno})") from None

    def _placed(self, path: Path, version: Version, gone: Collection[NodeId]) -> Result:
        """Runs in a worker thread: a large file has millions of chunks."""
        count = self.engine.node.limits.chunk_layout(version.size).count
        counts: dict[NodeId, int] = {}
        ranges: list[Result] = []
        owners = self._owners(path, version, count, gone)
        for owner, run in groupby(enumerate(owners), key=lambda each: each[1]):
            indexes = [index for index, _ in run]
            counts[owner] = counts.get(owner, 0) + len(indexes)
            if len(ranges) < RANGES_MAX:
                ranges.append({"number": owner, "first": indexes[0], "last": indexes[-1]})
        return {
            "chunks": count,
            "owners": [{"number": each, "chunks": counts[each]} for each in sorted(counts)],
            "ranges": ranges,
        }

    def _owners(
        self, path: Path, version: Version, count: int, gone: Collection[NodeId]
    ) -> Iterator[NodeId]:
        """A job of one has no placement and owns all."""
        placement, trees = self.placement, self.engine.node.trees
        if placement is None or trees is None:
            yield from [NodeId(0)] * count
            return
        owners = Owners(placement, trees.me, self.engine.node.limits.chunk_bytes, NodeStats())
        for index in range(count):
            owner = owners.owner(ChunkKey(path, version, index), gone)
            yield trees.me if owner is None else owner
