"""Reading the source: the only code that touches it.

Plain blocking calls, made by the threads of the pool; every one may take as long as the source
takes. What is counted here is what reached the source.

A path may be longer than one system call takes (4,095 bytes), because the source's own prefix is
added to it: it is then walked in pieces.
"""

import errno
import mmap
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from copperfs.blob import FileBlob, new_blob
from copperfs.core.listing import Listing
from copperfs.source.files import OpenFiles
from copperfs.source.scan import entry_at, scan, shown_inode
from copperfs.source.watch import Watch
from copperfs.types import Entry, Path, Version

PATH_MAX = 4095
READ_BYTES = 1 << 20
AHEAD_BYTES = 8 * READ_BYTES
"""What is asked for ahead of a large file, so that its pieces come side by side."""

ASK_BYTES = 128 * 1024
"""What the kernel reads in one go of most filesystems."""
CHUNK_TRIES = 2

# A change within the same tick of the source's clock as the one before leaves no trace in the
# version. Ticks are 4 ms and rarely 10; a file that changed within the last 20 is left alone for
# that long before it is read.
TICK_NS = 20_000_000

# O_NONBLOCK: a regular file may have become a fifo since it was looked at, and opening that would
# wait for a writer.
_OPEN_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_OPEN_DIRECTORY = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_WALK = os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY

# What opening says when there is a link, a socket or a device by now where a file was.
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.ENODEV)


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
        self.root = root.rstrip(b"/") or b"/"
        self.listing_max = listing_max
        self.counts = SourceCounts()
        self.device = os.stat(self.root).st_dev
        self.files = OpenFiles(self._open_for_pieces)

    # --- what the pool calls ---------------------------------------------------------------------

    def scan(self, path: Path, untouchable: tuple[bytes, ...] = ()) -> Listing:
        """The listing of *path*; the names in *untouchable* are shown without being looked at."""
        self.counts.add("scandir")
        with self._opened(path, _OPEN_DIRECTORY) as fd:
            version = self._version(os.fstat(fd))
            packed = scan(path, fd, self.listing_max, self.device, untouchable, self.watch)
            listing = Listing(packed, version)
        if not listing.bare:
            self.counts.add("stat", listing.count)
        return listing

    def look(self, path: Path) -> Entry | None:
        """The entry of *path*; None if there is no such name."""
        self.counts.add("stat")
        try:
            with self._reachable(path) as (directory, name):
                return entry_at(directory, name, self.device)
        except FileNotFoundError:
            return None

    def read(self, path: Path, version: Version) -> FileBlob:
        """The whole file, if it is this version from the first byte to the last."""
        with self._opened(path, _OPEN_FILE) as fd:
            self.counts.add("open")
            self._check(fd, version)
            self._let_settle(version)
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
                    self._let_settle(version)
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
        fd = self._open(path, _OPEN_FILE)
        self.counts.add("open")
        try:
            self._check(fd, version)
        except OSError:
            os.close(fd)
            raise
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
        if (
            self._version(status) != version
            or not stat.S_ISREG(status.st_mode)
            or status.st_nlink < links_min
        ):
            raise VersionChanged

    def _version(self, status: os.stat_result) -> Version:
        inode = shown_inode(status.st_ino, status.st_dev, self.device)
        return Version(status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode)

    @staticmethod
    def _let_settle(version: Version) -> None:
        age_ns = time.time_ns() - version.ctime_ns
        if 0 <= age_ns < TICK_NS:
            time.sleep((TICK_NS - age_ns) / 1e9)

    @contextmanager
    def _opened(self, path: Path, flags: int) -> Iterator[int]:
        fd = self._open(path, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self, path: Path, flags: int) -> int:
        with self._reachable(path) as (directory, name):
            for attempt in range(2):
                try:
                    return os.open(name, flags, dir_fd=directory)
                except OSError as error:
                    if flags == _OPEN_FILE and error.errno in _NOT_A_FILE:
                        raise VersionChanged from None
                    # A network filesystem notices only now that the name leads elsewhere.
                    if error.errno != errno.ESTALE or attempt:
                        raise
        raise AssertionError("unreachable")

    @contextmanager
    def _reachable(self, path: Path) -> Iterator[tuple[int | None, bytes]]:
        """*path* as what system calls take: a directory, or None, and a name relative to it."""
        absolute = self.root + b"/" + path if path else self.root
        directory: int | None = None
        try:
            while len(absolute) > PATH_MAX:
                cut = absolute.rindex(b"/", 0, PATH_MAX)
                onward = os.open(absolute[:cut], _WALK, dir_fd=directory)
                if directory is not None:
                    os.close(directory)
                directory, absolute = onward, absolute[cut + 1 :]
            yield directory, absolute
        finally:
            if directory is not None:
                os.close(directory)


def _is_cached(fd: int) -> bool:
    """Whether what is asked for ahead is there for the read. A filesystem that is mounted without
    the page cache (FUSE's direct_io) would read it twice; it is known by refusing this mapping."""
    try:
        mmap.mmap(fd, 1, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ).close()
    except (OSError, ValueError):  # ValueError: it has become shorter than that
        return False
    return True
