"""Kernel notifications: tells the kernel which names it must look up again.

For a notification about a name the kernel takes the lock of its directory, which a lookup there
holds until it gets its answer. So the sending thread waits for as long as the source hangs.
Therefore

- worker threads send the notifications, never trio's thread (the lookup may need trio);
- notifications about one directory are sent in order and wait only for each other;
- the queue is bounded, in all and for each directory. A notification without room is dropped,
  counted and logged. The reader of that name gets ESTALE once more, and the notification is queued
  again.

The notification that all names are stale (a clear of another node) has its own queue and is never
dropped. Names in directories with a lookup under way come last, in another queue, so that the next
clear waits for no lookup.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from copperfs.model.types import Path, split

log = logging.getLogger(__name__)

Tell = Callable[[], object]
TellAll = Callable[[], Tell | None]
"""Returns the call that tells the last names."""

# Once lookups hang in as many directories, other notifications wait, too. A waiting thread costs
# some 20 KiB.
THREADS_MAX = 16
WAITING_MAX = 1024
EACH_DIRECTORY_MAX = WAITING_MAX // THREADS_MAX
EVERYTHING: Path = Path(b"/")
"""Stands for all names; no path in the mount begins with a slash."""
THE_REST: Path = Path(b"/rest")


@dataclass(slots=True)
class _Notification:
    tell: Tell
    told: trio.Event = field(default_factory=trio.Event)


@dataclass(slots=True)
class _Queue:
    waiting: dict[Path, _Notification] = field(default_factory=dict)
    begun: tuple[Path, _Notification] | None = None
    has_dropped: bool = False

    def last_about(self, path: Path) -> _Notification | None:
        if path in self.waiting:
            return self.waiting[path]
        return self.begun[1] if self.begun is not None and self.begun[0] == path else None


@dataclass(slots=True)
class Notifications:
    """Its methods are called on trio's thread."""

    dropped: int = 0
    late: int = 0
    """How often a wait for the kernel timed out."""
    _queues: dict[Path, _Queue] = field(default_factory=dict)
    _count: int = 0
    _is_full: bool = False
    _ready: trio.MemorySendChannel[Path] = field(init=False)
    _ready_from: trio.MemoryReceiveChannel[Path] = field(init=False)

    def __post_init__(self) -> None:
        # It has each directory once, so it is bounded.
        self._ready, self._ready_from = trio.open_memory_channel(math.inf)

    @property
    def waiting(self) -> int:
        return self._count

    def add(self, path: Path, tell: Tell) -> None:
        directory, _ = split(path)
        queue = self._queues.get(directory)
        if queue is not None and path in queue.waiting:
            queue.waiting[path].tell = tell  # it has the inode that the path has now
        elif queue is not None and len(queue.waiting) >= EACH_DIRECTORY_MAX:
            self._drop(path, is_said=queue.has_dropped)
            queue.has_dropped = True
        elif self._count >= WAITING_MAX:
            self._drop(path, is_said=self._is_full)
            self._is_full = True
        else:
            self._add(directory, path, tell)

    def add_everything(self, tell: TellAll) -> None:
        """Queue *tell*, then the call that it returns. Only other such calls wait for that one."""

        def tell_all() -> None:
            rest = tell()
            if rest is not None:
                trio.from_thread.run_sync(self._add_latest, THE_REST, rest)

        queue = self._queues.get(EVERYTHING)
        if queue is None or not queue.waiting:
            self._add(EVERYTHING, EVERYTHING, tell_all)

    async def wait_told(self, path: Path, within_s: float) -> None:
        """Wait until the kernel was told about *path* and its parent directories; for *within_s* at
        most."""
        with trio.move_on_after(within_s) as waiting:
            while path:
                directory, _ = split(path)
                queue = self._queues.get(directory)
                notification = queue.last_about(path) if queue is not None else None
                if notification is not None:
                    await notification.told.wait()
                path = directory
        self.late += waiting.cancelled_caught

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            threads = trio.CapacityLimiter(THREADS_MAX)
            for _ in range(THREADS_MAX):
                nursery.start_soon(self._send, threads)

    def reset(self) -> None:
        self.dropped = self.late = 0

    def _add(self, directory: Path, path: Path, tell: Tell) -> None:
        queue = self._queues.get(directory)
        if queue is None:
            queue = self._queues[directory] = _Queue()
            self._ready.send_nowait(directory)
        queue.waiting[path] = _Notification(tell)
        self._count += 1

    def _add_latest(self, directory: Path, tell: Tell) -> None:
        """The later call has fewer names left, and no new ones."""
        queue = self._queues.get(directory)
        if queue is not None and queue.waiting:
            queue.waiting[directory].tell = tell
        else:
            self._add(directory, directory, tell)

    def _drop(self, path: Path, *, is_said: bool) -> None:
        self.dropped += 1
        if not is_said:
            log.warning(
                "the kernel is not told to look %r up again: %d notifications wait, because lookups"
                " in their directories hang. Readers of changed files there get ESTALE until the"
                " source answers",
                path,
                self._count,
            )

    async def _send(self, threads: trio.CapacityLimiter) -> None:
        async for directory in self._ready_from:
            queue = self._queues[directory]
            path = next(iter(queue.waiting))
            notification = queue.waiting.pop(path)
            queue.begun = path, notification
            try:
                await trio.to_thread.run_sync(
                    notification.tell, abandon_on_cancel=True, limiter=threads
                )
            except OSError as error:
                log.warning(
                    "the kernel was not told to look %r up again: %s. Readers of it get ESTALE once"
                    " more",
                    path,
                    error.strerror or error,
                )
            finally:
                self._end(directory, queue, notification)

    def _end(self, directory: Path, queue: _Queue, notification: _Notification) -> None:
        queue.begun = None
        notification.told.set()
        self._count -= 1
        self._is_full = self._is_full and self._count >= WAITING_MAX // 2
        if queue.waiting:
            self._ready.send_nowait(directory)
        else:
            del self._queues[directory]
