"""The ring: consistent hashing, the placement that is used unless another one is asked for.

Every node has points on a circle, and the owner of a key is the node whose point comes next,
clockwise, from the key's own position. A node of weight 1 has ``vnodes`` of them, its virtual
nodes; one of weight 2 twice as many, and one of weight 0 none at all.

A point is one number of 64 bits: the upper 46 are its position, the lower 18 the node. So the ring
is a sorted array of 8 bytes a point, in which bisection finds its way, and points that fall on one
position (of a million points, two do so in one ring of 140) are in the order of the roster on every
node.

Position ``i`` of a node is the xxh3 of the number ``i``, seeded with the xxh3 of its name. So a
node's points depend on nothing but its name and its weight: not on the others, nor on its place in
the roster (but for ties); and a node whose weight changes keeps the points that it has in both
cases. A million points take 0.1 s of hashing and 0.3 s of sorting. Tried and rejected: the name as
input and ``i`` as the seed, because xxh3 merely adds the seed to inputs of up to three bytes, so
that "n12" and "n13" shared 98 of their 100 points; one hash a node that seeds a splitmix, which in
Python takes 0.25 s.

Who is gone stays on the ring and is passed by. A death or a return then costs nothing, and a lookup
a step more for each point that is passed: one in the mean while half of the nodes are gone, 99
while one in a hundred is left. Taking a node's points out of a million takes 60 ms, and would have
to be undone."""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from itertools import chain

from xxhash import xxh3_64_intdigest

from copperfs.core.placement import NOBODY
from copperfs.types import NodeId

VNODES = 100

_INDEX = struct.Struct("<Q")
_NODE_BITS = 18
_NODE = (1 << _NODE_BITS) - 1
_POSITION = ((1 << 64) - 1) ^ _NODE
_CIRCLE = 1 << (64 - _NODE_BITS)


class Ring:
    """Nodes by their names, in the order of the roster."""

    def __init__(
        self, names: Sequence[str], weights: Sequence[float] | None = None, vnodes: int = VNODES
    ) -> None:
        assert vnodes >= 1
        assert len(names) <= _NODE + 1
        weights = [1.0] * len(names) if weights is None else weights
        self._counts = [_points_of(weight, vnodes) for weight in weights]
        indices = [_INDEX.pack(index) for index in range(max(self._counts, default=0))]
        points: list[int] = []
        for node, (name, count) in enumerate(zip(names, self._counts, strict=True)):
            seed = xxh3_64_intdigest(name.encode())
            points += [xxh3_64_intdigest(each, seed) & _POSITION | node for each in indices[:count]]
        points.sort()
        self._points = array("Q", points)
        self._placed = sum(count > 0 for count in self._counts)

    def __len__(self) -> int:
        """How many points there are."""
        return len(self._points)

    def owner(self, key: bytes, gone: Set[NodeId] = NOBODY) -> NodeId | None:
        points = self._points
        if gone or not points:
            return next((node for node in self._clockwise(key) if node not in gone), None)
        at = bisect_left(points, xxh3_64_intdigest(key) & _POSITION)
        return NodeId(points[at if at < len(points) else 0] & _NODE)

    def owners(self, key: bytes, count: int, gone: Set[NodeId] = NOBODY) -> list[NodeId]:
        if count > self._placed - len(gone):
            # Whoever waits for more than there are would go all the way round.
            count = min(count, self._placed - sum(self._counts[node] > 0 for node in gone))
        found: dict[NodeId, None] = {}
        if count > 0:
            for node in self._clockwise(key):
                if node not in gone and node not in found:
                    found[node] = None
                    if len(found) == count:
                        break
        return list(found)

    def shares(self, gone: Set[NodeId] = NOBODY) -> dict[NodeId, float]:
        """Exactly: the arcs that end at each node's points."""
        there = [point for point in self._points if NodeId(point & _NODE) not in gone]
        arcs: dict[NodeId, int] = {}
        before = (there[-1] >> _NODE_BITS) - _CIRCLE if there else 0
        for point in there:
            node, position = NodeId(point & _NODE), point >> _NODE_BITS
            arcs[node] = arcs.get(node, 0) + position - before
            before = position
        return {node: arcs[node] / _CIRCLE for node in sorted(arcs) if arcs[node]}

    def _clockwise(self, key: bytes) -> Iterator[NodeId]:
        """The nodes of all points, from the key's position once round."""
        points = self._points
        at = bisect_left(points, xxh3_64_intdigest(key) & _POSITION)
        for each in chain(range(at, len(points)), range(at)):
            yield NodeId(points[each] & _NODE)


def _points_of(weight: float, vnodes: int) -> int:
    """At least one, if it is to own anything."""
    assert weight >= 0
    return max(1, round(vnodes * weight)) if weight else 0
