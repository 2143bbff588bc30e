"""What a node wants done: fetches at the source, answers, and releases.

Whoever drives the core performs them in order. Fetches are answered by an outcome event, answers
go to whoever asked, and what is released or dropped must not be used for answers any more.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from copperfs.core.listing import Listing
from copperfs.core.messages import Message
from copperfs.types import (
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

# Keys are looked up several times for each message, so they are tuples: a dataclass is hashed and
# compared by Python. What they have beside their fields keeps keys of two kinds apart.


class ObjectKey(NamedTuple):
    """Names an object: a file in one version."""

    path: Path
    version: Version


class ListingKey(NamedTuple):
    """Names the listing of a directory."""

    path: Path
    kind: Literal["listing"] = "listing"


class EntryKey(NamedTuple):
    """Names an entry that was looked up by itself."""

    path: Path
    kind: Literal["entry"] = "entry"


CacheKey = ObjectKey | ListingKey | EntryKey

# --- at the source -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScanSource:
    fetch: FetchId
    path: Path


@dataclass(frozen=True, slots=True)
class LookSource:
    fetch: FetchId
    path: Path


@dataclass(frozen=True, slots=True)
class ReadSource:
    """The whole file; it has to be this version before and after."""

    fetch: FetchId
    path: Path
    version: Version


@dataclass(frozen=True, slots=True)
class OpenSource:
    fetch: FetchId
    path: Path
    version: Version


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """So many bytes of the file, from *offset*; it has to be this version before and after."""

    fetch: FetchId
    path: Path
    version: Version
    offset: int
    length: int


# --- at the disk of the data tier ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadChunk:
    """``Loaded`` tells what it has."""

    fetch: FetchId
    key: ChunkKey


@dataclass(frozen=True, slots=True)
class StoreChunk:
    """Write it when there is time; ``Stored`` tells what became of it. It may be released at once:
    whoever stores keeps it until then."""

    key: ChunkKey
    blob: BlobId


# --- at the peers ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """*content* is what the message's payload is made of: of ``GivePart`` the part of its index, of
    an ``Offer`` all of these.
    What was sent may be released at once: whoever sends keeps it until it has gone."""

    peer: NodeId
    message: Message
    content: BlobId | Listing | tuple[BlobId | Listing, ...] | None = None


@dataclass(frozen=True, slots=True)
class Connect:
    """Keep a connection to *peer*, and renew it when it breaks."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Disconnect:
    """No longer keep it."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Probe:
    """See whether anybody listens where *peer* does; ``Probed`` tells."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Happened:
    """For people: something that a failure can be retold from."""

    what: str
    peer: NodeId | None = None
    detail: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PerformCall:
    """Do this node's part; ``CallPerformed`` tells when it is done."""

    call: CallId
    operation: str
    argument: bytes


@dataclass(frozen=True, slots=True)
class EndCall:
    """Make one result of all these, for the asker: in a ``Return``, if that is a peer."""

    call: CallId
    asker: RequestId | PeerRequest
    operation: str
    results: tuple[bytes, ...]


# --- answers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerEntry:
    """*fresh_until* is on the clock of ``step``; None is for the life of the epoch."""

    request: RequestId
    entry: Entry | None
    fresh_until: float | None


@dataclass(frozen=True, slots=True)
class AnswerListing:
    """Also given to those who asked for one name, when its directory was listed for it.

    *granted*: its files may be read without asking, on credit; ``Fetched`` tells of each.
    *granted_below*: so may the files of all directories below it, and those be listed; ``Listed``
    tells of each.
    *read_ahead*: granted files may be read before they are asked for.
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
    """The chunk in which the asker's offset is. All chunks of a file but the last have
    *chunk_bytes*."""

    request: RequestId
    key: ChunkKey
    blob: BlobId
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class AnswerHandle:
    """The file is not held; the asker owns its own handle to the open file."""

    request: RequestId
    handle: HandleId


@dataclass(frozen=True, slots=True)
class AnswerError:
    request: RequestId
    error: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Nobody of this node has asked for this, and somebody will: have it answered at once."""

    key: ObjectKey | ListingKey | ChunkKey
    content: BlobId | Listing


@dataclass(frozen=True, slots=True)
class DropCall:
    """Nobody waits for this call any more: stop doing this node's part of it."""

    call: CallId


# --- letting go ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evict:
    """This is no longer held; forget where it was published."""

    key: ListingKey | ObjectKey | ChunkKey


@dataclass(frozen=True, slots=True)
class ReleaseBlob:
    blob: BlobId


@dataclass(frozen=True, slots=True)
class ReleaseHandle:
    handle: HandleId


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """Everything was forgotten, here or on another node: the kernel is to forget it as well."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LookAgain:
    """The file is not what was said of it: its name has to be looked up again by everybody."""

    path: Path


Fetch = ScanSource | LookSource | ReadSource | OpenSource | ReadChunk
AtDisk = LoadChunk | StoreChunk
Answer = AnswerEntry | AnswerListing | AnswerObject | AnswerChunk | AnswerHandle | AnswerError
AtPeers = Send | Connect | Disconnect | Probe | PerformCall | EndCall | DropCall
LettingGo = Evict | ReleaseBlob | ReleaseHandle | NewEpoch | LookAgain
Action = Fetch | AtDisk | AtPeers | Answer | Publish | LettingGo | Happened
