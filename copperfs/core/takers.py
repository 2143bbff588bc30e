"""Takers: who has just got a chunk from this node, so that others can get it from them.

A library that all nodes map at once would be given by its owner as often as there are nodes. So an
owner gives a chunk to ``takers_max`` nodes, and sends whoever comes later to one of those: the
first of them to the first taker, until that one has as many itself, then to the next. That is an
n-ary tree by the order of arrival, for each chunk another one. Who is sent to a taker that is still
getting the chunk waits there on the same fetch.

What a taker holds may be evicted at any time; then it refuses, and who was sent to it comes back
and is given the chunk here. After ``HAVE_IT_S`` nobody is believed to hold it any more: a dataset
is read by another node in each epoch, and sending those to one another would be in vain.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from copperfs.types import ChunkKey, NodeId

HAVE_IT_S = 10.0
# Chunks that are kept in mind; each of them at most a few times takers_max nodes.
CHUNKS_MAX = 4096


@dataclass(slots=True)
class _Taken:
    since: float
    """When the first of them asked."""
    takers: list[NodeId | None] = field(default_factory=list)
    """In the order in which they came; None for one that has lost it."""
    places: dict[NodeId, int] = field(default_factory=dict)


@dataclass(slots=True)
class Takers:
    takers_max: int
    _taken: OrderedDict[ChunkKey, _Taken] = field(default_factory=OrderedDict)

    def other_for(
        self, now: float, key: ChunkKey, peer: NodeId, gone: Collection[NodeId] = ()
    ) -> NodeId | None:
        """Note that *peer* will have this chunk; of whom it gets it, or None: from this node."""
        taken = self._taken.get(key)
        if taken is None or now >= taken.since + HAVE_IT_S:
            taken = self._taken[key] = _Taken(now)
            self._taken.move_to_end(key)
            if len(self._taken) > CHUNKS_MAX:
                self._taken.popitem(last=False)
        if peer in taken.places:
            return None  # it has lost what it was given
        place = taken.places[peer] = len(taken.takers)
        taken.takers.append(peer)
        while place >= self.takers_max:
            # The one above this place; if it is gone, the one above that.
            place = place // self.takers_max - 1
            taker = taken.takers[place]
            if taker is not None and taker not in gone:
                return taker
        return None

    def forget(self, peer: NodeId) -> None:
        """It was started anew, and has nothing. Its place stays: others were counted by it."""
        for taken in self._taken.values():
            place = taken.places.pop(peer, None)
            if place is not None:
                taken.takers[place] = None
