"""Messages: what nodes send to each other.

A child requests an entry, a listing or an object from its parent. The parent replies with it, whole
or in parts, or with an errno. Bytes never travel inside a message but beside it, as its *payload*,
with their digest. The sender's driver finds them by the content of the ``Send``; the receiver's
driver checks them before the node sees the message.

A message is small (a path at most) and complete in itself. ``number`` is chosen by the requester
and comes back in every part of the reply. ``epoch`` lets a node drop replies from before the last
clear.
"""

from dataclasses import dataclass
from enum import IntEnum

from copperfs.model.types import Entry, NodeId, Path, Version

PATH_BYTES_MAX = 4096
"""PATH_MAX. A process that walks deeper by ``chdir`` is served from the source."""
PART_BYTES = 1 << 20
"""Objects above this travel in parts of this size, forwarded as they arrive. Smaller parts cost CPU
per message (25 to 50 % at 256 KiB on loopback) and gain nothing; larger ones delay the relay."""
SAMPLE_MAX = 48
"""Names of the source that nodes compare: a few of each filesystem."""
SAMPLE_PATH_BYTES_MAX = 512
"""The longest path of such a name, because a sample travels with each greeting."""
PASSED_MAX = 4
"""After this many owners have not replied, a node reads the source."""
EPOCH_LEAP_MAX = 1 << 20
"""A larger jump is a fault of the sender, and would leave no room for later epochs."""
RECORDS_MAX = 4096
"""Records in one message; a job in which more nodes are gone sends several."""
LISTING_MAX_BYTES = 256 << 20
"""Two million names. Each node reads a larger listing from the source."""


class ContentKind(IntEnum):
    ENTRY = 1
    LISTING = 2
    OBJECT = 3
    CHUNK = 4


class ChunkAskMode(IntEnum):
    """In which way a chunk is requested."""

    ANY = 0
    """The receiver replies, or redirects to another node."""
    HELD = 1
    """The receiver was named in a redirect: it replies only if it has the chunk, or is getting
    it."""
    DIRECT = 2
    """The receiver has to reply itself: the node it redirected to did not have the chunk any
    more."""
    TREE = 3
    """Through the receiver, a parent in the tree, unless only the requester wants the chunk."""

    @property
    def is_of_owner(self) -> bool:
        """The requester believes that the receiver is the owner."""
        return self in (ChunkAskMode.ANY, ChunkAskMode.DIRECT)


@dataclass(frozen=True, slots=True)
class Seen:
    """A name of the source as one node's client shows it; here the inode number always counts."""

    path: Path
    version: Version


@dataclass(frozen=True, slots=True)
class Hello:
    """Greeting: the first message on a connection, in both directions; repeated when there is
    news."""

    node: NodeId
    job: str
    agreement: bytes
    """Digest of the settings that all nodes must share."""
    epoch: int
    is_answer: bool = False
    """Reply to a greeting that may have been sent before this end noticed the loss of the previous
    connection. It gets no reply itself."""
    places: bytes = b""
    """Which places are shared, local and datasets there; opaque to the node."""
    ignores_inodes: bool = False
    """Inode numbers are left out of versions on all nodes."""
    sample: tuple[Seen, ...] = ()
    """Names of the source, for other nodes to compare."""
    is_sampled: bool = False
    """The sample has been taken, even if it is empty: no node needs to wait for it."""


@dataclass(frozen=True, slots=True)
class Request:
    number: int
    epoch: int
    what: ContentKind
    path: Path
    version: Version | None = None
    """The object's version; the reply has this version or is ESTALE."""
    first: int = 0
    """The first part that the requester lacks. For a chunk, its index in the file."""
    how: ChunkAskMode = ChunkAskMode.ANY
    passed: tuple[NodeId, ...] = ()
    """Owners of the chunk that did not reply to the requester."""


@dataclass(frozen=True, slots=True)
class EntryReply:
    """*entry* is None if there is no such name. *fresh_for_s* is the rest of its freshness."""

    number: int
    epoch: int
    entry: Entry | None
    fresh_for_s: float | None


@dataclass(frozen=True, slots=True)
class DataReply:
    """A part of a listing or an object; its bytes are the payload. All parts but the last have
    ``PART_BYTES``."""

    number: int
    epoch: int
    index: int
    total_bytes: int
    directory: Version | None = None
    """For a listing: the directory as it was before it was listed."""
    fresh_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class ErrorReply:
    number: int
    epoch: int
    error: int
    witnesses: int = 0
    """How many nodes, one above the other, have looked up or read the name and got an error."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """Request this chunk from *peer*, which got it a moment ago or is getting it."""

    number: int
    epoch: int
    peer: NodeId


@dataclass(frozen=True, slots=True)
class Delayed:
    """The chunk will come: the peer holds it back until its disk has taken others. It repeats this
    every few seconds, and the requester asks no other node meanwhile."""

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Credit:
    """The receiver consumed this much payload: as much again may be sent."""

    count_bytes: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """The requester does not want the reply any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Item:
    """``length`` bytes of a batch: a piece of an object, from ``offset``, or a listing."""

    what: ContentKind
    path: Path
    version: Version | None
    """The object's version; for a listing the directory's."""
    total_bytes: int
    offset: int
    length: int
    fresh_for_s: float | None = None
    """For a listing, the rest of its freshness."""
    digest: bytes = b""
    """In an offer, the digest of these bytes as the reader of the source computed it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Part of a working set on its way down a push tree; the payload is its items' bytes in order.
    ``push`` names the push, ``sequence`` counts its batches from 0. Pieces of one object come in
    order."""

    push: int
    tree: int
    epoch: int
    sequence: int
    items: tuple[Item, ...]
    last: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """Speculative push: what a child will want next, judged by what the other children did. Its
    payload is whole listings and objects, in their order. It is not forwarded."""

    epoch: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """Perform *operation* on this node and on all behind it; only the operation knows *argument*.
    *identity* is drawn where the collective starts. A node that is reached twice, because member
    tables differ, performs it once."""

    number: int
    operation: str
    argument: bytes = b""
    within_s: float = 10.0
    """Nodes that reply later are left out."""
    identity: int = 0


@dataclass(frozen=True, slots=True)
class CollectiveReply:
    """The combined result of a node and of those behind it, in the operation's format."""

    number: int
    result: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered at once by a ``Pong`` of the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    number: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life. *view* is the digest of the sender's member table; a receiver with another
    table answers with a ``MembershipUpdate``. A receiver with an earlier epoch clears, so a node
    that was away during a clear catches up."""

    epoch: int
    view: int
    wants_answer: bool


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A node is alive or gone. Of two records the higher incarnation wins, and within one
    incarnation *gone* wins. Only the node itself begins its next incarnation."""

    node: NodeId
    incarnation: int
    is_gone: bool


@dataclass(frozen=True, slots=True)
class MembershipUpdate:
    """News of other nodes that the sender has learnt, or the announcement that it leaves."""

    records: tuple[MemberStatus, ...]


FromParent = EntryReply | DataReply | ErrorReply | Redirect | Delayed
OfMembers = Heartbeat | MembershipUpdate
Message = (
    Hello
    | Request
    | FromParent
    | Credit
    | Cancel
    | Batch
    | Offer
    | CollectiveRequest
    | CollectiveReply
    | Ping
    | Pong
    | OfMembers
)
