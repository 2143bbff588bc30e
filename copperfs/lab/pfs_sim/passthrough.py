"""One client: a mount point, its tables of nodes and handles, and the reply to each request.

The kernel caches here what Lustre's client caches under its locks, for `cache_s`. A missing name is
cached only below a directory that this client has listed, because the lock on the listing covers
it. Opens and closes are never cached. There is no readdirplus, as in Lustre.

Without a cache (`cache_s` 0) and pages (`page_cache` off) every operation becomes a request, and a
read of 1 MiB arrives as one. A private mapping of such a direct-I/O file works, a shared one gives
ENODEV.

The loop itself makes the calls to the local files, since a thread costs more than the call.
"""

import bisect
import errno
import os
import stat
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.lab.pfs_sim import fuse_wire as wire
from copperfs.lab.pfs_sim.fuse_wire import Op
from copperfs.lab.pfs_sim.pfs_faults import OperationCounts

PAGE = os.sysconf("SC_PAGE_SIZE")
# Lustre's readdir brings up to 1 MiB of names at once; the kernel requests them by pages.
READDIR_RPC_BYTES = 1 << 20

NodeKey = tuple[int, int, int]

COSTED = {
    Op.LOOKUP: "lookup",
    Op.GETATTR: "getattr",
    Op.READLINK: "readlink",
    Op.OPEN: "open",
    Op.READ: "read",
    Op.OPENDIR: "opendir",
    Op.READDIR: "readdir",
    Op.STATFS: "statfs",
}


@dataclass(slots=True)
class PassthroughNode:
    """Known to the kernel by number: its last path and its lookup count."""

    path: str
    key: NodeKey
    lookups: int = 0
    open_fds: list[int] = field(default_factory=list)
    pages_of: tuple[int, int] | None = None
    """mtime and size of the file whose pages the kernel has."""
    listing_of: int | None = None
    """mtime of the directory whose listing the kernel has."""
    listed: bool = False


@dataclass(slots=True)
class OpenFile:
    number: int
    node: PassthroughNode
    size_bytes: int
    last_offset: int = -1
    last_size: int = 0


@dataclass(slots=True)
class DirectorySnapshot:
    """A directory as it was opened, so that paging through it is consistent."""

    path: str
    packed: bytes
    ends: list[int]
    paid: int = -1
    """The last piece of READDIR_RPC_BYTES that was charged."""

    def begin(self, offset: int) -> int:
        """Where the name at this offset begins; programs may seek anywhere."""
        return self.ends[min(offset, len(self.ends)) - 1] if offset else 0


@dataclass(slots=True, eq=False)
class FuseRequest:
    client: "PassthroughClient"
    opcode: int
    unique: int
    node: int
    pid: int
    op: str
    path: str
    handle: int = 0
    offset: int = 0
    size: int = 0
    name: str = ""
    delayed: bool = False
    gone: bool = False
    """Its process is being killed, and it was answered."""


