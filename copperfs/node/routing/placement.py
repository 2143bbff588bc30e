"""Placement: which node keeps which key, as an order of the nodes for each key.

Every node computes the order of a key from the roster alone. The first node in it that is not gone
owns the key; the next ones take over if it goes, too. All wanted properties follow from this order,
and ``tests/unit/test_placement.py`` checks them for every placement:

- when a node goes, only its own keys change owner, and when it returns it gets exactly them back;
  nothing is rebuilt, because *gone* is an argument, not a state
- nodes with different member tables still agree on all keys whose owners both believe to be alive

Daemons use the ring (``hash_ring.py``). docs/placement.md compares it with rendezvous hashing,
which the simulator has. AnchorHash would be faster than both, but its placement depends on the
order in which nodes went, and two nodes may learn of that in different orders.

A key is bytes, so a placement does not depend on what is placed: a chunk, or one day a directory
whose small files travel together.
"""

import struct
from collections.abc import Sequence, Set
from typing import Protocol

from copperfs.model.types import NodeId, Path, Version

_CHUNK = struct.Struct("<5Q")
_U64 = 0xFFFF_FFFF_FFFF_FFFF

NOBODY: Set[NodeId] = frozenset()


class Placement(Protocol):
    """The owners of keys. *gone* should be a set: each lookup tests membership at least once."""

    def owner(self, key: bytes, gone: Set[NodeId] = NOBODY) -> NodeId | None:
        """The node that keeps *key*; None if all that could are gone."""

    def owners(self, key: bytes, count: int, gone: Set[NodeId] = NOBODY) -> list[NodeId]:
        """The owner and its successors, in order; fewer than *count* if there are no more."""

    def shares(self, gone: Set[NodeId] = NOBODY) -> dict[NodeId, float]:
        """The fraction of all keys that each node owns, for nodes that own any; they add up to
        1."""


def chunk_key(path: Path, version: Version, index: int) -> bytes:
    """The key of one chunk of one version of a file.

    The numbers come last and have a fixed length, so no two chunks share a key. Times are cut to 64
    bits: in nanoseconds they leave that range in the year 2262, and filesystems may show later
    ones."""
    size, mtime_ns, ctime_ns, inode = version
    return path + _CHUNK.pack(size, mtime_ns & _U64, ctime_ns & _U64, inode, index)


def weights_of(sizes: Sequence[int]) -> list[float]:
    """Weights in proportion to the sizes of tiers, 1 for the mean of the nodes that have one.

    They must come from data that is the same on all nodes, such as the launch: a placement with
    other weights is another placement.
    """
    assert all(size >= 0 for size in sizes)
    there = [size for size in sizes if size]
    mean = sum(there) / len(there) if there else 1.0
    return [size / mean for size in sizes]
