"""Placement: which node keeps what, as an order of the nodes that each key has.

For every key a placement puts the nodes of the roster in an order that all nodes find by
themselves, from the roster alone. The first of them that is not gone is the key's owner; the next
ones are who takes over if it goes, too. So all that is wanted of a placement follows from its being
such an order, and ``tests/unit/test_placement.py`` holds every kind of it to that:

- when a node goes, only its own keys get another owner, and when it returns it gets exactly them
  back, without anything being built again: *gone* is an argument, not a state;
- nodes that believe different ones to be gone still agree on all keys whose owners both believe to
  be there.

There are two kinds, the ring (``ring.py``) and rendezvous hashing (``rendezvous_hashing.py``);
docs/placement.md compares them. AnchorHash would be faster than both, but what it places where
depends on the order in which nodes went, and two nodes need not hear of that in the same order.

A key is bytes, so that a placement does not care of what: of a chunk, or one day of a directory
whose small files travel together.
"""

import struct
from collections.abc import Sequence, Set
from typing import Protocol

from copperfs.types import NodeId, Path, Version

_CHUNK = struct.Struct("<5Q")
_U64 = 0xFFFF_FFFF_FFFF_FFFF

NOBODY: Set[NodeId] = frozenset()


class Placement(Protocol):
    """The owners of keys. *gone* should be a set: it is asked for nodes, once or oftener a key."""

    def owner(self, key: bytes, gone: Set[NodeId] = NOBODY) -> NodeId | None:
        """Who keeps *key*; None if all who could are gone."""

    def owners(self, key: bytes, count: int, gone: Set[NodeId] = NOBODY) -> list[NodeId]:
        """The owner and those who take over after it, in order; fewer than *count* if there are
        no more."""

    def shares(self, gone: Set[NodeId] = NOBODY) -> dict[NodeId, float]:
        """What part of all keys each node owns, of those that own any; together 1."""


def chunk_key(path: Path, version: Version, index: int) -> bytes:
    """The key of one chunk of one version of a file.

    The numbers come last and have a fixed length, so no two chunks share a key. Times are cut to 64
    bits: in nanoseconds they leave that range in the year 2262, and filesystems may show later
    ones."""
    size, mtime_ns, ctime_ns, inode = version
    return path + _CHUNK.pack(size, mtime_ns & _U64, ctime_ns & _U64, inode, index)


def weights_of(sizes: Sequence[int]) -> list[float]:
    """Weights in proportion to the sizes of tiers, 1 for the mean of those that have one.

    They must come from what all nodes know alike, such as the launch: a placement with other
    weights is another placement.
    """
    assert all(size >= 0 for size in sizes)
    there = [size for size in sizes if size]
    mean = sum(there) / len(there) if there else 1.0
    return [size / mean for size in sizes]