class PassthroughClient:
    def __init__(
        self,
        directory: str,
        mountpoint: str,
        fuse_fd: int,
        counts: OperationCounts,
        *,
        cache_s: float,
        page_cache: bool,
        own_inodes: bool,
        ready: Callable[[], None],
    ) -> None:
        self.mountpoint = mountpoint
        self.fuse_fd = fuse_fd
        self.operations: dict[str, int] = {}
        self.waiting: dict[int, FuseRequest] = {}
        self._ready = ready
        self._root = directory
        self._counts = counts
        self._page_cache = page_cache
        self._inodes_of = zlib.crc32(os.fsencode(mountpoint)) << 32 if own_inodes else 0
        self._cached = cache_s > 0
        self._valid = (int(cache_s), int(cache_s % 1 * 1e9))
        self._nodes = {wire.ROOT_ID: PassthroughNode("", (0, 0, 0), 1)}
        self._numbers: dict[NodeKey, int] = {}
        self._next_node = wire.ROOT_ID + 1
        self._files: dict[int, OpenFile] = {}
        self._listings: dict[int, DirectorySnapshot] = {}
        self._next_listing = 1
        self._bytes = memoryview(bytearray(wire.READ_MAX))
        self._perform: dict[int, Callable[[FuseRequest], bytes | None]] = {
            Op.LOOKUP: self._lookup,
            Op.GETATTR: self._getattr,
            Op.READLINK: self._readlink,
            Op.OPEN: self._open,
            Op.READ: self._read,
            Op.OPENDIR: self._opendir,
            Op.READDIR: self._readdir,
            Op.STATFS: self._statfs,
        }

    # --- requests --------------------------------------------------------------------------------

    def parse(self, message: memoryview) -> FuseRequest | None:
        """None if it was answered at once."""
        _, opcode, unique, number, _, _, pid, _, _ = wire.IN_HEADER.unpack_from(message)
        op = COSTED.get(opcode)
        if op is None:
            self._answer_at_once(opcode, unique, number, message[wire.IN_HEADER.size :])
            return None
        body = message[wire.IN_HEADER.size :]
        try:
            return self._costed(FuseRequest(self, opcode, unique, number, pid, op, ""), body)
        except KeyError:
            self.reply(wire.error(unique, errno.ESTALE))
        except (struct.error, ValueError):
            self.reply(wire.error(unique, errno.EIO))
        return None

    def _costed(self, request: FuseRequest, body: memoryview) -> FuseRequest | None:
        opcode = request.opcode
        if opcode == Op.READ:
            handle, request.offset, request.size, *_ = wire.READ_IN.unpack_from(body)
            request.handle = handle
            file = self._files[handle]
            request.path = file.node.path or "."
            if self._is_tail(file, request.offset, request.size):
                self.perform(request)
                return None
            return request
        if opcode == Op.READDIR:
            handle, request.offset, request.size, *_ = wire.READ_IN.unpack_from(body)
            request.handle = handle
            listing = self._listings[handle]
            request.path = listing.path or "."
            begin = listing.begin(request.offset)
            if begin // READDIR_RPC_BYTES <= listing.paid:
                self.perform(request)
                return None
            listing.paid = begin // READDIR_RPC_BYTES
            return request
        path = self._nodes[request.node].path
        if opcode == Op.LOOKUP:
            request.name = os.fsdecode(bytes(body[: body.nbytes - 1]))
            path = f"{path}/{request.name}" if path else request.name
        elif opcode == Op.GETATTR:
            flags, _, handle = wire.GETATTR_IN.unpack_from(body)
            request.handle = handle if flags & wire.GETATTR_FH else 0
        elif opcode == Op.OPEN:
            request.size, _ = wire.OPEN_IN.unpack_from(body)
        elif opcode == Op.STATFS:
            path = ""
        request.path = path or "."
        return request

    def _is_tail(self, file: OpenFile, offset: int, size: int) -> bool:
        """Whether this request is the end of the read() call that made the one before.

        FUSE takes 256 pages at once, and 1 MiB into an unaligned buffer (as Python's are) touches
        257. No network filesystem makes a second request for that, so it is neither counted nor
        delayed.
        """
        tail = (
            not self._page_cache
            and size < PAGE
            and offset == file.last_offset + file.last_size
            and (file.last_size + size) % PAGE == 0
        )
        file.last_offset, file.last_size = offset, size
        return tail

    def _answer_at_once(self, opcode: int, unique: int, number: int, body: memoryview) -> None:
        if opcode == Op.FORGET:
            self._forget(number, wire.FORGET_IN.unpack_from(body)[0])
        elif opcode == Op.BATCH_FORGET:
            count, _ = wire.BATCH_FORGET_IN.unpack_from(body)
            for index in range(count):
                at = wire.BATCH_FORGET_IN.size + index * wire.FORGET_ONE.size
                self._forget(*wire.FORGET_ONE.unpack_from(body, at))
        elif opcode == Op.RELEASE:
            self._release(wire.HANDLE_IN.unpack_from(body)[0])
            self.reply(wire.error(unique, 0))
        elif opcode == Op.RELEASEDIR:
            listing = self._listings.pop(wire.HANDLE_IN.unpack_from(body)[0], None)
            if listing is not None:
                self._counts.count("releasedir", listing.path or ".")
            self.reply(wire.error(unique, 0))
        elif opcode == Op.INIT:
            self._init(unique, body)
        elif opcode == Op.IOCTL:
            self.reply(wire.error(unique, errno.ENOTTY))
        elif opcode in wire.WRITES:
            self.reply(wire.error(unique, errno.EROFS))
        elif opcode == Op.DESTROY:
            self.reply(wire.error(unique, 0))
        elif opcode != Op.INTERRUPT:  # the loop handles these
            # extended attributes, locks, fsync, ...: after ENOSYS the kernel sends no more
            self.reply(wire.error(unique, errno.ENOSYS))

    def _init(self, unique: int, body: memoryview) -> None:
        _, _, max_readahead, offered = wire.INIT_IN.unpack_from(body)
        wanted = wire.ASYNC_READ | wire.PARALLEL_DIROPS | wire.MAX_PAGES | wire.AUTO_INVAL_DATA
        if self._cached:
            wanted |= wire.CACHE_SYMLINKS
        self.reply(wire.init(unique, max_readahead, offered & wanted))
        self._ready()

    # --- replies ---------------------------------------------------------------------------------

    def reply(self, message: bytes) -> None:
        if self.fuse_fd < 0:
            return
        try:
            os.write(self.fuse_fd, message)
        except OSError as error:
            # ENOENT: the request was interrupted; ENODEV: unmounted
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    def perform(self, request: FuseRequest) -> None:
        try:
            message = self._perform[request.opcode](request)
        except KeyError:
            message = wire.error(request.unique, errno.ESTALE)
        except OSError as error:
            message = wire.error(request.unique, error.errno or errno.EIO)
        if message is not None:
            self.reply(message)

    def close(self) -> None:
        os.close(self.fuse_fd)
        self.fuse_fd = -1
        for fd in self._files:
            os.close(fd)
        for request in self.waiting.values():
            request.gone = True
        self.waiting.clear()
        self._files.clear()

    # --- names -----------------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _lookup(self, request: FuseRequest) -> bytes:
        parent = self._nodes[request.node]
        path = f"{parent.path}/{request.name}" if parent.path else request.name
        try:
            status = os.lstat(f"{self._root}/{path}")
        except FileNotFoundError:
            self._counts.missed(path)
            if self._cached and parent.listed:
                return wire.no_entry(request.unique, self._valid)
            raise
        key = key_of(status)
        number = self._numbers.get(key)
        if number is None:
            number = self._next_node
            self._next_node += 1
            self._numbers[key] = number
            self._nodes[number] = PassthroughNode(path, key, 1)
        else:
            node = self._nodes[number]
            node.path = path
            node.lookups += 1
        return wire.entry(request.unique, number, status, self._inode(status.st_ino), self._valid)

    def _forget(self, number: int, lookups: int) -> None:
        node = self._nodes.get(number)
        if node is None or number == wire.ROOT_ID:
            return
        node.lookups -= lookups
        if node.lookups <= 0:
            del self._nodes[number]
            del self._numbers[node.key]

    def _getattr(self, request: FuseRequest) -> bytes:
        status = self._status(request)
        return wire.attributes(request.unique, status, self._inode(status.st_ino), self._valid)

    def _inode(self, number: int) -> int:
        return number ^ self._inodes_of

    def _status(self, request: FuseRequest) -> os.stat_result:
        if request.handle in self._files:
            return os.fstat(request.handle)
        node = self._nodes[request.node]
        # fstat of a file that was replaced while open has to describe the old file, but the kernel
        # does not name the handle.
        if node.open_fds:
            return os.fstat(node.open_fds[0])
        status = os.lstat(self._full(node.path))
        if request.node != wire.ROOT_ID and key_of(status) != node.key:
            raise OSError(errno.ESTALE, "another file has taken this path")
        return status

    def _readlink(self, request: FuseRequest) -> bytes:
        target = os.fsencode(os.readlink(self._full(self._nodes[request.node].path)))
        return wire.data_header(request.unique, len(target)) + target

    # --- files -----------------------------------------------------------------------------------

    def _open(self, request: FuseRequest) -> bytes:
        if request.size & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, "read-only")
        node = self._nodes[request.node]
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._full(node.path), flags)
        status = os.fstat(fd)
        if key_of(status) != node.key:
            os.close(fd)
            raise OSError(errno.ESTALE, "another file has taken this path")
        self._files[fd] = OpenFile(status.st_ino, node, status.st_size)
        node.open_fds.append(fd)
        if not self._page_cache:
            return wire.opened(request.unique, fd, wire.OPEN_DIRECT_IO)
        version = (status.st_mtime_ns, status.st_size)
        kept = wire.OPEN_KEEP_CACHE if node.pages_of == version else 0
        node.pages_of = version
        return wire.opened(request.unique, fd, kept)

    def bytes_wanted(self, request: FuseRequest) -> tuple[int, int]:
        """The bytes that a read will move, as far as is known, and its file's number."""
        file = self._files[request.handle]
        return max(0, min(request.size, file.size_bytes - request.offset)), file.number

    def number_of(self, request: FuseRequest) -> int | None:
        """None if the handle was closed."""
        file = self._files.get(request.handle)
        return None if file is None else file.number

    def _read(self, request: FuseRequest) -> bytes | None:
        size = os.preadv(request.handle, [self._bytes[: request.size]], request.offset)
        self._counts.read(request.path, size)
        header = wire.data_header(request.unique, size)
        if self.fuse_fd >= 0:
            try:
                os.writev(self.fuse_fd, [header, self._bytes[:size]])
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
        return None

    def _release(self, handle: int) -> None:
        file = self._files.pop(handle, None)
        if file is None:
            return
        file.node.open_fds.remove(handle)
        os.close(handle)
        self._counts.count("release", file.node.path or ".")

    # --- directories -----------------------------------------------------------------------------

    def _opendir(self, request: FuseRequest) -> bytes:
        node = self._nodes[request.node]
        full = self._full(node.path)
        status = os.stat(full, follow_symlinks=False)
        rows = [(b".", status.st_ino, 4), (b"..", status.st_ino, 4)]
        with os.scandir(full) as entries:
            rows += sorted(
                (os.fsencode(each.name), each.inode(), kind_of(each)) for each in entries
            )
        names = [
            wire.dirent(self._inode(inode), position, name, kind)
            for position, (name, inode, kind) in enumerate(rows, start=1)
        ]
        ends, end = [], 0
        for packed in names:
            end += len(packed)
            ends.append(end)
        handle = self._next_listing
        self._next_listing += 1
        self._listings[handle] = DirectorySnapshot(node.path, b"".join(names), ends)
        if not self._cached:
            return wire.opened(request.unique, handle, 0)
        kept = wire.OPEN_KEEP_CACHE if node.listing_of == status.st_mtime_ns else 0
        node.listing_of = status.st_mtime_ns
        return wire.opened(request.unique, handle, wire.OPEN_CACHE_DIR | kept)

    def _readdir(self, request: FuseRequest) -> bytes:
        listing = self._listings[request.handle]
        node = self._nodes.get(request.node)
        if node is not None:
            node.listed = True
        begin = listing.begin(request.offset)
        last = bisect.bisect_right(listing.ends, begin + request.size)
        end = listing.ends[last - 1] if last else 0
        part = listing.packed[begin : max(begin, end)]
        return wire.data_header(request.unique, len(part)) + part

    def _statfs(self, request: FuseRequest) -> bytes:
        return wire.statfs(request.unique, os.statvfs(self._root))


def key_of(status: os.stat_result) -> NodeKey:
    """Includes the type: a reused inode number must not change the type of a node."""
    return status.st_ino, status.st_dev, stat.S_IFMT(status.st_mode)


def kind_of(entry: "os.DirEntry[str]") -> int:
    if entry.is_symlink():
        return 10
    if entry.is_dir():
        return 4
    if entry.is_file():
        return 8
    try:
        return stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) >> 12
    except OSError:
        return 0
