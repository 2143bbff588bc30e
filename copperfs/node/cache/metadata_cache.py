"""Metadata cache: listings, entries and whole objects in one LRU, each with its validity.

*Listings* and single *entries* are valid until a time, or for the whole epoch. An *object* is
always valid, because its key names its version. The cache holds listings and entries in two forms:
as the source has them, which is what peers get, and as this mount shows them. It also knows which
directories can only be searched, not listed.

Every listing enters through ``take_listing``; one from another process has been checked before
(``listing.checked_listing``). Everything leaves through ``_evicted``.
"""

import math
import stat
from dataclasses import dataclass, field
from enum import Enum

from copperfs.model.listing import Listing, index_slots
from copperfs.model.types import Attributes, BlobId, Entry, Path, Version, split
from copperfs.node.actions import (
    Action,
    CacheKey,
    EntryKey,
    Evict,
    InvalidateName,
    ListingKey,
    ObjectKey,
    Publish,
    ReleaseBlob,
)
from copperfs.node.cache.blob_refs import BlobRefs
from copperfs.node.cache.lru import LruBudget
from copperfs.node.limits_and_counters import (
    ENTRY_BYTES,
    LISTING_OVERHEAD_BYTES,
    OBJECT_OVERHEAD_BYTES,
    ROW_OVERHEAD_BYTES,
    SLOT_BYTES,
    Limits,
    NodeStats,
)
from copperfs.node.requests.file_class import FileClass, FileClassifier
from copperfs.node.requests.path_policy import Policy

UNLISTABLE_MAX = 4096
# A process that stays in a replaced directory reports that with each request. The node forgets the
# way to that directory once, and again after this time, if another node gave it old names.
REPLACED_AGAIN_S = 10.0
REPLACED_MAX = 1024
NO_DIRECTORY = 0
"""Used as the inode of a replacement that is no directory."""


@dataclass(frozen=True, slots=True)
class Held:
    value: Listing | Entry | None
    """As this mount shows it."""
    fresh_until: float | None
    source: Listing | Entry | None
    """As peers get it."""
    since: float = 0.0
    directory: Version | None = None
    """The listing's directory, as it was before its names were read."""

    def is_fresh(self, now: float) -> bool:
        return self.fresh_until is None or now < self.fresh_until


class CameBy(Enum):
    FETCH = "fetch"
    FRONT = "front"
    """The front listed it, on its allowance."""
    PUSH = "push"
    """With a pushed working set."""
    OFFER = "offer"


