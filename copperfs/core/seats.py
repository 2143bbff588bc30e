"""Seats: the n-ary tree by position, and who sits where when some of the nodes are gone.

A position is a seat, and ``(p - 1) // k`` is the one above it. While the node above is there, it is
the parent. When it is gone, its children, and they alone, look for another one: the nearest one
above that is there, their *anchor*. So that the death of many does not fall on that one node, they
do not all go to it:

- the *heir* of the gone child of the anchor, the lowest position below it that is there, moves up
  into its place and asks the anchor;
- the others spread over the anchor's own children, each to the one that its position says, or, if
  that one is not there, to their heir.

If nobody above is there, the lowest position of all is the root, and it is the anchor of those who
have none.

Each node finds its parent by itself, from whom it believes to be gone, and two nodes may believe
different things for a while. Whatever they believe, a node's parent has a lower position than
itself: so asks never go round in a circle.

Rejected: renumbering those that are left (every node behind a gone one would move), filling the
hole with the last of all (it moves few nodes, but its caches are cold), all orphans to their anchor
(the root would get the square of its fan-out when a whole level is gone).
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
    """Seats between this one and the highest."""
    depth = 0
    above = parent_position(position, fanout)
    while above is not None:
        depth += 1
        above = parent_position(above, fanout)
    return depth


def heir_of(seat: int, fanout: int, nodes: int, gone: Gone) -> int | None:
    """The lowest position in this seat and below it that is there."""
    low, high = seat, seat
    while low < nodes:
        for position in range(low, min(high + 1, nodes)):
            if not gone(position):
                return position
        low, high = low * fanout + 1, high * fanout + fanout
    return None


class _Heirs:
    """The heirs of seats, each found once: when many are gone, each is asked for often."""

    def __init__(self, fanout: int, nodes: int, gone: Gone) -> None:
        self._fanout, self._nodes, self._gone = fanout, nodes, gone
        self._found: dict[int, int | None] = {}

    def of(self, seat: int) -> int:
        """Of a seat with somebody there, in it or below it."""
        if seat not in self._found:
            self._found[seat] = heir_of(seat, self._fanout, self._nodes, self._gone)
        heir = self._found[seat]
        assert heir is not None
        return heir


def parent_among(position: int, fanout: int, nodes: int, gone: Gone) -> int | None:
    """Whom the node at *position* asks; None if it is the root. It counts as there itself."""

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
    """All whose ``parent_among`` is *position*, in order. It counts as there itself."""

    def is_gone(other: int) -> bool:
        return other != position and gone(other)

    heirs = _Heirs(fanout, nodes, is_gone)
    found = {each for each in child_positions(position, fanout, nodes) if not is_gone(each)}
    # What is below a gone child of one's own, or of one's anchor, may be one's child, too.
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
    """Below these gone seats, those that are there and have nobody between."""
    while seats:
        for below in child_positions(seats.pop(), fanout, nodes):
            if gone(below):
                seats.append(below)
            else:
                yield below


def _below_the_highest(position: int, fanout: int) -> int:
    """The seat right below the highest one on the way up from *position*."""
    above = parent_position(position, fanout)
    while above:
        position, above = above, parent_position(above, fanout)
    return position
