"""The interface to the source: fetches start here, and their outcomes come back as events."""

import errno
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from copperfs.model.types import Attributes, Entry, FetchId, HandleId, Path, is_below, split
from copperfs.native.blob import FileBlob
from copperfs.node.actions import LookupSource, SourceAction
from copperfs.node.events import Failed, Outcome, SourceLookedUp


@dataclass(frozen=True, slots=True)
class BlobRead:
    """The receiver keeps the bytes and gives the node a handle to them."""

    fetch: FetchId
    blob: FileBlob
    mentioned: tuple[bytes, ...] = ()


Arrived = Outcome | BlobRead
Arrive = Callable[[Arrived], None]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """*stuck* threads hang in the source and were replaced."""

    threads: int = 0
    busy: int = 0
    queued: int = 0
    stuck: int = 0


class Fetcher(Protocol):
    """Reads the source in threads, for the driver's port ``Source``. Made on trio's thread."""

    def __init__(
        self,
        root: bytes,
        *,
        listing_max: int,
        concurrency: int,
        deadline_s: float,
        untouchable: Callable[[], frozenset[Path]],
    ) -> None:
        """*untouchable* paths lead back into the mount."""
        ...

    def start(self, fetch: SourceAction, names_to_find: tuple[bytes, ...] = ()) -> None:
        """The outcome arrives later, never within this call. The thread that reads a whole file
        looks for *names_to_find* in it."""
        ...

    async def run(self, arrive: Arrive) -> None: ...

    def reader(self, own_device: int) -> object | None:
        """For the front (``reader.h``). On *own_device*, that of its mount, no holes are looked
        for: the daemon would wait for itself."""
        ...

    def watch_mounts(self) -> bool:
        """Whether the front may not list. Mounts made after this call are noticed, so read the
        table of mounts now."""
        ...

    def trust_mounts(self) -> None:
        """Let the front list until something is mounted after the last ``watch_mounts``."""
        ...

    def close_handle(self, handle: HandleId) -> None:
        """Close an open file that was never taken."""
        ...

    def ignore_inodes(self) -> None:
        """From now on versions have no inode number."""
        ...

    def replace_stuck(self) -> None:
        """Called once a second, for jobs behind hung threads."""
        ...

    def close_unused(self, for_s: float = ...) -> None:
        """Called once a second."""
        ...

    def counts(self) -> dict[str, int]: ...
    def reset_counts(self) -> None: ...
    def statistics(self) -> PoolStats: ...
    def close(self) -> None:
        """Threads that hang in the source end with the process."""
        ...


def refused(fetch: SourceAction, untouchable: frozenset[Path]) -> Outcome | None:
    """Refuse what leads back into the mount: the daemon would wait for itself."""
    if isinstance(fetch, LookupSource) and fetch.path in untouchable:
        return SourceLookedUp(fetch.fetch, Entry(Attributes.bare(1, stat.S_IFDIR)))
    if any(is_below(fetch.path, each) for each in untouchable):
        return Failed(fetch.fetch, errno.ELOOP)
    return None


def close_aside(handle: HandleId) -> None:
    """In a thread, because a close may hang."""
    threading.Thread(target=os.close, args=(handle,), daemon=True).start()


def names_in(directory: Path, untouchable: frozenset[Path]) -> tuple[bytes, ...]:
    """The names that must be shown without a stat."""
    return tuple(name for above, name in map(split, untouchable) if above == directory)
