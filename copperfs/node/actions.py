"""Actions: what a node orders in a step.

The driver performs them in order. After an eviction or a release it must not use that content for
answers.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from copperfs.model.listing import Listing
from copperfs.model.types import (
    BlobId,
    CallId,
    ChunkKey,
    Entry,
    FetchId,
    HandleId,
    NodeId,
    Path,
    PeerRequest,
    RequestId,
    Version,
)
from copperfs.node.peer.messages import Message, Seen

# Keys are tuples, because Python code would hash and compare a dataclass, and each message looks
# keys up several times. A constant field keeps keys of two kinds apart.


class ObjectKey(NamedTuple):
    """A file in one version."""

    path: Path
    version: Version


class ListingKey(NamedTuple):
    path: Path
    kind: Literal["listing"] = "listing"


class EntryKey(NamedTuple):
    """From a lookup of a single name."""

    path: Path
    kind: Literal["entry"] = "entry"


CacheKey = ObjectKey | ListingKey | EntryKey

# --- at the source -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListSource:
    fetch: FetchId
    path: Path


@dataclass(frozen=True, slots=True)
class LookupSource:
    fetch: FetchId
    path: Path


@dataclass(frozen=True, slots=True)
class ReadSource:
    """The file must be this version before and after."""

    fetch: FetchId
    path: Path
    version: Version


@dataclass(frozen=True, slots=True)
class OpenForBypass:
    """Open a file that the front then reads from the source directly, past the caches."""

    fetch: FetchId
    path: Path
    version: Version


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """The file must be this version before and after."""

    fetch: FetchId
    path: Path
    version: Version
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class SampleInodes:
    """Look up a few names of each shared filesystem, for other nodes to compare. ``InodesFound``
    reports names, at any time; ``InodesSampled`` says that the sample need not wait for more."""


@dataclass(frozen=True, slots=True)
class CompareInodes:
    """Look these names up: ``InodesDiffer`` if this node's client shows another inode number, and
    ``InodesCompared`` at the end."""

    names: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class IgnoreInodes:
    """Leave inode numbers out of versions from now on, as all nodes of the job do."""

    was_told: bool
    """Another node has found that they differ, and not this one."""


# --- at the disk of the data tier ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadChunk:
    """``DiskLoaded`` has the result."""

    fetch: FetchId
    key: ChunkKey


@dataclass(frozen=True, slots=True)
class StoreChunk:
    """``Stored`` has the outcome. The blob may be released at once, because the store keeps it
    until then."""

    key: ChunkKey
    blob: BlobId


# --- at the peers ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """*content* makes the payload: for a ``DataReply`` the part of its index, for an ``Offer`` all
    contents. It may be released at once, because the sender keeps it until it is sent."""

    peer: NodeId
    message: Message
    content: BlobId | Listing | tuple[BlobId | Listing, ...] | None = None


@dataclass(frozen=True, slots=True)
class Connect:
    """Also renew the connection when it breaks."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Disconnect:
    peer: NodeId


@dataclass(frozen=True, slots=True)
class Probe:
    """Try whether a process listens there; ``Probed`` has the result."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Users can reconstruct a failure from these events."""

    what: str
    peer: NodeId | None = None
    detail: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Disagree:
    """*peer* was started with other options, and users are told."""

    peer: NodeId
    sentence: str


@dataclass(frozen=True, slots=True)
class PerformCall:
    """``CallPerformed`` reports the end."""

    call: CallId
    operation: str
    argument: bytes


@dataclass(frozen=True, slots=True)
class EndCall:
    """Merge these results into one for the requester: in a ``CollectiveReply``, if that is a
    peer."""

    call: CallId
    requester: RequestId | PeerRequest
    operation: str
    results: tuple[bytes, ...]


# --- answers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerEntry:
    """*fresh_until* is on the clock of ``step``; None means for the life of the epoch."""

    request: RequestId
    entry: Entry | None
    fresh_until: float | None


@dataclass(frozen=True, slots=True)
class AnswerListing:
    """Answers a request for a listing, or for one name whose directory was listed for it.

    *granted*: the front may read its files on its allowance. *granted_below*: the front may also
    list all directories below it, and read their files. *read_ahead*: it may read granted files
    before an application asks for them.
    """

    request: RequestId
    directory: Path
    listing: Listing
    fresh_until: float | None
    granted: bool = False
    granted_below: bool = False
    read_ahead: bool = False


@dataclass(frozen=True, slots=True)
class AnswerObject:
    request: RequestId
    key: ObjectKey
    blob: BlobId


@dataclass(frozen=True, slots=True)
class AnswerChunk:
    """The chunk that contains the requested offset."""

    request: RequestId
    key: ChunkKey
    blob: BlobId
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class AnswerHandle:
    """The file is not held, and the application gets a handle of its own."""

    request: RequestId
    handle: HandleId


@dataclass(frozen=True, slots=True)
class AnswerError:
    request: RequestId
    error: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Let the front answer this before an application asks."""

    key: ObjectKey | ListingKey | ChunkKey
    content: BlobId | Listing


@dataclass(frozen=True, slots=True)
class DropCall:
    """No node waits for this collective any more."""

    call: CallId


# --- eviction and release ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evict:
    """The front withdraws what was published of it."""

    key: ListingKey | ObjectKey | ChunkKey


@dataclass(frozen=True, slots=True)
class ReleaseBlob:
    blob: BlobId


@dataclass(frozen=True, slots=True)
class ReleaseHandle:
    handle: HandleId


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """The kernel must forget everything as well."""

    epoch: int


@dataclass(frozen=True, slots=True)
class InvalidateName:
    """The kernel must look the name up again."""

    path: Path


SourceAction = ListSource | LookupSource | ReadSource | OpenForBypass | ReadChunk
InodeAction = SampleInodes | CompareInodes | IgnoreInodes
DiskAction = LoadChunk | StoreChunk
Answer = AnswerEntry | AnswerListing | AnswerObject | AnswerChunk | AnswerHandle | AnswerError
PeerAction = Send | Connect | Disconnect | Probe | PerformCall | EndCall | DropCall
ReleaseAction = Evict | ReleaseBlob | ReleaseHandle | NewEpoch | InvalidateName
UserNotice = LogEvent | Disagree
Action = (
    SourceAction
    | InodeAction
    | DiskAction
    | PeerAction
    | Answer
    | Publish
    | ReleaseAction
    | UserNotice
)
