"""The interface to the disk: all operations of the store on it.

Every call of the store to the kernel goes through here, so a test can make the n-th fail, hang or
be the last (``tests/store/faulty.py``). Paths are relative to a descriptor: the directory that was
checked is the one that is used.
"""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from copperfs import native

T = TypeVar("T")

DESCRIPTORS_WITHIN_S = 1.0
"""Shorter than the deadline of a read."""
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_EXCL follows no link, and opens no file of another user.
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A file that is open for writing keeps its filesystem from being made read-only.
LOCK = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Files(Protocol):
    """Raises OSError like the calls of ``os`` that these are named after."""

    def open(self, path: str, flags: int, directory: int | None = None) -> int:
        """Creates files for the owner alone."""
        ...

    def close(self, fd: int) -> None: ...
    def load(
        self, path: str, directory: int, size: int, head_bytes: int, rest: memoryview
    ) -> bytes | None:
        """Return the first *head_bytes*, the others go into *rest*. None: the file is shorter."""
        ...

    def stat(self, fd: int) -> os.stat_result: ...
    def mkdir(self, path: str, directory: int | None = None) -> None: ...

    def names(self, fd: int) -> list[str]: ...
    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int: ...
    def writev(self, fd: int, buffers: Sequence[bytes | memoryview]) -> int: ...
    def rename(self, old: str, old_directory: int, new: str, new_directory: int) -> None: ...
    def unlink(self, path: str, directory: int) -> None: ...
    def free_bytes(self, fd: int) -> int:
        """The bytes that an ordinary user may still write."""
        ...

    def lock(self, fd: int) -> None:
        """BlockingIOError if another process has it."""
        ...

    def unlock(self, fd: int) -> None:
        """For all processes that share the open file."""
        ...


def _patiently(work: Callable[[], T]) -> T:
    """Having no free descriptor is not the disk's fault."""
    until, pause_s = time.monotonic() + DESCRIPTORS_WITHIN_S, 0.002
    while True:
        try:
            return work()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or time.monotonic() > until:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)


class RealFiles:
    def open(self, path: str, flags: int, directory: int | None = None) -> int:
        return _patiently(lambda: os.open(path, flags, 0o600, dir_fd=directory))

    def close(self, fd: int) -> None:
        os.close(fd)

    def load(
        self, path: str, directory: int, size: int, head_bytes: int, rest: memoryview
    ) -> bytes | None:
        return _patiently(lambda: native.load(path, directory, size, head_bytes, rest))

    def stat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def mkdir(self, path: str, directory: int | None = None) -> None:
        os.mkdir(path, 0o700, dir_fd=directory)

    def names(self, fd: int) -> list[str]:
        return _patiently(lambda: os.listdir(fd))

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        return os.preadv(fd, buffers, offset)

    def writev(self, fd: int, buffers: Sequence[bytes | memoryview]) -> int:
        return os.writev(fd, buffers)

    def rename(self, old: str, old_directory: int, new: str, new_directory: int) -> None:
        os.rename(old, new, src_dir_fd=old_directory, dst_dir_fd=new_directory)

    def unlink(self, path: str, directory: int) -> None:
        os.unlink(path, dir_fd=directory)

    def free_bytes(self, fd: int) -> int:
        found = os.fstatvfs(fd)
        return found.f_bavail * found.f_frsize

    def lock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)
