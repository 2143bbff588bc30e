"""The pass-through itself: a pyfuse3 filesystem over a directory, with nothing cached.

Entry and attribute timeouts are 0 and files are opened with direct I/O, so that the kernel asks
for everything every time and a read of 1 MiB arrives as one request of 1 MiB. (A private mapping of
a direct-I/O file works, a shared one gives ENODEV; `page_cache` allows both, at the price of
128 KiB reads.)

Calls to the source are made in the loop itself: the source is a local directory in the page cache,
where a worker thread would cost more (about 50 us) than the call. Latency is a sleep of the task,
so it is paid concurrently.

Node numbers are the source's inode numbers, because pyfuse3 shows the same number to the kernel and
to the user, and a caching filesystem on top compares them. The root is the exception (FUSE wants
1). The source must therefore lie within one filesystem.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import cast

import pyfuse3
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, FileNameT, FlagT, InodeT

from tests.standin.faults import Faults

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Node:
    """What the kernel knows under one number: where it was last found, and how often looked up."""

    path: bytes
    lookups: int = 0


@dataclass(slots=True)
class Listing:
    """A directory as it was when it was opened, so that paging through it is consistent."""

    path: bytes
    names: list[bytes]


def shown(path: bytes) -> str:
    """The path as rules and counts spell it."""
    return os.fsdecode(path) or "."


def attributes_of(status: os.stat_result, number: int, timeout_s: float) -> EntryAttributes:
    entry = EntryAttributes()
    entry.st_ino = InodeT(number)
    entry.generation = 0
    entry.entry_timeout = entry.attr_timeout = timeout_s
    entry.st_mode = pyfuse3.ModeT(status.st_mode)
    entry.st_nlink = status.st_nlink
    entry.st_uid = status.st_uid
    entry.st_gid = status.st_gid
    entry.st_rdev = status.st_rdev
    entry.st_size = status.st_size
    entry.st_blksize = status.st_blksize
    entry.st_blocks = status.st_blocks
    entry.st_atime_ns = status.st_atime_ns
    entry.st_mtime_ns = status.st_mtime_ns
    entry.st_ctime_ns = status.st_ctime_ns
    return entry


def refused(error: OSError) -> pyfuse3.FUSEError:
    return pyfuse3.FUSEError(error.errno or errno.EIO)


class PassThrough(pyfuse3.Operations):
    """Read-only view of `source` through `faults`."""

    # Only NFS export needs it, and with it the kernel would ask for "." and "..".
    supports_dot_lookup = False

    def __init__(
        self, source: str, faults: Faults, *, timeout_s: float = 0.0, page_cache: bool = False
    ) -> None:
        super().__init__()
        self._source = os.fsencode(os.path.abspath(source))
        self._faults = faults
        self._timeout_s = timeout_s
        self._page_cache = page_cache
        self._nodes: dict[int, Node] = {pyfuse3.ROOT_INODE: Node(b"", 1)}
        self._root_number = os.stat(self._source).st_ino
        self._open: dict[int, int] = {}  # descriptor -> node number
        self._last_read: dict[int, tuple[int, int]] = {}  # descriptor -> (offset, size)
        self._listings: dict[int, Listing] = {}
        self._next_listing = 1

    # -- names and nodes ----------------------------------------------------------------------

    def _full(self, path: bytes) -> bytes:
        return os.path.join(self._source, path) if path else self._source

    def _path(self, inode: int) -> bytes:
        try:
            return self._nodes[inode].path
        except KeyError:
            raise pyfuse3.FUSEError(errno.ESTALE) from None

    def _remember(self, path: bytes, status: os.stat_result) -> EntryAttributes:
        node = self._nodes.setdefault(status.st_ino, Node(path))
        node.path = path
        node.lookups += 1
        return attributes_of(status, status.st_ino, self._timeout_s)

    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: pyfuse3.RequestContext
    ) -> EntryAttributes:
        path = os.path.join(self._path(parent_inode), name)
        await self._faults.pass_through("lookup", shown(path))
        try:
            return self._remember(path, os.lstat(self._full(path)))
        except OSError as error:
            raise refused(error) from None

    async def forget(self, inode_list: object) -> None:
        for inode, lookups in cast("list[tuple[int, int]]", inode_list):
            node = self._nodes.get(inode)
            if node is None or inode == pyfuse3.ROOT_INODE:
                continue
            node.lookups -= lookups
            if node.lookups <= 0:
                del self._nodes[inode]

    async def getattr(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> EntryAttributes:
        path = self._path(inode)
        await self._faults.pass_through("getattr", shown(path))
        try:
            return attributes_of(self._status(inode, path), inode, self._timeout_s)
        except OSError as error:
            raise refused(error) from None

    def _status(self, inode: int, path: bytes) -> os.stat_result:
        # pyfuse3 does not say for which handle the kernel asks. fstat of a file that was replaced
        # while it was open must still describe the old file, so an open descriptor goes first.
        for descriptor, opened in self._open.items():
            if opened == inode:
                return os.fstat(descriptor)
        status = os.lstat(self._full(path))
        if status.st_ino not in (inode, self._root_number):
            raise OSError(errno.ESTALE, "another file has taken this path")
        return status

    async def readlink(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> FileNameT:
        path = self._path(inode)
        await self._faults.pass_through("readlink", shown(path))
        try:
            return FileNameT(os.readlink(self._full(path)))
        except OSError as error:
            raise refused(error) from None

    # -- files --------------------------------------------------------------------------------

    async def open(self, inode: InodeT, flags: FlagT, ctx: pyfuse3.RequestContext) -> FileInfo:
        path = self._path(inode)
        await self._faults.pass_through("open", shown(path))
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise pyfuse3.FUSEError(errno.EROFS)
        try:
            descriptor = os.open(self._full(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            if os.fstat(descriptor).st_ino != inode:
                os.close(descriptor)
                raise OSError(errno.ESTALE, "another file has taken this path")
        except OSError as error:
            raise refused(error) from None
        self._open[descriptor] = inode
        return FileInfo(fh=FileHandleT(descriptor), direct_io=not self._page_cache)

    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        path = shown(self._path(self._open[fh]))
        if not self._is_tail(fh, off, size):
            await self._faults.pass_through("read", path)
        self._last_read[fh] = (off, size)
        try:
            data = os.pread(fh, size, off)
        except OSError as error:
            raise refused(error) from None
        self._faults.read_bytes[path] += len(data)
        return data

    def _is_tail(self, fh: int, off: int, size: int) -> bool:
        """Whether this request is the end of the read() call that made the one before.

        FUSE takes 256 pages at once, and 1 MiB into a buffer that does not start on a page (as
        Python's never do) touches 257: the kernel makes a second request of less than a page. No
        network filesystem does that, so it is neither counted nor delayed.
        """
        last_off, last_size = self._last_read.get(fh, (-1, 0))
        return size < PAGE and off == last_off + last_size and (last_size + size) % PAGE == 0

    async def release(self, fh: FileHandleT) -> None:
        inode = self._open.pop(fh)
        self._last_read.pop(fh, None)
        os.close(fh)
        if node := self._nodes.get(inode):
            self._faults.count("release", shown(node.path))

    # -- directories --------------------------------------------------------------------------

    async def opendir(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> FileHandleT:
        path = self._path(inode)
        await self._faults.pass_through("opendir", shown(path))
        try:
            names = sorted(os.listdir(self._full(path)))
        except OSError as error:
            raise refused(error) from None
        handle = self._next_listing
        self._next_listing += 1
        self._listings[handle] = Listing(path, names)
        return FileHandleT(handle)

    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        listing = self._listings[fh]
        # The kernel asks for a listing in pieces of a page or so, a network filesystem in pieces
        # of a megabyte: only the first piece is counted and pays the latency.
        if start_id == 0:
            await self._faults.pass_through("readdir", shown(listing.path))
        for position in range(start_id, len(listing.names)):
            path = os.path.join(listing.path, listing.names[position])
            try:
                status = os.lstat(self._full(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise refused(error) from None
            entry = attributes_of(status, status.st_ino, self._timeout_s)
            name = FileNameT(listing.names[position])
            if not pyfuse3.readdir_reply(token, name, entry, position + 1):
                break
            self._remember(path, status)

    async def releasedir(self, fh: FileHandleT) -> None:
        self._faults.count("releasedir", shown(self._listings.pop(fh).path))

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        await self._faults.pass_through("statfs", ".")
        status = os.statvfs(self._source)
        answer = pyfuse3.StatvfsData()
        for name in ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail"):
            setattr(answer, f"f_{name}", getattr(status, f"f_{name}"))
        answer.f_namemax = status.f_namemax
        return answer
