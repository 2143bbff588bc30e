"""What a node holds, and what of that it still believes.

Three kinds of things are on the shelf. *Listings* and single *entries* are believed until a time,
or for ever in this epoch; an *object* is true at any time, because its key names its version.
Listings and entries are held as the source has them, which is what peers are given, and as this
mount shows them.

Beside the shelf it knows which directories cannot be listed, only searched.

Whatever leaves the shelf leaves it through ``_evicted``: what was published of it is withdrawn, and
its blob is let go of.
"""

import math
import stat
from dataclasses import dataclass, field

from copperfs.core.actions import (
    Action,
    CacheKey,
    EntryKey,
    Evict,
    ListingKey,
    LookAgain,
    ObjectKey,
    Publish,
    ReleaseBlob,
)
from copperfs.core.listing import Listing, index_slots
from copperfs.core.pins import Pins
from copperfs.core.policy import Policy
from copperfs.core.shelf import Shelf
from copperfs.core.state import (
    ENTRY_BYTES,
    LISTING_OVERHEAD_BYTES,
    OBJECT_OVERHEAD_BYTES,
    ROW_OVERHEAD_BYTES,
    SLOT_BYTES,
    Limits,
    NodeStats,
)
from copperfs.types import Attributes, BlobId, Entry, Path, Version, split

UNLISTABLE_MAX = 4096
# Who stays in a directory that was replaced finds that out with each request. What leads there is
# asked for anew once, and again after so long, in case that another node gave what was old.
REPLACED_AGAIN_S = 10.0
REPLACED_MAX = 1024
NO_DIRECTORY = 0
"""Stands for the number of what has replaced a directory and is none."""


@dataclass(frozen=True, slots=True)
class Held:
    """A listing or an entry on the shelf, with the time until which it is believed."""

    value: Listing | Entry | None
    """As this mount shows it."""
    fresh_until: float | None
    source: Listing | Entry | None
    """As the source has it, which is what peers are given."""
    since: float = 0.0
    directory: Version | None = None
    """A listing's directory as it was before it was listed."""

    def is_fresh(self, now: float) -> bool:
        return self.fresh_until is None or now < self.fresh_until


