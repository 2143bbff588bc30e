"""What nodes say to each other.

A child asks its parent for an entry, a listing or an object; the parent gives it, whole or in
parts, or refuses with an errno. Bytes never travel inside a message but beside it, as its
*payload*, with their digest: whoever performs a ``Send`` finds them by the message's content,
whoever receives them checks them before the core hears of the message.

A message is small (a path at most) and complete in itself. ``number`` is the asker's: it comes back
in every part of the answer. ``epoch`` lets a node drop what was answered before the last clear.
"""

from dataclasses import dataclass
from enum import IntEnum

from copperfs.types import Entry, NodeId, Path, Version

PATH_BYTES_MAX = 4096
"""PATH_MAX. A process that walks deeper by ``chdir`` is served from the source."""
PART_BYTES = 1 << 20
"""Objects above this travel in parts of this size, relayed as they arrive. Smaller parts cost CPU
per message (25 to 50 % at 256 KiB on loopback) and gain nothing; larger ones delay the relay."""
SAMPLE_MAX = 48
"""Names of the source that nodes compare: a few of each filesystem."""
SAMPLE_PATH_BYTES_MAX = 512
"""Of such a name. A sample travels with each greeting."""
PASSED_MAX = 4
"""Who has asked so many owners in vain reads the source."""
FATES_MAX = 4096
"""Of one message; a job in which more are gone says so in several."""
LISTING_MAX_BYTES = 256 << 20
"""Two million names; what is larger each node reads from the source."""


class What(IntEnum):
    ENTRY = 1
    LISTING = 2
    OBJECT = 3
    CHUNK = 4


class How(IntEnum):
    """In which way a chunk is to be given."""

    ANY = 0
    """By the one that is asked, or by another one that it names."""
    HELD = 1
    """Only if it has it, or is about to: it was named by another."""
    DIRECT = 2
    """By this one: the one that it named did not have it any more."""
    TREE = 3
    """Through this one, which is above in the tree; unless nobody but the asker wants it."""

    @property
    def is_of_owner(self) -> bool:
        """The one that is asked is taken for the owner."""
        return self in (How.ANY, How.DIRECT)


@dataclass(frozen=True, slots=True)
class Seen:
    """A name of the source as one node's client of it shows it; the number always counts."""

    path: Path
    version: Version


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message on a connection, in both directions; said again when there is news."""

    node: NodeId
    job: str
    agreement: bytes
    """Digest of the settings that all nodes must share."""
    epoch: int
    is_answer: bool = False
    """To a hello of the other end, which may have been said when this one had not yet noticed that
    the connection before was lost. An answer is not answered."""
    places: bytes = b""
    """Which are shared, local and datasets there; it is text for the engine."""
    ignores_inodes: bool = False
    """Inode numbers are no part of versions any more, on no node."""
    sample: tuple[Seen, ...] = ()
    """Names of the source, for others to compare."""
    is_sampled: bool = False
    """Somebody has looked for these, and nobody has to wait for them, also if there are none."""


@dataclass(frozen=True, slots=True)
class Ask:
    number: int
    epoch: int
    what: What
    path: Path
    version: Version | None = None
    """Of the object; it is given in this version or refused with ESTALE."""
    first: int = 0
    """The first part that the asker does not have. Of a chunk, which of the file it is."""
    how: How = How.ANY
    passed: tuple[NodeId, ...] = ()
    """Owners of the chunk that did not answer the asker."""


@dataclass(frozen=True, slots=True)
class GiveEntry:
    """*entry* is None if there is no such name. *fresh_for_s* is what is left of its freshness."""

    number: int
    epoch: int
    entry: Entry | None
    fresh_for_s: float | None


@dataclass(frozen=True, slots=True)
class GivePart:
    """A part of a listing or an object; its bytes are the payload. All parts but the last have
    ``PART_BYTES``."""

    number: int
    epoch: int
    index: int
    total_bytes: int
    directory: Version | None = None
    """Of a listing: the directory as it was before it was listed."""
    fresh_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    number: int
    epoch: int
    error: int
    witnesses: int = 0
    """How many nodes, one above the other, have looked at the name that was asked for and got an
    error."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """Ask *peer* for this chunk: it got it a moment ago, or is getting it."""

    number: int
    epoch: int
    peer: NodeId


@dataclass(frozen=True, slots=True)
class Delayed:
    """This chunk will be given: the one that is asked holds it up, until its disk has taken others.
    It is said again every few seconds, and no other node is to be asked meanwhile."""

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Credit:
    """So many bytes of payload were taken in: as many more may be sent."""

    count_bytes: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The asker does not want the answer any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Item:
    """What ``length`` bytes of a batch are: a piece of an object, from ``offset``, or a listing."""

    what: What
    path: Path
    version: Version | None
    """The object's; for a listing the directory's."""
    total_bytes: int
    offset: int
    length: int
    fresh_for_s: float | None = None
    """Of a listing, what is left of its freshness."""
    digest: bytes = b""
    """In an offer, of these bytes as they were where the source was read."""


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
    """What a child will want next, as far as the others did; whole listings and objects, which are
    the payload in their order. It is not passed on."""

    epoch: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Do something on this node and on all behind it; *argument* is for those who know the
    operation. *identity* is drawn where it begins: who is reached twice, because nodes believe
    different things of each other, does it once."""

    number: int
    operation: str
    argument: bytes = b""
    within_s: float = 10.0
    """Who does not answer by then is left out."""
    identity: int = 0


@dataclass(frozen=True, slots=True)
class Return:
    """What a call came to, here and behind; *result* is as the operation has it."""

    number: int
    result: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered at once by a pong of the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    number: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life. *view* is the digest of what the sender believes of all nodes; one who
    believes something else answers with ``News``. Who hears of a later epoch clears, so that one
    that was away when all cleared does so when it is back."""

    epoch: int
    view: int
    wants_answer: bool


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a node. Of two the one of the higher incarnation is true; of one incarnation
    it is the one that says that the node is gone. Only the node itself begins the next one."""

    node: NodeId
    incarnation: int
    is_gone: bool


@dataclass(frozen=True, slots=True)
class News:
    """What the sender has heard of other nodes, or says of itself when it leaves."""

    fates: tuple[Fate, ...]


FromParent = GiveEntry | GivePart | Refuse | Redirect | Delayed
OfMembers = Heartbeat | News
Message = (
    Hello
    | Ask
    | FromParent
    | Credit
    | Withdraw
    | Batch
    | Offer
    | Call
    | Return
    | Ping
    | Pong
    | OfMembers
)
