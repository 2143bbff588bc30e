"""What happens to a node: questions that are put to it, and outcomes of what it asked for.

A question's ``request`` comes back in exactly one answer. An outcome's ``fetch`` is the number that
the action carried; outcomes of fetches that the node has given up on are welcome and ignored.
"""

from dataclasses import dataclass

from copperfs.core.listing import Listing
from copperfs.types import BlobId, Entry, FetchId, HandleId, Path, RequestId, Version

# --- questions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """What is at *path*? Answered by an entry, also a negative one."""

    request: RequestId
    path: Path


@dataclass(frozen=True, slots=True)
class List:
    """Which names are in *path*?"""

    request: RequestId
    path: Path


@dataclass(frozen=True, slots=True)
class Read:
    """The bytes of *path* in this version, as an object or as a handle."""

    request: RequestId
    path: Path
    version: Version


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole file of a granted listing was read, on credit, without the node being asked."""

    path: Path
    version: Version
    blob: BlobId


@dataclass(frozen=True, slots=True)
class Listed:
    """A directory below a granted one was listed, on credit, without the node being asked.

    *epoch* is the one in which that began. It may not have been published as it is: what is bare,
    or has links to rewrite, is left for the node to answer with.
    """

    path: Path
    listing: Listing
    epoch: int


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget everything: a new epoch begins."""


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
class Tick:
    """Time has passed; sent when ``deadline()`` says so."""


Question = Look | List | Read
Outcome = Scanned | Looked | HaveRead | Opened | Failed
Event = Question | Outcome | Fetched | Listed | Clear | Used | Tick
