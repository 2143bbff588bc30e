"""Events: what a node reacts to: requests, outcomes of its fetches, and messages of its peers.

The ``request`` of a request comes back in exactly one answer. The node ignores outcomes of fetches
that are over, and late messages of peers.
"""

from dataclasses import dataclass

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
    PayloadId,
    PeerRequest,
    RequestId,
    Version,
)
from copperfs.node.peer.messages import Batch, ChunkAskMode, DataReply, Message, Seen

Requester = RequestId | PeerRequest
"""An application of this node or a peer, by the number of its request; the answer goes there."""

# --- requests ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookupRequest:
    request: Requester
    path: Path


@dataclass(frozen=True, slots=True)
class ListRequest:
    request: Requester
    path: Path


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The answer is an object or a handle."""

    request: Requester
    path: Path
    version: Version
    first: int = 0
    """The first part that a peer lacks."""
    alone: bool = False
    """The process reads a list of files, so this read predicts nothing about the files
    beside it."""
    offset: int = 0
    """It selects the chunk of a chunked file."""
    size: int = 1
    """Chunks that one read spans are no sequence of reads. 0 if the request for its first chunk has
    reported it."""


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A peer's request, or a ``ReadRequest`` of a chunked file."""

    request: Requester
    key: ChunkKey
    how: ChunkAskMode = ChunkAskMode.ANY
    skipped: tuple[NodeId, ...] = ()
    keeps: bool = False
    """No reader has asked: this node is to have the chunk, if it owns it."""
    likely: tuple[NodeId, ...] = ()
    """For a copy that this node is to keep: nodes that keep the chunk."""

    @property
    def path(self) -> Path:
        return self.key.path


@dataclass(frozen=True, slots=True)
class FrontRead:
    """The front has read a whole file of a granted listing, on its allowance."""

    path: Path
    version: Version
    blob: BlobId
    ahead: bool = False
    """Before an application asked for it."""
    used: bool = True
    """An application has asked since."""


@dataclass(frozen=True, slots=True)
class FrontListed:
    """The front has listed a directory below a granted one, on its allowance, and did not publish a
    listing that is bare or has links to rewrite. *epoch* is the one in which that began.
    """

    path: Path
    listing: Listing
    epoch: int
    ahead: bool = False
    """Before an application asked for it."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The kernel knows *path* as another directory than the one whose listing it got."""

    path: Path


@dataclass(frozen=True, slots=True)
class Clear:
    """Begin the next epoch, or the given one. With the present epoch only this node forgets."""

    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class RefusedPathsChanged:
    """These paths now lead back into the mount."""

    refused: frozenset[Path]


@dataclass(frozen=True, slots=True)
class GrantsRevoked:
    """Files of these directories were read in advance. The front must ask for them before it reads
    the source."""

    directories: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Used:
    """The front or the kernel used these without asking the node."""

    keys: tuple[object, ...]


# --- outcomes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceListed:
    fetch: FetchId
    listing: Listing


@dataclass(frozen=True, slots=True)
class SourceLookedUp:
    """*entry* is None if there is no such name."""

    fetch: FetchId
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class SourceRead:
    fetch: FetchId
    blob: BlobId
    mentions: tuple[bytes, ...] = ()
    """The names from ``Node.names_to_find`` that occur in it."""


@dataclass(frozen=True, slots=True)
class SourceOpened:
    fetch: FetchId
    handle: HandleId


@dataclass(frozen=True, slots=True)
class Failed:
    """The file is not the requested version (ESTALE), or the source returned this error."""

    fetch: FetchId
    error: int


@dataclass(frozen=True, slots=True)
class DiskLoaded:
    """None if the disk does not have the chunk, or it was damaged."""

    fetch: FetchId
    blob: BlobId | None


@dataclass(frozen=True, slots=True)
class Stored:
    """Each ``StoreChunk`` has exactly one, at any later time."""

    key: ChunkKey
    written: bool
    """On the disk, perhaps from before."""
    is_degraded: bool = False
    """The disk takes no chunks at present."""
    is_outgrown: bool = False
    """The disk had to evict what this mount has written."""


@dataclass(frozen=True, slots=True)
class DiskRecovered:
    """The disk takes chunks again."""


# --- collectives ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartCall:
    """``EndCall`` has the results."""

    request: RequestId
    operation: str
    argument: bytes = b""
    within_s: float = 10.0


