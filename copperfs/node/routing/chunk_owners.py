"""Chunk owners: decides which node owns a chunk, with a circuit breaker for owners that do not
reply.

The placement gives each key an order of all nodes. The first live one owns the chunk and gets the
requests for it. Adjacent chunks of a file (``chunk_layout.py``) have one owner, which opens the
file once to read them all from the source. So a file of some MiB is opened by one node instead of
by as many as it has chunks.

An owner may answer pings and still not reply: its disk hangs, or its client of the source. A chunk
that it does not give in time is a *timeout*; one that it gives resets the count. After
``TIMEOUTS_MAX`` this node excludes it for ``WITHOUT_S``, as if it were gone. Only the next owner is
told, with each request (``Request.passed``), and does not ask it for this chunk either. No other
node needs to know, because all nodes with the same trouble come to that one. It believes it for
that request only. If it excluded the first owner for a while, too, the two would keep telling each
other to do so, long after that owner has recovered.

Invariant: nodes with equal member tables ask the same owner. A node asks only nodes before itself
in a chunk's order, so requests never form a cycle, whatever the tables say.
"""

from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass, field

from copperfs.model.types import ChunkKey, NodeId
from copperfs.node.requests.chunk_layout import ChunkLayout
from copperfs.node.routing.placement import Placement, chunk_key
from copperfs.node.state import NodeStats

TIMEOUTS_MAX = 3
WITHOUT_S = 60.0


@dataclass(slots=True)
class Owners:
    placement: Placement
    me: NodeId
    chunk_bytes: int
    stats: NodeStats
    _timeouts: dict[NodeId, int] = field(default_factory=dict)
    _excluded_until: dict[NodeId, float] = field(default_factory=dict)
    """Excluded owners, and until when."""

    def owner(self, key: ChunkKey, gone: Collection[NodeId]) -> NodeId | None:
        """None if no node keeps chunks."""
        # Copying a thousand gone nodes for each chunk would take longer than the ring does.
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
        """The first *count* of the roster, for display."""
        return self.placement.owners(self._placed(key), count)

    def excluded(self, now: float) -> Iterator[NodeId]:
        """The owners excluded at present."""
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
        """*peer* did not reply to this node."""
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
