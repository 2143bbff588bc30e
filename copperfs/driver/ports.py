"""Ports: what a driver needs of its surroundings, as small protocols.

The daemon implements them with trio, sockets and threads, the simulator in virtual time. Two type
variables stand for bytes:

    Content     a blob's content: memory or a file in the daemon, a description in the simulator
    Payload     the bytes beside a message, with their digest, or their description

A port must not post an event before the call returns, except for an answer: a simulated application
may put its next request during the answer.
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
    ListingKey,
    LogEvent,
    ObjectKey,
    PerformCall,
    SourceAction,
)
from copperfs.node.events import Event
from copperfs.node.peer.messages import Message, Offer, Seen

Content = TypeVar("Content")
Content_co = TypeVar("Content_co", covariant=True)
Content_contra = TypeVar("Content_contra", contravariant=True)
Payload = TypeVar("Payload")
Payload_co = TypeVar("Payload_co", covariant=True)
Payload_contra = TypeVar("Payload_contra", contravariant=True)


class BlobTable(Protocol[Content_co, Payload_co]):
    def content(self, blob: BlobId) -> Content_co: ...

    def release(self, blob: BlobId) -> None:
        """The number is not used again."""

    def part(self, content: BlobId | Listing, index: int, total_bytes: int) -> Payload_co: ...

    def whole(self, blob: BlobId) -> Payload_co: ...

    def offer(
        self, offer: Offer, contents: tuple[BlobId | Listing, ...]
    ) -> tuple[Offer, Payload_co]:
        """The offer with the digest of each content; all contents as one payload."""
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on the clock of ``Node.step``."""
        ...

    def wake_at(self, deadline: float | None) -> None:
        """Post a ``Tick`` at *deadline*, not at the earlier one."""


class Source(Protocol):
    def start(self, fetch: SourceAction, names_to_find: tuple[bytes, ...]) -> None:
        """Report one outcome later. *names_to_find*: names to scan for in a file that is read
        whole."""

    def close_handle(self, handle: HandleId) -> None:
        """The node does not need this open file any more."""


class InodeComparison(Protocol):
    """Looks up names whose inode numbers the nodes compare (``node/peer/inode_agreement.py``)."""

    def take_sample(self) -> None:
        """Reports names by ``InodesFound``, and ``InodesSampled``."""

    def compare(self, names: tuple[Seen, ...]) -> None:
        """Reports ``InodesDiffer`` where a name has another number, and ``InodesCompared`` once."""

    def ignore(self, *, was_told: bool) -> None:
        """Leave inode numbers out of versions from now on."""


class ChunkStore(Protocol):
    def load(self, fetch: FetchId, key: ChunkKey) -> None:
        """``DiskLoaded`` has the result."""

    def save(self, key: ChunkKey, blob: BlobId) -> None:
        """``Stored`` has the outcome. The blob may be released after this call."""


class Network(Protocol[Payload_contra]):
    """Messages arrive in order and once, or not at all."""

    def send(self, peer: NodeId, message: Message, payload: Payload_contra | None) -> object:
        """The payload's blob may be released after this call."""

    def connect(self, peer: NodeId) -> None:
        """Keep a connection, and renew it."""

    def disconnect(self, peer: NodeId) -> None:
        """Undo ``connect``."""

    def probe(self, peer: NodeId) -> None:
        """``Probed`` tells whether a process listens there."""


class Applications(Protocol[Content_contra]):
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
    """Collectives, on this node."""

    def begin(self, call: PerformCall) -> None:
        """``CallPerformed`` reports the end."""

    def stop(self, call: CallId) -> None:
        """It may have ended, or never begun here."""

    def merge(self, results: tuple[bytes, ...]) -> bytes: ...

    def end(self, request: RequestId, result: bytes) -> None:
        """This node started the collective."""


class FailureLog(Protocol):
    def note(self, happened: LogEvent) -> None: ...

    def disagree(self, peer: NodeId, sentence: str) -> None:
        """*peer* was started with other options: this node does not talk to it."""


class Observer(Protocol):
    """For traces and invariants."""

    def posted(self, event: Event) -> None:
        """Before the step."""

    def stepped(self) -> None:
        """After the step, before its actions are performed."""

    def performs(self, action: Action) -> None: ...


@dataclass(slots=True)
class Ports(Generic[Content, Payload]):
    """A port is None where the node lacks it."""

    clock: Clock
    source: Source
    applications: Applications[Content]
    operations: Operations
    failure_log: FailureLog
    network: Network[Payload] | None = None
    chunk_store: ChunkStore | None = None
    inode_comparison: InodeComparison | None = None
    observer: Observer | None = None
