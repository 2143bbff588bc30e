"""The tier's memory: the chunks that this node has at hand.

Two shelves. *Owned* chunks are this node's part of what all nodes hold together, and what it took
over from others: they stay for as long as there is room, and what goes may still be on the disk.
*Guests* belong to other nodes, and were read here: they stay for a moment, because a reader may
want more of them, and because their owner may send others here for them (``takers.py``). A budget
of their own keeps a dataset that streams through from washing out what this node owns.

Each shelf has a room of its own for what is on its way to it, also for the sake of liveness: an
owned chunk comes from the disk or the source, so it never waits for another node; a guest waits for
its owner's room for owned ones. In one room two nodes could wait for each other.

A node that keeps nothing has these as well, at their least size, to pass chunks through.

Whatever leaves a shelf leaves it through ``_gone``: what was published of it is withdrawn, and its
blob is let go of.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.core.actions import Action, Evict
from copperfs.core.pins import Pins
from copperfs.core.shelf import Shelf
from copperfs.core.state import OBJECT_OVERHEAD_BYTES, Limits, NodeStats
from copperfs.types import BlobId, ChunkKey

# Of each shelf: one reader has up to 24 MiB ahead (``rows.py``); if there are more, each has less.
SHELF_BYTES_MIN = 32 << 20
# Of the memory that is given to the tier, this part is for guests.
GUESTS_PART = 8


def cost_of(size: int) -> int:
    return size + OBJECT_OVERHEAD_BYTES


@dataclass(slots=True)
class Tier:
    limits: Limits
    stats: NodeStats
    pins: Pins
    evicted: Callable[[ChunkKey], None] = lambda _: None
    """Told of each chunk that memory lets go of."""
    _owned: Shelf[ChunkKey, BlobId] = field(init=False)
    _guests: Shelf[ChunkKey, BlobId] = field(init=False)

    def __post_init__(self) -> None:
        guests_bytes = max(SHELF_BYTES_MIN, self.limits.tier_memory_bytes // GUESTS_PART)
        owned_bytes = max(SHELF_BYTES_MIN, self.limits.tier_memory_bytes - guests_bytes)
        self._owned, self._guests = Shelf(owned_bytes), Shelf(guests_bytes)

    # --- chunks ----------------------------------------------------------------------------------

    def size_of(self, key: ChunkKey) -> int:
        """0 or less: there is no such chunk."""
        chunk_bytes = self.limits.chunk_bytes
        return min(chunk_bytes, key.version.size - key.index * chunk_bytes)

    def blob(self, key: ChunkKey) -> BlobId | None:
        """What is held of it; counts as a use."""
        blob = self._owned.get(key)
        return self._guests.get(key) if blob is None else blob

    def peek(self, key: ChunkKey) -> BlobId | None:
        """The same, without its being a use."""
        blob = self._owned.peek(key)
        return self._guests.peek(key) if blob is None else blob

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._owned or key in self._guests

    def owns(self, key: ChunkKey) -> bool:
        """Whether it is held to stay."""
        return key in self._owned

    @property
    def owned_budget_bytes(self) -> int:
        return self._owned.budget_bytes

    def keep(self, key: ChunkKey) -> list[Action]:
        """A guest that is this node's own by now stays as such."""
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
        """*oldest*: nobody has asked for it, so it goes first."""
        into, other = (self._owned, self._guests) if owned else (self._guests, self._owned)
        gone = into.admit(key, blob, cost_of(self.size_of(key)), oldest=oldest)
        return self._gone(gone, key) + self._gone(other.drop(key), key)

    def _gone(self, gone: list[tuple[ChunkKey, BlobId]], kept: ChunkKey | None) -> list[Action]:
        """*kept* is held all the same, in another place or blob: it stays published."""
        actions: list[Action] = []
        for key, blob in gone:
            if key != kept:
                actions.append(Evict(key))
                self.evicted(key)
            actions += self.pins.release(blob)
        return actions

    # --- room ------------------------------------------------------------------------------------

    def reserve(self, size: int, *, owned: bool) -> list[Action] | None:
        """Make room for what is on its way; None: there is no room now."""
        gone = (self._owned if owned else self._guests).reserve(size)
        return None if gone is None else self._gone(gone, None)

    def unreserve(self, size: int, *, owned: bool) -> None:
        (self._owned if owned else self._guests).unreserve(size)

    def has_room(self, size: int, *, owned: bool) -> bool:
        """Whether it could be on its way, nobody having to wait for it."""
        shelf = self._owned if owned else self._guests
        return shelf.reserved_bytes + size <= shelf.budget_bytes // 2

    # --- for people and for tests ----------------------------------------------------------------

    def held(self) -> list[tuple[ChunkKey, int]]:
        shelves = (self._guests, self._owned)
        return [(key, size) for shelf in shelves for key, _, size in shelf.items()]

    def count(self) -> None:
        """Write what is held into the statistics."""
        both = (self._owned, self._guests)
        self.stats.tier_memory_held_bytes = sum(each.held_bytes for each in both)
        self.stats.tier_memory_held_count = sum(len(each) for each in both)
        self.stats.tier_memory_budget_bytes = sum(each.budget_bytes for each in both)
        self.stats.tier_evictions = sum(each.evictions for each in both)

    def reset_counts(self) -> None:
        for each in (self._owned, self._guests):
            each.evictions = each.evicted_bytes = 0

    def check_invariants(self, owned_bytes: int, guest_bytes: int) -> None:
        """What is on its way, to each shelf."""
        for shelf, on_its_way in ((self._owned, owned_bytes), (self._guests, guest_bytes)):
            shelf.check_invariants()
            assert shelf.reserved_bytes == on_its_way
        assert self._owned.shares_nothing_with(self._guests)
