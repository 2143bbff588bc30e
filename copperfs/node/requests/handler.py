"""Request handler: takes a request to its reply, from the cache or by a fetch.

* The cache answers if its entry is still valid. Otherwise a *fetch* does.
* A lookup fetches the listing of the directory, which then answers for all its names, also the
  missing ones. A single name is looked up only where a listing tells too little: a very large
  directory, one that may be searched but not read, or a name that the source failed to report.
* The front may read the files of a *granted* listing without asking the node. It may also list the
  directories below it, if all below is alike. An allowance of bytes is reserved for that.
* For other files ``file_class.py`` decides.

A reply of a peer ends a fetch like an outcome of the source: this module does not know which of the
two it was.

Every waiting request gets its reply when its fetch ends, by its outcome or at its deadline. After a
clear the node looks names up again; the bytes of a version remain valid.
"""

import errno
from dataclasses import dataclass

from copperfs.model.listing import Listing
from copperfs.model.types import BlobId, Entry, PeerRequest, Version, split
from copperfs.node.actions import (
    Action,
    ListingKey,
    NewEpoch,
    ObjectKey,
    ReleaseBlob,
    ReleaseHandle,
)
from copperfs.node.cache.blob_refs import BlobRefs
from copperfs.node.cache.error_cache import WITNESSED, WITNESSES_ENOUGH, FailedNames
from copperfs.node.cache.metadata_cache import Cache, CameBy, until
from copperfs.node.events import (
    ChunkRequest,
    DiskLoaded,
    Failed,
    ListRequest,
    LookupRequest,
    NodeRequest,
    OfDisk,
    Outcome,
    ReadRequest,
    SourceListed,
    SourceLookedUp,
    SourceOpened,
    SourceRead,
    Stored,
)
from copperfs.node.fetch.fetch import Fetch
from copperfs.node.fetch.phases import Phase
from copperfs.node.fetch.table import FetchTable
from copperfs.node.limits_and_counters import FetchKind, NodeStats, Subject
from copperfs.node.peer.flow_control import parts_in
from copperfs.node.peer.messages import PATH_BYTES_MAX
from copperfs.node.prefetch.python_imports import ImportPrefetcher, is_nobodys
from copperfs.node.prefetch.speculative_push import SpeculativePush
from copperfs.node.requests.chunk_reads import Chunks
from copperfs.node.requests.file_class import FileClass, FileClassifier
from copperfs.node.requests.path_policy import Place, Policy
from copperfs.node.requests.replies import ReplyBuilder

