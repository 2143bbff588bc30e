"""LRU with a budget in bytes: evicts the least recently used entries.

The front and the kernel report from time to time what they served without the node, which is enough
to keep entries in use at the young end of the order. A fetch reserves room beforehand, so the
budget also holds while many files are fetched at once.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
_size = itemgetter(1)


@dataclass(slots=True)
class LruBudget(Generic[K, V]):
    budget_bytes: int
    held_bytes: int = 0
    reserved_bytes: int = 0
    set_aside_bytes: int = 0
    """The permanent part of ``reserved_bytes``."""
    evictions: int = 0
    evicted_bytes: int = 0
    left_bytes: int = 0
    """All that ever left the LRU."""
    _items: OrderedDict[K, tuple[V, int]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def get(self, key: K) -> V | None:
        """Counts as a use."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def peek(self, key: K) -> V | None:
        item = self._items.get(key)
        return None if item is None else item[0]

    def touch(self, key: K) -> None:
        if key in self._items:
            self._items.move_to_end(key)

    def has_free(self, size: int) -> bool:
        """Whether *size* more bytes fit without an eviction."""
        return self.held_bytes + self.reserved_bytes + size <= self.budget_bytes

    def reserve(self, size: int) -> list[tuple[K, V]] | None:
        """Returns the evicted entries, or None if there is no room. One reservation at a time
        always succeeds: otherwise an object larger than the budget would never find room.
        """
        others = self.reserved_bytes > self.set_aside_bytes
        if others and self.reserved_bytes + size > self.budget_bytes:
            return None
        self.reserved_bytes += size
        return self._evict()

    def set_aside(self, size: int) -> None:
        """Reserve *size* bytes permanently, before anything is held."""
        assert not self._items
        self.set_aside_bytes += size
        self.reserved_bytes += size

    def unreserve(self, size: int) -> None:
        assert size <= self.reserved_bytes
        self.reserved_bytes -= size

    def admit(self, key: K, value: V, size: int, *, oldest: bool = False) -> list[tuple[K, V]]:
        """Returns the evicted entries, and the one that it replaces. *oldest*: this one is evicted
        first."""
        gone = self.drop(key)
        self._items[key] = (value, size)
        if oldest:
            self._items.move_to_end(key, last=False)
        self.held_bytes += size
        return gone + self._evict()

    def drop(self, key: K) -> list[tuple[K, V]]:
        item = self._items.pop(key, None)
        if item is None:
            return []
        self.held_bytes -= item[1]
        self.left_bytes += item[1]
        return [(key, item[0])]

    def drop_all(self) -> list[tuple[K, V]]:
        gone = [(key, value) for key, (value, _) in self._items.items()]
        self._items.clear()
        self.left_bytes += self.held_bytes
        self.held_bytes = 0
        return gone

    def items(self) -> list[tuple[K, V, int]]:
        """Oldest first."""
        return [(key, value, size) for key, (value, size) in self._items.items()]

    def shares_nothing_with(self, other: "LruBudget[K, V]") -> bool:
        return self._items.keys().isdisjoint(other._items)

    def check_invariants(self) -> None:
        assert self.held_bytes == sum(map(_size, self._items.values()))
        assert self.reserved_bytes >= 0
        assert self.held_bytes + self.reserved_bytes <= self.budget_bytes or len(self._items) <= 1

    def _evict(self) -> list[tuple[K, V]]:
        gone = []
        # The youngest stays even if it is larger than the budget. Otherwise a request that waits
        # for it would fetch it again and again.
        while len(self._items) > 1 and self.held_bytes + self.reserved_bytes > self.budget_bytes:
            key, (value, size) = self._items.popitem(last=False)
            self.held_bytes -= size
            self.left_bytes += size
            self.evictions += 1
            self.evicted_bytes += size
            gone.append((key, value))
        return gone
