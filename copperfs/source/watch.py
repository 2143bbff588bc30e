"""Names that hang, and the scans that go on without them: ``watch.c`` for threads in Python.

A scan has a thread of its own look at the names, and watches it. A thread that hangs in a name is
left behind there, under the same conditions as in C: the name takes long compared with the others
of its directory. Another thread does the rest. There is one such thread at a time, so that a scan
waits for several hung names one after the other.
"""

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.types import Entry, Path

LEFT_AFTER_S = 1.0
LOOK_LEAST_S = 0.005
LOOKS_AT_LEAST = 4
SLOWER_TIMES = 4
LEFT_MAX = 4
"""When so many names of a directory hang, a scan does not look at the rest."""

Look = Callable[[int, bytes], Entry]


@dataclass(slots=True, eq=False)
class _Scan:
    path: Path
    names: list[bytes]
    look: Look
    found: dict[bytes, Entry | None] = field(default_factory=dict)
    """None: it cannot be told. What has vanished is not in it."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    at: int = 0
    """Of the names, the one that is being looked at."""
    has_answered: bool = False
    slowest_s: float = 0.0
    is_doubted: bool = False
    failed: OSError | None = None
    """What is wrong with the directory itself."""

    def is_over(self) -> bool:
        return self.failed is not None or self.at >= len(self.names)


@dataclass(slots=True)
class Watch:
    """Of one source."""

    deadline_s: float
    may_leave: Callable[[], bool] = lambda: True
    """Whether so few threads hang that another one may be left behind."""
    _hanging: Counter[tuple[Path, bytes]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hanging(self) -> int:
        """How many threads were left behind, and are."""
        with self._lock:
            return self._hanging.total()

    def look_at(
        self, path: Path, fd: int, names: list[bytes], look: Look
    ) -> dict[bytes, Entry | None]:
        """Of each name of a directory what *look* says, None if that is an error or takes too long;
        without those that have vanished. An OSError if it is the directory that fails."""
        with self._lock:
            skipped = {name for name in names if (path, name) in self._hanging}
        scan = _Scan(path, [name for name in names if name not in skipped], look)
        scan.found.update(dict.fromkeys(skipped))
        left = 0
        while not scan.is_over() and left < LEFT_MAX:
            self._start(scan, os.dup(fd))  # it is used for as long as it hangs
            left += self._hangs(scan)
        if scan.failed is not None:
            raise scan.failed
        scan.found.update(dict.fromkeys(scan.names[scan.at :]))
        return scan.found

    def _start(self, scan: _Scan, fd: int) -> None:
        try:
            threading.Thread(
                target=self._run, args=(scan, fd, scan.at), name="copperfs-look", daemon=True
            ).start()
        except RuntimeError:  # there are too many
            os.close(fd)
            # as descriptors that are used up: the pool waits, and scans again
            raise OSError(errno.ENOMEM, "no thread can be started") from None

    def _hangs(self, scan: _Scan) -> bool:
        """Wait for the end, or until the thread is left behind."""
        every_s = max(LOOK_LEAST_S, min(LEFT_AFTER_S, self.deadline_s / 2) / LOOKS_AT_LEAST)
        seen_at, seen = -1, 0
        with scan.changed:
            while not scan.is_over():
                scan.changed.wait(every_s)
                if scan.at != seen_at:
                    seen_at, seen = scan.at, 0
                    continue
                seen += 1
                waits_s = self.deadline_s / 2
                if scan.has_answered:
                    waits_s = min(waits_s, max(LEFT_AFTER_S, SLOWER_TIMES * scan.slowest_s))
                is_slow = seen >= LOOKS_AT_LEAST and seen * every_s >= waits_s
                if is_slow and not scan.is_over() and self.may_leave():
                    name = scan.names[scan.at]
                    with self._lock:
                        self._hanging[scan.path, name] += 1
                    scan.found[name] = None
                    scan.at += 1
                    return True
        return False

    def _run(self, scan: _Scan, fd: int, at: int) -> None:
        """In a thread of its own, which may be left behind before it has begun."""
        try:
            while at == scan.at and not scan.is_over():
                at = self._look_at_one(scan, fd, at)
        finally:
            os.close(fd)
            if at != scan.at:
                self._came_back((scan.path, scan.names[at]))

    def _came_back(self, name: tuple[Path, bytes]) -> None:
        with self._lock:
            self._hanging[name] -= 1
            if not self._hanging[name]:
                del self._hanging[name]

    def _look_at_one(self, scan: _Scan, fd: int, at: int) -> int:
        """The next one; or the same again, and the scan is beyond it."""
        name, entry, began = scan.names[at], None, time.monotonic()
        failed: OSError | None = None
        vanished = False
        try:
            entry = scan.look(fd, name)
        except MemoryError:  # as descriptors that are used up: the pool waits, and scans again
            failed = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        except OSError as error:
            vanished = error.errno == errno.ENOENT
            if not vanished and not scan.is_doubted:
                failed = _failure_of(fd)
        with scan.changed:
            if scan.at != at:
                return at
            scan.is_doubted = scan.is_doubted or (entry is None and not vanished)
            scan.failed = failed
            if not vanished:
                scan.found[name] = entry
            scan.has_answered = True
            scan.slowest_s = max(scan.slowest_s, time.monotonic() - began)
            scan.at += 1
            if scan.is_over():
                scan.changed.notify()
            return at + 1


def _failure_of(directory: int) -> OSError | None:
    """The first name of it fails: is it the directory that does?"""
    try:
        os.stat(b".", dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        return error
    return None