@dataclass(frozen=True, slots=True)
class CallPerformed:
    call: CallId
    result: bytes


# --- connections to peers ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectionMade:
    """Messages that were in flight are lost."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    peer: NodeId


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """The payload exists only during this event."""

    peer: NodeId
    message: Message
    payload: PayloadId | None = None


@dataclass(frozen=True, slots=True)
class MessageCorrupt:
    """The payload does not match its digest."""

    peer: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class PeerDisagrees:
    """The sentence says why this node cannot talk to *peer*."""

    peer: NodeId
    sentence: str


# --- inode numbers, which nodes compare with their hellos -----------------------------------------


@dataclass(frozen=True, slots=True)
class InodesFound:
    """Names for the sample, as this node's client shows them."""

    names: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class InodesSampled:
    """The sample need not wait for more names, although some may follow."""


@dataclass(frozen=True, slots=True)
class InodesDiffer:
    """This node's client shows another inode number for the same file than another node's."""


@dataclass(frozen=True, slots=True)
class InodesCompared:
    """A ``CompareInodes`` is done."""


# --- messages of peers, once both ends have said hello --------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerUp:
    """Both ends have said hello. Earlier messages in flight are lost."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class PeerDown:
    peer: NodeId


@dataclass(frozen=True, slots=True)
class Probed:
    """*refused*: no process listens there. False proves nothing: a stopped or unreachable process
    does not refuse."""

    peer: NodeId
    refused: bool


@dataclass(frozen=True, slots=True)
class PeerMessage:
    peer: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class PartReceived:
    """A *wanted* part is in *blob*, after all parts before it."""

    peer: NodeId
    part: DataReply
    blob: BlobId


@dataclass(frozen=True, slots=True)
class PartSkipped:
    """A part of a listing before the last, or a part that no fetch needs any more."""

    peer: NodeId
    part: DataReply


@dataclass(frozen=True, slots=True)
class ListingTaken:
    """This is the whole listing."""

    peer: NodeId
    part: DataReply
    listing: Listing


@dataclass(frozen=True, slots=True)
class PushBatch:
    """A push begins here, at the root of its tree."""

    batch: Batch
    blob: BlobId
    size: int


@dataclass(frozen=True, slots=True)
class BatchTaken:
    """``Pushed`` and ``PushedListing`` report its content next."""

    peer: NodeId
    batch: Batch
    blob: BlobId
    size: int


@dataclass(frozen=True, slots=True)
class Pushed:
    """An offered object must not evict anything."""

    path: Path
    version: Version
    blob: BlobId
    offered: bool = False


@dataclass(frozen=True, slots=True)
class PushedListing:
    path: Path
    listing: Listing
    epoch: int
    fresh_for_s: float | None
    offered: bool = False


@dataclass(frozen=True, slots=True)
class PayloadConsumed:
    """Returns the credit of an offer or a batch. The content of an offer follows."""

    peer: NodeId
    size: int
    epoch: int


@dataclass(frozen=True, slots=True)
class PartCorrupt:
    """The part does not match its digest, or is malformed."""

    peer: NodeId
    part: DataReply


@dataclass(frozen=True, slots=True)
class Start:
    """The first event."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The node is about to end."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Sent when ``deadline()`` is due."""


NodeRequest = LookupRequest | ListRequest | ReadRequest | ChunkRequest
Outcome = SourceListed | SourceLookedUp | SourceRead | SourceOpened | Failed | DiskLoaded
Pushing = PushBatch | BatchTaken | PayloadConsumed | Pushed | PushedListing
FromPeer = (
    PeerUp
    | PeerDown
    | Probed
    | PeerMessage
    | PartReceived
    | PartSkipped
    | ListingTaken
    | PartCorrupt
    | Pushing
)
OfConnections = ConnectionMade | ConnectionLost | MessageReceived | MessageCorrupt | PeerDisagrees
OfInodes = InodesFound | InodesSampled | InodesDiffer | InodesCompared
OfCalls = StartCall | CallPerformed
OnAllowance = FrontRead | FrontListed
OfDisk = Stored | DiskRecovered
OfNode = (
    NodeRequest
    | Outcome
    | OnAllowance
    | OfCalls
    | OfDisk
    | FromPeer
    | Replaced
    | Clear
    | GrantsRevoked
    | Used
    | RefusedPathsChanged
    | Start
    | Leave
    | Tick
)
Event = OfNode | OfConnections | OfInodes
