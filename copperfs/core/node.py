"""One node's decisions: a synchronous state machine without clock or I/O.

``step(now, event)`` is the only mutator. It takes a question or an outcome and returns what is to
be done. The daemon performs that with threads and trio, the simulator in virtual time.

How a question is answered:

* from the shelf, if what is there is still fresh;
* else by a *fetch*. A question about something that is being fetched already waits on that fetch
  (coalescing); when it ends, every waiting question is looked at again, and usually finds its
  answer on the shelf;
* a name is looked for by fetching its directory's listing, which then answers for all its names,
  also the missing ones. Only where a listing tells too little (a very large directory, one that may
  be searched but not read) a name is looked up by itself;
* the front may read files of a listing that was *granted* by itself, and list the directories below
  it if all below is alike, on a credit of bytes that is reserved for it; otherwise a file's bytes
  are fetched whole up to ``whole_max_bytes``; above that the asker gets a handle.

Every fetch has a deadline. Answers never come from a fetch that began before the last ``Clear``,
also not from one of the front's, unless they are bytes of a version, which are true at any time.
"""

import errno
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from copperfs.core.actions import (
    Action,
    AnswerEntry,
    AnswerError,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    CacheKey,
    EntryKey,
    Evict,
    ListingKey,
    LookAgain,
    LookSource,
    ObjectKey,
    OpenSource,
    ReadSource,
    ReleaseBlob,
    ReleaseHandle,
    ScanSource,
)
from copperfs.core.events import (
    Clear,
    Event,
    Failed,
    Fetched,
    HaveRead,
    List,
    Listed,
    Look,
    Looked,
    Opened,
    Outcome,
    Question,
    Read,
    Scanned,
    Tick,
    Used,
)
from copperfs.core.listing import Listing
from copperfs.core.policy import Place, Policy
from copperfs.core.shelf import Shelf
from copperfs.types import BlobId, Entry, FetchId, Path, Version, split

# What holding something costs beside its bytes: keys, objects, its place in the front's tables.
LISTING_OVERHEAD_BYTES = 512
ROW_OVERHEAD_BYTES = 16
OBJECT_OVERHEAD_BYTES = 512
ENTRY_BYTES = 768

UNLISTABLE_MAX = 4096


class Kind(Enum):
    """What a fetch is after."""

    SCAN = "scan"
    LOOK = "look"
    READ = "read"
    OPEN = "open"


