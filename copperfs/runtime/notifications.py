"""Notifications: tells the kernel which names it has to look up again.

The kernel takes the lock of a directory for a notification about one of its names. A lookup there
holds that lock until it is answered, so a notification waits for as long as the source hangs, and
the thread that sends it with it. Therefore

- each notification is sent by a worker thread, never by trio's (the lookup may need trio);
- those about one directory are sent one after the other, and wait for nothing but each other; those
  about other directories have threads of their own, up to ``THREADS_MAX``;
- what waits is bounded, in all and for each directory, so that one that hangs cannot fill the
  queue. A notification for which there is no room is dropped, counted and logged. Its reader gets
  ESTALE once more, and then it is queued again;
- a name that waits already is not queued twice.

That all names are old (a clear of another node) has a queue of its own and is never dropped. The
names in directories with a lookup under way come last, in another queue, so that the next clear
waits for no lookup.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from copperfs.types import Path, split

log = logging.getLogger(__name__)

Tell = Callable[[], object]
TellAll = Callable[[], Tell | None]
"""Gives what is to be told last."""

# With a hanging lookup in as many directories as this, notifications about others wait as well. A
# thread that waits in the kernel costs some 20 KiB.
THREADS_MAX = 16
WAITING_MAX = 1024
EACH_DIRECTORY_MAX = WAITING_MAX // THREADS_MAX
EVERYTHING: Path = Path(b"/")
"""Stands for all names and their directories; no path in the mount begins with a slash."""
THE_REST: Path = Path(b"/rest")
"""Stands for those of them that are told last."""


@dataclass(slots=True)
class _Notification:
    tell: Tell
    told: trio.Event = field(default_factory=trio.Event)


@dataclass(slots=True)
class _Queue:
    """What the kernel is still to be told about the names of one directory, the oldest first."""

    waiting: dict[Path, _Notification] = field(default_factory=dict)
    begun: tuple[Path, _Notification] | None = None
    has_dropped: bool = False

    def last_about(self, path: Path) -> _Notification | None:
        if path in self.waiting:
            return self.waiting[path]
        return self.begun[1] if self.begun is not None and self.begun[0] == path else None


@dataclass(slots=True)
class Notifications:
    """Sends while ``run`` does; the rest is called on trio's thread and does not wait."""

    dropped: int = 0
    late: int = 0
    """Times that somebody did not wait any longer for the kernel to be told."""
    _queues: dict[Path, _Queue] = field(default_factory=dict)
    _count: int = 0
    _is_full: bool = False
    """It was logged that there is no room for any directory, and there was not much since."""
    _ready: trio.MemorySendChannel[Path] = field(init=False)
    _ready_from: trio.MemoryReceiveChannel[Path] = field(init=False)

    def __post_init__(self) -> None:
        # each queue is in it once, so it is bounded as they are
        self._ready, self._ready_from = trio.open_memory_channel(math.inf)

    @property
    def waiting(self) -> int:
        """Those that the kernel has not taken yet."""
        return self._count

    def add(self, path: Path, tell: Tell) -> None:
        """Have *tell* called, which has the kernel look *path* up again."""
        directory, _ = split(path)
        queue = self._queues.get(directory)
        if queue is not None and path in queue.waiting:
            queue.waiting[path].tell = tell  # of the number that the path has now
        elif queue is not None and len(queue.waiting) >= EACH_DIRECTORY_MAX:
            self._drop(path, is_said=queue.has_dropped)
            queue.has_dropped = True
        elif self._count >= WAITING_MAX:
            self._drop(path, is_said=self._is_full)
            self._is_full = True
        else:
            self._add(directory, path, tell)

    def add_everything(self, tell: TellAll) -> None:
        """Have *tell* called, which has the kernel look every name up again, and then what it
        gives, which nothing but its like waits for."""

        def tell_all() -> None:
            rest = tell()
            if rest is not None:
                trio.from_thread.run_sync(self._add_latest, THE_REST, rest)

        queue = self._queues.get(EVERYTHING)
        if queue is None or not queue.waiting:
            self._add(EVERYTHING, EVERYTHING, tell_all)

    async def wait_told(self, path: Path, within_s: float) -> None:
        """Until the kernel was told what was added about *path* and the directories that it is in;
        for *within_s* at most."""
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
        """In the place of what waits: what came later leaves less, and nothing that the kernel was
        not told of meanwhile."""
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
