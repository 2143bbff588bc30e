"""FUSE wire format: the kernel's messages (<linux/fuse.h>) that a read-only filesystem needs.

It speaks protocol 7.31; the kernel speaks every older version.
"""

import os
import struct
from enum import IntEnum


class Op(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    BATCH_FORGET = 42
    RENAME2 = 45


# Only a process that remounts the read-only mount sends these.
WRITES = frozenset(
    (Op.SETATTR, Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.UNLINK, Op.RMDIR, Op.RENAME, Op.LINK, Op.WRITE)
) | {Op.CREATE, Op.RENAME2}

ROOT_ID = 1
REQUEST_MAX = 128 << 10
READ_MAX = 1 << 20  # 256 pages
MAX_BACKGROUND, CONGESTION_THRESHOLD = 512, 384

ASYNC_READ, AUTO_INVAL_DATA, PARALLEL_DIROPS = 1 << 0, 1 << 12, 1 << 18
MAX_PAGES, CACHE_SYMLINKS = 1 << 22, 1 << 23
OPEN_DIRECT_IO, OPEN_KEEP_CACHE, OPEN_CACHE_DIR = 1 << 0, 1 << 1, 1 << 3
GETATTR_FH = 1 << 0

IN_HEADER = struct.Struct("=IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid
INIT_IN = struct.Struct("=IIII")
FORGET_IN = struct.Struct("=Q")
BATCH_FORGET_IN = struct.Struct("=II")
FORGET_ONE = struct.Struct("=QQ")
GETATTR_IN = struct.Struct("=IIQ")
OPEN_IN = struct.Struct("=II")
READ_IN = struct.Struct("=QQIIQII")  # handle, offset, size
HANDLE_IN = struct.Struct("=Q")
INTERRUPT_IN = struct.Struct("=Q")

_OUT = "=IiQ"  # length, -errno, unique
_ATTR = "QQQQQQIIIIIIIIII"
OUT_HEADER = struct.Struct(_OUT)
_ENTRY_OUT = struct.Struct(_OUT + "QQQQII" + _ATTR)
_ATTR_OUT = struct.Struct(_OUT + "QII" + _ATTR)
_OPEN_OUT = struct.Struct(_OUT + "QIi")
_STATFS_OUT = struct.Struct(_OUT + "QQQQQIIII6I")
_INIT_OUT = struct.Struct(_OUT + "IIIIHHIIHHI7I")
DIRENT = struct.Struct("=QQII")

_S64 = (1 << 64) - 1
_NS = 1_000_000_000


def error(unique: int, code: int) -> bytes:
    return OUT_HEADER.pack(OUT_HEADER.size, -code, unique)


def data_header(unique: int, size_bytes: int) -> bytes:
    return OUT_HEADER.pack(OUT_HEADER.size + size_bytes, 0, unique)


def init(unique: int, max_readahead: int, flags: int) -> bytes:
    return _INIT_OUT.pack(
        *(_INIT_OUT.size, 0, unique),
        *(7, 31, max_readahead, flags, MAX_BACKGROUND, CONGESTION_THRESHOLD),
        *(4096, 1, READ_MAX // os.sysconf("SC_PAGE_SIZE"), 0, 0),
        *([0] * 7),
    )


def entry(
    unique: int, node: int, status: os.stat_result, inode: int, valid: tuple[int, int]
) -> bytes:
    """Reply to a lookup that found *inode*; the kernel may cache it for *valid* (s, ns)."""
    seconds, nanoseconds = valid
    return _ENTRY_OUT.pack(
        *(_ENTRY_OUT.size, 0, unique, node, 0, seconds, seconds, nanoseconds, nanoseconds),
        *_packed(status, inode),
    )


def no_entry(unique: int, valid: tuple[int, int]) -> bytes:
    """Reply for a missing name, cached for *valid*."""
    return _ENTRY_OUT.pack(_ENTRY_OUT.size, 0, unique, 0, 0, valid[0], 0, valid[1], 0, *([0] * 16))


def attributes(unique: int, status: os.stat_result, inode: int, valid: tuple[int, int]) -> bytes:
    return _ATTR_OUT.pack(_ATTR_OUT.size, 0, unique, *valid, 0, *_packed(status, inode))


def opened(unique: int, handle: int, flags: int) -> bytes:
    return _OPEN_OUT.pack(_OPEN_OUT.size, 0, unique, handle, flags, 0)


def statfs(unique: int, found: os.statvfs_result) -> bytes:
    return _STATFS_OUT.pack(
        *(_STATFS_OUT.size, 0, unique),
        *(found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree),
        *(found.f_bsize, found.f_namemax, found.f_frsize, 0),
        *([0] * 6),
    )


def dirent(inode: int, following: int, name: bytes, kind: int) -> bytes:
    """One row of a listing; *following* is the next row's offset."""
    packed = DIRENT.pack(inode, following, len(name), kind) + name
    return packed + bytes(-len(packed) % 8)


def _packed(status: os.stat_result, inode: int) -> tuple[int, ...]:
    atime, atime_ns = divmod(status.st_atime_ns, _NS)
    mtime, mtime_ns = divmod(status.st_mtime_ns, _NS)
    ctime, ctime_ns = divmod(status.st_ctime_ns, _NS)
    device = 0
    if status.st_rdev:  # new_encode_dev() of the kernel
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        device = (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)
    return (
        *(inode, status.st_size, status.st_blocks),
        *(atime & _S64, mtime & _S64, ctime & _S64, atime_ns, mtime_ns, ctime_ns),
        *(status.st_mode, status.st_nlink, status.st_uid, status.st_gid, device),
        *(status.st_blksize, 0),
    )
