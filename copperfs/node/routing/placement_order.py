"""Placement: which node keeps which key, as an order of the nodes for each key.

Every node computes the order of a key from the roster alone. The first node in it that is not gone
owns the key. *Gone* is an argument, not a state, so a death rebuilds nothing. docs/placement.md
says what follows, and compares the ring (``hash_ring.py``) with rendezvous hashing, which the
simulator has.
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
        """None if all nodes that could keep *key* are gone."""

    def owners(self, key: bytes, count: int, gone: Set[NodeId] = NOBODY) -> list[NodeId]:
        """The owner and its successors, in order; fewer than *count* if there are no more."""

    def shares(self, gone: Set[NodeId] = NOBODY) -> dict[NodeId, float]:
        """The fraction of all keys for each node that owns any."""


def chunk_key(path: Path, version: Version, index: int) -> bytes:
    """The numbers come last and have a fixed length, so no two chunks share a key. Times are cut to
    64 bits: in nanoseconds they leave that range in the year 2262, and filesystems may show later
    ones."""
    size, mtime_ns, ctime_ns, inode = version
    return path + _CHUNK.pack(size, mtime_ns & _U64, ctime_ns & _U64, inode, index)


def weights_of(sizes: Sequence[int]) -> list[float]:
    """Weights in proportion to the sizes of tiers, 1 for the mean of the nodes that have one.

    *sizes* must be the same on all nodes: a placement with other weights is another placement.
    """
    assert all(size >= 0 for size in sizes)
    there = [size for size in sizes if size]
    mean = sum(there) / len(there) if there else 1.0
    return [size / mean for size in sizes]