@dataclass(slots=True)
class Cache:
    policy: Policy
    limits: Limits
    stats: NodeStats
    pins: Pins
    _shelf: Shelf[CacheKey, Held | BlobId] = field(init=False)
    # In order of discovery, the oldest forgotten first: asking one in vain again costs one
    # operation. Until when peers are told so without that.
    _unlistable: dict[Path, float | None] = field(default_factory=dict)
    _replaced: dict[Path, tuple[int | None, float]] = field(default_factory=dict)
    """Directories for which all that leads there was forgotten: by what they were replaced, and
    when. The oldest first."""

    def __post_init__(self) -> None:
        self._shelf = Shelf(self.limits.memory_bytes)
        self._shelf.set_aside(self.limits.credit_bytes)

    # --- what is held ----------------------------------------------------------------------------

    def entry(self, path: Path, now: float) -> Held | None:
        """What was said of *path* by itself, if it is still believed."""
        return self._fresh(EntryKey(path), now)

    def listing(self, directory: Path, now: float) -> Held | None:
        """The listing of *directory*, unless it is known to have changed since.

        The kernel keeps a directory's names for as long as its times do not change. Names from
        before a change must therefore not be given to one who was told the times after it.
        """
        held = self._fresh(ListingKey(directory), now)
        if held is None:
            return None
        if held.fresh_until is None:  # one snapshot: of the same directory nothing changes
            return None if self.is_another(directory, held.directory, held.since) else held
        above, name = split(directory)
        for key in (EntryKey(directory), ListingKey(above)):
            seen = self._fresh(key, now)
            if seen is None or seen.since <= held.since or (key == ListingKey(directory)):
                continue
            entry = seen.value.find(name) if isinstance(seen.value, Listing) else seen.value
            if entry is not None and entry.unknown:
                continue  # its times are not known
            if entry is None or entry.attributes.version != held.directory:
                return None
        return held

    def is_another(self, path: Path, directory: Version | None, since: float = -math.inf) -> bool:
        """Whether what was said of *path* after *since* is another directory than *directory*."""
        above, name = split(path)
        if directory is None or not path:
            return False
        for key in (EntryKey(path), ListingKey(above)):
            seen = self._shelf.peek(key)
            if not isinstance(seen, Held) or seen.since <= since:
                continue
            entry = seen.source.find(name) if isinstance(seen.source, Listing) else seen.source
            if entry is None or _is_bare(entry.attributes):
                continue  # the number that a directory gives is not that of what is mounted there
            if entry.attributes.version.is_another_than(directory):
                return True
        return False

    def blob(self, key: ObjectKey) -> BlobId | None:
        blob = self._shelf.get(key)
        assert not isinstance(blob, Held)
        return blob

    def _fresh(self, key: ListingKey | EntryKey, now: float) -> Held | None:
        held = self._shelf.get(key)
        if held is None:
            return None
        assert isinstance(held, Held)
        return held if held.is_fresh(now) else None

    def held_listing(self, directory: Path) -> tuple[Listing, float | None] | None:
        """As the source has it, and until when it may be believed."""
        held = self._shelf.peek(ListingKey(directory))
        if not isinstance(held, Held) or not isinstance(held.source, Listing):
            return None
        return held.source, held.fresh_until

    def holds(self, path: Path, version: Version) -> bool:
        return ObjectKey(path, version) in self._shelf

    def held(self) -> list[tuple[CacheKey, int]]:
        """All that is on the shelf, oldest first, with its size."""
        return [(key, size) for key, _, size in self._shelf.items()]

    def used(self, keys: tuple[object, ...]) -> None:
        for key in keys:
            self._shelf.touch(key)  # type: ignore[arg-type]

    # --- what is believed ------------------------------------------------------------------------

    def as_listed(
        self, path: Path, listing: Listing, fresh_until: float | None, since: float
    ) -> Held:
        shown = self.policy.shown_listing(path, listing)
        return Held(shown, fresh_until, listing, since, listing.directory)

    def as_looked(
        self, path: Path, entry: Entry | None, fresh_until: float | None, since: float
    ) -> Held:
        shown = entry
        if entry is not None:
            directory, name = split(path)
            shown = self.policy.shown(directory, name, entry)
        return Held(shown, fresh_until, entry, since)

    # --- onto the shelf --------------------------------------------------------------------------

    def admit_listing(self, path: Path, held: Held) -> list[Action]:
        self._unlistable.pop(path, None)
        self._note_listed(path, held.directory)
        return self._admit(ListingKey(path), held, cost_of_listing(path, held))

    def admit_entry(self, path: Path, held: Held) -> list[Action]:
        return self._admit(EntryKey(path), held, ENTRY_BYTES)

    def admit_object(self, key: ObjectKey, blob: BlobId) -> list[Action]:
        return self._admit(key, blob, key.version.size + OBJECT_OVERHEAD_BYTES)

    def _admit(self, key: CacheKey, value: Held | BlobId, size: int) -> list[Action]:
        return self._evicted(self._shelf.admit(key, value, size), replaced_by=(key, value))

    # --- what nobody asked this node for ---------------------------------------------------------

    def take_fetched(self, key: ObjectKey, blob: BlobId) -> list[Action]:
        """The front read it, on credit."""
        if key in self._shelf:
            return [ReleaseBlob(blob)]
        return self.admit_object(key, blob)

    def take_ahead(self, key: ObjectKey, blob: BlobId) -> list[Action]:
        """Nobody has asked for it: nothing goes for it, and it is the first to go."""
        if key in self._shelf:
            return [ReleaseBlob(blob)]
        size = key.version.size + OBJECT_OVERHEAD_BYTES
        if not self._shelf.has_free(size):
            return [Evict(key), *self.pins.release(blob)]
        gone = self._shelf.admit(key, blob, size, oldest=True)
        assert not gone, "there was room"
        return []

    def has_free(self, size: int) -> bool:
        """Whether *size* more bytes fit, and nothing has to go for them."""
        return self._shelf.has_free(size)

    def take_listed(self, now: float, path: Path, listing: Listing) -> list[Action]:
        """The front listed it, on credit."""
        self.stats.listed_on_credit += 1
        fresh_until = until(now, self.policy.listing_fresh_s(path))
        return self.admit_listing(path, self.as_listed(path, listing, fresh_until, now))

    def publish_object(self, key: ObjectKey) -> list[Action]:
        """Have the front answer with it, although nobody of this node has asked yet."""
        blob = self._shelf.peek(key)
        return [] if blob is None or isinstance(blob, Held) else [Publish(key, blob)]

    def publish_listing(self, path: Path, held: Held) -> list[Action]:
        # One that grows old would need to be compared with what is said of it elsewhere.
        if held.fresh_until is not None or ListingKey(path) not in self._shelf:
            return []
        assert isinstance(held.value, Listing)
        return [Publish(ListingKey(path), held.value)]

    def take_pushed(self, key: ObjectKey, blob: BlobId, *, offered: bool) -> list[Action]:
        size = key.version.size
        if key in self._shelf or size > self.limits.whole_max_bytes:
            return [ReleaseBlob(blob)]
        if offered and not self._shelf.has_free(size + OBJECT_OVERHEAD_BYTES):
            return [ReleaseBlob(blob)]
        if not offered:
            self.stats.pushed += 1
            return self.admit_object(key, blob)
        self.stats.offered += 1
        return self.admit_object(key, blob) + self.publish_object(key)

    def offerable(self, key: CacheKey, now: float) -> BlobId | Held | None:
        """What is held under *key*, if it may be given to others now."""
        value = self._shelf.peek(key)
        if isinstance(value, Held) and not value.is_fresh(now):
            return None
        return value

    def take_pushed_listing(
        self,
        now: float,
        path: Path,
        listing: Listing,
        fresh_for_s: float | None,
        *,
        offered: bool,
    ) -> list[Action]:
        if self.listing(path, now) is not None:
            return []
        fresh_until, since = believed(now, fresh_for_s, self.policy.listing_fresh_s(path))
        held = self.as_listed(path, listing, fresh_until, since)
        if offered and not self._shelf.has_free(cost_of_listing(path, held)):
            return []
        if not offered:
            return self.admit_listing(path, held)
        self.stats.offered += 1
        return self.admit_listing(path, held) + self.publish_listing(path, held)

    # --- off the shelf ---------------------------------------------------------------------------

    def reserve(self, size: int) -> list[Action] | None:
        """Keep *size* bytes free for what is on its way; None: there is no room."""
        gone = self._shelf.reserve(size)
        return None if gone is None else self._evicted(gone)

    def unreserve(self, size: int) -> None:
        self._shelf.unreserve(size)

    def forget_name(self, path: Path) -> list[Action]:
        """What was said of *path* is not true any more: it has to be asked for again."""
        directory, _ = split(path)
        gone = self._shelf.drop(EntryKey(path)) + self._shelf.drop(ListingKey(directory))
        return [*self._evicted(gone), LookAgain(path)]

    def forget_way(self, path: Path) -> list[Action]:
        """The same for all directories that lead to *path*: any of them may have been replaced."""
        actions: list[Action] = []
        while path:
            actions += self.forget_name(path)
            path, _ = split(path)
        return actions

    def forget_directory(self, now: float, path: Path) -> list[Action]:
        """It is another one than the kernel was told."""
        held = self._shelf.peek(ListingKey(path))
        found = held.directory if isinstance(held, Held) else None
        if not self._is_news(now, path, None if found is None else found.inode):
            return []
        return [*self._evicted(self._shelf.drop(ListingKey(path))), *self.forget_way(path)]

    def forget_no_directory(self, now: float, directory: Path, path: Path) -> list[Action]:
        """*path* could not be asked for, because *directory* is none any more."""
        return self.forget_way(path) if self._is_news(now, directory, NO_DIRECTORY) else []

    def _is_news(self, now: float, path: Path, inode: int | None) -> bool:
        """Whether it was not noticed a moment ago that the directory *path* was replaced by the one
        with this number; None: it is not known by which."""
        before = self._replaced.get(path)
        if before is not None and now < before[1] + REPLACED_AGAIN_S and inode in (before[0], None):
            return False
        self._replaced.pop(path, None)
        self._replaced[path] = inode, now
        if len(self._replaced) > REPLACED_MAX:
            del self._replaced[next(iter(self._replaced))]
        self.stats.version_changes += 1
        return True

    def _note_listed(self, path: Path, directory: Version | None) -> None:
        """If it is another one than was found last, then finding that one is news again."""
        found = self._replaced.get(path)
        if found is not None and directory is not None and found[0] != directory.inode:
            del self._replaced[path]

    def clear(self) -> list[Action]:
        self._unlistable.clear()
        self._replaced.clear()
        return self._evicted(self._shelf.drop_all())

    def _evicted(
        self,
        gone: list[tuple[CacheKey, Held | BlobId]],
        replaced_by: tuple[CacheKey, Held | BlobId] | None = None,
    ) -> list[Action]:
        actions: list[Action] = []
        for key, value in gone:
            if not isinstance(key, EntryKey) and (
                replaced_by is None or replaced_by[0] != key or replaced_by[1] == value
            ):
                actions.append(Evict(key))
            if not isinstance(value, Held):
                actions += self.pins.release(value)
        return actions

    # --- directories that cannot be listed -------------------------------------------------------

    def is_unlistable(self, directory: Path) -> bool:
        return directory in self._unlistable

    def is_refused_to_peers(self, directory: Path, now: float) -> bool:
        """Whether their asking for it would be in vain, too: as many of them as there are nodes
        come to the root for a directory that its own application could not list."""
        believed_until = self._unlistable.get(directory, 0.0)
        return believed_until is None or now < believed_until

    def remember_unlistable(self, directory: Path, now: float) -> None:
        self._unlistable[directory] = until(now, self.policy.listing_fresh_s(directory))
        if len(self._unlistable) > UNLISTABLE_MAX:
            del self._unlistable[next(iter(self._unlistable))]

    # --- for people and for tests ----------------------------------------------------------------

    def count(self) -> None:
        """Write what is held into the statistics."""
        self.stats.held_bytes = self._shelf.held_bytes
        self.stats.held_count = len(self._shelf)
        self.stats.reserved_bytes = self._shelf.reserved_bytes
        self.stats.budget_bytes = self._shelf.budget_bytes
        self.stats.evictions = self._shelf.evictions
        self.stats.evicted_bytes = self._shelf.evicted_bytes

    @property
    def left_bytes(self) -> int:
        """The size of all that ever left the shelf."""
        return self._shelf.left_bytes

    def reset_counts(self) -> None:
        self._shelf.evictions = self._shelf.evicted_bytes = 0

    def check_invariants(self, on_its_way_bytes: int) -> None:
        self._shelf.check_invariants()
        assert self._shelf.reserved_bytes == self.limits.credit_bytes + on_its_way_bytes


