"""Chunk reads: read a large file, or a file of a dataset, in chunks.

A read becomes a request for the chunk at its offset. The tier's memory (``chunk_cache.py``) answers
it, or a fetch from the chunk's owner, which reads its own disk, and last the source.

An owner gives a chunk from the source to the waiting requests first, and then writes it to its
disk. Only owners write a chunk to disk. A node that takes over from a silent owner keeps what it
reads, too: if that owner is declared dead a moment later, this node is the owner, and would have to
read the chunk again. If the first owner comes back instead, the chunk is on two disks until the one
without requests evicts it.

A node that an owner redirected (``redirects.py``) asks for what is *held*, and never causes another
fetch.

A node waits for another node for one of three reasons: the other is above in the tree
(``hot_files.py``); it is an owner, earlier in the chunk's order; or an owner has named it, because
it asked earlier. A mix of the three could form a cycle, when an owner is gone and a node that it
redirected is the next owner. Therefore a node that is asked as an owner waits only for other
owners.
"""

import errno
from dataclasses import dataclass, field, replace

from copperfs.model.types import BlobId, ChunkKey, NodeId, PeerRequest
from copperfs.node.actions import Action, Publish, Send
from copperfs.node.cache.blob_refs import BlobRefs
from copperfs.node.cache.chunk_cache import ChunkCache, cost_of
from copperfs.node.cache.error_cache import FailedNames
from copperfs.node.cache.write_back import WriteBack
from copperfs.node.events import (
    ChunkRequest,
    DiskLoaded,
    NodeRequest,
    ReadRequest,
    SourceRead,
    Stored,
)
from copperfs.node.fetch.fetch import Fetch
from copperfs.node.fetch.machine import is_for_copy_alone, is_of_copy
from copperfs.node.fetch.phases import Phase, Trigger
from copperfs.node.fetch.table import FetchTable
from copperfs.node.limits_and_counters import FetchKind, Limits, NodeStats, Subject
from copperfs.node.peer.flow_control import FlowControl
from copperfs.node.peer.messages import ChunkAskMode, Delayed, Redirect, Request
from copperfs.node.prefetch.python_imports import NOBODY, is_nobodys
from copperfs.node.prefetch.sequential import Next, ReadaheadWindows
from copperfs.node.requests.copies import CopyKeeper
from copperfs.node.requests.path_policy import Policy
from copperfs.node.requests.replies import ReplyBuilder
from copperfs.node.routing.hot_files import HotFileDetector
from copperfs.node.routing.redirects import RedirectTree
from copperfs.node.routing.route import Routing


