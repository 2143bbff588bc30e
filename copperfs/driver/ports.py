"""Ports: what a driver needs of its surroundings, as small protocols.

The daemon implements them with trio, sockets and threads, the simulator in virtual time, and tests
with a network that reorders messages. Nothing else about a node differs between the three.

Two type variables stand for bytes, which neither the node nor the driver reads:

    Content     a blob's content: memory or a file in the daemon, a description in the simulator
    Payload     the bytes beside a message, with their digest, or their description

A port must not post an event before the call returns. An answer is the exception: an application of
the simulator or of a test may put its next request during the answer.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from copperfs.model.listing import Listing
from copperfs.model.types import (
    BlobId,
    CallId,
    ChunkKey,
    FetchId,
    HandleId,
    NodeId,
    Path,
    RequestId,
)
from copperfs.node.actions import (
    Action,
    AnswerChunk,
    AnswerEntry,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    Fetch,
    ListingKey,
    LogEvent,
    ObjectKey,
    PerformCall,
)
from copperfs.node.events import Event
from copperfs.node.peer.messages import Message, Offer

Content = TypeVar("Content")
Content_co = TypeVar("Content_co", covariant=True)
Content_contra = TypeVar("Content_contra", contravariant=True)
Payload = TypeVar("Payload")
Payload_co = TypeVar("Payload_co", covariant=True)
Payload_contra = TypeVar("Payload_contra", contravariant=True)


class BlobTable(Protocol[Content_co, Payload_co]):
    """The bytes that the node knows by number."""

    def content(self, blob: BlobId) -> Content_co: ...

    def release(self, blob: BlobId) -> None:
        """Forget the blob; its number is not used again."""

    def part(self, content: BlobId | Listing, index: int, total_bytes: int) -> Payload_co:
        """One part of a blob or a listing, as a payload."""
        ...

    def whole(self, blob: BlobId) -> Payload_co:
        """A blob as one payload, whatever its size."""
        ...

    def offer(
        self, offer: Offer, contents: tuple[BlobId | Listing, ...]
    ) -> tuple[Offer, Payload_co]:
        """All contents as one payload; the offer with the digest of each."""
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on the clock of ``Node.step``."""
        ...

    def wake_at(self, deadline: float | None) -> None:
        """Post a ``Tick`` at *deadline*, instead of at the time given before."""


class Source(Protocol):
    """Reports one outcome for each fetch, later."""

    def start(self, fetch: Fetch, looks_for: tuple[bytes, ...]) -> None:
        """*looks_for* are the names to scan for in a file that is read whole."""

    def close_handle(self, handle: HandleId) -> None:
        """The node opened this file and does not need it."""


class ChunkStore(Protocol):
    """The disk of the data tier."""

    def load(self, fetch: FetchId, key: ChunkKey) -> None:
        """Load a chunk; ``DiskLoaded`` has the result."""

    def save(self, key: ChunkKey, blob: BlobId) -> None:
        """Store a chunk; ``Stored`` has the outcome. The blob may be released after this call."""


class Network(Protocol[Payload_contra]):
    """Messages to a peer arrive in order and once, or not at all."""

    def send(self, peer: NodeId, message: Message, payload: Payload_contra | None) -> object:
        """Send a message. The payload's blob may be released after this call."""

    def connect(self, peer: NodeId) -> None:
        """Keep a connection to *peer*, and renew it when it breaks."""

    def disconnect(self, peer: NodeId) -> None:
        """Keep the connection no longer."""

    def probe(self, peer: NodeId) -> None:
        """Try whether a process listens there; ``Probed`` has the result."""


class Frontend(Protocol[Content_contra]):
    """The applications of this node, and the parts that answer them without the node."""

    def answer(self, request: RequestId, answer: AnswerEntry | AnswerListing) -> None: ...
    def answer_object(self, answer: AnswerObject, content: Content_contra) -> None: ...
    def answer_chunk(self, answer: AnswerChunk, content: Content_contra) -> None: ...

    def answer_handle(self, answer: AnswerHandle) -> None:
        """The application owns the handle from now on."""

    def answer_error(self, request: RequestId, error: int) -> None: ...

    def publish_object(self, key: ObjectKey, content: Content_contra) -> None: ...
    def publish_chunk(self, key: ChunkKey, chunk_bytes: int, content: Content_contra) -> None: ...
    def publish_listing(self, path: Path, listing: Listing) -> None: ...

    def withdraw(self, key: ListingKey | ObjectKey | ChunkKey) -> None:
        """The node no longer holds this."""

    def look_again(self, path: Path) -> None:
        """Have the kernel look *path* up again."""

    def begin_epoch(self, epoch: int) -> None:
        """The node has forgotten everything; the kernel must do so as well."""


class Operations(Protocol):
    """Collectives: this node's part, and the merge of many results into one."""

    def begin(self, call: PerformCall) -> None:
        """Begin this node's part; ``CallPerformed`` reports its end."""

    def stop(self, call: CallId) -> None:
        """The result is not needed any more. The collective may have ended, or never begun here."""

    def merge(self, results: tuple[bytes, ...]) -> bytes: ...

    def end(self, request: RequestId, result: bytes) -> None:
        """A collective that this node started has this result."""


class EventLog(Protocol):
    def note(self, happened: LogEvent) -> None: ...

    def disagree(self, peer: NodeId, sentence: str) -> None:
        """*peer* was started with other options than this node, which does not talk to it."""


class Observer(Protocol):
    """Sees what the node does, for traces and invariants."""

    def posted(self, event: Event) -> None:
        """Before the step."""

    def stepped(self) -> None:
        """After the step, before its actions are performed."""

    def performs(self, action: Action) -> None: ...


@dataclass(slots=True)
class Ports(Generic[Content, Payload]):
    """The surroundings of one node; None where this node lacks one."""

    clock: Clock
    source: Source
    frontend: Frontend[Content]
    operations: Operations
    event_log: EventLog
    network: Network[Payload] | None = None
    chunk_store: ChunkStore | None = None
    observer: Observer | None = None
