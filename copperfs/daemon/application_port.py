"""Application port: the driver's port to the applications of this node.

A handler of pyfuse3 sends its request here and waits for the reply. It then publishes the content
in the tables of the front, which answers from them without the node. The publication index
remembers the inode numbers, so that evictions withdraw the content.
"""

import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import trio

from copperfs.daemon.kernel_notifications import Notifications
from copperfs.fuse.node_port import Answered, Content, Deliver, SourceError
from copperfs.model.listing import Listing
from copperfs.model.types import ChunkKey, HandleId, Path, RequestId
from copperfs.native.blob import Blob
from copperfs.node.actions import (
    AnswerChunk,
    AnswerEntry,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    CacheKey,
    ListingKey,
    ObjectKey,
)
from copperfs.node.events import Event, NodeRequest

log = logging.getLogger(__name__)
T = TypeVar("T")


class Publications(Protocol):
    def withdraw(self, key: CacheKey | ChunkKey) -> None:
        """The node no longer holds this."""

    def withdraw_all(self, epoch: int) -> None:
        """The node holds nothing, and no content is fresh."""

    def publish_object(self, key: ObjectKey, blob: Blob) -> None:
        """Let the front answer requests with *blob*."""

    def publish_chunk(self, key: ChunkKey, chunk_bytes: int, blob: Blob) -> None:
        """The index has other chunks of the same file."""

    def publish_listing(self, path: Path, listing: Listing) -> None:
        """Let the front serve the listing until the epoch ends."""

    def used(self) -> Sequence[CacheKey | ChunkKey]:
        """The keys that the front has served without the node."""
        ...

    def look_again(self, path: Path) -> Callable[[], object] | None:
        """The function by which a worker thread makes the kernel look *path* up again."""
        ...

    def invalidate_all(self) -> tuple[int, Callable[[], int] | None]:
        """Called in a worker thread. Returns how many names the kernel was told, and a function
        that tells it the rest, which waits for lookups under way."""
        ...


@dataclass(slots=True)
class _Waiting:
    """The reply is delivered while actions are performed, before a later action can evict its
    content."""

    deliver: Callable[[Answered, Content], object]
    answered: trio.Event | None = None
    outcome: object = None
    done: bool = False


@dataclass(slots=True)
class ApplicationPort:
    publications: Publications
    notifications: Notifications
    post: Callable[[Event], None]
    close_handle: Callable[[HandleId], None]
    remaining: Callable[[float | None], float | None]
    """Turns a time of the node's clock into seconds from now."""
    renamed: Callable[[], object] = lambda: None
    """Called when a name leads to another number: an overlay above has to be mounted anew."""
    is_clearing: bool = False
    """A clear of this node tells the kernel itself, and waits for it."""
    _waiting: dict[RequestId, _Waiting] = field(default_factory=dict)

    async def ask(self, node_request: NodeRequest, deliver: Deliver[T]) -> T:
        request = node_request.request
        assert isinstance(request, int), "a peer asks by a message"
        waiting = _Waiting(lambda answer, content: deliver(answer, content, self.remaining))
        self._waiting[request] = waiting
        try:
            self.post(node_request)
            if not waiting.done:
                waiting.answered = trio.Event()
                await waiting.answered.wait()
        finally:
            self._waiting.pop(request, None)
        if isinstance(waiting.outcome, SourceError):
            raise waiting.outcome
        return waiting.outcome  # type: ignore[return-value]  # what deliver returned

    def answer(self, request: RequestId, answer: AnswerEntry | AnswerListing) -> None:
        self._answer(request, answer, None)

    def answer_object(self, answer: AnswerObject, content: Blob) -> None:
        self._answer(answer.request, answer, content)

    def answer_chunk(self, answer: AnswerChunk, content: Blob) -> None:
        self._answer(answer.request, answer, content)

    def answer_handle(self, answer: AnswerHandle) -> None:
        if answer.request in self._waiting:
            self._answer(answer.request, answer, int(answer.handle))
        else:
            self.close_handle(answer.handle)

    def answer_error(self, request: RequestId, error: int) -> None:
        self._finish(request, SourceError(error))

    def publish_object(self, key: ObjectKey, content: Blob) -> None:
        self.publications.publish_object(key, content)

    def publish_chunk(self, key: ChunkKey, chunk_bytes: int, content: Blob) -> None:
        self.publications.publish_chunk(key, chunk_bytes, content)

    def publish_listing(self, path: Path, listing: Listing) -> None:
        self.publications.publish_listing(path, listing)

    def withdraw(self, key: ListingKey | ObjectKey | ChunkKey) -> None:
        self.publications.withdraw(key)

    def look_again(self, path: Path) -> None:
        tell = self.publications.look_again(path)
        if tell is not None:
            self.notifications.add(path, tell)
            self.renamed()

    def begin_epoch(self, epoch: int) -> None:
        self.publications.withdraw_all(epoch)
        if self.is_clearing:
            return
        self.notifications.add_everything(lambda: self.publications.invalidate_all()[1])

    def _answer(self, request: RequestId, answer: Answered, content: Content) -> None:
        waiting = self._waiting.get(request)
        if waiting is None:
            return
        try:
            self._finish(request, waiting.deliver(answer, content))
        except Exception:
            log.exception("a bug: an answer could not be delivered")
            self._finish(request, SourceError(errno.EIO))

    def _finish(self, request: RequestId, outcome: object) -> None:
        waiting = self._waiting.get(request)
        if waiting is None:
            return
        waiting.outcome, waiting.done = outcome, True
        if waiting.answered is not None:
            waiting.answered.set()