@dataclass(slots=True)
class Chunks:
    policy: Policy
    limits: Limits
    stats: NodeStats
    pins: BlobRefs
    flow: FlowControl
    chunk_cache: ChunkCache
    fetches: FetchTable
    replies: ReplyBuilder
    routing: Routing
    write_back: WriteBack
    failed_names: FailedNames
    hot_files: HotFileDetector = field(init=False)
    redirects: RedirectTree = field(init=False)
    readahead: ReadaheadWindows = field(init=False)
    copies: CopyKeeper | None = None
    """None if no path is protected."""
    _for_disk: set[Subject] = field(default_factory=set)
    """Fetches that only give the disk a chunk that it missed."""

    def __post_init__(self) -> None:
        nodes = 1 if self.routing.trees is None else self.routing.trees.nodes
        self.hot_files = HotFileDetector(self.policy, nodes > self.limits.hot_files_above_nodes)
        self.redirects = RedirectTree(self.limits.takers_max)
        self.readahead = ReadaheadWindows(self.limits.chunk_bytes)
        if self.copies is not None:
            self.fetches.machine.read_unless_disk_is_behind = self._read_as_owner

    def read(self, now: float, request: ReadRequest) -> list[Action]:
        layout = self.limits.chunk_layout(request.version.size)
        key = ChunkKey(request.path, request.version, layout.at(request.offset))
        how = ChunkAskMode.TREE if self.hot_files.goes_up(now, request.path) else ChunkAskMode.ANY
        is_there = key in self.chunk_cache or self.fetches.is_under_way(_subject(key))
        actions = self.want(now, ChunkRequest(request.request, key, how))
        if request.size:
            ends_in = layout.at(request.offset + request.size - 1)
            begins = not request.offset and request.size >= layout.chunk_bytes
            ahead = self.readahead.next(now, key, ends_in, begins=begins, is_there=is_there)
            actions += self._read_ahead(now, key, ahead)
        return actions

    def want(self, now: float, request: ChunkRequest) -> list[Action]:
        """From memory, or by the fetch in flight for it, or by a new one."""
        if request.keeps:
            return self._keep(now, request)
        blob = self.chunk_cache.blob(request.key)
        if request.how is ChunkAskMode.TREE and not self._is_shared(now, request, blob):
            return self.replies.with_error(request, errno.EAGAIN)
        if blob is not None:
            self.stats.answered_from_cache += 1
            self.stats.tier_from_memory += 1
            return self._answer(now, request, blob)
        subject = _subject(request.key)
        running = self.fetches.join(subject, request)
        if running is not None:
            if not isinstance(request.request, PeerRequest):
                return []
            if self.write_back.is_waiting(running):
                return [self._delayed(request.request)]
            if request.how.is_of_owner:
                return self.fetches.machine.requested_as_owner(now, running, request.skipped)
            return []
        if request.how is ChunkAskMode.HELD:
            return self.replies.with_error(request, errno.EAGAIN)
        sick = self.failed_names.get(now, subject)
        if sick is not None:
            return self.replies.with_remembered(request, sick)
        return self.fetches.begin(now, subject, request)

    def _keep(self, now: float, request: ChunkRequest) -> list[Action]:
        """A warm-up asks for this (``daemon/warmup_fill.py``)."""
        key = request.key
        if self.chunk_cache.size_of(key) <= 0 or not self.routing.is_mine(key):
            return self.replies.with_error(request, errno.EXDEV)
        actions = self.chunk_cache.keep(key)
        blob = self.chunk_cache.blob(key)
        if blob is None:
            return self.want(now, ChunkRequest(request.request, key))
        actions += self.write_back.store(key, blob)  # the disk may have refused it when it came
        return actions + self._answer(now, request, blob)

    def serve(self, now: float, peer: NodeId, message: Request) -> list[Action]:
        assert message.version is not None, "the codec sees to it"
        request, key = (
            PeerRequest(peer, message.number),
            ChunkKey(message.path, message.version, message.first),
        )
        skipped = tuple(filter(self.routing.is_other, message.skipped))
        node_request = ChunkRequest(request, key, message.how, skipped)
        if self.chunk_cache.size_of(key) <= 0:
            return self.replies.with_error(node_request, errno.EINVAL)
        if message.how is ChunkAskMode.COPY:
            if self.copies is None:
                return self.replies.with_error(node_request, errno.EAGAIN)
            return self.copies.serve(now, node_request)
        if message.how is ChunkAskMode.ANY:
            other = self.redirects.other_for(now, key, peer, self.routing.gone())
            if other is not None:
                self.stats.redirects += 1
                self.flow.served(peer, message.number)
                return [Send(peer, Redirect(message.number, self.stats.epoch, other))]
        return self.want(now, node_request)

    def _is_shared(self, now: float, request: ChunkRequest, blob: BlobId | None) -> bool:
        """Whether another node reads this file through this node, too. Requests of this node always
        pass, because its parent decides."""
        subject = _subject(request.key)
        shared = blob is not None or self.fetches.is_under_way(subject)
        is_hot = self.hot_files.count_request(now, request.path, shared=shared)
        return shared or is_hot or not isinstance(request.request, PeerRequest)

    def goes_alone(self, now: float, fetch: Fetch) -> None:
        self.hot_files.goes_alone(now, fetch.subject[1])

    def _read_ahead(self, now: float, key: ChunkKey, ahead: Next) -> list[Action]:
        """Read ahead until a request would wait for room, or an awaited chunk be evicted."""
        actions: list[Action] = []
        for index in ahead.known:
            # Chunks that were already read are evicted before it.
            self.chunk_cache.used(ChunkKey(key.path, key.version, index))
        for index in ahead.fresh:
            each = ChunkKey(key.path, key.version, index)
            fetched = self._fetch_ahead(now, each)
            if fetched is None:
                self.readahead.found_no_room(each)
                break
            actions += fetched
        return actions

    def _fetch_ahead(self, now: float, key: ChunkKey) -> list[Action] | None:
        """None if there is no room for the chunk."""
        subject = _subject(key)
        blob = self.chunk_cache.blob(key)
        if blob is not None:
            # The reader does not ask for a published chunk, so the hit is counted here.
            self.stats.tier_from_memory += 1
            return self._publish_ahead(key, blob)
        how = ChunkAskMode.TREE if self.hot_files.goes_up(now, key.path) else ChunkAskMode.ANY
        request = ChunkRequest(NOBODY, key, how)
        if self.fetches.join(subject, request) is not None:
            return []  # a peer may have asked for it; the node publishes it when it comes
        owned = self.routing.is_mine(key)
        size = self.chunk_cache.size_of(key)
        if not self.chunk_cache.has_room(cost_of(size), owned=owned):
            return None
        if not self.write_back.may_read_ahead(size) if owned else self.fetches.is_held_up(key):
            return None
        self.stats.tier_ahead += 1
        return self.fetches.begin(now, subject, request)

    def _publish_ahead(self, key: ChunkKey, blob: BlobId) -> list[Action]:
        return [] if self.readahead.is_marker(key) else [Publish(key, blob)]

    def _answer(self, now: float, request: ChunkRequest, blob: BlobId) -> list[Action]:
        size = self.chunk_cache.size_of(request.key)
        return self.replies.with_chunk(now, request, blob, size, self.limits.chunk_bytes)

    # --- outcomes --------------------------------------------------------------------------------

    def conclude(self, now: float, fetch: Fetch, outcome: DiskLoaded | SourceRead) -> list[Action]:
        keeps_result, key = fetch.route.role.keeps_result, _key_of(fetch)
        if isinstance(outcome, SourceRead):
            self.stats.tier_from_source += 1
            for_disk = any(map(_is_for_disk, fetch.waiters))
            self.stats.tier_read_again += for_disk or self.write_back.is_debt(key)
            self.stats.tier_read_for_disk += for_disk
            return self._take(now, fetch, outcome.blob, keeps_result=keeps_result, stores=True)
        if outcome.blob is None:
            if self.copies is not None:
                self.copies.not_on_disk(key)
            if fetch.phase is Phase.READING_DISK and self.routing.has_copies(fetch.subject):
                return self._not_on_disk(now, fetch)
            return self._read_source(now, fetch, key)
        self.stats.tier_from_disk += 1
        if self.copies is not None:
            self.copies.stored(key)
        return self._take(now, fetch, outcome.blob, keeps_result=keeps_result)

    def _not_on_disk(self, now: float, fetch: Fetch) -> list[Action]:
        fetch.copies = replace(fetch.copies, not_on_disk_at=now)
        fetch.move(Trigger.DISK_LACKS_IT)
        served = [each for each in fetch.waiters if is_of_copy(each) and not is_nobodys(each)]
        fetch.waiters = [each for each in fetch.waiters if each not in served]
        actions = [act for each in served for act in self.replies.with_error(each, errno.EAGAIN)]
        if not fetch.waiters:
            return actions + self.fetches.end(fetch)
        return actions + self.fetches.machine.ask_copies(now, fetch)

    def without_copies(self, now: float, fetch: Fetch) -> list[Action]:
        """No other node keeps the chunk: readers get it from the source, and a copy is not made."""
        if all(map(is_of_copy, fetch.waiters)) and fetch.waiters:
            return self.fetches.end(fetch)
        return self.fetches.machine.go_on(now, fetch)

    def _read_as_owner(self, now: float, fetch: Fetch) -> list[Action]:
        return self._read_source(now, fetch, _key_of(fetch))

    def _read_source(self, now: float, fetch: Fetch, key: ChunkKey) -> list[Action]:
        """If this node has to keep the chunk, the read may have to wait until the disk can take
        more."""
        is_kept = fetch.route.role.keeps_result or self.routing.is_mine(key)
        if not is_kept or self.write_back.may_read(now, fetch, key):
            return [self.fetches.machine.from_source(fetch)]
        self.fetches.machine.wait_for_disk(fetch)
        self.fetches.give_back_room(fetch)
        return self.tell_delayed(fetch)

    def tell_delayed(self, fetch: Fetch) -> list[Action]:
        requesters = (each.request for each in fetch.waiters)
        return [self._delayed(each) for each in requesters if isinstance(each, PeerRequest)]

    def _delayed(self, requester: PeerRequest) -> Action:
        return Send(requester.peer, Delayed(requester.number, self.stats.epoch))

    def take_given(self, now: float, fetch: Fetch, blob: BlobId) -> list[Action]:
        self.stats.tier_from_peers += 1
        if fetch.phase is not Phase.ASKING_COPIES:
            return self._take(now, fetch, blob, keeps_result=False, is_given=True)
        self.stats.copies_read += not all(map(is_of_copy, fetch.waiters))
        keeps_result = fetch.route.role.keeps_result
        return self._take(now, fetch, blob, keeps_result=keeps_result, stores=True, is_given=True)

    def _take(
        self,
        now: float,
        fetch: Fetch,
        blob: BlobId,
        *,
        keeps_result: bool,
        stores: bool = False,
        is_given: bool = False,
    ) -> list[Action]:
        """*stores*: the chunk came from the source or from a copy, so an owner gives it to its
        disk. *is_given*: it came from another node."""
        actions = self.fetches.end(fetch)
        key = _key_of(fetch)
        for request in fetch.waiters:
            assert isinstance(request, ChunkRequest)
            if _is_for_disk(request) or is_for_copy_alone(request):
                continue
            self.stats.copies_served += is_of_copy(request)
            if is_nobodys(request):
                actions += self._publish_ahead(key, blob)
            else:
                actions += self._answer(now, request, blob)
        owned, is_kept = keeps_result or self.routing.is_mine(key), False
        if self.copies is not None and self.routing.has_copies(fetch.subject):
            may_admit = self.copies.may_admit(key)
            is_wanted = any(map(is_for_copy_alone, fetch.waiters)) or self.copies.is_holder(key)
            if owned or (is_wanted and self.copies.has_place(key)):
                is_kept = True
                self.copies.keeps(key, is_copy=is_given)
                stores = stores or not self.copies.is_on_disk(key)
                owned = owned or may_admit
        self.write_back.settled(key)
        if stores and (owned or is_kept):
            actions += self.write_back.store(key, blob)
        for_disk = all(map(_is_for_disk, fetch.waiters)) and bool(fetch.waiters)
        return actions + self.chunk_cache.admit(key, blob, owned=owned, oldest=for_disk)

    # --- the disk --------------------------------------------------------------------------------

    def stored(self, outcome: Stored) -> None:
        if outcome.written and self.copies is not None:
            self.copies.stored(outcome.key)
        self.write_back.stored(
            outcome.key,
            written=outcome.written,
            is_degraded=outcome.is_degraded,
            is_outgrown=outcome.is_outgrown,
        )

    def go_on(self, now: float) -> list[Action]:
        actions = self.write_back.pay_from_memory()
        while (fetch := self.write_back.next_to_read(_is_wanted)) is not None:
            evicted = self.fetches.take_room(fetch, _key_of(fetch))
            if evicted is None:
                break
            self.write_back.begin(fetch)
            actions += [*evicted, self.fetches.machine.from_source(fetch)]
        return actions + self._read_for_disk(now)

    def _read_for_disk(self, now: float) -> list[Action]:
        """Read debts that memory has evicted, as long as no reader has to wait for the room."""
        actions: list[Action] = []
        self._for_disk = {each for each in self._for_disk if self.fetches.is_under_way(each)}
        while (key := self.write_back.debt_to_read(len(self._for_disk))) is not None:
            subject = _subject(key)
            # A chunk in flight is stored when it comes.
            if self.routing.is_mine(key) and not self.fetches.is_under_way(subject):
                if not self.chunk_cache.has_room(
                    cost_of(self.chunk_cache.size_of(key)), owned=True
                ):
                    break
                self._for_disk.add(subject)
                actions += self.fetches.begin(now, subject, ChunkRequest(NOBODY, key, keeps=True))
            self.write_back.settled(key)
        return actions

    def tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for fetch in self.write_back.have_waited(now):
            if _is_wanted(fetch):
                self.write_back.go_on(fetch)
            else:
                actions += self.fetches.end(fetch)
        if self.write_back.tick(now):
            actions += [
                each for fetch in self.write_back.waiting() for each in self.tell_delayed(fetch)
            ]
        return actions + self.go_on(now)


def _key_of(fetch: Fetch) -> ChunkKey:
    key = fetch.subject[2]
    assert isinstance(key, ChunkKey)
    return key


def _is_wanted(fetch: Fetch) -> bool:
    """Whether a request waits on it."""
    return not all(map(is_nobodys, fetch.waiters))


def _is_for_disk(request: NodeRequest) -> bool:
    return isinstance(request, ChunkRequest) and request.keeps and is_nobodys(request)


def _subject(key: ChunkKey) -> Subject:
    return (FetchKind.CHUNK, key.path, key)
