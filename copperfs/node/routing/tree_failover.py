"""Tree failover: parents and children by position in a k-ary tree, also when nodes are gone.

The parent of position ``p`` is ``(p - 1) // k``. When that node is gone, only its children look for
another one. Their *anchor* is the nearest live ancestor, or else the lowest live position, which is
the root. The *heir*, the lowest live position below the anchor's gone child, asks the anchor. To
spare the anchor the others, each asks that child of the anchor which its position selects, or the
heir if that child is gone or has a higher position.

In each member table a node's parent has a lower position than the node. So requests never form a
cycle, even while the tables differ. docs/decisions/0050 has the rejected ways.
"""

from collections.abc import Callable, Iterator

Gone = Callable[[int], bool]
"""Whether the node at a position is gone."""


def parent_position(position: int, fanout: int) -> int | None:
    return None if position == 0 else (position - 1) // fanout


def child_positions(position: int, fanout: int, nodes: int) -> range:
    first = position * fanout + 1
    return range(min(first, nodes), min(first + fanout, nodes))


def depth_of(position: int, fanout: int) -> int:
    depth = 0
    above = parent_position(position, fanout)
    while above is not None:
        depth += 1
        above = parent_position(above, fanout)
    return depth


def heir_of(seat: int, fanout: int, nodes: int, gone: Gone) -> int | None:
    """The lowest live position in the subtree of this one."""
    low, high = seat, seat
    while low < nodes:
        for position in range(low, min(high + 1, nodes)):
            if not gone(position):
                return position
        low, high = low * fanout + 1, high * fanout + fanout
    return None


class _Heirs:
    """When many nodes are gone, each heir is needed often."""

    def __init__(self, fanout: int, nodes: int, gone: Gone) -> None:
        self._fanout, self._nodes, self._gone = fanout, nodes, gone
        self._found: dict[int, int | None] = {}

    def of(self, seat: int) -> int:
        """The subtree has a live node."""
        if seat not in self._found:
            self._found[seat] = heir_of(seat, self._fanout, self._nodes, self._gone)
        heir = self._found[seat]
        assert heir is not None
        return heir


def parent_among(position: int, fanout: int, nodes: int, gone: Gone) -> int | None:
    """The node at *position* counts as alive; None if it is the root."""

    def is_gone(other: int) -> bool:
        return other != position and gone(other)

    return _parent(position, fanout, is_gone, _Heirs(fanout, nodes, is_gone))


def _parent(position: int, fanout: int, gone: Gone, heirs: _Heirs) -> int | None:
    above = parent_position(position, fanout)
    if above is None or not gone(above):
        return above
    seat = above
    anchor = parent_position(seat, fanout)
    while anchor is not None and gone(anchor):
        seat, anchor = anchor, parent_position(anchor, fanout)
    if anchor is None:
        anchor = heirs.of(0)
        if anchor == position:
            return None
        seat = _below_the_highest(position, fanout)
    heir = heirs.of(seat)
    if heir == position:
        return anchor
    sibling = anchor * fanout + 1 + (position - 1) % fanout
    return sibling if sibling < position and not gone(sibling) else heir


def children_among(position: int, fanout: int, nodes: int, gone: Gone) -> list[int]:
    """All live positions whose ``parent_among`` is *position*, which counts as alive, in order."""

    def is_gone(other: int) -> bool:
        return other != position and gone(other)

    heirs = _Heirs(fanout, nodes, is_gone)
    found = {each for each in child_positions(position, fanout, nodes) if not is_gone(each)}
    # Nodes below a gone child of this node, or of its anchor, may be its children, too.
    above = _parent(position, fanout, is_gone, heirs)
    for anchor in {position} if above is None else {position, above}:
        seats = [each for each in child_positions(anchor, fanout, nodes) if is_gone(each)]
        if is_gone(0) and heirs.of(0) == anchor:
            seats.append(0)
        for orphan in _highest_below(seats, fanout, nodes, is_gone):
            if _parent(orphan, fanout, is_gone, heirs) == position:
                found.add(orphan)
    return sorted(found - {position})


def _highest_below(seats: list[int], fanout: int, nodes: int, gone: Gone) -> Iterator[int]:
    """The live nodes below these gone seats that have no live node between."""
    while seats:
        for below in child_positions(seats.pop(), fanout, nodes):
            if gone(below):
                seats.append(below)
            else:
                yield below


def _below_the_highest(position: int, fanout: int) -> int:
    """The ancestor of *position* (or itself) right below the top."""
    above = parent_position(position, fanout)
    while above:
        position, above = above, parent_position(above, fanout)
    return position
