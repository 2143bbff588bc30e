"""Chunk owners: decides which node owns a chunk, with a circuit breaker for owners that do not
reply.

The first live node in the placement's order of a chunk owns it. Adjacent chunks of a file
(``chunk_layout.py``) have one owner, so that few nodes open the file.

An owner may answer pings and still not reply, because its disk or its client of the source hangs.
After ``TIMEOUTS_MAX`` chunks in a row that it did not give in time, this node excludes it for
``WITHOUT_S``, as if it were gone. Only the next owner is told, with each request
(``Request.skipped``), and excludes the first for that request alone. If it did so for a while, too,
the two would keep telling each other to do so, long after the first has recovered.

Invariant: nodes with equal member tables ask the same owner. A node asks only nodes before itself
in a chunk's order, so requests never form a cycle, whatever the tables say.
"""

from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass, field

from copperfs.model.types import ChunkKey, NodeId
from copperfs.node.limits_and_counters import NodeStats
from copperfs.node.requests.chunk_layout import ChunkLayout
from copperfs.node.routing.copy_holders import holders
from copperfs.node.routing.placement_order import Placement, chunk_key

TIMEOUTS_MAX = 3
WITHOUT_S = 60.0


@dataclass(slots=True)
class Owners:
    placement: Placement
    me: NodeId
    chunk_bytes: int
    stats: NodeStats
    domains: tuple[int, ...] = ()
    """The failure domain of each node; empty if each node is one by itself."""
    _timeouts: dict[NodeId, int] = field(default_factory=dict)
    _excluded_until: dict[NodeId, float] = field(default_factory=dict)
    """Excluded owners, and until when."""

    def owner(self, key: ChunkKey, gone: Collection[NodeId]) -> NodeId | None:
        """None if no node keeps chunks."""
        # Copying a thousand gone nodes would take longer than the lookup.
        excluded = gone if isinstance(gone, Set) else frozenset(gone)
        return self.placement.owner(self._placed(key), excluded)

    def before_me(self, key: ChunkKey, gone: Collection[NodeId]) -> NodeId | None:
        """The node to ask; None if none is before this node."""
        # A node that keeps nothing is not in the order at all.
        owner = self.owner(key, gone)
        return None if owner == self.me else owner

    def is_mine(self, key: ChunkKey, gone: Collection[NodeId]) -> bool:
        return self.owner(key, gone) == self.me

    def order(self, key: ChunkKey, count: int) -> list[NodeId]:
        """The first *count* of the roster, gone or not; for display."""
        return self.placement.owners(self._placed(key), count)

    def holders(self, key: ChunkKey, copies: int, gone: Collection[NodeId]) -> list[NodeId]:
        """The nodes that keep a chunk of which there are *copies*; the owner is the first."""
        excluded = gone if isinstance(gone, Set) else frozenset(gone)
        return holders(self.placement, self._placed(key), copies, excluded, self.domains)

    def excluded(self, now: float) -> Iterator[NodeId]:
        return (peer for peer, until in self._excluded_until.items() if now < until)

    def excluded_before(
        self, now: float, key: ChunkKey, gone: Collection[NodeId]
    ) -> Iterator[NodeId]:
        """The excluded owners that come before the one to ask."""
        without, excluded = set(self.excluded(now)), set(gone)
        while without and (owner := self.owner(key, excluded)) in without:
            assert owner is not None
            excluded.add(owner)
            yield owner

    def gave(self, peer: NodeId) -> None:
        self._timeouts.pop(peer, None)

    def timed_out(self, now: float, peer: NodeId) -> None:
        self.stats.tier_timeouts += 1
        self._timeouts[peer] = self._timeouts.get(peer, 0) + 1
        if self._timeouts[peer] >= TIMEOUTS_MAX:
            del self._timeouts[peer]
            self._excluded_until = {each: self._excluded_until[each] for each in self.excluded(now)}
            self.stats.tier_exclusions += peer not in self._excluded_until
            self._excluded_until[peer] = now + WITHOUT_S

    def _placed(self, key: ChunkKey) -> bytes:
        group = ChunkLayout(key.version.size, self.chunk_bytes).group_of(key.index)
        return chunk_key(key.path, key.version, group)
