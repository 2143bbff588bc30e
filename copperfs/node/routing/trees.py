"""Trees of the overlay: which node asks which, by position in the roster.

Tree ``t`` of ``T`` is the roster rotated by ``t * N / T``, so each has another root. A directory's
path picks the tree for it and its entries. So every object is read once, and the roots share the
work.

Single requests go up a *pull tree* with a high fan-out, because each hop costs a round trip.
Working sets go down a *push tree* with a low one, because a node's link carries fan-out times the
data.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import xxhash

from copperfs.model.types import COMPILED, FANOUT, NodeId, Path, split
from copperfs.node.routing.tree_failover import (
    children_among,
    depth_of,
    parent_among,
)


@dataclass(frozen=True, slots=True)
class Trees:
    nodes: int
    me: NodeId
    fanout: int = FANOUT
    push_fanout: int = 2
    count: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.me < self.nodes
        assert self.fanout >= 1
        assert self.push_fanout >= 1
        assert self.count >= 1

    def tree_of(self, directory: Path) -> int:
        """A ``__pycache__`` uses the tree of its package: the node that reads the one decides what
        is prefetched of the other."""
        if self.count == 1:
            return 0
        above, name = split(directory)
        if name == COMPILED:
            directory = above
        return xxhash.xxh3_64_intdigest(directory) % self.count

    def parent(self, tree: int, gone: Collection[NodeId] = ()) -> NodeId | None:
        """None at the root."""
        return self._above(tree, self.fanout, gone)

    def children(self, tree: int, gone: Collection[NodeId] = ()) -> list[NodeId]:
        return self._below(tree, self.fanout, gone)

    def push_parent(self, tree: int, gone: Collection[NodeId] = ()) -> NodeId | None:
        return self._above(tree, self.push_fanout, gone)

    def push_children(self, tree: int, gone: Collection[NodeId] = ()) -> list[NodeId]:
        return self._below(tree, self.push_fanout, gone)

    def is_before(self, node: NodeId, tree: int) -> bool:
        """Whether *node* can be above this one, whichever nodes are gone."""
        return (node - self._shift(tree)) % self.nodes < self._position(tree)

    def root(self, tree: int) -> NodeId:
        """The root while no node is gone."""
        return self._at(tree, 0)

    def depth(self, tree: int) -> int:
        return depth_of(self._position(tree), self.fanout)

    def parents(self) -> Iterator[NodeId]:
        """All nodes that this node asks, or that push to it, while no node is gone."""
        seen: set[NodeId] = set()
        for tree in range(self.count):
            for each in (self.parent(tree), self.push_parent(tree)):
                if each is not None and each not in seen:
                    seen.add(each)
                    yield each

    def _above(self, tree: int, fanout: int, gone: Collection[NodeId]) -> NodeId | None:
        position = self._position(tree)
        above = parent_among(position, fanout, self.nodes, lambda p: self._at(tree, p) in gone)
        return None if above is None else self._at(tree, above)

    def _below(self, tree: int, fanout: int, gone: Collection[NodeId]) -> list[NodeId]:
        position = self._position(tree)
        below = children_among(position, fanout, self.nodes, lambda p: self._at(tree, p) in gone)
        return [self._at(tree, each) for each in below]

    def _shift(self, tree: int) -> int:
        return tree * self.nodes // self.count

    def _position(self, tree: int) -> int:
        return (self.me - self._shift(tree)) % self.nodes

    def _at(self, tree: int, position: int) -> NodeId:
        return NodeId((position + self._shift(tree)) % self.nodes)
