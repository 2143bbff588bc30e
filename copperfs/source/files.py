"""Files of the source that stay open for a while; ``files.c`` does the same without the GIL.

The owner of a file's chunks reads many of them one after the other, and on a parallel filesystem
each open is a request to the metadata server. So the descriptor of a version is kept for whoever
comes next, and closed when nobody came for a while. That a file is still this version is not
believed because it is open: who reads looks before and after.

At most ``FILES_MAX`` are kept (fewer where the limit on descriptors is low), besides those that are
being read. A file that somebody is opening
is waited for by others that want it, until their deadline. Whoever finds that a file is not what it
should be says so, and it is opened anew for the next.
"""

import errno
import os
import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from copperfs.types import Path, Version

# Twice what is at work by default (--source-concurrency); each is state on a server.
FILES_MAX = 64
# Of all descriptors (net/crowd.py has the budget).
FILES_PART = 16
UNUSED_S = 5.0
"""For so long a file is kept for the next chunk; in that time a reader of it asks again, or has
left."""

_Key = tuple[Path, Version]


@dataclass(slots=True, eq=False)
class OpenFile:
    """One descriptor."""

    fd: int = -1
    """-1: it is being opened."""
    users: int = 1
    kept: bool = True
    used_at: float = 0.0


def _count_max() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_MAX if limit == resource.RLIM_INFINITY else min(FILES_MAX, limit // FILES_PART)


@dataclass(slots=True)
class OpenFiles:
    """For all threads of a pool."""

    open: Callable[[Path, Version], int]
    deadline_s: float
    """A thread waits at most so long for a file that another thread opens."""
    count_max: int = field(default_factory=_count_max)
    _kept: OrderedDict[_Key, OpenFile] = field(default_factory=OrderedDict)
    """What was used last is last."""
    _condition: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def borrowed(self, path: Path, version: Version) -> Iterator[tuple[int, bool]]:
        """The descriptor, and whether it was open before. It is not kept if the caller fails."""
        key = (path, version)
        file, was_open = self._borrow(key)
        try:
            yield file.fd, was_open
        except BaseException:
            self._return(key, file, is_good=False)
            raise
        self._return(key, file, is_good=True)

    def _borrow(self, key: _Key) -> tuple[OpenFile, bool]:
        with self._condition:
            if not self._condition.wait_for(lambda: self._is_open(key), self.deadline_s):
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            file = self._kept.get(key)
            if file is not None:
                self._kept.move_to_end(key)
                file.users += 1
                return file, True
            file = self._kept[key] = OpenFile()
            surplus = self._surplus()
        _close(surplus)
        fd = -1
        try:
            fd = self.open(*key)
        finally:
            with self._condition:
                file.fd = fd
                if fd < 0:
                    del self._kept[key]
                self._condition.notify_all()
        return file, False

    def _is_open(self, key: _Key) -> bool:
        """Or nobody is opening it."""
        file = self._kept.get(key)
        return file is None or file.fd >= 0

    def _return(self, key: _Key, file: OpenFile, *, is_good: bool) -> None:
        with self._condition:
            file.users -= 1
            file.used_at = time.monotonic()
            if file.kept and not is_good:
                del self._kept[key]
                file.kept = False
            over = [file] if not file.kept and not file.users else self._surplus()
        _close(over)

    def _surplus(self) -> list[OpenFile]:
        """One that is too many, if there is such and it is not in use."""
        if len(self._kept) <= self.count_max:
            return []
        key = next((key for key, each in self._kept.items() if not each.users), None)
        return [] if key is None else [self._take_out(key)]

    def _take_out(self, key: _Key) -> OpenFile:
        file = self._kept.pop(key)
        file.kept = False
        return file

    def close_unused(self, for_s: float) -> None:
        for fd in self.take_unused(for_s):
            os.close(fd)

    def take_unused(self, for_s: float) -> list[int]:
        """What nobody has used for so long, for the caller to close."""
        before = time.monotonic() - for_s
        with self._condition:
            unused = [
                key for key, file in self._kept.items() if not file.users and file.used_at <= before
            ]
            return [self._take_out(key).fd for key in unused]


def _close(files: list[OpenFile]) -> None:
    for each in files:
        os.close(each.fd)
