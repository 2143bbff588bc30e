"""Messages: what nodes send to each other. docs/protocol.md says when, and what follows.

Bytes travel beside a message, as its *payload*, with their digest. The sender's driver finds them
by the content of the ``Send``; the receiver's transport checks them before the node sees the
message.

``number`` is chosen by the requester and comes back in every part of the reply. ``epoch`` lets a
node drop replies from before the last clear.
"""

from dataclasses import dataclass
from enum import IntEnum

from copperfs.model.types import Entry, NodeId, Path, Version

PATH_BYTES_MAX = 4096
"""PATH_MAX. A process that walks deeper by ``chdir`` is served from the source."""
PART_BYTES = 1 << 20
"""Larger objects travel in parts of this size. Smaller parts cost CPU per message (25 to 50 % at
256 KiB on loopback) and gain nothing; larger ones delay the relay."""
SAMPLE_MAX = 48
"""A few names of each filesystem of the source."""
SAMPLE_PATH_BYTES_MAX = 512
"""A sample travels with each hello."""
SKIPPED_MAX = 4
"""After this many owners have not replied, a node reads the source."""
EPOCH_LEAP_MAX = 1 << 20
"""A larger jump is a fault of the sender, and would leave no room for later epochs."""
RECORDS_MAX = 4096
"""In one message."""
LISTING_MAX_BYTES = 256 << 20
"""Two million names. Each node reads a larger listing from the source."""


class ContentKind(IntEnum):
    ENTRY = 1
    LISTING = 2
    OBJECT = 3
    CHUNK = 4


class ChunkAskMode(IntEnum):
    """How a chunk is requested."""

    ANY = 0
    """The receiver replies, or redirects to another node."""
    HELD = 1
    """The receiver was named in a redirect. It replies only if it has the chunk, or is getting
    it."""
    DIRECT = 2
    """The receiver has to reply itself: the node that it redirected to had lost the chunk."""
    TREE = 3
    """Through a parent in the tree, unless only the requester wants the chunk."""

    COPY = 4
    """The receiver replies only if it keeps the chunk, in memory or on its disk. It waits for no
    other node."""

    @property
    def is_of_owner(self) -> bool:
        """The requester believes that the receiver is the owner."""
        return self in (ChunkAskMode.ANY, ChunkAskMode.DIRECT)


@dataclass(frozen=True, slots=True)
class Seen:
    """A name as one node's client shows it; here the inode number always counts."""

    path: Path
    version: Version


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message on a connection, in both directions; repeated with news."""

    node: NodeId
    job: str
    agreement: bytes
    """Of the settings that all nodes must share."""
    epoch: int
    is_answer: bool = False
    """A reply; it gets none itself (``hello_exchange.py``)."""
    places: bytes = b""
    """JSON of the places that are shared, local and datasets there."""
    ignores_inodes: bool = False
    sample: tuple[Seen, ...] = ()
    """For other nodes to compare."""
    is_sampled: bool = False
    """No node needs to wait for the sample, even if it is empty."""


@dataclass(frozen=True, slots=True)
class Request:
    number: int
    epoch: int
    what: ContentKind
    path: Path
    version: Version | None = None
    """The reply has this version or is ESTALE."""
    first: int = 0
    """The first part that the requester lacks; for a chunk, its index."""
    how: ChunkAskMode = ChunkAskMode.ANY
    skipped: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class EntryReply:
    """*entry* is None if there is no such name. *fresh_for_s* is the rest of its freshness."""

    number: int
    epoch: int
    entry: Entry | None
    fresh_for_s: float | None


@dataclass(frozen=True, slots=True)
class DataReply:
    """A part of a listing or an object. All parts but the last have ``PART_BYTES``."""

    number: int
    epoch: int
    index: int
    total_bytes: int
    directory: Version | None = None
    """As it was before it was listed."""
    fresh_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class ErrorReply:
    number: int
    epoch: int
    error: int
    witnesses: int = 0
    """See ``error_cache.py``."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """*peer* got the chunk a moment ago or is getting it."""

    number: int
    epoch: int
    peer: NodeId


@dataclass(frozen=True, slots=True)
class Delayed:
    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CopyOffer:
    """The sender keeps the chunk, and the receiver should keep it, too."""

    path: Path
    version: Version
    index: int


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The reply to a ``CopyOffer``: whether the sender keeps the chunk now. Sent without one when a
    copy is evicted."""

    path: Path
    version: Version
    index: int
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Credit:
    count_bytes: int


@dataclass(frozen=True, slots=True)
class Cancel:
    number: int


@dataclass(frozen=True, slots=True)
class Item:
    what: ContentKind
    path: Path
    version: Version | None
    """Of the object, or of the listing's directory."""
    total_bytes: int
    offset: int
    length: int
    fresh_for_s: float | None = None
    digest: bytes = b""
    """In an offer: taken where the source was read."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Part of a working set, with its items' bytes in order as the payload. ``sequence`` counts the
    batches of a push from
    0. Pieces of one object come in order."""

    push: int
    tree: int
    epoch: int
    sequence: int
    items: tuple[Item, ...]
    last: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """Whole listings and objects that a child will want next; not forwarded."""

    epoch: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """Only the operation knows *argument*. By *identity*, which is drawn where the collective
    starts, a node knows one that reaches it twice."""

    number: int
    operation: str
    argument: bytes = b""
    within_s: float = 10.0
    identity: int = 0


@dataclass(frozen=True, slots=True)
class CollectiveReply:
    """The result is of this node and those behind it."""

    number: int
    result: bytes


@dataclass(frozen=True, slots=True)
class Echo:
    number: int


@dataclass(frozen=True, slots=True)
class EchoReply:
    number: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """*view* is the digest of the sender's member table. By *epoch* a node that was away during a
    clear catches up."""

    epoch: int
    view: int
    wants_answer: bool


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """Of two records the higher incarnation wins, and within one incarnation *gone* wins. Only the
    node itself begins its next incarnation."""

    node: NodeId
    incarnation: int
    is_gone: bool


@dataclass(frozen=True, slots=True)
class MembershipUpdate:
    """The sender has learnt this of other nodes, or it leaves."""

    records: tuple[MemberStatus, ...]


PeerReply = EntryReply | DataReply | ErrorReply | Redirect | Delayed
OfMembers = Heartbeat | MembershipUpdate
OfCopies = CopyOffer | CopyReport
Message = (
    Hello
    | Request
    | PeerReply
    | Credit
    | Cancel
    | Batch
    | Offer
    | CollectiveRequest
    | CollectiveReply
    | Echo
    | EchoReply
    | OfMembers
    | OfCopies
)
