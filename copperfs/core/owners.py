"""Owners: which node a chunk is asked of.

The placement puts all nodes in an order for each key; the first of them that is there owns the
chunk, and asks go to it. Chunks that lie side by side in a file have one owner (``GROUP_BYTES``),
so that whoever reads them at the source opens the file once for all of them, and a file of some MiB
is opened by one node instead of by as many as it has chunks.

An owner may live, give signs of life, and not answer: its disk hangs, or its own client of the
source. Each chunk that it does not give in time is a *timeout*, and one that it gives sets the
count to zero. After ``TIMEOUTS_MAX`` this node does without it for ``WITHOUT_S``, as if it were
gone. Nobody is told but the next owner, who is told with each ask (``Ask.passed``) and does not ask
it for this chunk either: only it has to know, because all who are in the same trouble come to it.
It believes it for that ask only. If it did without that one for a while, too, both would go on to
tell each other so when it is long well again.

Invariant: nodes that believe the same of others ask the same one. A node asks only those before
itself in a chunk's order, so asks never go round in a circle, whatever they believe.
"""

from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass, field

from copperfs.core.placement import Placement, chunk_key
from copperfs.core.state import NodeStats
from copperfs.types import ChunkKey, NodeId

GROUP_BYTES = 8 << 20
TIMEOUTS_MAX = 3
WITHOUT_S = 60.0


@dataclass(slots=True)
class Owners:
    placement: Placement
    me: NodeId
    chunk_bytes: int
    stats: NodeStats
    from_source: bool = False
    """What an owner had that is gone is read from the source by each reader, for comparison."""
    _timeouts: dict[NodeId, int] = field(default_factory=dict)
    _without: dict[NodeId, float] = field(default_factory=dict)
    """Those that this node does without, and until when."""

    def owner(self, key: ChunkKey, gone: Collection[NodeId]) -> NodeId | None:
        """None: nobody keeps anything."""
        # Copied for each chunk, a thousand that are gone would take longer than the ring does.
        excluded = gone if isinstance(gone, Set) else frozenset(gone)
        return self.placement.owner(self._placed(key), excluded)

    def before_me(self, key: ChunkKey, gone: Collection[NodeId]) -> NodeId | None:
        """Whom to ask; None if nobody is before this node."""
        # One that keeps nothing is not in the order at all.
        owner = self.owner(key, gone)
        return None if owner == self.me else owner

    def is_mine(self, key: ChunkKey, gone: Collection[NodeId]) -> bool:
        return self.owner(key, gone) == self.me

    def order(self, key: ChunkKey, count: int) -> list[NodeId]:
        """Of those in the roster; for people."""
        return self.placement.owners(self._placed(key), count)

    def without(self, now: float) -> Iterator[NodeId]:
        """Those whom this node does without at present."""
        for peer, until in list(self._without.items()):
            if now >= until:
                del self._without[peer]
            else:
                yield peer

    def done_without(self, now: float, key: ChunkKey, gone: Collection[NodeId]) -> Iterator[NodeId]:
        """Of these, those who would be asked before the one that is."""
        without, excluded = set(self.without(now)), set(gone)
        while without and (owner := self.owner(key, excluded)) in without:
            assert owner is not None
            excluded.add(owner)
            yield owner

    def gave(self, peer: NodeId) -> None:
        self._timeouts.pop(peer, None)

    def timed_out(self, now: float, peer: NodeId) -> None:
        """It did not answer this node."""
        self.stats.tier_timeouts += 1
        self._timeouts[peer] = self._timeouts.get(peer, 0) + 1
        if self._timeouts[peer] >= TIMEOUTS_MAX:
            del self._timeouts[peer]
            self.stats.tier_exclusions += peer not in self._without
            self._without[peer] = now + WITHOUT_S

    def _placed(self, key: ChunkKey) -> bytes:
        return chunk_key(key.path, key.version, key.index * self.chunk_bytes // GROUP_BYTES)
