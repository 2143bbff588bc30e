"""Chunk cache: the chunks that this node has in memory, in two LRUs.

*Owned* chunks are this node's part of what all nodes hold together, and what it took over. *Guests*
belong to other nodes, and stay for a moment for their reader and for nodes that the owner redirects
here (``redirects.py``). Guests have a budget of their own, so that a dataset that streams through
does not evict what this node owns.

Each LRU has its own room for chunks in flight, so that nodes cannot deadlock. An owned chunk comes
from the disk or the source, so it never waits for another node. A guest waits for room for owned
chunks at its owner. With one room for both, two nodes could wait for each other.

A node that keeps no chunks has both LRUs at their least size, to pass chunks through.

Every chunk leaves an LRU through ``_gone``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.model.types import BlobId, ChunkKey
from copperfs.node.actions import Action, Evict
from copperfs.node.cache.blob_refs import BlobRefs
from copperfs.node.cache.lru import LruBudget
from copperfs.node.limits_and_counters import OBJECT_OVERHEAD_BYTES, Limits, NodeStats

# One reader has up to 24 MiB of read-ahead (``sequential.py``).
SHELF_BYTES_MIN = 32 << 20
GUESTS_PART = 8


def cost_of(size: int) -> int:
    return size + OBJECT_OVERHEAD_BYTES


@dataclass(slots=True)
class ChunkCache:
    limits: Limits
    stats: NodeStats
    blob_refs: BlobRefs
    evicted: Callable[[ChunkKey], None] = lambda _: None
    """Called with each chunk that leaves memory."""
    _owned: LruBudget[ChunkKey, BlobId] = field(init=False)
    _guests: LruBudget[ChunkKey, BlobId] = field(init=False)

    def __post_init__(self) -> None:
        guests_bytes = max(SHELF_BYTES_MIN, self.limits.tier_memory_bytes // GUESTS_PART)
        owned_bytes = max(SHELF_BYTES_MIN, self.limits.tier_memory_bytes - guests_bytes)
        self._owned, self._guests = LruBudget(owned_bytes), LruBudget(guests_bytes)

    def size_of(self, key: ChunkKey) -> int:
        """0 or less if there is no such chunk."""
        return self.limits.chunk_layout(key.version.size).size_of(key.index)

    def blob(self, key: ChunkKey) -> BlobId | None:
        """Counts as a use."""
        blob = self._owned.get(key)
        return self._guests.get(key) if blob is None else blob

    def peek(self, key: ChunkKey) -> BlobId | None:
        blob = self._owned.peek(key)
        return self._guests.peek(key) if blob is None else blob

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._owned or key in self._guests

    def owns(self, key: ChunkKey) -> bool:
        return key in self._owned

    @property
    def owned_budget_bytes(self) -> int:
        return self._owned.budget_bytes

    def keep(self, key: ChunkKey) -> list[Action]:
        """This node owns the chunk by now: move it from the guests."""
        blob = self._guests.peek(key)
        if blob is None:
            return []
        self._guests.drop(key)
        return self._gone(self._owned.admit(key, blob, cost_of(self.size_of(key))), None)

    def used(self, key: object) -> None:
        if isinstance(key, ChunkKey):
            self._owned.touch(key)
            self._guests.touch(key)

    def admit(
        self, key: ChunkKey, blob: BlobId, *, owned: bool, oldest: bool = False
    ) -> list[Action]:
        """*oldest*: the chunk has no reader, so it is evicted first."""
        into, other = (self._owned, self._guests) if owned else (self._guests, self._owned)
        gone = into.admit(key, blob, cost_of(self.size_of(key)), oldest=oldest)
        return self._gone(gone, key) + self._gone(other.drop(key), key)

    def _gone(self, gone: list[tuple[ChunkKey, BlobId]], kept: ChunkKey | None) -> list[Action]:
        """*kept* is still held, in the other LRU or in another blob, so it stays published."""
        actions: list[Action] = []
        for key, blob in gone:
            if key != kept:
                actions.append(Evict(key))
                self.evicted(key)
            actions += self.blob_refs.release(blob)
        return actions

    def reserve(self, size: int, *, owned: bool) -> list[Action] | None:
        """None if there is no room."""
        gone = (self._owned if owned else self._guests).reserve(size)
        return None if gone is None else self._gone(gone, None)

    def unreserve(self, size: int, *, owned: bool) -> None:
        (self._owned if owned else self._guests).unreserve(size)

    def has_room(self, size: int, *, owned: bool) -> bool:
        """Whether a fetch of *size* bytes would not wait."""
        lru = self._owned if owned else self._guests
        return lru.reserved_bytes + size <= lru.budget_bytes // 2

    def has_free(self, size: int) -> bool:
        """Whether an owned chunk of *size* bytes displaces no other one."""
        return self._owned.has_free(size)

    def held(self) -> list[tuple[ChunkKey, int]]:
        halves = (self._guests, self._owned)
        return [(key, size) for lru in halves for key, _, size in lru.items()]

    def count(self) -> None:
        both = (self._owned, self._guests)
        self.stats.tier_memory_held_bytes = sum(each.held_bytes for each in both)
        self.stats.tier_memory_held_count = sum(len(each) for each in both)
        self.stats.tier_memory_budget_bytes = sum(each.budget_bytes for each in both)
        self.stats.tier_evictions = sum(each.evictions for each in both)

    def reset_counts(self) -> None:
        for each in (self._owned, self._guests):
            each.evictions = each.evicted_bytes = 0

    def check_invariants(self, owned_bytes: int, guest_bytes: int) -> None:
        """The arguments are the bytes in flight to each LRU."""
        for lru, on_its_way in ((self._owned, owned_bytes), (self._guests, guest_bytes)):
            lru.check_invariants()
            assert lru.reserved_bytes == on_its_way
        assert self._owned.shares_nothing_with(self._guests)
