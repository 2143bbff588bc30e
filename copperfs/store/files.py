"""The operations that the store does on its disk, as a seam.

Small on purpose: whatever the store asks of the kernel goes through here, so a test can make the
n-th operation fail, hang or be the last (``tests/store/faulty.py``), and has then seen all there
is. Paths are relative to a descriptor wherever that is possible: the directory that was checked at
the beginning is the one that is used, whatever its name means later."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

try:
    from copperfs.store._load import load as load_at_once
except ImportError:
    LOADS_AT_ONCE = False  # it could not be built
else:
    LOADS_AT_ONCE = True

T = TypeVar("T")

DESCRIPTORS_WITHIN_S = 1.0
"""Less than a read may take."""
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_EXCL follows no link either, and never opens what somebody else has put there.
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# For reading only: a file that is open for writing keeps its filesystem from being made read-only.
LOCK = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Files(Protocol):
    """Raises OSError like the calls of ``os`` that these are named after."""

    def open(self, path: str, flags: int, directory: int | None = None) -> int:
        """What is created is for the owner alone."""
        ...

    def close(self, fd: int) -> None: ...
    def load(
        self, path: str, directory: int, size: int, head_bytes: int, rest: memoryview
    ) -> bytes | None:
        """A file of *size* bytes: the first *head_bytes*; the others go into *rest*. None if it is
        not as long as that."""
        ...

    def stat(self, fd: int) -> os.stat_result: ...
    def mkdir(self, path: str, directory: int | None = None) -> None:
        """For the owner alone."""
        ...

    def names(self, fd: int) -> list[str]: ...
    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int: ...
    def writev(self, fd: int, buffers: Sequence[bytes | memoryview]) -> int: ...
    def rename(self, old: str, old_directory: int, new: str, new_directory: int) -> None: ...
    def unlink(self, path: str, directory: int) -> None: ...
    def free_bytes(self, fd: int) -> int:
        """What an ordinary user may still write to this filesystem."""
        ...

    def lock(self, fd: int) -> None:
        """For this process alone, until it is closed; BlockingIOError if another has it."""
        ...


def _patiently(work: Callable[[], T]) -> T:
    """What needs a descriptor waits a moment for one: that none is left is not the disk's fault,
    for which a store is given up."""
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
    """The kernel's."""

    def open(self, path: str, flags: int, directory: int | None = None) -> int:
        return _patiently(lambda: os.open(path, flags, 0o600, dir_fd=directory))

    def close(self, fd: int) -> None:
        os.close(fd)

    def load(
        self, path: str, directory: int, size: int, head_bytes: int, rest: memoryview
    ) -> bytes | None:
        if LOADS_AT_ONCE:
            return _patiently(lambda: load_at_once(path, directory, size, head_bytes, rest))
        return load_in_steps(self, path, directory, size, head_bytes, rest)

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


def load_in_steps(
    files: Files, path: str, directory: int, size: int, head_bytes: int, rest: memoryview
) -> bytes | None:
    """``load`` by the other operations."""
    fd = files.open(path, READ, directory)
    try:
        if files.stat(fd).st_size != size:
            return None
        head = bytearray(head_bytes)
        buffers = [memoryview(head), rest] if head else [rest]
        offset = 0
        while offset < size:
            got = files.preadv(fd, buffers, offset)
            if not got:
                return None
            offset += got
            while buffers and got >= len(buffers[0]):
                got -= len(buffers.pop(0))
            if buffers:
                buffers[0] = buffers[0][got:]
    finally:
        files.close(fd)
    return bytes(head)
