"""The shelf: everything that a node holds, under one budget of bytes.

Least recently used goes first. Uses that the front or the kernel serve are not seen here as they
happen; they are reported from time to time, which is enough to keep what is in use at the young end
of the order. Room for what is on its way is reserved beforehand, so that the budget also holds
while many files are fetched at once.

Tried in thought and rejected: a budget for each of entries, listings and objects. It needs three
settings, and one of them is always wrong.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
_size = itemgetter(1)


@dataclass(slots=True)
class Shelf(Generic[K, V]):
    budget_bytes: int
    held_bytes: int = 0
    reserved_bytes: int = 0
    set_aside_bytes: int = 0
    """What of that is reserved for good."""
    evictions: int = 0
    evicted_bytes: int = 0
    left_bytes: int = 0
    """The size of all that ever left the shelf, for whatever reason."""
    _items: OrderedDict[K, tuple[V, int]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def get(self, key: K) -> V | None:
        """What is held under *key*; counts as a use."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def peek(self, key: K) -> V | None:
        """The same, without its being a use."""
        item = self._items.get(key)
        return None if item is None else item[0]

    def touch(self, key: K) -> None:
        if key in self._items:
            self._items.move_to_end(key)

    def has_free(self, size: int) -> bool:
        """Whether *size* more bytes fit, and nothing has to go for them."""
        return self.held_bytes + self.reserved_bytes + size <= self.budget_bytes

    def reserve(self, size: int) -> list[tuple[K, V]] | None:
        """Make room for *size* bytes on their way. What had to go, or None: there is no room.

        One thing at a time is always let on its way: no room would ever come for what is larger
        than the budget.
        """
        others = self.reserved_bytes > self.set_aside_bytes
        if others and self.reserved_bytes + size > self.budget_bytes:
            return None
        self.reserved_bytes += size
        return self._evict()

    def set_aside(self, size: int) -> None:
        """Reserve *size* bytes for good; before anything else."""
        assert not self._items
        self.set_aside_bytes += size
        self.reserved_bytes += size

    def unreserve(self, size: int) -> None:
        assert size <= self.reserved_bytes
        self.reserved_bytes -= size

    def admit(self, key: K, value: V, size: int, *, oldest: bool = False) -> list[tuple[K, V]]:
        """Hold *value*. What had to go for it, and what it replaces. *oldest*: as if it were what
        was used longest ago."""
        gone = self.drop(key)
        self._items[key] = (value, size)
        if oldest:
            self._items.move_to_end(key, last=False)
        self.held_bytes += size
        return gone + self._evict()

    def drop(self, key: K) -> list[tuple[K, V]]:
        """Let go of one thing; it is returned in a list, which is empty if it was not held."""
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
        """All that is held, oldest first, with its size."""
        return [(key, value, size) for key, (value, size) in self._items.items()]

    def shares_nothing_with(self, other: "Shelf[K, V]") -> bool:
        return self._items.keys().isdisjoint(other._items)

    def check_invariants(self) -> None:
        assert self.held_bytes == sum(map(_size, self._items.values()))
        assert self.reserved_bytes >= 0
        assert self.held_bytes + self.reserved_bytes <= self.budget_bytes or len(self._items) <= 1

    def _evict(self) -> list[tuple[K, V]]:
        gone = []
        # The youngest stays even if it is larger than the budget: whoever waits for it would
        # otherwise fetch it in vain for ever.
        while len(self._items) > 1 and self.held_bytes + self.reserved_bytes > self.budget_bytes:
            key, (value, size) = self._items.popitem(last=False)
            self.held_bytes -= size
            self.left_bytes += size
            self.evictions += 1
            self.evicted_bytes += size
            gone.append((key, value))
        return gone
