"""Warmup checks: each node's part of the checks before and after a warm-up.

The coordinator starts them on all nodes as collective operations, and their answers are merged on
the way up.
"""

from dataclasses import dataclass
from functools import partial

from copperfs.daemon.collective_ops import Operation, Result
from copperfs.daemon.engine import Engine
from copperfs.daemon.warmup_walk import files_in, listed, path_of
from copperfs.fuse.node_port import SourceError
from copperfs.model.types import Path, RequestId
from copperfs.node.events import LookupRequest
from copperfs.node.limits_and_counters import OBJECT_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class WarmupChecks:
    engine: Engine

    def operations(self) -> dict[str, Operation]:
        return {"look": self._lookup_all, "room": self._room, "holds": self._holds}

    async def _room(self, _: Result) -> Result:
        stats = self.engine.node.statistics()
        free = stats.budget_bytes - stats.held_bytes - stats.reserved_bytes
        budget = stats.budget_bytes - self.engine.node.limits.allowance_bytes
        return {"min_free_bytes": max(0, free), "min_budget_bytes": budget}

    async def _lookup_all(self, argument: Result) -> Result:
        """Look these paths up, so that this node has their entries."""
        for path in map(path_of, argument["paths"]):
            try:
                await self.engine.ask(partial(_lookup_of, path), _nothing)
            except SourceError:
                continue
        return {}

    async def _holds(self, argument: Result) -> Result:
        """In the versions of this node's own listings."""
        node = self.engine.node
        lacks, objects, held_bytes = False, 0, 0
        for directory, names in listed(argument["directories"]):
            found = node.held_listing(directory)
            if found is None:
                lacks = True
                continue
            held_bytes += 2 * len(found[0].packed)
            for path, version in files_in(directory, found[0], names):
                if not node.is_whole(path, version):
                    continue
                if node.holds(path, version):
                    objects += 1
                    held_bytes += version.size + OBJECT_OVERHEAD_BYTES
                else:
                    lacks = True
        return {
            "answered": [node.me],
            "lacking": [node.me] if lacks else [],
            "min_objects": objects,
            "min_bytes": held_bytes,
        }


def _lookup_of(path: Path, request: RequestId) -> LookupRequest:
    return LookupRequest(request, path)


def _nothing(*_: object) -> None:
    """Ignores the content of a reply."""
