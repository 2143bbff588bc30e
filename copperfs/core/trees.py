"""Who asks whom: n-ary trees by position in the roster.

Tree ``t`` of ``T`` is the roster rotated by ``t * N / T``: every node is in all of them, and each
has another root. A directory's path picks its tree, so that a directory and what is in it are
always asked for in the same one, every object is read once, and the roots share the work.

Two shapes over the same order: single requests go up a *pull tree* with a high fan-out, because
each hop costs a round trip; working sets go down a *push tree* with a low one, because a node's
link carries fan-out times the data."""

from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from copperfs.types import NodeId, Path

# Copper 1.0's fan-out by the number of nodes: the largest job for each.
_COPPER_FANOUTS = ((31, 2), (121, 3), (341, 4), (781, 5), (1555, 6))
_COPPER_FANOUT_BEYOND = 7


def copper_fanout(nodes: int) -> int:
    """What Copper 1.0 takes for a job of this size; a preset."""
    return next((k for most, k in _COPPER_FANOUTS if nodes <= most), _COPPER_FANOUT_BEYOND)


def parent_position(position: int, fanout: int) -> int | None:
    return None if position == 0 else (position - 1) // fanout


def child_positions(position: int, fanout: int, nodes: int) -> range:
    return range(position * fanout + 1, min(position * fanout + fanout + 1, nodes))


def depth_of(position: int, fanout: int) -> int:
    """Hops to the root."""
    depth = 0
    above = parent_position(position, fanout)
    while above is not None:
        depth += 1
        above = parent_position(above, fanout)
    return depth


@dataclass(frozen=True, slots=True)
class Trees:
    """The trees of a job, as one of its nodes sees them."""

    nodes: int
    me: NodeId
    fanout: int = 16
    push_fanout: int = 2
    count: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.me < self.nodes
        assert self.fanout >= 1
        assert self.push_fanout >= 1
        assert self.count >= 1

    def tree_of(self, directory: Path) -> int:
        """The tree in which *directory*, and what is in it, is asked for."""
        if self.count == 1:
            return 0
        return xxhash.xxh3_64_intdigest(directory) % self.count

    def parent(self, tree: int) -> NodeId | None:
        """Whom this node asks; None at the root."""
        above = parent_position(self._position(tree), self.fanout)
        return None if above is None else self._at(tree, above)

    def children(self, tree: int) -> list[NodeId]:
        below = child_positions(self._position(tree), self.fanout, self.nodes)
        return [self._at(tree, each) for each in below]

    def push_parent(self, tree: int) -> NodeId | None:
        above = parent_position(self._position(tree), self.push_fanout)
        return None if above is None else self._at(tree, above)

    def push_children(self, tree: int) -> list[NodeId]:
        below = child_positions(self._position(tree), self.push_fanout, self.nodes)
        return [self._at(tree, each) for each in below]

    def root(self, tree: int) -> NodeId:
        return self._at(tree, 0)

    def depth(self, tree: int) -> int:
        return depth_of(self._position(tree), self.fanout)

    def parents(self) -> Iterator[NodeId]:
        """Everybody whom this node asks or is pushed to by, once."""
        seen: set[NodeId] = set()
        for tree in range(self.count):
            for each in (self.parent(tree), self.push_parent(tree)):
                if each is not None and each not in seen:
                    seen.add(each)
                    yield each

    def _shift(self, tree: int) -> int:
        return tree * self.nodes // self.count

    def _position(self, tree: int) -> int:
        return (self.me - self._shift(tree)) % self.nodes

    def _at(self, tree: int, position: int) -> NodeId:
        return NodeId((position + self._shift(tree)) % self.nodes)
