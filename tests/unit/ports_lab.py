"""Ports without expectations: a test overrides the calls that it allows; every other call fails
it."""

from typing import NoReturn

from copperfs.driver.driver import Driver
from copperfs.driver.ports import Ports
from copperfs.model.listing import Listing
from copperfs.model.types import BlobId, CallId, ChunkKey, HandleId, NodeId, Path, RequestId
from copperfs.node.actions import (
    Action,
    AnswerChunk,
    AnswerEntry,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    ListingKey,
    LogEvent,
    ObjectKey,
    PerformCall,
    SourceAction,
)
from copperfs.node.events import Event
from copperfs.node.node import Node
from copperfs.node.peer.messages import Offer


class NoPorts:
    """Of a node that has neither peers nor a data tier."""

    def drive(self, node: Node) -> Driver[object, object]:
        ports = Ports[object, object](
            clock=self,
            source=self,
            applications=self,
            operations=self,
            failure_log=self,
            observer=self,
        )
        return Driver(node, ports, self)

    # --- clock and observer
    # ---------------------------------------------------------------------------

    def now(self) -> float:
        return 0.0

    def wake_at(self, deadline: float | None) -> None: ...
    def posted(self, event: Event) -> None: ...
    def stepped(self) -> None: ...
    def performs(self, action: Action) -> None: ...

    # --- unexpected calls ------------------------------------------------------------------------

    def start(self, fetch: SourceAction, names_to_find: tuple[bytes, ...]) -> None:
        _unexpected(fetch)

    def close_handle(self, handle: HandleId) -> None:
        _unexpected(handle)

    def answer(self, request: RequestId, answer: AnswerEntry | AnswerListing) -> None:
        _unexpected(answer)

    def answer_object(self, answer: AnswerObject, content: object) -> None:
        _unexpected(answer)

    def answer_chunk(self, answer: AnswerChunk, content: object) -> None:
        _unexpected(answer)

    def answer_handle(self, answer: AnswerHandle) -> None:
        _unexpected(answer)

    def answer_error(self, request: RequestId, error: int) -> None:
        _unexpected(error)

    def publish_object(self, key: ObjectKey, content: object) -> None:
        _unexpected(key)

    def publish_chunk(self, key: ChunkKey, chunk_bytes: int, content: object) -> None:
        _unexpected(key)

    def publish_listing(self, path: Path, listing: Listing) -> None:
        _unexpected(path)

    def withdraw(self, key: ListingKey | ObjectKey | ChunkKey) -> None:
        _unexpected(key)

    def look_again(self, path: Path) -> None:
        _unexpected(path)

    def begin_epoch(self, epoch: int) -> None:
        _unexpected(epoch)

    def begin(self, call: PerformCall) -> None:
        _unexpected(call)

    def stop(self, call: CallId) -> None:
        _unexpected(call)

    def merge(self, results: tuple[bytes, ...]) -> bytes:
        _unexpected(results)

    def end(self, request: RequestId, result: bytes) -> None:
        _unexpected(result)

    def note(self, happened: LogEvent) -> None:
        _unexpected(happened)

    def disagree(self, peer: NodeId, sentence: str) -> None:
        _unexpected(sentence)

    # --- the blob table --------------------------------------------------------------------------

    def content(self, blob: BlobId) -> object:
        return blob

    def release(self, blob: BlobId) -> None:
        _unexpected(blob)

    def part(self, content: BlobId | Listing, index: int, total_bytes: int) -> object:
        _unexpected(content)

    def whole(self, blob: BlobId) -> object:
        _unexpected(blob)

    def offer(self, offer: Offer, contents: tuple[BlobId | Listing, ...]) -> tuple[Offer, object]:
        _unexpected(offer)


def _unexpected(what: object) -> NoReturn:
    raise AssertionError(f"the node was not expected to do anything about {what}")