def _is_bare(attributes: Attributes) -> bool:
    return attributes == Attributes.bare(attributes.inode, stat.S_IFMT(attributes.mode))


def cost_of_listing(path: Path, held: Held) -> int:
    """With the copy that the front has, and another one if it is not shown as it is; and with the
    index that each of them gets at the first name that is looked for in it."""
    assert isinstance(held.source, Listing)
    copies = 2 if held.value is held.source else 3
    count = held.source.count
    rows_bytes = count * ROW_OVERHEAD_BYTES + copies * index_slots(count) * SLOT_BYTES
    names_bytes = 2 * len(path)  # as the key, and where it is published
    return copies * len(held.source.packed) + rows_bytes + names_bytes + LISTING_OVERHEAD_BYTES


def until(now: float, fresh_s: float | None) -> float | None:
    """Until when to believe what the source says now."""
    return None if fresh_s is None else now + fresh_s


def believed(
    now: float, fresh_for_s: float | None, limit_s: float | None
) -> tuple[float | None, float]:
    """Until when to believe what a peer gave, and since when it was true. On the way down it does
    not grow younger."""
    if limit_s is None:
        return (None if fresh_for_s is None else now + fresh_for_s), now
    left = limit_s if fresh_for_s is None else min(fresh_for_s, limit_s)
    return now + left, now - (limit_s - left)
