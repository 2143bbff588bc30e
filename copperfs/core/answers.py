"""Answers: to a request of this node an action, to a peer's a message, or parts on its link.

A request of this node is told what this mount shows; a peer is given what the source said, for each
node shows it in its own way. Who has gone, or has withdrawn its ask, is told nothing: the link
knows whom it is still serving.

A large object is passed on while it arrives. Its fetch then has a stream for each peer that waits
on it, which is told of every part (``pass_more``).
"""

import errno
from dataclasses import dataclass, field

from copperfs.core.actions import (
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
from copperfs.core.asking import Fetch
from copperfs.core.cache import Held
from copperfs.core.events import Look, Question, Read, WantChunk
from copperfs.core.links import Links, Stream, parts_in
from copperfs.core.listing import Listing
from copperfs.core.messages import LISTING_MAX_BYTES, GiveEntry, Refuse
from copperfs.core.policy import Place, Policy
from copperfs.core.state import NodeStats
from copperfs.types import BlobId, Entry, HandleId, Path, PeerRequest, split


@dataclass(slots=True)
class Answers:
    policy: Policy
    stats: NodeStats
    links: Links
    grants: bool
    """Whether the front may be granted the files of a listing."""
    cut_through: bool = True

    _warm: set[Path] = field(default_factory=set)
    """Directories that are not granted, because the front would read what is held."""
    _above_warm: set[Path] = field(default_factory=set)

    def keep_from_front(self, directories: tuple[Path, ...]) -> set[Path]:
        """Do not grant these, nor what is above them with all below; which ones that changed."""
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

    def with_error(self, question: Question, error: int, witnesses: int = 0) -> list[Action]:
        request = question.request
        if not isinstance(request, PeerRequest):
            return [AnswerError(request, error)]
        if not self.links.is_serving(*request):
            return []  # gone, or withdrawn
        stopped = self.links.stop(*request)
        refusal = Refuse(request.number, self.stats.epoch, error, witnesses)
        return [*stopped, Send(request.peer, refusal)]

    def with_handle(self, question: Question, handle: HandleId) -> list[Action]:
        assert not isinstance(question.request, PeerRequest), "peers are not given handles"
        return [AnswerHandle(question.request, handle)]

    def with_entry(self, now: float, question: Look, held: Held) -> list[Action]:
        assert not isinstance(held.value, Listing)
        assert not isinstance(held.source, Listing)
        request = question.request
        if not isinstance(request, PeerRequest):
            return [AnswerEntry(request, held.value, held.fresh_until)]
        return self._give_entry(now, request, held.source, held.fresh_until)

    def with_listing(
        self, now: float, question: Question, directory: Path, held: Held
    ) -> list[Action]:
        """Also answers who looks for a name in *directory*."""
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
            if total > LISTING_MAX_BYTES:
                return self.with_error(question, errno.EFBIG)
            stream = Stream(
                request.number, held.source, total, 0, parts_in(total), held.fresh_until
            )
            return self.links.give(now, self.stats.epoch, request.peer, stream)
        granted = self.grants and not held.value.bare and directory not in self._warm
        granted = granted and not self.policy.is_ring(directory)
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

    def with_object(self, now: float, question: Read, key: ObjectKey, blob: BlobId) -> list[Action]:
        request = question.request
        if not isinstance(request, PeerRequest):
            return [AnswerObject(request, key, blob)]
        if not self.links.is_serving(*request):
            return []
        size = key.version.size
        stream = Stream(request.number, blob, size, question.first, parts_in(size))
        return self.links.give(now, self.stats.epoch, request.peer, stream)

    def with_chunk(
        self, now: float, question: WantChunk, blob: BlobId, size: int, chunk_bytes: int
    ) -> list[Action]:
        request = question.request
        if not isinstance(request, PeerRequest):
            return [AnswerChunk(request, question.key, blob, chunk_bytes)]
        if not self.links.is_serving(*request):
            return []
        stream = Stream(request.number, blob, size, 0, parts_in(size))
        return self.links.give(now, self.stats.epoch, request.peer, stream)

    def _give_entry(
        self, now: float, request: PeerRequest, entry: Entry | None, fresh_until: float | None
    ) -> list[Action]:
        if not self.links.is_serving(*request):
            return []
        self.links.served(*request)
        left = None if fresh_until is None else max(0.0, fresh_until - now)
        message = GiveEntry(request.number, self.stats.epoch, entry, left)
        return [Send(request.peer, message)]

    # --- while it arrives ------------------------------------------------------------------------

    def pass_on(self, now: float, fetch: Fetch, question: Question) -> list[Action]:
        """Begin to give a peer what is there of an object, if anything is."""
        request = question.request
        if fetch.blob is None or not isinstance(request, PeerRequest) or not self.cut_through:
            return []
        if not self.links.is_serving(*request):
            return []
        assert isinstance(question, Read)
        size = question.version.size
        stream = Stream(request.number, fetch.blob, size, question.first, fetch.there)
        fetch.streams.append((request.peer, stream))
        return self.links.give(now, self.stats.epoch, request.peer, stream)

    def pass_more(self, now: float, fetch: Fetch, blob: BlobId, there: int) -> list[Action]:
        """*there* parts have come and are in *blob*; another one than so far, if it was read from
        the source after all."""
        actions: list[Action] = []
        for peer, stream in fetch.streams:
            actions += self.links.more(stream, blob, there)
            actions += self.links.pump(now, self.stats.epoch, peer)
        return actions
