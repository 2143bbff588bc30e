"""Reading the source: the only code that touches it.

Plain blocking calls, made by the threads of the pool; every one may take as long as the source
takes. What is counted here is what reached the source.

A path is walked name by name from the source's root. No symbolic link is followed on the way: it
may have replaced a directory since the kernel checked the rights of the user who asks. ``below.c``
does the same, mostly by one system call, and says why the root is opened each time.
"""

import errno
import mmap
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from copperfs.blob import FileBlob, new_blob
from copperfs.core.listing import Listing
from copperfs.source.files import OpenFiles
from copperfs.source.filesystems import Filesystems
from copperfs.source.scan import scan
from copperfs.source.watch import Watch
from copperfs.types import Attributes, Entry, Path, Version

T = TypeVar("T")

READ_BYTES = 1 << 20
AHEAD_BYTES = 8 * READ_BYTES
"""What is asked for ahead of a large file, so that its pieces come side by side."""

ASK_BYTES = 128 * 1024
"""What the kernel reads in one go of most filesystems."""
CHUNK_TRIES = 2

# A change within the same tick of the source's clock as the one before leaves no trace in the
# version. Ticks are 4 ms and rarely 10; a file that has just changed is left alone for 20 before it
# is read.
TICK_NS = 20_000_000
BEHIND_NS = 100_000_000
"""By so much the source's clock may be behind ours: clocks that are kept by NTP are closer."""

# O_NONBLOCK: a regular file may have become a fifo since it was looked at, and opening that would
# wait for a writer.
_OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_LOOK = os.O_PATH
# O_DIRECTORY mounts what is to be mounted there by itself (autofs).
_ROOT = os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY
_WALK = _ROOT | os.O_NOFOLLOW

# What opening says when there is a link, a socket or a device by now where a file was.
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.ENODEV)
STALE_TRIES = 2


class VersionChanged(OSError):
    """The file is not, or no longer, the version that was asked for."""

    def __init__(self) -> None:
        super().__init__(errno.ESTALE, os.strerror(errno.ESTALE))


@dataclass(slots=True)
class SourceCounts:
    """What reached the source, by kind; *bytes_read* are those of whole files and chunks."""

    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, amount: int = 1) -> None:
        with self._lock:
            self.counts[kind] += amount

    def reset(self) -> None:
        with self._lock:
            self.counts.clear()


