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


def parent_among(position: int, fanout: int, nodes: int, gone: Gone) -> int | None:
    """Whom the node at *position* asks; None if it is the root. It counts as there itself."""

    def is_gone(other: int) -> bool:
        return other != position and gone(other)

    above = parent_position(position, fanout)
    if above is None or not is_gone(above):
        return above
    seat = above
    anchor = parent_position(seat, fanout)
    while anchor is not None and is_gone(anchor):
        seat, anchor = anchor, parent_position(anchor, fanout)
    if anchor is None:
        anchor = heir_of(0, fanout, nodes, is_gone)
        assert anchor is not None, "this one is there"
        if anchor == position:
            return None
        seat = _below_the_highest(position, fanout)
    heir = heir_of(seat, fanout, nodes, is_gone)
    assert heir is not None, "this one is there"
    if heir == position:
        return anchor
    sibling = anchor * fanout + 1 + (position - 1) % fanout
    return sibling if sibling < position and not is_gone(sibling) else heir


def children_among(position: int, fanout: int, nodes: int, gone: Gone) -> list[int]:
    """All whose ``parent_among`` is *position*, in order."""
    found = {each for each in child_positions(position, fanout, nodes) if not gone(each)}
    # What is below a gone child of one's own, or of one's anchor, may be one's child, too.
    above = parent_among(position, fanout, nodes, gone)
    for anchor in {position} if above is None else {position, above}:
        for orphan in _orphans_of(anchor, fanout, nodes, gone):
            if parent_among(orphan, fanout, nodes, gone) == position:
                found.add(orphan)
    return sorted(found - {position})


def _orphans_of(anchor: int, fanout: int, nodes: int, gone: Gone) -> Iterator[int]:
    """The highest of those that are there below gone seats whose anchor this is."""
    seats = [each for each in child_positions(anchor, fanout, nodes) if gone(each)]
    if gone(0) and heir_of(0, fanout, nodes, gone) == anchor:
        seats.append(0)
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
