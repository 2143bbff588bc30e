"""Reply builder: answers requests of this node by actions, those of peers by messages.

A request of this node gets what this mount shows. A peer gets what the source returned, because
each node shows it in its own way. A peer that disconnected, or cancelled its request, gets nothing:
``FlowControl`` knows which requests it still serves.

The node forwards a large object while it arrives (cut-through). Its fetch then has a stream for
each peer that waits on it, and ``forward_more`` reports each part to these streams.
"""

import errno
from dataclasses import dataclass, field

from copperfs.model.listing import Listing
from copperfs.model.types import BlobId, Entry, HandleId, Path, PeerRequest, split
from copperfs.node.actions import (
    Action,
    AnswerChunk,
    AnswerEntry,
    AnswerError,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    ObjectKey,
    Send,
)
from copperfs.node.cache.error_cache import Sick
from copperfs.node.cache.metadata_cache import Held
from copperfs.node.events import ChunkRequest, LookupRequest, NodeRequest, ReadRequest
from copperfs.node.fetch.fetch import Fetch
from copperfs.node.limits_and_counters import NodeStats
from copperfs.node.peer.flow_control import FlowControl, OutgoingStream, parts_in
from copperfs.node.peer.messages import LISTING_MAX_BYTES, EntryReply, ErrorReply
from copperfs.node.requests.file_class import FileClassifier
from copperfs.node.requests.path_policy import Place, Policy


@dataclass(slots=True)
class ReplyBuilder:
    policy: Policy
    files: FileClassifier
    stats: NodeStats
    flow: FlowControl
    grants: bool
    cut_through: bool

    _warm: set[Path] = field(default_factory=set)
    """Not granted: the front would read files again that this node holds."""
    _above_warm: set[Path] = field(default_factory=set)

    def keep_from_front(self, directories: tuple[Path, ...]) -> set[Path]:
        """Do not grant these directories, nor all below their parents. Returns those that
        changed."""
        before = self._warm | self._above_warm
        self._warm.update(directories)
        for directory in directories:
            while directory:
                directory, _ = split(directory)
                self._above_warm.add(directory)
        return (self._warm | self._above_warm) - before

    def forget_warm(self) -> None:
        self._warm.clear()
        self._above_warm.clear()

    def with_error(self, node_request: NodeRequest, error: int, witnesses: int = 0) -> list[Action]:
        request = node_request.request
        if not isinstance(request, PeerRequest):
            return [AnswerError(request, error)]
        if not self.flow.is_serving(*request):
            return []  # the peer disconnected or cancelled
        stopped = self.flow.stop(*request)
        refusal = ErrorReply(request.number, self.stats.epoch, error, witnesses)
        return [*stopped, Send(request.peer, refusal)]

    def with_remembered(self, request: NodeRequest, sick: Sick) -> list[Action]:
        self.stats.failures += 1
        return self.with_error(request, sick.error, sick.witnesses)

    def with_handle(self, request: NodeRequest, handle: HandleId) -> list[Action]:
        assert not isinstance(request.request, PeerRequest), "peers are not given handles"
        return [AnswerHandle(request.request, handle)]

    def with_entry(self, now: float, node_request: LookupRequest, held: Held) -> list[Action]:
        assert not isinstance(held.value, Listing)
        assert not isinstance(held.source, Listing)
        request = node_request.request
        if not isinstance(request, PeerRequest):
            return [AnswerEntry(request, held.value, held.fresh_until)]
        return self._give_entry(now, request, held.source, held.fresh_until)

    def with_listing(
        self, now: float, node_request: NodeRequest, directory: Path, held: Held
    ) -> list[Action]:
        """Also answers a lookup of a name in *directory*."""
        assert isinstance(held.value, Listing)
        assert isinstance(held.source, Listing)
        request = node_request.request
        if isinstance(request, PeerRequest):
            if isinstance(node_request, LookupRequest):
                entry = held.source.find(split(node_request.path)[1])
                return self._give_entry(now, request, entry, held.fresh_until)
            if not self.flow.is_serving(*request):
                return []
            total = len(held.source.packed)
            if total > LISTING_MAX_BYTES:
                return self.with_error(node_request, errno.EFBIG)
            stream = OutgoingStream(
                request.number, held.source, total, 0, parts_in(total), held.fresh_until
            )
            return self.flow.give(now, self.stats.epoch, request.peer, stream)
        granted = self.grants and not held.value.bare and directory not in self._warm
        granted = granted and self.files.is_granted(directory)
        below = granted and directory not in self._above_warm
        return [
            AnswerListing(
                request,
                directory,
                held.value,
                held.fresh_until,
                granted=granted,
                granted_below=below and self.policy.is_uniform_below(directory),
                read_ahead=granted and self.policy.place(directory) is Place.SHARED,
            )
        ]

    def with_object(
        self, now: float, node_request: ReadRequest, key: ObjectKey, blob: BlobId
    ) -> list[Action]:
        request = node_request.request
        if not isinstance(request, PeerRequest):
            return [AnswerObject(request, key, blob)]
        if not self.flow.is_serving(*request):
            return []
        size = key.version.size
        stream = OutgoingStream(request.number, blob, size, node_request.first, parts_in(size))
        return self.flow.give(now, self.stats.epoch, request.peer, stream)

    def with_chunk(
        self, now: float, node_request: ChunkRequest, blob: BlobId, size: int, chunk_bytes: int
    ) -> list[Action]:
        request = node_request.request
        if not isinstance(request, PeerRequest):
            return [AnswerChunk(request, node_request.key, blob, chunk_bytes)]
        if not self.flow.is_serving(*request):
            return []
        stream = OutgoingStream(request.number, blob, size, 0, parts_in(size))
        return self.flow.give(now, self.stats.epoch, request.peer, stream)

    def _give_entry(
        self, now: float, request: PeerRequest, entry: Entry | None, fresh_until: float | None
    ) -> list[Action]:
        if not self.flow.is_serving(*request):
            return []
        self.flow.served(*request)
        left = None if fresh_until is None else max(0.0, fresh_until - now)
        message = EntryReply(request.number, self.stats.epoch, entry, left)
        return [Send(request.peer, message)]

    def start_forwarding(self, now: float, fetch: Fetch, node_request: NodeRequest) -> list[Action]:
        request, blob = node_request.request, fetch.received.blob
        if blob is None or not isinstance(request, PeerRequest) or not self.cut_through:
            return []
        if not self.flow.is_serving(*request):
            return []
        assert isinstance(node_request, ReadRequest)
        size = node_request.version.size
        stream = OutgoingStream(
            request.number, blob, size, node_request.first, fetch.received.parts
        )
        fetch.streams.append((request.peer, stream))
        return self.flow.give(now, self.stats.epoch, request.peer, stream)

    def forward_more(self, now: float, fetch: Fetch, blob: BlobId, there: int) -> list[Action]:
        """*blob* is another one than before if the object was read from the source after all."""
        actions: list[Action] = []
        for peer, stream in fetch.streams:
            actions += self.flow.more(stream, blob, there)
            actions += self.flow.pump(now, self.stats.epoch, peer)
        return actions