class PosixSource:
    """The directory *root*, as the process sees it."""

    def __init__(
        self,
        root: bytes,
        *,
        listing_max: int,
        deadline_s: float,
    ) -> None:
        self.watch = Watch(deadline_s)
        self.root = root.rstrip(b"/") + b"/"
        self.listing_max = listing_max
        self.counts = SourceCounts()
        self.filesystems = Filesystems(self.root, os.stat(self.root).st_dev)
        self.files = OpenFiles(self._open_for_pieces, deadline_s)

    # --- what the pool calls ---------------------------------------------------------------------

    def scan(self, path: Path, untouchable: tuple[bytes, ...] = ()) -> Listing:
        """The listing of *path*; the names in *untouchable* are shown without being looked at."""
        self.counts.add("scandir")
        with self._opened(path, _OPEN_DIRECTORY) as fd:
            status = os.fstat(fd)
            attributes = Attributes.from_stat(status, self.filesystems.flags(status.st_dev))
            packed = scan(path, fd, self.listing_max, self.filesystems, untouchable, self.watch)
            listing = Listing(packed, attributes.version)
        if not listing.bare:
            self.counts.add("stat", listing.count)
        return listing

    def look(self, path: Path) -> Entry | None:
        """The entry of *path*; None if there is no such name."""
        self.counts.add("stat")
        try:
            return self._anew_if_stale(lambda: self._look(path))
        except FileNotFoundError:
            return None

    def read(self, path: Path, version: Version) -> FileBlob:
        """The whole file, if it is this version from the first byte to the last."""
        fd = self.open(path, version)
        try:
            blob = new_blob(version.size)
            done = asked = 0
            ahead = version.size > READ_BYTES and _is_cached(fd)
            while done < version.size:
                while ahead and version.size > asked < done + AHEAD_BYTES:
                    os.posix_fadvise(fd, asked, READ_BYTES, os.POSIX_FADV_WILLNEED)
                    asked += READ_BYTES
                got = os.preadv(fd, [blob.view[done : done + READ_BYTES]], done)
                self.counts.add("read")
                if got == 0:
                    raise VersionChanged
                done += got
            self.counts.add("read_bytes", done)
            self._check(fd, version)
        finally:
            os.close(fd)
        blob.seal(version.size)
        return blob

    def read_chunk(self, path: Path, version: Version, offset: int, length: int) -> FileBlob:
        """So many bytes of the file, if it is this version before and after."""
        blob = new_blob(length)
        was_open = False
        # A descriptor that was kept may have lost its file, or its server: once more anew.
        for attempt in range(CHUNK_TRIES):
            try:
                with self.files.borrowed(path, version) as (fd, was_open):
                    if was_open:  # it may have lost its name; one that was just opened had it
                        self._check(fd, version, links_min=1)
                    self._read_piece(fd, blob.view, offset)
                    self._check(fd, version)
                break
            except OSError:
                if not was_open or attempt + 1 == CHUNK_TRIES:
                    raise
        blob.seal(length)
        return blob

    def open(self, path: Path, version: Version) -> int:
        """A descriptor of this version; the caller closes it."""
        try:
            fd = self._open(path, _OPEN_FILE)
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise VersionChanged from None
            raise
        self.counts.add("open")
        try:
            self._check(fd, version)
        except OSError:
            os.close(fd)
            raise
        _let_settle(version)
        return fd

    # --- how -------------------------------------------------------------------------------------

    def _open_for_pieces(self, path: Path, version: Version) -> int:
        """For reading here and there: what was not asked for is not read ahead."""
        fd = self.open(path, version)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return fd

    def _read_piece(self, fd: int, view: memoryview, offset: int) -> None:
        done = 0
        if len(view) > ASK_BYTES and _is_cached(fd):
            # all of it at once, since nothing is read ahead otherwise
            for at in range(offset, offset + len(view), ASK_BYTES):
                os.posix_fadvise(fd, at, ASK_BYTES, os.POSIX_FADV_WILLNEED)
        while done < len(view):
            got = os.preadv(fd, [view[done:]], offset + done)
            if got == 0:
                raise VersionChanged
            self.counts.add("read")
            done += got
        self.counts.add("read_bytes", done)

    def _check(self, fd: int, version: Version, links_min: int = 0) -> None:
        status = os.fstat(fd)
        inode = version.inode and status.st_ino  # as far as it counts
        if (
            Version(status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode) != version
            or not stat.S_ISREG(status.st_mode)
            or status.st_nlink < links_min
        ):
            raise VersionChanged

    def _look(self, path: Path) -> Entry:
        """Attributes, and a link's target, of one and the same."""
        with self._opened(path, _LOOK) as fd:
            status = os.fstat(fd)
            target = os.readlink(b"", dir_fd=fd) if stat.S_ISLNK(status.st_mode) else b""
            return Entry(
                Attributes.from_stat(status, self.filesystems.flags(status.st_dev)), target
            )

    @contextmanager
    def _opened(self, path: Path, flags: int) -> Iterator[int]:
        fd = self._open(path, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self, path: Path, flags: int) -> int:
        """What *path* leads to, through no link; of a link itself with O_PATH. A root that is a
        link is followed."""
        if not path:
            return os.open(self.root, flags | os.O_CLOEXEC)
        return self._anew_if_stale(lambda: self._open_by_names(path.split(b"/"), flags))

    def _open_by_names(self, names: list[bytes], flags: int) -> int:
        if b".." in names:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        directory = os.open(self.root, _ROOT)
        try:
            for name in names[:-1]:
                onward = os.open(name, _WALK, dir_fd=directory)
                os.close(directory)
                directory = onward
            return os.open(names[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        finally:
            os.close(directory)

    @staticmethod
    def _anew_if_stale(work: Callable[[], T]) -> T:
        """A network filesystem may notice only now that a name leads elsewhere."""
        for _ in range(STALE_TRIES - 1):
            try:
                return work()
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
        return work()


def _let_settle(version: Version) -> None:
    """Of a version that was just seen; ``read.c`` says why."""
    if time.time_ns() - version.ctime_ns < TICK_NS + BEHIND_NS:
        time.sleep(TICK_NS / 1e9)


def _is_cached(fd: int) -> bool:
    """Whether what is asked for ahead is there for the read. A filesystem that is mounted without
    the page cache (FUSE's direct_io) would read it twice; it is known by refusing this mapping."""
    try:
        mmap.mmap(fd, 1, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ).close()
    except (OSError, ValueError):  # ValueError: it has become shorter than that
        return False
    return True
