"""The seam to the source: fetches are started here, and their outcomes come back as events.

Two implementations: ``native.py``, threads in C that need no GIL, and ``threads.py``, threads in
Python, for a mount without the C extensions. One contract suite holds both.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from copperfs.blob import FileBlob
from copperfs.core.actions import Fetch, LookSource
from copperfs.core.events import Failed, Looked, Outcome
from copperfs.types import Attributes, Entry, FetchId, HandleId, Path, is_below, split


@dataclass(frozen=True, slots=True)
class BlobRead:
    """A file or chunk was read; whoever gets this keeps the bytes and gives the core a handle to
    them."""

    fetch: FetchId
    blob: FileBlob
    mentioned: tuple[bytes, ...] = ()
    """Which of the names that were looked for a compiled file mentions."""


Arrived = Outcome | BlobRead
Arrive = Callable[[Arrived], None]

COUNTED = ("open", "read", "read_bytes", "stat", "scandir", "seek")
"""What is counted of what reached the source."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """How busy the threads are; *stuck* ones hang in the source and were replaced."""

    threads: int = 0
    busy: int = 0
    queued: int = 0
    stuck: int = 0


class Fetcher(Protocol):
    """Performs the fetches that the core wants. Made on trio's thread."""

    def __init__(
        self,
        root: bytes,
        *,
        listing_max: int,
        concurrency: int,
        deadline_s: float,
        untouchable: Callable[[], frozenset[Path]],
    ) -> None:
        """*untouchable* gives the paths that lead back into the mount, as they are now."""
        ...

    def start(self, fetch: Fetch, looked_for: tuple[bytes, ...] = ()) -> None:
        """Begin; the outcome arrives later, never within this call. *looked_for*: in a whole file,
        by the thread that has read it."""
        ...

    async def run(self, arrive: Arrive) -> None:
        """Hand over outcomes as they come, for ever."""
        ...

    def reader(self, own_device: int) -> object | None:
        """What the front can read whole files, list directories and find holes with by itself
        (``reader.h``), if there is such. *own_device* is that of its mount, where no holes are
        looked for: the daemon would wait for itself."""
        ...

    def watch_mounts(self) -> bool:
        """Whether the front may not list, because something was mounted or nobody said so yet.
        Mounts made after this call are noticed, so look at them now."""
        ...

    def trust_mounts(self) -> None:
        """The front may list, until something is mounted after the last ``watch_mounts``."""
        ...

    def close_handle(self, handle: HandleId) -> None:
        """For an open file that nobody came to take."""
        ...

    def ignore_inodes(self) -> None:
        """From now on inode numbers are no part of the versions that are found."""
        ...

    def replace_stuck(self) -> None:
        """Start other threads for what waits behind those that hang; called once a second."""
        ...

    def close_unused(self, for_s: float = ...) -> None:
        """Close files that were kept open for their next chunk, and not used for so long; called
        once a second."""
        ...

    def counts(self) -> dict[str, int]: ...
    def reset_counts(self) -> None: ...
    def statistics(self) -> PoolStats: ...
    def close(self) -> None:
        """Start nothing more. Threads that hang in the source end with the process."""
        ...


def refused(fetch: Fetch, untouchable: frozenset[Path]) -> Outcome | None:
    """The outcome of a fetch that must not be made, because it would lead back into the mount: the
    daemon would wait for itself."""
    if isinstance(fetch, LookSource) and fetch.path in untouchable:
        return Looked(fetch.fetch, Entry(Attributes.bare(1, stat.S_IFDIR)))
    if any(is_below(fetch.path, each) for each in untouchable):
        return Failed(fetch.fetch, errno.ELOOP)
    return None


def close_aside(handle: HandleId) -> None:
    """Close an open file of the source; one that hangs may hang whoever closes it."""
    threading.Thread(target=os.close, args=(handle,), daemon=True).start()


def names_in(directory: Path, untouchable: frozenset[Path]) -> tuple[bytes, ...]:
    """The names in *directory* that must be shown without being looked at."""
    return tuple(name for above, name in map(split, untouchable) if above == directory)
