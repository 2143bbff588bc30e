"""From a question to its answer.

* From the cache, if what is there is still believed;
* else by a *fetch*. A question about something that is being fetched already waits on that fetch
  (coalescing); when it ends, all questions that wait on it are answered by what it brought;
* a name is looked for by fetching its directory's listing, which then answers for all its names,
  also the missing ones. Only where a listing tells too little (a very large directory, one that may
  be searched but not read, a name that the source could not tell about) a name is looked up by
  itself, and for a moment its failure is remembered (``sick_names.py``);
* a file of the data tier is read in chunks (``chunks.py``);
* the front may read files of a listing that was *granted* by itself, and list the directories below
  it if all below is alike, on a credit of bytes that is reserved for it; otherwise a file's bytes
  are fetched whole up to ``whole_max_bytes``; above that the asker gets a handle.

A peer's question is one like any other, and what a peer gives is taken as what the source says is:
nothing here knows from where it came.

Every question that waits is answered when its fetch ends, by its outcome or at its deadline. After
a clear, names are looked for anew; what bytes a version has remains true.
"""

import errno
from dataclasses import dataclass

from copperfs.core.actions import (
    Action,
    ListingKey,
    NewEpoch,
    ObjectKey,
    ReleaseBlob,
    ReleaseHandle,
)
from copperfs.core.ahead import Ahead, is_nobodys
from copperfs.core.answers import Answers
from copperfs.core.asking import Fetch
from copperfs.core.cache import Cache, until
from copperfs.core.chunks import Chunks
from copperfs.core.events import (
    Failed,
    HaveRead,
    List,
    Loaded,
    Look,
    Looked,
    OfDisk,
    Opened,
    Outcome,
    Question,
    Read,
    Scanned,
    Stored,
    WantChunk,
)
from copperfs.core.fetches import Fetches
from copperfs.core.links import parts_in
from copperfs.core.listing import Listing
from copperfs.core.messages import PATH_BYTES_MAX
from copperfs.core.offers import Offers
from copperfs.core.pins import Pins
from copperfs.core.policy import Place, Policy
from copperfs.core.sick_names import WITNESSES_ENOUGH, SickNames
from copperfs.core.state import Kind, Limits, NodeStats, Subject
from copperfs.types import BlobId, Entry, PeerRequest, Version, split

# What is true of the file itself, whoever looks. Of anything else only the node that said it may be
# sick, or its client of the filesystem: another one looks.
TRUE_OF_THE_FILE = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ESTALE,
        errno.EACCES,
        errno.EPERM,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EISDIR,
    }
)