@dataclass(slots=True)
class Cache:
    policy: Policy
    files: FileClassifier
    limits: Limits
    stats: NodeStats
    blob_refs: BlobRefs
    _lru: LruBudget[CacheKey, Held | BlobId] = field(init=False)
    # The oldest is forgotten first: asking the source again costs one operation. The value is the
    # time until which peers get the error without that operation.
    _unlistable: dict[Path, float | None] = field(default_factory=dict)
    _replaced: dict[Path, tuple[int | None, float]] = field(default_factory=dict)
    """Directories to which the cache forgot the way: the replacement's inode, and when; oldest
    first."""

    def __post_init__(self) -> None:
        self._lru = LruBudget(self.limits.memory_bytes)
        self._lru.set_aside(self.limits.allowance_bytes)

    # --- what is held ----------------------------------------------------------------------------

    def entry(self, path: Path, now: float) -> Held | None:
        """The result of a lookup of *path* itself, if still valid."""
        return self._fresh(EntryKey(path), now)

    def listing(self, directory: Path, now: float) -> Held | None:
        """The listing, unless the directory is known to have changed since. The kernel keeps a
        directory's names as long as its times do not change. So a process that was told the times
        after a change must not get names from before it.
        """
        held = self._fresh(ListingKey(directory), now)
        if held is None:
            return None
        # One snapshot: the content of the same directory does not change
        if held.fresh_until is None:
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
        """Whether *path* was seen after *since* as another directory than *directory*."""
        above, name = split(path)
        if directory is None or not path:
            return False
        for key in (EntryKey(path), ListingKey(above)):
            seen = self._lru.peek(key)
            if not isinstance(seen, Held) or seen.since <= since:
                continue
            entry = seen.source.find(name) if isinstance(seen.source, Listing) else seen.source
            if entry is None or _is_bare(entry.attributes):
                continue  # this number is of the directory, not of what is mounted there
            if entry.attributes.version.is_another_than(directory):
                return True
        return False

    def blob(self, key: ObjectKey) -> BlobId | None:
        blob = self._lru.get(key)
        assert not isinstance(blob, Held)
        return blob

    def _fresh(self, key: ListingKey | EntryKey, now: float) -> Held | None:
        held = self._lru.get(key)
        if held is None:
            return None
        assert isinstance(held, Held)
        return held if held.is_fresh(now) else None

    def held_listing(self, directory: Path) -> tuple[Listing, float | None] | None:
        """The listing as the source has it."""
        held = self._lru.peek(ListingKey(directory))
        if not isinstance(held, Held) or not isinstance(held.source, Listing):
            return None
        return held.source, held.fresh_until

    def holds(self, path: Path, version: Version) -> bool:
        return ObjectKey(path, version) in self._lru

    def held(self) -> list[tuple[CacheKey, int]]:
        """Oldest first."""
        return [(key, size) for key, _, size in self._lru.items()]

    def used(self, keys: tuple[object, ...]) -> None:
        for key in keys:
            self._lru.touch(key)  # type: ignore[arg-type]

    # --- what the mount shows --------------------------------------------------------------------

    def as_listed(
        self, path: Path, listing: Listing, fresh_until: float | None, since: float
    ) -> Held:
        shown = self.policy.shown_listing(path, listing)
        return Held(shown, fresh_until, listing, since, listing.directory)

    def as_looked_up(
        self, path: Path, entry: Entry | None, fresh_until: float | None, since: float
    ) -> Held:
        shown = entry
        if entry is not None:
            directory, name = split(path)
            shown = self.policy.shown(directory, name, entry)
        return Held(shown, fresh_until, entry, since)

    # --- admission -------------------------------------------------------------------------------

    def take_listing(self, path: Path, held: Held, came_by: CameBy) -> list[Action]:
        """The only way for a listing into the cache. An offered one enters only if nothing has to
        be evicted for it, and is published before an application asks."""
        size = cost_of_listing(path, held)
        if came_by is CameBy.OFFER and not self._lru.has_free(size):
            return []
        self._unlistable.pop(path, None)
        self._note_listed(path, held.directory)
        actions = self._admit(ListingKey(path), held, size)
        self.stats.listed_on_credit += came_by is CameBy.FRONT
        self.stats.offered += came_by is CameBy.OFFER
        return actions + self.publish_listing(path, held) if came_by is CameBy.OFFER else actions

    def admit_entry(self, path: Path, held: Held) -> list[Action]:
        return self._admit(EntryKey(path), held, ENTRY_BYTES)

    def admit_object(self, key: ObjectKey, blob: BlobId) -> list[Action]:
        return self._admit(key, blob, key.version.size + OBJECT_OVERHEAD_BYTES)

    def _admit(self, key: CacheKey, value: Held | BlobId, size: int) -> list[Action]:
        return self._evicted(self._lru.admit(key, value, size), replaced_by=(key, value))

    # --- content that came without a request -----------------------------------------------------

    def take_fetched(self, key: ObjectKey, blob: BlobId) -> list[Action]:
        """The front read it, on its allowance."""
        if key in self._lru:
            return [ReleaseBlob(blob)]
        return self.admit_object(key, blob)

    def take_ahead(self, key: ObjectKey, blob: BlobId) -> list[Action]:
        """Hold an object that no application has asked for. It evicts nothing, and is evicted
        first."""
        if key in self._lru:
            return [ReleaseBlob(blob)]
        size = key.version.size + OBJECT_OVERHEAD_BYTES
        if not self._lru.has_free(size):
            return [Evict(key), *self.blob_refs.release(blob)]
        gone = self._lru.admit(key, blob, size, oldest=True)
        assert not gone, "there was room"
        return []

    def has_free(self, size: int) -> bool:
        return self._lru.has_free(size)

    def take_listed(self, now: float, path: Path, listing: Listing) -> list[Action]:
        """The front listed it, on its allowance."""
        fresh_until = until(now, self.policy.listing_fresh_s(path))
        held = self.as_listed(path, listing, fresh_until, now)
        return self.take_listing(path, held, CameBy.FRONT)

    def publish_object(self, key: ObjectKey) -> list[Action]:
        blob = self._lru.peek(key)
        return [] if blob is None or isinstance(blob, Held) else [Publish(key, blob)]

    def publish_listing(self, path: Path, held: Held) -> list[Action]:
        # A listing that expires would have to be compared with lookups elsewhere.
        if held.fresh_until is not None or ListingKey(path) not in self._lru:
            return []
        assert isinstance(held.value, Listing)
        return [Publish(ListingKey(path), held.value)]

    def take_pushed(self, key: ObjectKey, blob: BlobId, *, offered: bool) -> list[Action]:
        size = key.version.size
        if key in self._lru or self.files.of(key.path, size) is not FileClass.WHOLE:
            return [ReleaseBlob(blob)]
        if offered and not self._lru.has_free(size + OBJECT_OVERHEAD_BYTES):
            return [ReleaseBlob(blob)]
        if not offered:
            self.stats.pushed += 1
            return self.admit_object(key, blob)
        self.stats.offered += 1
        return self.admit_object(key, blob) + self.publish_object(key)

    def offerable(self, key: CacheKey, now: float) -> BlobId | Held | None:
        """None if peers may not get it now."""
        value = self._lru.peek(key)
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
        return self.take_listing(path, held, CameBy.OFFER if offered else CameBy.PUSH)

    # --- eviction --------------------------------------------------------------------------------

    def reserve(self, size: int) -> list[Action] | None:
        """None if there is no room."""
        gone = self._lru.reserve(size)
        return None if gone is None else self._evicted(gone)

    def unreserve(self, size: int) -> None:
        self._lru.unreserve(size)

    def forget_name(self, path: Path) -> list[Action]:
        """*path* has changed: forget it, here and in the kernel."""
        directory, _ = split(path)
        gone = self._lru.drop(EntryKey(path)) + self._lru.drop(ListingKey(directory))
        return [*self._evicted(gone), InvalidateName(path)]

    def forget_way(self, path: Path) -> list[Action]:
        """The same for all directories that lead to *path*: any of them may have been replaced."""
        actions: list[Action] = []
        while path:
            actions += self.forget_name(path)
            path, _ = split(path)
        return actions

    def forget_directory(self, now: float, path: Path) -> list[Action]:
        """*path* is another directory than the one that the kernel knows."""
        held = self._lru.peek(ListingKey(path))
        found = held.directory if isinstance(held, Held) else None
        if not self._is_news(now, path, None if found is None else found.inode):
            return []
        return [*self._evicted(self._lru.drop(ListingKey(path))), *self.forget_way(path)]

    def forget_no_directory(self, now: float, directory: Path, path: Path) -> list[Action]:
        """A request for *path* failed, because *directory* is no directory any more."""
        return self.forget_way(path) if self._is_news(now, directory, NO_DIRECTORY) else []

    def _is_news(self, now: float, path: Path, inode: int | None) -> bool:
        """Whether it is news, not noticed a moment ago, that the directory with this number (None:
        unknown) has replaced *path*."""
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
        """Forget the last replacement if the listing came of another directory: finding that
        replacement is news again."""
        found = self._replaced.get(path)
        if found is not None and directory is not None and found[0] != directory.inode:
            del self._replaced[path]

    def clear(self) -> list[Action]:
        self._unlistable.clear()
        self._replaced.clear()
        return self._evicted(self._lru.drop_all())

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
                actions += self.blob_refs.release(value)
        return actions

    # --- directories that cannot be listed -------------------------------------------------------

    def is_unlistable(self, directory: Path) -> bool:
        return directory in self._unlistable

    def is_refused_to_peers(self, directory: Path, now: float) -> bool:
        """Whether to refuse peers a listing without asking the source. Otherwise every node of the
        job asks the root for a directory that the root's own application could not list."""
        believed_until = self._unlistable.get(directory, 0.0)
        return believed_until is None or now < believed_until

    def remember_unlistable(self, directory: Path, now: float) -> None:
        self._unlistable[directory] = until(now, self.policy.listing_fresh_s(directory))
        if len(self._unlistable) > UNLISTABLE_MAX:
            del self._unlistable[next(iter(self._unlistable))]

    # --- statistics and invariants ---------------------------------------------------------------

    def count(self) -> None:
        self.stats.held_bytes = self._lru.held_bytes
        self.stats.held_count = len(self._lru)
        self.stats.reserved_bytes = self._lru.reserved_bytes
        self.stats.budget_bytes = self._lru.budget_bytes
        self.stats.evictions = self._lru.evictions
        self.stats.evicted_bytes = self._lru.evicted_bytes

    @property
    def left_bytes(self) -> int:
        return self._lru.left_bytes

    def reset_counts(self) -> None:
        self._lru.evictions = self._lru.evicted_bytes = 0

    def check_invariants(self, on_its_way_bytes: int) -> None:
        self._lru.check_invariants()
        assert self._lru.reserved_bytes == self.limits.allowance_bytes + on_its_way_bytes