Subject = tuple[Kind, Path, object]
"""Fetches of one subject are one fetch; the third part is the version, for bytes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the node may use, and how long it waits."""

    memory_bytes: int
    tree_max_bytes: int
    bypass_above_bytes: int | None
    fetch_deadline_s: float
    credit_bytes: int = 0
    """Reserved for files that the front reads without asking. What it has read counts as held from
    when the node hears of it, and is then given back to the credit."""

    @property
    def whole_max_bytes(self) -> int:
        """Files up to this size are held whole. At least two must fit into the budget, so that one
        can be read while another is on its way."""
        limits = [self.tree_max_bytes, self.memory_bytes // 2 - OBJECT_OVERHEAD_BYTES]
        if self.bypass_above_bytes is not None:
            limits.append(self.bypass_above_bytes)
        return max(0, min(limits))


@dataclass(slots=True)
class Fetch:
    """One attempt to obtain something; *asked* are the questions that wait on it."""

    subject: Subject
    deadline: float
    asked: list[Question]
    reserved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A listing or an entry on the shelf, with the time until which it is believed."""

    value: Listing | Entry | None
    fresh_until: float | None
    since: float = 0.0
    directory: Version | None = None
    """A listing's directory as it was before it was listed."""

    def is_fresh(self, now: float) -> bool:
        return self.fresh_until is None or now < self.fresh_until


@dataclass(slots=True)
class NodeStats:
    """What a node did and holds, for people and for tests."""

    epoch: int = 1
    questions: int = 0
    answered_from_shelf: int = 0
    joined: int = 0
    fetches: int = 0
    fetched_on_credit: int = 0
    listed_on_credit: int = 0
    failures: int = 0
    overdue: int = 0
    version_changes: int = 0
    waited_for_room: int = 0
    fetching: int = 0
    held_bytes: int = 0
    held_count: int = 0
    reserved_bytes: int = 0
    budget_bytes: int = 0
    evictions: int = 0
    evicted_bytes: int = 0


@dataclass(slots=True)
class Node:
    policy: Policy
    limits: Limits
    stats: NodeStats = field(default_factory=NodeStats)
    _shelf: Shelf[CacheKey, Held | BlobId] = field(init=False)
    _fetches: dict[FetchId, Fetch] = field(default_factory=dict)
    _by_subject: dict[Subject, FetchId] = field(default_factory=dict)
    _no_room: deque[Read] = field(default_factory=deque)
    # Directories that cannot be listed, only searched. In order of discovery, the oldest forgotten
    # first: asking one in vain again costs one operation.
    _unlistable: dict[Path, None] = field(default_factory=dict)
    _next_fetch: int = 1

    def __post_init__(self) -> None:
        self._shelf = Shelf(self.limits.memory_bytes)
        self._shelf.set_aside(self.limits.credit_bytes)

    # --- the four verbs --------------------------------------------------------------------------

    def step(self, now: float, event: Event) -> list[Action]:
        match event:
            case Look() | List() | Read():
                self.stats.questions += 1
                return self._ask(now, event)
            case Scanned() | Looked() | HaveRead() | Opened() | Failed():
                return self._conclude(now, event)
            case Fetched(path, version, blob):
                return self._hold_fetched(ObjectKey(path, version), blob)
            case Listed(path, listing, epoch):
                return self._hold_listed(now, path, listing) if epoch == self.stats.epoch else []
            case Used(keys):
                for key in keys:
                    self._shelf.touch(key)  # type: ignore[arg-type]
                return []
            case Clear():
                return self._clear(now)
            case Tick():
                return self._expire(now)

    def deadline(self) -> float | None:
        # All fetches wait equally long, so the oldest is the first to expire.
        return next((fetch.deadline for fetch in self._fetches.values()), None)

    def statistics(self) -> NodeStats:
        self.stats.fetching = len(self._fetches)
        self.stats.held_bytes = self._shelf.held_bytes
        self.stats.held_count = len(self._shelf)
        self.stats.reserved_bytes = self._shelf.reserved_bytes
        self.stats.budget_bytes = self._shelf.budget_bytes
        self.stats.evictions = self._shelf.evictions
        self.stats.evicted_bytes = self._shelf.evicted_bytes
        return self.stats

    def reset_statistics(self) -> None:
        """Counts begin anew; the epoch does not."""
        self.stats = NodeStats(epoch=self.stats.epoch)
        self._shelf.evictions = self._shelf.evicted_bytes = 0

    def check_invariants(self) -> None:
        self._shelf.check_invariants()
        assert set(self._by_subject.values()) <= set(self._fetches)
        fetching = sum(fetch.reserved_bytes for fetch in self._fetches.values())
        assert self._shelf.reserved_bytes == self.limits.credit_bytes + fetching
        # nobody waits for room that nothing will make
        assert not self._no_room or fetching

    def held(self) -> list[tuple[CacheKey, int]]:
        """All that is on the shelf, oldest first, with its size."""
        return [(key, size) for key, _, size in self._shelf.items()]

    def _hold_fetched(self, key: ObjectKey, blob: BlobId) -> list[Action]:
        self.stats.fetched_on_credit += 1
        if key in self._shelf:
            return [ReleaseBlob(blob)]
        return self._admit(key, blob, key.version.size + OBJECT_OVERHEAD_BYTES)

    def _hold_listed(self, now: float, path: Path, listing: Listing) -> list[Action]:
        self.stats.listed_on_credit += 1
        return self._admit_listing(path, self._shown(now, path, listing), listing)

    # --- questions -------------------------------------------------------------------------------

    def _ask(self, now: float, question: Question) -> list[Action]:
        if self.policy.place(question.path) is Place.REFUSED and not (
            isinstance(question, Look) and question.path in self.policy.refused
        ):
            return [AnswerError(question.request, errno.ELOOP)]
        match question:
            case Look():
                return self._look(now, question)
            case List():
                return self._list(now, question)
            case Read():
                return self._read(now, question)

    def _look(self, now: float, question: Look) -> list[Action]:
        path = question.path
        held = self._fresh(EntryKey(path), now)
        if held is not None:
            assert not isinstance(held.value, Listing)
            self.stats.answered_from_shelf += 1
            return [AnswerEntry(question.request, held.value, held.fresh_until)]
        directory, name = split(path)
        # The root has no directory; a path that stays fresh for longer than the directory it is in
        # (the way down to a shared prefix) is not to grow old with that directory's listing.
        if not path or self.policy.fresh_s(path) != self.policy.listing_fresh_s(directory):
            return self._fetch(now, (Kind.LOOK, path, None), question)
        listing = self._listing(directory, now)
        if listing is None:
            if directory in self._unlistable:
                return self._fetch(now, (Kind.LOOK, path, None), question)
            return self._fetch(now, (Kind.SCAN, directory, None), question)
        assert isinstance(listing.value, Listing)
        if listing.value.bare and name in listing.value:
            return self._fetch(now, (Kind.LOOK, path, None), question)
        self.stats.answered_from_shelf += 1
        return [
            self._answer_listing(question, directory, listing),
        ]

    def _list(self, now: float, question: List) -> list[Action]:
        held = self._listing(question.path, now)
        if held is None:
            return self._fetch(now, (Kind.SCAN, question.path, None), question)
        assert isinstance(held.value, Listing)
        self.stats.answered_from_shelf += 1
        return [self._answer_listing(question, question.path, held)]

    def _read(self, now: float, question: Read) -> list[Action]:
        key = ObjectKey(question.path, question.version)
        blob = self._shelf.get(key)
        if blob is not None:
            assert not isinstance(blob, Held)
            self.stats.answered_from_shelf += 1
            return [AnswerObject(question.request, key, blob)]
        if question.version.size > self.limits.whole_max_bytes:
            return self._fetch(now, (Kind.OPEN, question.path, question.request), question)
        return self._fetch(now, (Kind.READ, question.path, question.version), question)

    def _listing(self, directory: Path, now: float) -> Held | None:
        """The listing of *directory*, unless it is known to have changed since.

        The kernel keeps a directory's names for as long as its times do not change. Names from
        before a change must therefore not be given to one who was told the times after it.
        """
        held = self._fresh(ListingKey(directory), now)
        if held is None or held.fresh_until is None:
            return held  # one snapshot: nothing changes
        above, name = split(directory)
        for key in (EntryKey(directory), ListingKey(above)):
            seen = self._fresh(key, now)
            if seen is None or seen.since <= held.since or (key == ListingKey(directory)):
                continue
            entry = seen.value.find(name) if isinstance(seen.value, Listing) else seen.value
            if entry is None or entry.attributes.version != held.directory:
                return None
        return held

    def _fresh(self, key: ListingKey | EntryKey, now: float) -> Held | None:
        held = self._shelf.get(key)
        if held is None:
            return None
        assert isinstance(held, Held)
        return held if held.is_fresh(now) else None

    # --- fetches ---------------------------------------------------------------------------------

    def _fetch(self, now: float, subject: Subject, question: Question) -> list[Action]:
        running = self._by_subject.get(subject)
        if running is not None:
            self.stats.joined += 1
            self._fetches[running].asked.append(question)
            return []
        actions: list[Action] = []
        reserved = 0
        if subject[0] is Kind.READ:
            assert isinstance(question, Read)
            reserved = question.version.size + OBJECT_OVERHEAD_BYTES
            gone = self._shelf.reserve(reserved)
            if gone is None:
                # Room comes when one of those ends for whom it is reserved.
                self.stats.waited_for_room += 1
                self._no_room.append(question)
                return []
            actions += self._evicted(gone)
        fetch = FetchId(self._next_fetch)
        self._next_fetch += 1
        self.stats.fetches += 1
        self._fetches[fetch] = Fetch(
            subject, now + self.limits.fetch_deadline_s, [question], reserved
        )
        self._by_subject[subject] = fetch
        actions.append(self._start(fetch, subject, question))
        return actions

    @staticmethod
    def _start(fetch: FetchId, subject: Subject, question: Question) -> Action:
        match subject[0], question:
            case Kind.SCAN, _:
                return ScanSource(fetch, subject[1])
            case Kind.LOOK, _:
                return LookSource(fetch, subject[1])
            case Kind.READ, Read(_, path, version):
                return ReadSource(fetch, path, version)
            case Kind.OPEN, Read(_, path, version):
                return OpenSource(fetch, path, version)
        raise AssertionError(f"{subject} is not for {question}")

    def _end(self, number: FetchId) -> Fetch | None:
        fetch = self._fetches.pop(number, None)
        if fetch is not None:
            self._shelf.unreserve(fetch.reserved_bytes)
            if self._by_subject.get(fetch.subject) == number:
                del self._by_subject[fetch.subject]
        return fetch

    def _conclude(self, now: float, outcome: Outcome) -> list[Action]:
        fetch = self._end(outcome.fetch)
        if fetch is None:
            return self._too_late(outcome)
        path = fetch.subject[1]
        actions: list[Action]
        match outcome:
            case Scanned(_, listing):
                held = self._shown(now, path, listing)
                # answered first: if it has to go again at once, it goes after it was published
                actions = self._answer_scanned(now, fetch, path, held)
                actions += self._admit_listing(path, held, listing)
            case Looked(_, entry):
                if entry is not None:
                    directory, name = split(path)
                    entry = self.policy.shown(directory, name, entry)
                held = Held(entry, self._until(now, self.policy.fresh_s(path)), now)
                actions = self._admit(EntryKey(path), held, ENTRY_BYTES)
                actions += [AnswerEntry(q.request, entry, held.fresh_until) for q in fetch.asked]
            case HaveRead(_, blob):
                actions = self._answer_read(fetch, blob)
            case Opened(_, handle):
                actions = [AnswerHandle(fetch.asked[0].request, handle)]
            case Failed(_, error):
                actions = self._fail(now, fetch, error)
        return actions + self._retry_no_room(now)

    def _shown(self, now: float, path: Path, listing: Listing) -> Held:
        shown = self.policy.shown_listing(path, listing)
        fresh_until = self._until(now, self.policy.listing_fresh_s(path))
        return Held(shown, fresh_until, now, listing.directory)

    def _admit_listing(self, path: Path, held: Held, scanned: Listing) -> list[Action]:
        self._unlistable.pop(path, None)
        size = len(scanned.packed) * 2 + scanned.count * ROW_OVERHEAD_BYTES
        return self._admit(ListingKey(path), held, size + LISTING_OVERHEAD_BYTES)

    def _answer_scanned(
        self, now: float, fetch: Fetch, directory: Path, held: Held
    ) -> list[Action]:
        """Names in a bare listing have to be looked up by themselves; the rest is answered."""
        assert isinstance(held.value, Listing)
        actions: list[Action] = []
        for question in fetch.asked:
            bare = isinstance(question, Look) and held.value.bare
            if bare and split(question.path)[1] in held.value:
                actions += self._fetch(now, (Kind.LOOK, question.path, None), question)
            else:
                actions.append(self._answer_listing(question, directory, held))
        return actions

    def _answer_listing(self, question: Question, directory: Path, held: Held) -> AnswerListing:
        assert isinstance(held.value, Listing)
        granted = self.limits.credit_bytes > 0 and not held.value.bare
        return AnswerListing(
            question.request,
            directory,
            held.value,
            held.fresh_until,
            granted=granted,
            granted_below=granted and self.policy.is_uniform_below(directory),
        )

    def _answer_read(self, fetch: Fetch, blob: BlobId) -> list[Action]:
        first = fetch.asked[0]
        assert isinstance(first, Read)
        key = ObjectKey(first.path, first.version)
        answers: list[Action] = [AnswerObject(q.request, key, blob) for q in fetch.asked]
        admitted = self._admit(key, blob, first.version.size + OBJECT_OVERHEAD_BYTES)
        return answers + admitted

    def _fail(self, now: float, fetch: Fetch, error: int) -> list[Action]:
        self.stats.failures += 1
        kind, path, _ = fetch.subject
        actions: list[Action] = []
        if kind is Kind.SCAN and error == errno.EACCES:
            # It may still be searched. Those who wanted its names are told that they may not.
            self._remember_unlistable(path)
            for question in fetch.asked:
                if isinstance(question, Look):
                    actions += self._fetch(now, (Kind.LOOK, question.path, None), question)
                else:
                    actions.append(AnswerError(question.request, error))
            return actions
        if kind is not Kind.LOOK and error in (errno.ESTALE, errno.ENOENT, errno.ENOTDIR):
            self.stats.version_changes += 1
            actions += self._forget_name(path)
        return actions + [AnswerError(q.request, error) for q in fetch.asked]

    def _forget_name(self, path: Path) -> list[Action]:
        """What was said of *path* is not true any more: it has to be asked for again."""
        directory, _ = split(path)
        gone = self._shelf.drop(EntryKey(path)) + self._shelf.drop(ListingKey(directory))
        return [*self._evicted(gone), LookAgain(path)]

    def _remember_unlistable(self, path: Path) -> None:
        self._unlistable[path] = None
        if len(self._unlistable) > UNLISTABLE_MAX:
            del self._unlistable[next(iter(self._unlistable))]

    def _retry_no_room(self, now: float) -> list[Action]:
        """Ask again for those who found no room; who still finds none goes to the end."""
        actions: list[Action] = []
        for _ in range(len(self._no_room)):
            question = self._no_room.popleft()
            waiting = len(self._no_room)
            actions += self._read(now, question)
            if len(self._no_room) > waiting:
                break
        return actions

    @staticmethod
    def _too_late(outcome: Outcome) -> list[Action]:
        match outcome:
            case HaveRead(_, blob):
                return [ReleaseBlob(blob)]
            case Opened(_, handle):
                return [ReleaseHandle(handle)]
            case _:
                return []

    def _expire(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for number, fetch in list(self._fetches.items()):
            if fetch.deadline > now:
                break
            self._end(number)
            self.stats.overdue += 1
            actions += [AnswerError(q.request, errno.ETIMEDOUT) for q in fetch.asked]
        return actions + self._retry_no_room(now) if actions else actions

    # --- the shelf -------------------------------------------------------------------------------

    @staticmethod
    def _until(now: float, fresh_s: float | None) -> float | None:
        return None if fresh_s is None else now + fresh_s

    def _admit(self, key: CacheKey, value: Held | BlobId, size: int) -> list[Action]:
        return self._evicted(self._shelf.admit(key, value, size), replaced_by=(key, value))

    @staticmethod
    def _evicted(
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
                actions.append(ReleaseBlob(value))
        return actions

    def _clear(self, now: float) -> list[Action]:
        self.stats.epoch += 1
        self._unlistable.clear()
        actions = self._evicted(self._shelf.drop_all())
        # What is being looked for now may be what it was before; it is looked for again.
        stale = [
            (number, fetch)
            for number, fetch in self._fetches.items()
            if fetch.subject[0] in (Kind.SCAN, Kind.LOOK)
        ]
        for number, fetch in stale:
            self._end(number)
            for question in fetch.asked:
                actions += self._fetch(now, fetch.subject, question)
        return actions
