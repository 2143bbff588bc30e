"""What happens to a node: questions that are put to it, outcomes of what it asked for, and what its
peers say.

A question's ``request`` comes back in exactly one answer. An outcome's ``fetch`` is the number that
the action carried; outcomes of fetches that the node has given up on are welcome and ignored, and
so is what peers say too late."""

from dataclasses import dataclass

from copperfs.core.listing import Listing
from copperfs.core.messages import Batch, GivePart, How, Message
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

Asker = RequestId | PeerRequest

# --- questions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """What is at *path*? Answered by an entry, also a negative one."""

    request: Asker
    path: Path


@dataclass(frozen=True, slots=True)
class List:
    """Which names are in *path*?"""

    request: Asker
    path: Path


@dataclass(frozen=True, slots=True)
class Read:
    """The bytes of *path* in this version, as an object or as a handle."""

    request: Asker
    path: Path
    version: Version
    first: int = 0
    """The first part that a peer does not have."""
    alone: bool = False
    """Nothing follows from it for what is beside it: who asks reads a list."""
    offset: int = 0
    """Where to read: it says which chunk is asked for, if the file is one of the data tier."""
    size: int = 1
    """How many bytes are read there at once: chunks that one read spans do not make a row. 0: the
    question for its first chunk has told."""


@dataclass(frozen=True, slots=True)
class WantChunk:
    """One chunk, by itself: what a peer asks for, and what a ``Read`` of a chunked file becomes."""

    request: Asker
    key: ChunkKey
    how: How = How.ANY
    passed: tuple[NodeId, ...] = ()
    keeps: bool = False
    """It is not for a reader: this node is to have it, if it is the one to keep it."""

    @property
    def path(self) -> Path:
        return self.key.path


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole file of a granted listing was read, on credit, without the node being asked."""

    path: Path
    version: Version
    blob: BlobId
    ahead: bool = False
    """Before anybody had asked for it."""
    used: bool = True
    """Somebody has asked for it since."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A directory below a granted one was listed, on credit, without the node being asked.

    *epoch* is the one in which that began. It may not have been published as it is: what is bare,
    or has links to rewrite, is left for the node to answer with.
    """

    path: Path
    listing: Listing
    epoch: int
    ahead: bool = False
    """Before anybody had asked for it."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The kernel knows *path* as another directory than the one whose listing it was given."""

    path: Path


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget everything: a new epoch begins, the next one unless it is given. If that is the
    present one, only this node forgets."""

    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class MountsMoved:
    """These paths now lead back into the mount."""

    refused: frozenset[Path]


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """Files of these directories were read in advance. The front has not heard of them, so it is to
    ask for them before it reads the source."""

    directories: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Used:
    """Listings and objects that were used without the node being asked."""

    keys: tuple[object, ...]


# --- outcomes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scanned:
    fetch: FetchId
    listing: Listing


@dataclass(frozen=True, slots=True)
class Looked:
    """*entry* is None if there is no such name."""

    fetch: FetchId
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class HaveRead:
    fetch: FetchId
    blob: BlobId
    mentions: tuple[bytes, ...] = ()
    """Which of the names that ``Node.looks_for`` gave are mentioned in it."""


@dataclass(frozen=True, slots=True)
class Opened:
    fetch: FetchId
    handle: HandleId


@dataclass(frozen=True, slots=True)
class Failed:
    """The source refused, or the file is not the version that was asked for (ESTALE)."""

    fetch: FetchId
    error: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the tier's disk has of a chunk; None: it has it not, or it was damaged."""

    fetch: FetchId
    blob: BlobId | None


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of a ``StoreChunk``; each has one of these, in its own time."""

    key: ChunkKey
    written: bool
    """It is on the disk, perhaps since before."""
    is_degraded: bool = False
    """The disk takes nothing at present."""
    is_outgrown: bool = False
    """The disk has had to evict what this mount has written."""


@dataclass(frozen=True, slots=True)
class DiskRecovered:
    """The disk takes chunks again."""


# --- calls ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartCall:
    """Have all nodes do something; ``EndCall`` has what it came to."""

    request: RequestId
    operation: str
    argument: bytes = b""
    within_s: float = 10.0


@dataclass(frozen=True, slots=True)
class CallPerformed:
    call: CallId
    result: bytes


# --- peers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerUp:
    """Messages to and from *peer* pass; what was under way before is lost."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class PeerDown:
    peer: NodeId


@dataclass(frozen=True, slots=True)
class Probed:
    """Whether nobody listens where *peer* did, so that its process has ended. False says nothing:
    who is stopped or cut off does not refuse."""

    peer: NodeId
    refused: bool


@dataclass(frozen=True, slots=True)
class Heard:
    """A message without a payload."""

    peer: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class PartTaken:
    """A part of an object that was *wanted* is in *blob*, after all parts before it."""

    peer: NodeId
    part: GivePart
    blob: BlobId


@dataclass(frozen=True, slots=True)
class PartPassed:
    """A part of a listing of which more is to come, or one that nobody wants any more."""

    peer: NodeId
    part: GivePart


@dataclass(frozen=True, slots=True)
class ListingTaken:
    """The last part of a listing came, and this is all of it."""

    peer: NodeId
    part: GivePart
    listing: Listing


@dataclass(frozen=True, slots=True)
class PushBatch:
    """Spread this batch, of a push that begins here, as the root of its tree."""

    batch: Batch
    blob: BlobId
    size: int


@dataclass(frozen=True, slots=True)
class BatchTaken:
    """A batch came; what is in it is told by ``Pushed`` and ``PushedListing`` next."""

    peer: NodeId
    batch: Batch
    blob: BlobId
    size: int


@dataclass(frozen=True, slots=True)
class Pushed:
    """A whole object came in batches, or with an offer, for which nothing else has to go."""

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
class OfferTaken:
    """An offer came; what is in it follows."""

    peer: NodeId
    size: int
    epoch: int


@dataclass(frozen=True, slots=True)
class PartSpoiled:
    """A part is not what its digest says, or not what it has to be."""

    peer: NodeId
    part: GivePart


@dataclass(frozen=True, slots=True)
class Start:
    """The first event: the node connects to whom it needs."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The node is about to end: those who ask it are told to ask others."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent when ``deadline()`` says so."""


Question = Look | List | Read | WantChunk
Outcome = Scanned | Looked | HaveRead | Opened | Failed | Loaded
Pushing = PushBatch | BatchTaken | OfferTaken | Pushed | PushedListing
FromPeer = (
    PeerUp
    | PeerDown
    | Probed
    | Heard
    | PartTaken
    | PartPassed
    | ListingTaken
    | PartSpoiled
    | Pushing
)
OfCalls = StartCall | CallPerformed
OnCredit = Fetched | Listed
OfDisk = Stored | DiskRecovered
Event = (
    Question
    | Outcome
    | OnCredit
    | OfCalls
    | OfDisk
    | FromPeer
    | Replaced
    | Clear
    | WarmedUp
    | Used
    | MountsMoved
    | Start
    | Leave
    | Tick
)
