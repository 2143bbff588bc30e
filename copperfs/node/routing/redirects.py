"""Redirect tree: which nodes got a chunk from this one lately, so that others can get it from them.

An owner gives a chunk to ``takers_max`` nodes and redirects later ones to these *takers*: first to
the first taker, until that has ``takers_max`` of its own, then to the next. For each chunk this is
an n-ary tree in order of arrival. A redirected node also waits at a taker that is still getting the
chunk.

A taker may evict the chunk at any time. It then refuses, and the redirected node comes back. After
``HAVE_IT_S`` no taker is trusted: in each pass over a dataset another node reads a part, and such
redirects would fail.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from copperfs.model.types import ChunkKey, NodeId

HAVE_IT_S = 10.0
# Each with at most a few times takers_max nodes.
CHUNKS_MAX = 4096


@dataclass(slots=True)
class _Taken:
    since: float
    """When the first taker asked."""
    takers: list[NodeId | None] = field(default_factory=list)
    """In order of arrival; None for one that has lost the chunk."""
    places: dict[NodeId, int] = field(default_factory=dict)


@dataclass(slots=True)
class RedirectTree:
    takers_max: int
    _taken: OrderedDict[ChunkKey, _Taken] = field(default_factory=OrderedDict)

    def other_for(
        self, now: float, key: ChunkKey, peer: NodeId, gone: Collection[NodeId] = ()
    ) -> NodeId | None:
        """Record that *peer* will have this chunk. Returns the node to get it from, or None for
        this node."""
        taken = self._taken.get(key)
        if taken is None or now >= taken.since + HAVE_IT_S:
            taken = self._taken[key] = _Taken(now)
            self._taken.move_to_end(key)
            if len(self._taken) > CHUNKS_MAX:
                self._taken.popitem(last=False)
        if peer in taken.places:
            return None  # it has lost the chunk
        place = taken.places[peer] = len(taken.takers)
        taken.takers.append(peer)
        while place >= self.takers_max:
            # The parent of this place, or if it is gone, that one's parent.
            place = place // self.takers_max - 1
            taker = taken.takers[place]
            if taker is not None and taker not in gone:
                return taker
        return None

    def forget(self, peer: NodeId) -> None:
        """*peer* was restarted. Its place stays, because the places of others depend on it."""
        for taken in self._taken.values():
            place = taken.places.pop(peer, None)
            if place is not None:
                taken.takers[place] = None