def _is_bare(attributes: Attributes) -> bool:
    return attributes == Attributes.bare(attributes.inode, stat.S_IFMT(attributes.mode))


def cost_of_listing(path: Path, held: Held) -> int:
    """The cost with the front's copy, and another one if the mount shows the listing differently;
    each with its index."""
    assert isinstance(held.source, Listing)
    copies = 2 if held.value is held.source else 3
    count = held.source.count
    rows_bytes = count * ROW_OVERHEAD_BYTES + copies * index_slots(count) * SLOT_BYTES
    names_bytes = 2 * len(path)  # as the key, and where it is published
    return copies * len(held.source.packed) + rows_bytes + names_bytes + LISTING_OVERHEAD_BYTES


def until(now: float, fresh_s: float | None) -> float | None:
    """Until when a fact that the source states now is valid."""
    return None if fresh_s is None else now + fresh_s


def believed(
    now: float, fresh_for_s: float | None, limit_s: float | None
) -> tuple[float | None, float]:
    """Until when a peer's reply is valid, and since when it is true. Its age is kept when nodes
    pass it down."""
    if limit_s is None:
        return (None if fresh_for_s is None else now + fresh_for_s), now
    left = limit_s if fresh_for_s is None else min(fresh_for_s, limit_s)
    return now + left, now - (limit_s - left)