# True of the file itself, on any node. Any other error may be a failure of the node that reported
# it, so another node tries.
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
class RequestHandler:
    policy: Policy
    files: FileClassifier
    stats: NodeStats
    blob_refs: BlobRefs
    cache: Cache
    fetches: FetchTable
    replies: ReplyBuilder
    offers: SpeculativePush | None
    """None in a job of one node."""
    prefetcher: ImportPrefetcher
    failed_names: FailedNames
    chunks: Chunks | None = None
    """None without a data tier."""

    # --- requests --------------------------------------------------------------------------------

    def handle(self, now: float, request: NodeRequest) -> list[Action]:
        if self.policy.place(request.path) is Place.REFUSED and not (
            isinstance(request, LookupRequest) and request.path in self.policy.refused
        ):
            return self.replies.with_error(request, errno.ELOOP)
        match request:
            case LookupRequest():
                return self._lookup(now, request)
            case ListRequest():
                return self._list(now, request)
            case ReadRequest() | ChunkRequest():
                return self._ask_bytes(now, request)

    def _lookup(self, now: float, request: LookupRequest) -> list[Action]:
        path = request.path
        held = self.cache.entry(path, now)
        if held is not None:
            self.stats.answered_from_cache += 1
            return self.replies.with_entry(now, request, held)
        directory, name = split(path)
        # The root has no directory. A path on the way down to a shared prefix must not expire with
        # its directory's listing.
        if not path or self.policy.fresh_s(path) != self.policy.listing_fresh_s(directory):
            return self._lookup_singly(now, request)
        listing = self.cache.listing(directory, now)
        if listing is None:
            if self.cache.is_unlistable(directory):
                return self._lookup_singly(now, request)
            return self._fetch(now, (FetchKind.LISTING, directory, None), request)
        assert isinstance(listing.value, Listing)
        if listing.value.has_to_be_looked_up(name):
            return self._lookup_singly(now, request)
        self.stats.answered_from_cache += 1
        return self.replies.with_listing(now, request, directory, listing)

    def _lookup_singly(
        self, now: float, request: LookupRequest, by: float | None = None
    ) -> list[Action]:
        return self._fetch(now, (FetchKind.ENTRY, request.path, None), request, by)

    def _list(self, now: float, request: ListRequest) -> list[Action]:
        held = self.cache.listing(request.path, now)
        if held is None:
            from_peer = isinstance(request.request, PeerRequest)
            if from_peer and self.cache.is_refused_to_peers(request.path, now):
                return self.replies.with_error(request, errno.EACCES)
            return self._fetch(now, (FetchKind.LISTING, request.path, None), request)
        self.stats.answered_from_cache += 1
        return self.replies.with_listing(now, request, request.path, held)

    def _ask_bytes(self, now: float, request: ReadRequest | ChunkRequest) -> list[Action]:
        if isinstance(request, ChunkRequest):
            assert self.chunks is not None
            return self.chunks.want(now, request)
        file_class = self._class_of(request)
        if file_class is FileClass.CHUNKED:
            assert self.chunks is not None
            return self.chunks.read(now, request)
        if not request.alone:
            self.prefetcher.requested(ObjectKey(request.path, request.version))
        return self._read(now, request, file_class) + self.prefetcher.go_on(now)

    def _class_of(self, request: ReadRequest) -> FileClass:
        """Peers ask for chunks explicitly; a peer's read means the whole file."""
        if isinstance(request.request, PeerRequest):
            return self.files.of_object(request.version.size)
        return self.files.of(request.path, request.version.size)

    def _read(self, now: float, request: ReadRequest, file_class: FileClass) -> list[Action]:
        key = ObjectKey(request.path, request.version)
        blob = self.cache.blob(key)
        if blob is not None:
            self.stats.answered_from_cache += 1
            return self.replies.with_object(now, request, key, blob)
        if file_class is FileClass.DIRECT:
            if isinstance(request.request, PeerRequest):
                return self.replies.with_error(request, errno.EFBIG)
            return self._fetch(now, (FetchKind.HANDLE, request.path, request.request), request)
        return self._fetch(now, (FetchKind.OBJECT, request.path, request.version), request)

    def _fetch(
        self, now: float, subject: Subject, request: NodeRequest, by: float | None = None
    ) -> list[Action]:
        """*by* is the deadline of a request that has waited on another fetch."""
        running = self.fetches.join(subject, request, by)
        if running is not None:
            return self.replies.start_forwarding(now, running, request)
        sick = self.failed_names.get(now, subject)
        if sick is not None:
            return self.replies.with_remembered(request, sick)
        return self.fetches.begin(now, subject, request, by)

    # --- outcomes --------------------------------------------------------------------------------

    def conclude(self, now: float, outcome: Outcome) -> list[Action]:
        fetch = self.fetches.get(outcome.fetch)
        if fetch is None or not fetch.phase.is_reading:
            return _release_unused(outcome)
        path = fetch.subject[1]
        match outcome:
            case SourceListed(_, listing):
                fresh_until = until(now, self.policy.listing_fresh_s(path))
                return self.take_listing(now, fetch, listing, fresh_until, now)
            case SourceLookedUp(_, entry):
                fresh_until = until(now, self.policy.fresh_s(path))
                return self.take_entry(now, fetch, entry, fresh_until, now)
            case SourceRead() | DiskLoaded() if fetch.subject[0] is FetchKind.CHUNK:
                assert self.chunks is not None
                return self.chunks.conclude(now, fetch, outcome) + self._room_was_made(now)
            case SourceRead(_, blob, mentions):
                self.prefetcher.mentioned(_key_of(fetch), mentions)
                return self.take_object(now, fetch, blob)
            case DiskLoaded():
                raise AssertionError("only chunks are loaded")
            case SourceOpened(_, handle):
                ended = self.fetches.end(fetch)
                answers = self.replies.with_handle(fetch.waiters[0], handle)
                return ended + answers + self._room_was_made(now)
            case Failed(_, error):
                _witness(fetch, error)
                others = None
                if error not in TRUE_OF_THE_FILE and fetch.witnesses.count < WITNESSES_ENOUGH:
                    others = self.fetches.machine.source_failed(now, fetch)
                return self.fail(now, fetch, error) if others is None else others

    def take_listing(
        self, now: float, fetch: Fetch, listing: Listing, fresh_until: float | None, since: float
    ) -> list[Action]:
        """Names of which the listing tells too little are looked up singly."""
        actions = self.fetches.end(fetch)
        path = fetch.subject[1]
        held = self.cache.as_listed(path, listing, fresh_until, since)
        shown = held.value
        assert isinstance(shown, Listing)
        is_another = self.cache.is_another(path, listing.directory)
        if is_another:
            self.stats.version_changes += 1
            actions += self.cache.forget_way(path)
        # Answer first: if the cache evicts it at once, the eviction follows its publication.
        for request in _of_somebody(fetch):
            match request:
                case LookupRequest() if shown.has_to_be_looked_up(split(request.path)[1]):
                    if is_another:  # a single lookup would not say in which directory
                        actions += self.replies.with_error(request, errno.ESTALE)
                    else:
                        actions += self._lookup_singly(now, request, fetch.deadline)
                case _:
                    actions += self.replies.with_listing(now, request, path, held)
        actions += self.cache.take_listing(path, held, CameBy.FETCH)
        if self._is_of_all(ListingKey(path)) and not _has_local_waiter(fetch) and not is_another:
            actions += self.cache.publish_listing(path, held)
        self._note(now, ListingKey(path))
        self.prefetcher.listed(path, listing)
        return actions + self.prefetcher.ended(now, fetch) + self._room_was_made(now)

    def take_chunk(self, now: float, fetch: Fetch, blob: BlobId) -> list[Action]:
        assert self.chunks is not None
        return self.chunks.take_given(now, fetch, blob) + self._room_was_made(now)

    def without_copies(self, now: float, fetch: Fetch) -> list[Action]:
        assert self.chunks is not None
        actions = self.chunks.without_copies(now, fetch)
        return actions + (self._room_was_made(now) if fetch.phase is Phase.DONE else [])

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
        held = self.cache.as_looked_up(path, entry, fresh_until, since)
        actions += self.cache.admit_entry(path, held)
        for request in fetch.waiters:
            assert isinstance(request, LookupRequest)
            actions += self.replies.with_entry(now, request, held)
        return actions + self._room_was_made(now)

    def take_object(self, now: float, fetch: Fetch, blob: BlobId) -> list[Action]:
        actions = self.fetches.end(fetch)
        key = _key_of(fetch)
        version = key.version
        actions += self.replies.forward_more(now, fetch, blob, parts_in(version.size))
        streaming = {PeerRequest(peer, stream.number) for peer, stream in fetch.streams}
        for request in fetch.waiters:
            assert isinstance(request, ReadRequest)
            if request.request not in streaming and not is_nobodys(request):
                actions += self.replies.with_object(now, request, key, blob)
        if fetch.received.blob not in (None, blob):
            actions += self._drop_partial(fetch)
        self._note(now, key)
        if self.prefetcher.is_unused(key):
            actions += self.cache.take_ahead(key, blob)
        else:
            actions += self.cache.admit_object(key, blob)
        if self._is_of_all(key) and not _has_local_waiter(fetch):
            actions += self.cache.publish_object(key)
        return actions + self.prefetcher.ended(now, fetch) + self._room_was_made(now)

    def _note(self, now: float, key: ListingKey | ObjectKey) -> None:
        if self._is_of_all(key):
            assert self.offers is not None
            self.offers.noted(now, key)

    def _is_of_all(self, key: ListingKey | ObjectKey) -> bool:
        """Whether other nodes can get it here."""
        if self.offers is None or len(key.path) > PATH_BYTES_MAX:
            return False
        return self.policy.place(key.path) is Place.SHARED

    def fail(self, now: float, fetch: Fetch, error: int) -> list[Action]:
        self._remember(now, fetch, error)
        actions = self.fetches.end(fetch) + self.prefetcher.ended(now, fetch)
        if all(is_nobodys(each) for each in fetch.waiters) and fetch.waiters:
            return actions + self._drop_partial(fetch) + self._room_was_made(now)
        self.stats.failures += 1
        kind, path, _ = fetch.subject
        if kind is FetchKind.LISTING and error == errno.EACCES:
            return actions + self._lookup_each(now, fetch) + self._room_was_made(now)
        if error == errno.ENOTDIR:  # on the way, where the cache has directories
            directory = path if kind is FetchKind.LISTING else split(path)[0]
            actions += self.cache.forget_no_directory(now, directory, path)
        elif kind is not FetchKind.ENTRY and error in (errno.ESTALE, errno.ENOENT):
            self.stats.version_changes += 1
            actions += self.cache.forget_name(path)
        actions += self._drop_partial(fetch)
        for request in _of_somebody(fetch):
            actions += self.replies.with_error(request, error, fetch.witnesses.count)
        return actions + self._room_was_made(now)

    def _remember(self, now: float, fetch: Fetch, error: int) -> None:
        """Only if this node has tried, too: the next request need not."""
        if fetch.witnesses.own_error and error not in TRUE_OF_THE_FILE:
            self.failed_names.note(now, fetch.subject, error, fetch.witnesses.count)

    def _lookup_each(self, now: float, fetch: Fetch) -> list[Action]:
        """A directory that may not be listed may still be searched."""
        self.cache.remember_unlistable(fetch.subject[1], now)
        actions: list[Action] = []
        for request in _of_somebody(fetch):
            if isinstance(request, LookupRequest):
                actions += self._lookup_singly(now, request, fetch.deadline)
            else:
                actions += self.replies.with_error(request, errno.EACCES)
        return actions

    def _drop_partial(self, fetch: Fetch) -> list[Action]:
        blob = fetch.received.blob
        return [] if blob is None else self.blob_refs.release(blob)

    def _room_was_made(self, now: float) -> list[Action]:
        actions = [] if self.chunks is None else self.chunks.go_on(now)
        return actions + self.fetches.room_was_made(lambda request: self._ask_bytes(now, request))

    def of_disk(self, now: float, event: OfDisk) -> list[Action]:
        if self.chunks is None:
            return []
        if isinstance(event, Stored):
            self.chunks.stored(event)
        else:
            self.chunks.write_back.recovered()
        return self._room_was_made(now)

    # --- deadlines and clear ---------------------------------------------------------------------

    def expire(self, now: float) -> list[Action]:
        actions: list[Action] = []
        expired = self.fetches.past_deadline(now)
        for fetch in expired:
            self.stats.overdue += 1
            if fetch.phase.is_reading and fetch.subject[0] is FetchKind.ENTRY:
                _witness(fetch, errno.ETIMEDOUT)
            self._remember(now, fetch, errno.ETIMEDOUT)
            actions += self.fetches.end(fetch)
            actions += self._drop_partial(fetch) + self.prefetcher.ended(now, fetch)
            for request in _of_somebody(fetch):
                actions += self.replies.with_error(request, errno.ETIMEDOUT, fetch.witnesses.count)
        if expired:
            actions += self._room_was_made(now)
        if self.chunks is not None:
            actions += self.chunks.tick(now)
        for request in self.fetches.found_no_room(now):
            self.stats.overdue += 1
            actions += self.replies.with_error(request, errno.ETIMEDOUT)
        return actions

    def clear(self, now: float, epoch: int) -> list[Action]:
        self.stats.epoch = epoch
        self.replies.forget_warm()
        self.prefetcher.clear()
        self.failed_names.clear()
        if self.chunks is not None:
            self.chunks.readahead.forget()
        if self.offers is not None:
            self.offers.clear()
        actions = [*self.cache.clear(), NewEpoch(epoch)]
        # They may return what was true before the clear.
        for fetch in self.fetches.of_names():
            actions += self.fetches.end(fetch)
            for request in _of_somebody(fetch):
                actions += self._fetch(now, fetch.subject, request, fetch.deadline)
        return actions


def _witness(fetch: Fetch, error: int) -> None:
    """The error may be this node's own."""
    if fetch.subject[0] in WITNESSED and error not in TRUE_OF_THE_FILE:
        fetch.witnesses = fetch.witnesses.and_this_node(error)


def _key_of(fetch: Fetch) -> ObjectKey:
    _, path, version = fetch.subject
    assert isinstance(version, Version)
    return ObjectKey(path, version)


def _of_somebody(fetch: Fetch) -> list[NodeRequest]:
    return [each for each in fetch.waiters if not is_nobodys(each)]


def _has_local_waiter(fetch: Fetch) -> bool:
    """Whether the reply to a request of this node publishes it."""
    return any(not isinstance(each.request, PeerRequest) for each in _of_somebody(fetch))


def _release_unused(outcome: Outcome) -> list[Action]:
    match outcome:
        case SourceRead(_, blob) | DiskLoaded(_, int() as blob):
            return [ReleaseBlob(blob)]
        case SourceOpened(_, handle):
            return [ReleaseHandle(handle)]
        case _:
            return []
