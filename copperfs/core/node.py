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

A fetch goes to the source, or, for what is shared in a job of several nodes, to this node's parent
in the tree of its directory; the root of that tree reads the source. A peer's ask is a question
like any other, waits on the same fetches, and is answered by a message. What the source said
travels, not what this mount shows of it. Without its parent a node reads the source itself, and
counts it.

Room for what is on its way is divided among the trees, so that a node that waits in one tree never
keeps another from being served: in each tree for itself, who waits is always further from the root
than whom it waits for.

Every fetch has a deadline. Answers never come from a fetch that began before the last ``Clear``,
also not from one of the front's, unless they are bytes of a version, which are true at any time.
A clear on one node is a clear on all: whoever hears of a later epoch clears as well.

The state's types are in ``state.py``, what passes between two nodes in ``links.py``.
"""

import errno
from collections import deque
from dataclasses import dataclass, field

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
    NewEpoch,
    ObjectKey,
    OpenSource,
    ReadSource,
    ReleaseBlob,
    ReleaseHandle,
    ScanSource,
    Send,
)
from copperfs.core.calls import Calls
from copperfs.core.events import (
    BatchTaken,
    CallPerformed,
    Clear,
    Event,
    Failed,
    Fetched,
    FromPeer,
    HaveRead,
    Heard,
    List,
    Listed,
    ListingTaken,
    Look,
    Looked,
    Opened,
    Outcome,
    PartPassed,
    PartSpoiled,
    PartTaken,
    PeerDown,
    PeerUp,
    PushBatch,
    Pushed,
    PushedListing,
    Question,
    Read,
    Scanned,
    StartCall,
    Tick,
    Used,
    WarmedUp,
)
from copperfs.core.links import Links, Passing, Stream, part_size, parts_in
from copperfs.core.listing import Listing
from copperfs.core.messages import (
    PATH_BYTES_MAX,
    Ask,
    Batch,
    Call,
    Credit,
    GiveEntry,
    GivePart,
    Hello,
    Item,
    Refuse,
    Return,
    What,
    Withdraw,
)
from copperfs.core.policy import Place, Policy
from copperfs.core.shelf import Shelf
from copperfs.core.state import (
    ENTRY_BYTES,
    LISTING_MAX_BYTES,
    LISTING_OVERHEAD_BYTES,
    OBJECT_OVERHEAD_BYTES,
    ROW_OVERHEAD_BYTES,
    SPOILED_MAX,
    UNLISTABLE_MAX,
    Fetch,
    Held,
    Kind,
    Limits,
    NodeStats,
    Subject,
)
from copperfs.core.trees import Trees
from copperfs.types import BlobId, Entry, FetchId, NodeId, Path, PeerRequest, Version, split

# A parent has no room for the file, is asked too much by this node, or has something of its own
# where this node has the shared filesystem.
_TRY_THE_SOURCE = (errno.EFBIG, errno.EBUSY, errno.EXDEV)
_WHAT = {Kind.SCAN: What.LISTING, Kind.LOOK: What.ENTRY, Kind.READ: What.OBJECT}


@dataclass(slots=True)
class Node:
    policy: Policy
    limits: Limits
    trees: Trees | None = None
    """None for a node that is a job by itself."""
    stats: NodeStats = field(default_factory=NodeStats)
    links: Links = field(default_factory=Links)
    calls: Calls = field(init=False)
    _shelf: Shelf[CacheKey, Held | BlobId] = field(init=False)
    _fetches: dict[FetchId, Fetch] = field(default_factory=dict)
    _by_subject: dict[Subject, FetchId] = field(default_factory=dict)
    _no_room: list[deque[Read]] = field(init=False)
    _on_its_way: list[int] = field(init=False)
    """Bytes reserved for what is on its way, by tree."""
    # Directories that cannot be listed, only searched. In order of discovery, the oldest forgotten
    # first: asking one in vain again costs one operation.
    _unlistable: dict[Path, None] = field(default_factory=dict)
    _warm: set[Path] = field(default_factory=set)
    """Directories that are not granted, because the front would read what is held."""
    _above_warm: set[Path] = field(default_factory=set)
    _next_fetch: int = 1
    _next_ask: int = 1

    def __post_init__(self) -> None:
        self._shelf = Shelf(self.limits.memory_bytes)
        self.calls = Calls(self.trees, self.links)
        self._shelf.set_aside(self.limits.credit_bytes)
        self._no_room = [deque() for _ in range(self.limits.trees)]
        self._on_its_way = [0] * self.limits.trees

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
            case WarmedUp(directories):
                return self._keep_from_front(directories)
            case Clear(epoch, local):
                return self._clear(now, epoch or self.stats.epoch + (0 if local else 1))
            case StartCall(request, operation, argument, within_s):
                return self.calls.start(now, request, operation, argument, within_s)
            case CallPerformed(call, result):
                return self.calls.performed(call, result)
            case Tick():
                return self._expire(now) + self.calls.expire(now)
            case _:
                return self._from_peer(now, event)

    def deadline(self) -> float | None:
        # All fetches wait equally long, so the oldest is the first to expire.
        first = next((fetch.deadline for fetch in self._fetches.values()), None)
        calls = self.calls.deadline()
        return min((each for each in (first, calls) if each is not None), default=None)

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
        self.links.check_invariants()
        for tree in range(self.limits.trees):
            fetching = [f.reserved_bytes for f in self._fetches.values() if f.tree == tree]
            assert sum(fetching) == self._on_its_way[tree]
        fetching_bytes = sum(self._on_its_way)
        assert self._shelf.reserved_bytes == self.limits.credit_bytes + fetching_bytes
        # nobody waits for room that nothing will make
        assert fetching_bytes or not any(self._no_room)
        for number, fetch in self._fetches.items():
            assert fetch.ask is None or self.links.asked(*fetch.ask) == number

    def held_listing(self, directory: Path) -> tuple[Listing, float | None] | None:
        """As the source has it, and until when it may be believed."""
        held = self._shelf.get(ListingKey(directory))
        if not isinstance(held, Held) or not isinstance(held.source, Listing):
            return None
        return held.source, held.fresh_until

    def wants_pushed(self, item: Item) -> bool:
        """Whether to take in what is pushed: not what is held, is no place of all nodes, is too
        large for this one, or cannot be what it says it is."""
        if self.policy.place(item.path) is not Place.SHARED:
            return False
        if item.what is What.LISTING:
            return item.total_bytes <= LISTING_MAX_BYTES
        if item.version is None or item.version.size != item.total_bytes:
            return False
        fits = 0 < item.total_bytes <= self.limits.whole_max_bytes
        return fits and not self.holds(item.path, item.version)

    def holds(self, path: Path, version: Version) -> bool:
        return ObjectKey(path, version) in self._shelf

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
        fresh_until = self._until(now, self.policy.listing_fresh_s(path))
        return self._admit_listing(path, self._shown(path, listing, fresh_until, now))

    def _keep_from_front(self, directories: tuple[Path, ...]) -> list[Action]:
        """What was granted before is taken back."""
        before = self._warm | self._above_warm
        self._warm.update(directories)
        for directory in directories:
            while directory:
                directory, _ = split(directory)
                self._above_warm.add(directory)
        changed = (self._warm | self._above_warm) - before
        return [Evict(key) for path in changed if (key := ListingKey(path)) in self._shelf]

    # --- questions -------------------------------------------------------------------------------

    def _ask(self, now: float, question: Question) -> list[Action]:
        if self.policy.place(question.path) is Place.REFUSED and not (
            isinstance(question, Look) and question.path in self.policy.refused
        ):
            return self._answer_error(question, errno.ELOOP)
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
            return self._answer_entry(now, question, held)
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
        return self._answer_listing(now, question, directory, listing)

    def _list(self, now: float, question: List) -> list[Action]:
        held = self._listing(question.path, now)
        if held is None:
            return self._fetch(now, (Kind.SCAN, question.path, None), question)
        assert isinstance(held.value, Listing)
        self.stats.answered_from_shelf += 1
        return self._answer_listing(now, question, question.path, held)

    def _read(self, now: float, question: Read) -> list[Action]:
        key = ObjectKey(question.path, question.version)
        blob = self._shelf.get(key)
        if blob is not None:
            assert not isinstance(blob, Held)
            self.stats.answered_from_shelf += 1
            return self._answer_object(now, question, key, blob)
        if question.version.size > self.limits.whole_max_bytes:
            if isinstance(question.request, PeerRequest):
                return self._answer_error(question, errno.EFBIG)
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
            fetch = self._fetches[running]
            fetch.asked.append(question)
            return self._pass_on(now, fetch, question)
        actions: list[Action] = []
        reserved, tree = 0, self._tree(subject)
        if subject[0] is Kind.READ:
            assert isinstance(question, Read)
            reserved = question.version.size + OBJECT_OVERHEAD_BYTES
            gone = self._reserve(tree, reserved)
            if gone is None:
                # Room comes when one of those ends for whom it is reserved.
                self.stats.waited_for_room += 1
                self._no_room[tree].append(question)
                return []
            actions += self._evicted(gone)
        number = FetchId(self._next_fetch)
        self._next_fetch += 1
        self.stats.fetches += 1
        deadline = now + self.limits.fetch_deadline_s
        fetch = Fetch(subject, deadline, [question], reserved, tree)
        self._fetches[number] = fetch
        self._by_subject[subject] = number
        return actions + self._attempt(number, fetch)

    def _reserve(self, tree: int, size: int) -> list[tuple[CacheKey, Held | BlobId]] | None:
        room = (self.limits.memory_bytes - self.limits.credit_bytes) // self.limits.trees
        if self._on_its_way[tree] and self._on_its_way[tree] + size > room:
            return None
        gone = self._shelf.reserve(size)
        if gone is not None:
            self._on_its_way[tree] += size
        return gone

    def _tree(self, subject: Subject) -> int:
        """A directory and what is in it are asked for in one tree."""
        if self.trees is None:
            return 0
        kind, path, _ = subject
        return self.trees.tree_of(path if kind is Kind.SCAN else split(path)[0])

    def _attempt(self, number: FetchId, fetch: Fetch) -> list[Action]:
        """Ask the parent, if there is one to ask, or the source."""
        kind, path, version = fetch.subject
        parent = None
        if (
            self.trees is not None
            and kind is not Kind.OPEN
            and len(path) <= PATH_BYTES_MAX
            and fetch.spoiled < SPOILED_MAX
            and self.policy.place(path) is Place.SHARED
        ):
            parent = self.trees.parent(fetch.tree)
            if parent is not None and not self.links.is_up(parent):
                self.stats.fallbacks += 1
                parent = None
        if parent is None:
            return [self._start(number, fetch.subject, fetch.asked)]
        ask = self._next_ask
        self._next_ask += 1
        self.stats.asks += 1
        fetch.ask = (parent, ask)
        wanted = version if isinstance(version, Version) else None
        message = Ask(ask, self.stats.epoch, _WHAT[kind], path, wanted, fetch.there)
        return self.links.ask(parent, message, number)

    @staticmethod
    def _start(fetch: FetchId, subject: Subject, asked: list[Question]) -> Action:
        kind, path, version = subject
        match kind:
            case Kind.SCAN:
                return ScanSource(fetch, path)
            case Kind.LOOK:
                return LookSource(fetch, path)
            case Kind.READ:
                assert isinstance(version, Version)
                return ReadSource(fetch, path, version)
            case Kind.OPEN:
                assert isinstance(asked[0], Read)
                return OpenSource(fetch, path, asked[0].version)

    def _end(self, number: FetchId) -> tuple[Fetch | None, list[Action]]:
        """The fetch is over, as far as the node is concerned; what it asked for may still come."""
        fetch = self._fetches.pop(number, None)
        if fetch is None:
            return None, []
        self._shelf.unreserve(fetch.reserved_bytes)
        self._on_its_way[fetch.tree] -= fetch.reserved_bytes
        if self._by_subject.get(fetch.subject) == number:
            del self._by_subject[fetch.subject]
        actions: list[Action] = []
        if fetch.ask is not None:
            actions = self.links.answered(*fetch.ask)
            fetch.ask = None
        return fetch, actions

    def _conclude(self, now: float, outcome: Outcome) -> list[Action]:
        fetch = self._fetches.get(outcome.fetch)
        if fetch is None or fetch.ask is not None:
            return self._too_late(outcome)
        _, actions = self._end(outcome.fetch)
        path = fetch.subject[1]
        match outcome:
            case Scanned(_, listing):
                fresh_until = self._until(now, self.policy.listing_fresh_s(path))
                actions += self._take_listing(now, fetch, listing, fresh_until, now)
            case Looked(_, entry):
                fresh_until = self._until(now, self.policy.fresh_s(path))
                actions += self._take_entry(now, fetch, entry, fresh_until, now)
            case HaveRead(_, blob):
                actions += self._take_object(now, fetch, blob)
            case Opened(_, handle):
                request = fetch.asked[0].request
                assert not isinstance(request, PeerRequest)
                actions.append(AnswerHandle(request, handle))
            case Failed(_, error):
                actions += self._fail(now, fetch, error)
        return actions + self._retry_no_room(now)

    def _take_listing(
        self, now: float, fetch: Fetch, listing: Listing, fresh_until: float | None, since: float
    ) -> list[Action]:
        """Names in a bare listing have to be looked up by themselves; the rest is answered."""
        path = fetch.subject[1]
        held = self._shown(path, listing, fresh_until, since)
        shown = held.value
        assert isinstance(shown, Listing)
        actions: list[Action] = []
        # answered first: if it has to go again at once, it goes after it was published
        for question in fetch.asked:
            bare = isinstance(question, Look) and shown.bare
            if bare and split(question.path)[1] in shown:
                actions += self._fetch(now, (Kind.LOOK, question.path, None), question)
            else:
                actions += self._answer_listing(now, question, path, held)
        return actions + self._admit_listing(path, held)

    def _shown(self, path: Path, listing: Listing, fresh_until: float | None, since: float) -> Held:
        shown = self.policy.shown_listing(path, listing)
        return Held(shown, fresh_until, listing, since, listing.directory)

    def _admit_listing(self, path: Path, held: Held) -> list[Action]:
        self._unlistable.pop(path, None)
        assert isinstance(held.source, Listing)
        size = len(held.source.packed) * 2 + held.source.count * ROW_OVERHEAD_BYTES
        if held.value is not held.source:
            size += len(held.source.packed)
        return self._admit(ListingKey(path), held, size + LISTING_OVERHEAD_BYTES)

    def _take_entry(
        self,
        now: float,
        fetch: Fetch,
        entry: Entry | None,
        fresh_until: float | None,
        since: float,
    ) -> list[Action]:
        path = fetch.subject[1]
        shown = entry
        if entry is not None:
            directory, name = split(path)
            shown = self.policy.shown(directory, name, entry)
        held = Held(shown, fresh_until, entry, since)
        actions = self._admit(EntryKey(path), held, ENTRY_BYTES)
        for question in fetch.asked:
            assert isinstance(question, Look)
            actions += self._answer_entry(now, question, held)
        return actions

    def _take_object(self, now: float, fetch: Fetch, blob: BlobId) -> list[Action]:
        _, path, version = fetch.subject
        assert isinstance(version, Version)
        key = ObjectKey(path, version)
        actions: list[Action] = []
        streaming = set()
        for peer, stream in fetch.streams:
            streaming.add(PeerRequest(peer, stream.number))
            actions += self.links.more(stream, blob, parts_in(version.size))
            actions += self.links.pump(now, self.stats.epoch, peer)
        for question in fetch.asked:
            assert isinstance(question, Read)
            if question.request not in streaming:
                actions += self._answer_object(now, question, key, blob)
        if fetch.blob not in (None, blob):
            assert fetch.blob is not None
            actions += self.links.release(fetch.blob)
        return actions + self._admit(key, blob, version.size + OBJECT_OVERHEAD_BYTES)

    # --- answers: to a request of this node, or by a message to a peer ---------------------------

    def _answer_error(self, question: Question, error: int) -> list[Action]:
        request = question.request
        if not isinstance(request, PeerRequest):
            return [AnswerError(request, error)]
        if not self.links.is_serving(*request):
            return []  # gone, or withdrawn
        stopped = self.links.stop(*request)
        refusal = Refuse(request.number, self.stats.epoch, error)
        return [*stopped, Send(request.peer, refusal)]

    def _answer_entry(self, now: float, question: Look, held: Held) -> list[Action]:
        assert not isinstance(held.value, Listing)
        assert not isinstance(held.source, Listing)
        request = question.request
        if not isinstance(request, PeerRequest):
            return [AnswerEntry(request, held.value, held.fresh_until)]
        return self._give_entry(now, request, held.source, held.fresh_until)

    def _give_entry(
        self, now: float, request: PeerRequest, entry: Entry | None, fresh_until: float | None
    ) -> list[Action]:
        if not self.links.is_serving(*request):
            return []
        self.links.served(*request)
        left = None if fresh_until is None else max(0.0, fresh_until - now)
        message = GiveEntry(request.number, self.stats.epoch, entry, left)
        return [Send(request.peer, message)]

    def _answer_listing(
        self, now: float, question: Question, directory: Path, held: Held
    ) -> list[Action]:
        assert isinstance(held.value, Listing)
        assert isinstance(held.source, Listing)
        request = question.request
        if isinstance(request, PeerRequest):
            if isinstance(question, Look):
                entry = held.source.find(split(question.path)[1])
                return self._give_entry(now, request, entry, held.fresh_until)
            if not self.links.is_serving(*request):
                return []
            total = len(held.source.packed)
            stream = Stream(
                request.number, held.source, total, 0, parts_in(total), held.fresh_until
            )
            return self.links.give(now, self.stats.epoch, request.peer, stream)
        # In a job of several nodes only the node can tell which questions are for the same file.
        alone = self.limits.credit_bytes > 0 and self.trees is None
        granted = alone and not held.value.bare and directory not in self._warm
        below = granted and directory not in self._above_warm
        return [
            AnswerListing(
                request,
                directory,
                held.value,
                held.fresh_until,
                granted=granted,
                granted_below=below and self.policy.is_uniform_below(directory),
            )
        ]

    def _answer_object(
        self, now: float, question: Read, key: ObjectKey, blob: BlobId
    ) -> list[Action]:
        request = question.request
        if not isinstance(request, PeerRequest):
            return [AnswerObject(request, key, blob)]
        if not self.links.is_serving(*request):
            return []
        size = key.version.size
        stream = Stream(request.number, blob, size, question.first, parts_in(size))
        return self.links.give(now, self.stats.epoch, request.peer, stream)

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
                    actions += self._answer_error(question, error)
            return actions
        if kind is not Kind.LOOK and error in (errno.ESTALE, errno.ENOENT, errno.ENOTDIR):
            self.stats.version_changes += 1
            actions += self._forget_name(path)
        if fetch.blob is not None:
            actions += self.links.release(fetch.blob)
        for question in fetch.asked:
            actions += self._answer_error(question, error)
        return actions

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
        for waiting in self._no_room:
            for _ in range(len(waiting)):
                question = waiting.popleft()
                left = len(waiting)
                actions += self._read(now, question)
                if len(waiting) > left:
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
        expired = False
        for number, fetch in list(self._fetches.items()):
            if fetch.deadline > now:
                break
            expired = True
            if fetch.ask is not None and self.links.was_sent(*fetch.ask):
                actions.append(Send(fetch.ask[0], Withdraw(fetch.ask[1])))
            actions += self._end(number)[1]
            self.stats.overdue += 1
            if fetch.blob is not None:
                actions += self.links.release(fetch.blob)
            for question in fetch.asked:
                actions += self._answer_error(question, errno.ETIMEDOUT)
        return actions + self._retry_no_room(now) if expired else actions

    # --- the shelf -------------------------------------------------------------------------------

    @staticmethod
    def _until(now: float, fresh_s: float | None) -> float | None:
        return None if fresh_s is None else now + fresh_s

    def _admit(self, key: CacheKey, value: Held | BlobId, size: int) -> list[Action]:
        return self._evicted(self._shelf.admit(key, value, size), replaced_by=(key, value))

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
                actions += self.links.release(value)
        return actions

    def _clear(self, now: float, epoch: int) -> list[Action]:
        self.stats.epoch = epoch
        self._unlistable.clear()
        self._warm.clear()
        self._above_warm.clear()
        actions = [*self._evicted(self._shelf.drop_all()), NewEpoch(epoch)]
        # What is being looked for now may be what it was before; it is looked for again.
        stale = [
            (number, fetch)
            for number, fetch in self._fetches.items()
            if fetch.subject[0] in (Kind.SCAN, Kind.LOOK)
        ]
        for number, fetch in stale:
            actions += self._end(number)[1]
            for question in fetch.asked:
                actions += self._fetch(now, fetch.subject, question)
        return actions

    # --- peers -----------------------------------------------------------------------------------

    def wanted(self, peer: NodeId, part: GivePart) -> tuple[What, BlobId | None] | None:
        """Whether to keep the bytes of *part*, and where: for an object what came before is in the
        blob, unless it is the first. None: they are not asked for, or not what they have to be."""
        number = self.links.asked(peer, part.number)
        if number is None:
            return None
        fetch = self._fetches[number]
        kind, _, version = fetch.subject
        if part.index >= parts_in(part.total_bytes) or part.index != fetch.there:
            return None
        if kind is Kind.SCAN:
            return (What.LISTING, None) if part.total_bytes <= LISTING_MAX_BYTES else None
        if kind is Kind.READ:
            assert isinstance(version, Version)
            return (What.OBJECT, fetch.blob) if part.total_bytes == version.size else None
        return None

    def _from_peer(self, now: float, event: FromPeer) -> list[Action]:
        match event:
            case PeerUp(peer):
                return self._peer_changed(peer, up=True)
            case PeerDown(peer):
                return self._peer_changed(peer, up=False)
            case Heard(peer, message):
                return self._hear(now, peer, message)
            case PartTaken(peer, part, blob):
                return self._took(peer, part) + self._take_part(now, peer, part, blob)
            case PartPassed(peer, part):
                return self._took(peer, part) + self._pass(peer, part)
            case ListingTaken(peer, part, listing):
                return self._took(peer, part) + self._take_given_listing(now, peer, part, listing)
            case PartSpoiled(peer, part):
                return self._took(peer, part) + self._spoil(peer, part)
            case PushBatch(batch, blob, size):
                return self._spread(now, None, batch, blob, size)
            case BatchTaken(peer, batch, blob, size):
                actions = self._hear_epoch(now, batch.epoch)
                return actions + self._spread(now, peer, batch, blob, size)
            case Pushed(path, version, blob):
                return self._hold_pushed(ObjectKey(path, version), blob)
            case PushedListing(path, listing, epoch, fresh_for_s):
                return self._hold_pushed_listing(now, path, listing, epoch, fresh_for_s)

    def _pass(self, peer: NodeId, part: GivePart) -> list[Action]:
        number = self.links.asked(peer, part.number)
        if number is None:
            return []
        fetch = self._fetches[number]
        if fetch.subject[0] is Kind.SCAN and part.index == fetch.there:
            fetch.there += 1
            return []
        return self._spoil(peer, part)

    def _took(self, peer: NodeId, part: GivePart) -> list[Action]:
        return self.links.took(peer, part_size(part.index, part.total_bytes))

    def _hear_epoch(self, now: float, epoch: int) -> list[Action]:
        return self._clear(now, epoch) if epoch > self.stats.epoch else []

    def _hear(self, now: float, peer: NodeId, message: object) -> list[Action]:
        match message:
            case Hello(_, _, _, epoch):
                return self._hear_epoch(now, epoch)
            case Ask():
                return self._hear_epoch(now, message.epoch) + self._serve(now, peer, message)
            case GiveEntry() | Refuse():
                actions = self._hear_epoch(now, message.epoch)
                return actions + self._take_reply(now, peer, message)
            case Credit(count_bytes):
                return self.links.credited(now, self.stats.epoch, peer, count_bytes)
            case Call(number, operation, argument, within_s):
                asker = PeerRequest(peer, number)
                return self.calls.start(now, asker, operation, argument, within_s)
            case Return():
                return self.calls.returned(peer, message)
            case Withdraw(number):
                return self.links.stop(peer, number)
            case _:
                return []

    def _serve(self, now: float, peer: NodeId, ask: Ask) -> list[Action]:
        self.stats.peer_questions += 1
        request = PeerRequest(peer, ask.number)
        if not self.links.serve(peer, ask.number):
            self.stats.peers_refused += 1
            return [Send(peer, Refuse(ask.number, self.stats.epoch, errno.EBUSY))]
        if self.policy.place(ask.path) is Place.LOCAL:
            return self._answer_error(Look(request, ask.path), errno.EXDEV)
        match ask.what:
            case What.ENTRY:
                return self._ask(now, Look(request, ask.path))
            case What.LISTING:
                return self._ask(now, List(request, ask.path))
            case What.OBJECT:
                assert ask.version is not None, "the codec sees to it"
                first = min(ask.first, parts_in(ask.version.size) - 1)
                return self._ask(now, Read(request, ask.path, ask.version, first))

    def _take_reply(self, now: float, peer: NodeId, message: GiveEntry | Refuse) -> list[Action]:
        number = self.links.asked(peer, message.number)
        if number is None:
            return []
        fetch = self._fetches[number]
        if isinstance(message, GiveEntry) and fetch.subject[0] is not Kind.LOOK:
            return []
        if isinstance(message, Refuse) and message.error in _TRY_THE_SOURCE:
            return self._fall_back(number, fetch)
        _, actions = self._end(number)
        self.stats.answers += 1
        match message:
            case GiveEntry(_, _, entry, fresh_for_s):
                limit_s = self.policy.fresh_s(fetch.subject[1])
                until, since = self._believed(now, fresh_for_s, limit_s)
                actions += self._take_entry(now, fetch, entry, until, since)
            case Refuse(_, _, error):
                actions += self._fail(now, fetch, error)
        return actions + self._retry_no_room(now)

    def _take_part(self, now: float, peer: NodeId, part: GivePart, blob: BlobId) -> list[Action]:
        number = self.links.asked(peer, part.number)
        assert number is not None, "it was wanted"
        fetch = self._fetches[number]
        fetch.blob, fetch.there = blob, part.index + 1
        if fetch.there == parts_in(part.total_bytes):
            self.stats.answers += 1
            _, actions = self._end(number)
            return actions + self._take_object(now, fetch, blob) + self._retry_no_room(now)
        actions = []
        if part.index == 0:
            for question in fetch.asked:
                actions += self._pass_on(now, fetch, question)
        for child, stream in fetch.streams:
            actions += self.links.more(stream, blob, fetch.there)
            actions += self.links.pump(now, self.stats.epoch, child)
        return actions

    def _pass_on(self, now: float, fetch: Fetch, question: Question) -> list[Action]:
        """A peer gets a large object while it arrives."""
        request = question.request
        if fetch.blob is None or not isinstance(request, PeerRequest):
            return []
        if not self.links.is_serving(*request):
            return []
        assert isinstance(question, Read)
        size = question.version.size
        stream = Stream(request.number, fetch.blob, size, question.first, fetch.there)
        fetch.streams.append((request.peer, stream))
        return self.links.give(now, self.stats.epoch, request.peer, stream)

    def _take_given_listing(
        self, now: float, peer: NodeId, part: GivePart, listing: Listing
    ) -> list[Action]:
        actions = self._hear_epoch(now, part.epoch)
        number = self.links.asked(peer, part.number)
        if number is None:
            return actions  # it was asked for in an older epoch
        fetch, ended = self._end(number)
        assert fetch is not None
        self.stats.answers += 1
        limit_s = self.policy.listing_fresh_s(fetch.subject[1])
        until, since = self._believed(now, part.fresh_for_s, limit_s)
        taken = self._take_listing(now, fetch, listing, until, since)
        return actions + ended + taken + self._retry_no_room(now)

    @staticmethod
    def _believed(
        now: float, fresh_for_s: float | None, limit_s: float | None
    ) -> tuple[float | None, float]:
        """Until when to believe what a peer gave, and since when it was true. On the way down it
        does not grow younger."""
        if limit_s is None:
            return (None if fresh_for_s is None else now + fresh_for_s), now
        left = limit_s if fresh_for_s is None else min(fresh_for_s, limit_s)
        return now + left, now - (limit_s - left)

    def _spoil(self, peer: NodeId, part: GivePart) -> list[Action]:
        """What is asked again begins at the first part that is missing."""
        self.stats.spoiled += 1
        number = self.links.asked(peer, part.number)
        if number is None:
            return []
        fetch = self._fetches[number]
        fetch.spoiled += 1
        if fetch.subject[0] is Kind.SCAN:
            fetch.there = 0
        if fetch.spoiled >= SPOILED_MAX:
            return self._fall_back(number, fetch)
        return [
            Send(peer, Withdraw(part.number)),
            *self.links.answered(peer, part.number),
            *self._attempt(number, fetch),
        ]

    def _fall_back(self, number: FetchId, fetch: Fetch) -> list[Action]:
        """Read the source, because the parent cannot be asked."""
        assert fetch.ask is not None
        actions = self.links.answered(*fetch.ask)
        fetch.ask = None
        self.stats.fallbacks += 1
        return [*actions, self._start(number, fetch.subject, fetch.asked)]

    # --- working sets ----------------------------------------------------------------------------

    def _spread(
        self, now: float, sender: NodeId | None, batch: Batch, blob: BlobId, size: int
    ) -> list[Action]:
        assert self.trees is not None
        children = self.trees.push_children(batch.tree % self.trees.count)
        passing = Passing(batch, blob, size, sender, 0)
        return self.links.spread(now, self.stats.epoch, children, passing)

    def _hold_pushed(self, key: ObjectKey, blob: BlobId) -> list[Action]:
        if key in self._shelf or key.version.size > self.limits.whole_max_bytes:
            return [ReleaseBlob(blob)]
        self.stats.pushed += 1
        return self._admit(key, blob, key.version.size + OBJECT_OVERHEAD_BYTES)

    def _hold_pushed_listing(
        self, now: float, path: Path, listing: Listing, epoch: int, fresh_for_s: float | None
    ) -> list[Action]:
        actions = self._hear_epoch(now, epoch)
        if epoch < self.stats.epoch or self._listing(path, now) is not None:
            return actions
        until, since = self._believed(now, fresh_for_s, self.policy.listing_fresh_s(path))
        return actions + self._admit_listing(path, self._shown(path, listing, until, since))

    def _peer_changed(self, peer: NodeId, *, up: bool) -> list[Action]:
        """A connection was made, or the last one is gone. What passed before is lost: what the peer
        was asked is asked again, of it or of the source; what it asked for is forgotten, because
        one that was started anew counts from the beginning."""
        actions, fetches = self.links.down(peer)
        for fetch in self._fetches.values():
            fetch.asked = [each for each in fetch.asked if not _is_from(peer, each)]
            fetch.streams = [each for each in fetch.streams if each[0] != peer]
        for waiting in self._no_room:
            still = [each for each in waiting if not _is_from(peer, each)]
            waiting.clear()
            waiting.extend(still)
        actions += self.calls.peer_changed(peer)
        if up:
            self.links.up(peer)
        for number in fetches:
            fetch = self._fetches[number]
            fetch.ask = None
            fetch.there = 0 if fetch.subject[0] is Kind.SCAN else fetch.there
            actions += self._attempt(number, fetch)
        return actions


def _is_from(peer: NodeId, question: Question) -> bool:
    return isinstance(question.request, PeerRequest) and question.request.peer == peer
