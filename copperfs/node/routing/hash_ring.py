"""Hash ring: consistent hashing, the placement of daemons.

The owner of a key is the node whose point on a circle comes next, clockwise, from the key's own
position.

A point is one number of 64 bits: the upper 46 are its position, the lower 18 the node. So the ring
is a sorted array, searched by bisection. Points on one position (of a million points, two collide
in one ring of 140) have the order of the roster on every node.

Position ``i`` of a node is the xxh3 of the number ``i``, seeded with the xxh3 of its name. So a
node's points depend only on its name and its weight, and a node whose weight changes keeps the
points common to both weights. docs/decisions/0060 has the rejected ways.

A gone node stays on the ring and is skipped, so a death or a return costs nothing.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from itertools import chain

from xxhash import xxh3_64_intdigest

from copperfs.model.types import NodeId
from copperfs.node.routing.placement_order import NOBODY

VNODES = 100

_INDEX = struct.Struct("<Q")
_NODE_BITS = 18
_NODE = (1 << _NODE_BITS) - 1
_POSITION = ((1 << 64) - 1) ^ _NODE
_CIRCLE = 1 << (64 - _NODE_BITS)


class Ring:
    """Names are in the order of the roster."""

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
        return len(self._points)

    def owner(self, key: bytes, gone: Set[NodeId] = NOBODY) -> NodeId | None:
        points = self._points
        if gone or not points:
            return next((node for node in self._clockwise(key) if node not in gone), None)
        at = bisect_left(points, xxh3_64_intdigest(key) & _POSITION)
        return NodeId(points[at if at < len(points) else 0] & _NODE)

    def owners(self, key: bytes, count: int, gone: Set[NodeId] = NOBODY) -> list[NodeId]:
        if count > self._placed - len(gone):
            # A count above the number of live nodes would search the whole ring.
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
        """Exact: the arcs that end at each node's points."""
        there = [point for point in self._points if NodeId(point & _NODE) not in gone]
        arcs: dict[NodeId, int] = {}
        before = (there[-1] >> _NODE_BITS) - _CIRCLE if there else 0
        for point in there:
            node, position = NodeId(point & _NODE), point >> _NODE_BITS
            arcs[node] = arcs.get(node, 0) + position - before
            before = position
        return {node: arcs[node] / _CIRCLE for node in sorted(arcs) if arcs[node]}

    def _clockwise(self, key: bytes) -> Iterator[NodeId]:
        """The nodes of all points, once round from the key's position."""
        points = self._points
        at = bisect_left(points, xxh3_64_intdigest(key) & _POSITION)
        for each in chain(range(at, len(points)), range(at)):
            yield NodeId(points[each] & _NODE)


def _points_of(weight: float, vnodes: int) -> int:
    """A node that owns anything has at least one point."""
    assert weight >= 0
    return max(1, round(vnodes * weight)) if weight else 0
