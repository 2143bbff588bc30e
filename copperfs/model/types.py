"""Types of the system: paths, versions, attributes, entries.

Paths are bytes, relative to the source's root, without a leading slash; the root is ``b""``. They
are bytes because a name on Linux need not be UTF-8.

Attributes stay packed, in the layout of the kernel's ``struct fuse_attr``. They take 88 bytes,
where a dataclass of sixteen integers takes 700, and the front and the wire use the same layout.
Code unpacks them only where it reads a value.
"""

import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType

Path = NewType("Path", bytes)
RequestId = NewType("RequestId", int)
"""A request to a node; its answer carries the same number."""
FetchId = NewType("FetchId", int)
"""One attempt to obtain a subject elsewhere; several requests may wait on it."""
BlobId = NewType("BlobId", int)
"""A handle to bytes outside the node; the driver knows which."""
PayloadId = NewType("PayloadId", int)
"""Bytes that came beside a message."""
NodeId = NewType("NodeId", int)
"""A node of the job: its position in the roster."""
CallId = NewType("CallId", int)
"""A collective operation of all nodes, as one of them numbers it."""
HandleId = NewType("HandleId", int)
"""A handle to an open file of the source, outside the node like the bytes of a blob."""

ROOT = Path(b"")
COMPILED = b"__pycache__"
"""The directory where Python keeps the compiled files of its parent directory."""
FANOUT = 8
"""The default fan-out: this number of nodes ask one node, and get one chunk from it. A node serves
its children one after the other, so the last of 16 waited longer than for one hop more (decision
43)."""

FILESYSTEM, OWN_INODE = 0x7FFF_FFFF, 0x8000_0000
"""Bits in ``flags`` of attributes, until the kernel gets them: the filesystem of the file (0: that
of the source's root), and whether the inode number is valid only at the client that looked the file
up (``reader.h``)."""

# ino size blocks atime mtime ctime | their nanoseconds | mode nlink uid gid rdev blksize flags
_ATTRIBUTES = struct.Struct("<6Q10I")
ATTRIBUTES_BYTES = _ATTRIBUTES.size
assert ATTRIBUTES_BYTES == 88
_U32, _U64 = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF


class PeerRequest(NamedTuple):
    """A request of a peer, by the peer's own number."""

    peer: NodeId
    number: int


class Version(NamedTuple):
    """The facts that must stay the same for bytes of a file to belong together, as all nodes see
    them."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    """The inode number at the source; 0 where its clients have different ones."""

    def is_another_than(self, other: "Version") -> bool:
        """Whether the inode numbers tell two files apart. 0 does not, nor does a version from
        before the numbers were left out."""
        return self.inode != other.inode and self.inode != 0 and other.inode != 0


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """Names a chunk: its index in a file, in one version of the file."""

    path: Path
    version: Version
    index: int


def _signed(seconds: int) -> int:
    """Times before 1970 travel as two's complement."""
    return seconds - (1 << 64) if seconds >= 1 << 63 else seconds


@dataclass(frozen=True, slots=True)
class Attributes:
    """The result of ``stat`` for one file, packed."""

    packed: bytes

    @classmethod
    def from_stat(cls, status: os.stat_result, flags: int = 0) -> "Attributes":
        """Convert a result of ``os.lstat``. *flags* tell all nodes how far the inode number is
        valid."""
        seconds = (
            status.st_atime_ns // 1_000_000_000 & _U64,
            status.st_mtime_ns // 1_000_000_000 & _U64,
            status.st_ctime_ns // 1_000_000_000 & _U64,
        )
        return cls(
            _ATTRIBUTES.pack(
                status.st_ino,
                status.st_size,
                status.st_blocks,
                *seconds,
                status.st_atime_ns % 1_000_000_000,
                status.st_mtime_ns % 1_000_000_000,
                status.st_ctime_ns % 1_000_000_000,
                status.st_mode,
                status.st_nlink,
                status.st_uid,
                status.st_gid,
                status.st_rdev & _U32,
                status.st_blksize & _U32,
                flags,
            )
        )

    @classmethod
    def bare(cls, inode: int, mode: int) -> "Attributes":
        """The attributes of a file that must not be looked up: its number and type."""
        return cls(_ATTRIBUTES.pack(inode, *[0] * 8, mode, 1, 0, 0, 0, 4096, 0))

    @classmethod
    def of_values(cls, values: Sequence[int]) -> "Attributes":
        """From all sixteen values, in the order of ``unpack``."""
        return cls(_ATTRIBUTES.pack(*values))

    def with_size(self, size: int) -> "Attributes":
        """The same, except for the size."""
        values = list(self.unpack())
        values[1] = size
        return Attributes.of_values(values)

    def with_mode(self, mode: int) -> "Attributes":
        """The same, except for type and permissions."""
        values = list(self.unpack())
        values[9] = mode
        return Attributes.of_values(values)

    def unpack(self) -> tuple[int, ...]:
        """All sixteen values, in the order of ``struct fuse_attr``."""
        return _ATTRIBUTES.unpack(self.packed)

    @property
    def inode(self) -> int:
        return self.unpack()[0]

    @property
    def size(self) -> int:
        return self.unpack()[1]

    @property
    def mode(self) -> int:
        return self.unpack()[9]

    @property
    def version(self) -> Version:
        inode, size, _, _, mtime, ctime, _, mtime_ns, ctime_ns, *_, flags = self.unpack()
        return Version(
            size,
            _signed(mtime) * 1_000_000_000 + mtime_ns,
            _signed(ctime) * 1_000_000_000 + ctime_ns,
            0 if flags & OWN_INODE else inode,
        )

    @property
    def times_ns(self) -> tuple[int, int, int]:
        """The times of access, modification and change."""
        _, _, _, atime, mtime, ctime, atime_ns, mtime_ns, ctime_ns, *_ = self.unpack()
        return (
            _signed(atime) * 1_000_000_000 + atime_ns,
            _signed(mtime) * 1_000_000_000 + mtime_ns,
            _signed(ctime) * 1_000_000_000 + ctime_ns,
        )

    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)


@dataclass(frozen=True, slots=True)
class Entry:
    """The metadata of one existing name; *target* is that of a symbolic link."""

    attributes: Attributes
    target: bytes = b""
    unknown: bool = False
    """In a listing: its lookup failed, and only its number and type are valid."""


def join(directory: Path, name: bytes) -> Path:
    """The path of *name* in *directory*."""
    return Path(directory + b"/" + name if directory else name)


def split(path: Path) -> tuple[Path, bytes]:
    """The directory that contains *path*, and its name there; the root has no name."""
    directory, _, name = path.rpartition(b"/")
    return Path(directory), name


def is_below(path: bytes, prefix: bytes) -> bool:
    """Whether *path* is *prefix* or below it, as paths, not as strings."""
    return not prefix or path == prefix or path.startswith(prefix + b"/")