@dataclass(slots=True)
class Questions:
    policy: Policy
    limits: Limits
    stats: NodeStats
    pins: Pins
    cache: Cache
    fetches: Fetches
    answers: Answers
    offers: Offers | None
    """None for a node alone, which nobody follows."""
    ahead: Ahead
    sick: SickNames
    chunks: Chunks | None = None
    """None without a data tier."""

    # --- questions -------------------------------------------------------------------------------

    def ask(self, now: float, question: Question) -> list[Action]:
        if self.policy.place(question.path) is Place.REFUSED and not (
            isinstance(question, Look) and question.path in self.policy.refused
        ):
            return self.answers.with_error(question, errno.ELOOP)
        match question:
            case Look():
                return self._look(now, question)
            case List():
                return self._list(now, question)
            case Read() | WantChunk():
                return self._ask_bytes(now, question)

    def _look(self, now: float, question: Look) -> list[Action]:
        path = question.path
        held = self.cache.entry(path, now)
        if held is not None:
            self.stats.answered_from_shelf += 1
            return self.answers.with_entry(now, question, held)
        directory, name = split(path)
        # The root has no directory; a path that stays fresh for longer than the directory it is in
        # (the way down to a shared prefix) is not to grow old with that directory's listing.
        if not path or self.policy.fresh_s(path) != self.policy.listing_fresh_s(directory):
            return self._look_singly(now, question)
        listing = self.cache.listing(directory, now)
        if listing is None:
            if self.cache.is_unlistable(directory):
                return self._look_singly(now, question)
            return self._fetch(now, (Kind.SCAN, directory, None), question)
        assert isinstance(listing.value, Listing)
        if listing.value.has_to_be_looked_up(name):
            return self._look_singly(now, question)
        self.stats.answered_from_shelf += 1
        return self.answers.with_listing(now, question, directory, listing)

    def _look_singly(self, now: float, question: Look) -> list[Action]:
        subject = (Kind.LOOK, question.path, None)
        sick = self.sick.get(now, question.path)
        if sick is None or self.fetches.is_under_way(subject):
            return self._fetch(now, subject, question)
        self.stats.failures += 1
        return self.answers.with_error(question, sick.error, sick.witnesses)

    def _list(self, now: float, question: List) -> list[Action]:
        held = self.cache.listing(question.path, now)
        if held is None:
            from_peer = isinstance(question.request, PeerRequest)
            if from_peer and self.cache.is_refused_to_peers(question.path, now):
                return self.answers.with_error(question, errno.EACCES)
            return self._fetch(now, (Kind.SCAN, question.path, None), question)
        self.stats.answered_from_shelf += 1
        return self.answers.with_listing(now, question, question.path, held)

    def _ask_bytes(self, now: float, question: Read | WantChunk) -> list[Action]:
        if isinstance(question, Read) and not self._is_chunked(question):
            return self._read(now, question)
        assert self.chunks is not None
        if isinstance(question, WantChunk):
            return self.chunks.want(now, question)
        return self.chunks.read(now, question)

    def _is_chunked(self, question: Read) -> bool:
        """Peers ask for chunks by themselves, or mean the whole file."""
        if self.chunks is None or isinstance(question.request, PeerRequest):
            return False
        return self.chunks.is_chunked(question.path, question.version)

    def _read(self, now: float, question: Read) -> list[Action]:
        if not question.alone:
            self.ahead.asked(ObjectKey(question.path, question.version))
        return self._read_one(now, question) + self.ahead.go_on(now)

    def _read_one(self, now: float, question: Read) -> list[Action]:
        key = ObjectKey(question.path, question.version)
        blob = self.cache.blob(key)
        if blob is not None:
            self.stats.answered_from_shelf += 1
            return self.answers.with_object(now, question, key, blob)
        if question.version.size > self.limits.whole_max_bytes:
            if isinstance(question.request, PeerRequest):
                return self.answers.with_error(question, errno.EFBIG)
            return self._fetch(now, (Kind.OPEN, question.path, question.request), question)
        return self._fetch(now, (Kind.READ, question.path, question.version), question)

    def _fetch(self, now: float, subject: Subject, question: Question) -> list[Action]:
        running = self.fetches.join(subject, question)
        if running is not None:
            return self.answers.pass_on(now, running, question)
        return self.fetches.begin(now, subject, question)

    # --- outcomes --------------------------------------------------------------------------------

    def conclude(self, now: float, outcome: Outcome) -> list[Action]:
        """The source has said something."""
        fetch = self.fetches.get(outcome.fetch)
        if fetch is None or not fetch.at_source:
            return _too_late(outcome)
        path = fetch.subject[1]
        match outcome:
            case Scanned(_, listing):
                fresh_until = until(now, self.policy.listing_fresh_s(path))
                return self.take_listing(now, fetch, listing, fresh_until, now)
            case Looked(_, entry):
                fresh_until = until(now, self.policy.fresh_s(path))
                return self.take_entry(now, fetch, entry, fresh_until, now)
            case HaveRead() | Loaded() if fetch.subject[0] is Kind.CHUNK:
                assert self.chunks is not None
                return self.chunks.conclude(now, fetch, outcome) + self._room_was_made(now)
            case HaveRead(_, blob, mentions):
                self.ahead.mentioned(_key_of(fetch), mentions)
                return self.take_object(now, fetch, blob)
            case Loaded():
                raise AssertionError("only chunks are loaded")
            case Opened(_, handle):
                ended = self.fetches.end(fetch)
                answers = self.answers.with_handle(fetch.asked[0], handle)
                return ended + answers + self._room_was_made(now)
            case Failed(_, error):
                self._witness(now, fetch, error)
                others = None
                if error not in TRUE_OF_THE_FILE:
                    others = self.fetches.asking.source_failed(now, fetch)
                return self.fail(now, fetch, error) if others is None else others

    def take_listing(
        self, now: float, fetch: Fetch, listing: Listing, fresh_until: float | None, since: float
    ) -> list[Action]:
        """Names of which it tells too little are looked up by themselves; the rest is answered."""
        actions = self.fetches.end(fetch)
        path = fetch.subject[1]
        held = self.cache.as_listed(path, listing, fresh_until, since)
        shown = held.value
        assert isinstance(shown, Listing)
        is_another = self.cache.is_another(path, listing.directory)
        if is_another:
            self.stats.version_changes += 1
            actions += self.cache.forget_way(path)
        # answered first: if it has to go again at once, it goes after it was published
        for question in _of_somebody(fetch):
            match question:
                case Look() if shown.has_to_be_looked_up(split(question.path)[1]):
                    if is_another:  # a name by itself would not say in which one it is
                        actions += self.answers.with_error(question, errno.ESTALE)
                    else:
                        actions += self._look_singly(now, question)
                case _:
                    actions += self.answers.with_listing(now, question, path, held)
        actions += self.cache.admit_listing(path, held)
        if self._is_of_all(ListingKey(path)) and not _is_asked_here(fetch) and not is_another:
            actions += self.cache.publish_listing(path, held)
        self._note(now, ListingKey(path))
        self.ahead.listed(path, listing)
        return actions + self.ahead.ended(now, fetch) + self._room_was_made(now)

    def take_chunk(self, now: float, fetch: Fetch, blob: BlobId) -> list[Action]:
        assert self.chunks is not None
        return self.chunks.take_given(now, fetch, blob) + self._room_was_made(now)

    def wait_outside(self, now: float, fetch: Fetch) -> list[Action]:
        """Another node waits for its disk before it gives this chunk."""
        return self._room_was_made(now) if self.fetches.wait_outside(fetch) else []

    def take_entry(
        self,
        now: float,
        fetch: Fetch,
        entry: Entry | None,
        fresh_until: float | None,
        since: float,
    ) -> list[Action]:
        actions = self.fetches.end(fetch)
        path = fetch.subject[1]
        held = self.cache.as_looked(path, entry, fresh_until, since)
        actions += self.cache.admit_entry(path, held)
        for question in fetch.asked:
            assert isinstance(question, Look)
            actions += self.answers.with_entry(now, question, held)
        return actions + self._room_was_made(now)

    def take_object(self, now: float, fetch: Fetch, blob: BlobId) -> list[Action]:
        actions = self.fetches.end(fetch)
        key = _key_of(fetch)
        version = key.version
        actions += self.answers.pass_more(now, fetch, blob, parts_in(version.size))
        streaming = {PeerRequest(peer, stream.number) for peer, stream in fetch.streams}
        for question in fetch.asked:
            assert isinstance(question, Read)
            if question.request not in streaming and not is_nobodys(question):
                actions += self.answers.with_object(now, question, key, blob)
        if fetch.blob not in (None, blob):
            actions += self._drop_partial(fetch)
        self._note(now, key)
        if self.ahead.is_unused(key):
            actions += self.cache.take_ahead(key, blob)
        else:
            actions += self.cache.admit_object(key, blob)
        if self._is_of_all(key) and not _is_asked_here(fetch):
            actions += self.cache.publish_object(key)
        return actions + self.ahead.ended(now, fetch) + self._room_was_made(now)

    def _note(self, now: float, key: ListingKey | ObjectKey) -> None:
        if self._is_of_all(key):
            assert self.offers is not None
            self.offers.noted(now, key)

    def _is_of_all(self, key: ListingKey | ObjectKey) -> bool:
        """Whether the other nodes of a job can have it from this one."""
        if self.offers is None or len(key.path) > PATH_BYTES_MAX:
            return False
        return self.policy.place(key.path) is Place.SHARED

    def fail(self, now: float, fetch: Fetch, error: int) -> list[Action]:
        actions = self.fetches.end(fetch) + self.ahead.ended(now, fetch)
        if all(is_nobodys(each) for each in fetch.asked) and fetch.asked:
            return actions + self._drop_partial(fetch) + self._room_was_made(now)
        self.stats.failures += 1
        kind, path, _ = fetch.subject
        if kind is Kind.SCAN and error == errno.EACCES:
            return actions + self._search(now, fetch) + self._room_was_made(now)
        if error == errno.ENOTDIR:  # on the way, where others believe that there are directories
            directory = path if kind is Kind.SCAN else split(path)[0]
            actions += self.cache.forget_no_directory(now, directory, path)
        elif kind is not Kind.LOOK and error in (errno.ESTALE, errno.ENOENT):
            self.stats.version_changes += 1
            actions += self.cache.forget_name(path)
        actions += self._drop_partial(fetch)
        for question in _of_somebody(fetch):
            actions += self.answers.with_error(question, error, fetch.witnesses)
        return actions + self._room_was_made(now)

    def _witness(self, now: float, fetch: Fetch, error: int) -> None:
        """This node has looked at a name, and got an error that may be its own."""
        kind, path, _ = fetch.subject
        if kind is Kind.LOOK and error not in TRUE_OF_THE_FILE:
            if not fetch.looked_error:
                fetch.witnesses = min(fetch.witnesses + 1, WITNESSES_ENOUGH)
            fetch.looked_error = error
            self.sick.note(now, path, error, fetch.witnesses)

    def _search(self, now: float, fetch: Fetch) -> list[Action]:
        """A directory that may not be listed may still be searched. Those who wanted its names are
        told that they may not."""
        self.cache.remember_unlistable(fetch.subject[1], now)
        actions: list[Action] = []
        for question in _of_somebody(fetch):
            if isinstance(question, Look):
                actions += self._look_singly(now, question)
            else:
                actions += self.answers.with_error(question, errno.EACCES)
        return actions

    def _drop_partial(self, fetch: Fetch) -> list[Action]:
        return [] if fetch.blob is None else self.pins.release(fetch.blob)

    def _room_was_made(self, now: float) -> list[Action]:
        actions = [] if self.chunks is None else self.chunks.go_on(now)
        return actions + self.fetches.room_was_made(lambda question: self._ask_bytes(now, question))

    def of_disk(self, now: float, event: OfDisk) -> list[Action]:
        """The disk of the data tier has said something."""
        if self.chunks is None:
            return []
        if isinstance(event, Stored):
            self.chunks.stored(event)
        else:
            self.chunks.disk.recovered()
        return self._room_was_made(now)

    # --- time passes, and all is forgotten -------------------------------------------------------

    def expire(self, now: float) -> list[Action]:
        actions: list[Action] = []
        overdue = self.fetches.overdue(now)
        for fetch in overdue:
            self.stats.overdue += 1
            if fetch.at_source:
                self._witness(now, fetch, errno.ETIMEDOUT)
            actions += self.fetches.end(fetch)
            actions += self._drop_partial(fetch) + self.ahead.ended(now, fetch)
            for question in _of_somebody(fetch):
                actions += self.answers.with_error(question, errno.ETIMEDOUT, fetch.witnesses)
        if overdue:
            actions += self._room_was_made(now)
        if self.chunks is not None:
            actions += self.chunks.tick(now)
        for question in self.fetches.found_no_room(now):
            self.stats.overdue += 1
            actions += self.answers.with_error(question, errno.ETIMEDOUT)
        return actions

    def clear(self, now: float, epoch: int) -> list[Action]:
        self.stats.epoch = epoch
        self.answers.forget_warm()
        self.ahead.clear()
        self.sick.clear()
        if self.chunks is not None:
            self.chunks.rows.forget()
        if self.offers is not None:
            self.offers.clear()
        actions = [*self.cache.clear(), NewEpoch(epoch)]
        # What is being looked for now may be what it was before; it is looked for again.
        for fetch in self.fetches.of_names():
            actions += self.fetches.end(fetch)
            for question in _of_somebody(fetch):
                actions += self._fetch(now, fetch.subject, question)
        return actions


def _key_of(fetch: Fetch) -> ObjectKey:
    """Of what a READ is after."""
    _, path, version = fetch.subject
    assert isinstance(version, Version)
    return ObjectKey(path, version)


def _of_somebody(fetch: Fetch) -> list[Question]:
    return [each for each in fetch.asked if not is_nobodys(each)]


def _is_asked_here(fetch: Fetch) -> bool:
    """Whether a request of this node is answered with it, and publishes it."""
    return any(not isinstance(each.request, PeerRequest) for each in _of_somebody(fetch))


def _too_late(outcome: Outcome) -> list[Action]:
    match outcome:
        case HaveRead(_, blob) | Loaded(_, int() as blob):
            return [ReleaseBlob(blob)]
        case Opened(_, handle):
            return [ReleaseHandle(handle)]
        case _:
            return []
