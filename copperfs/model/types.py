"""Types of the system: paths, versions, attributes, entries.

Paths are bytes, because a name on Linux need not be UTF-8, relative to the source's root, without a
leading slash; the root is ``b""``.

Attributes stay packed, in the layout of the kernel's ``struct fuse_attr``, which the front and the
wire use, too: 88 bytes, where a dataclass of sixteen integers takes 700.
"""

import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType

Path = NewType("Path", bytes)
RequestId = NewType("RequestId", int)
"""Its answer carries the same number."""
FetchId = NewType("FetchId", int)
"""The work of obtaining one subject from peers or the source; several requests may wait on it."""
BlobId = NewType("BlobId", int)
"""Bytes outside the node; the driver knows which."""
PayloadId = NewType("PayloadId", int)
"""Bytes that came beside a message."""
NodeId = NewType("NodeId", int)
"""The position in the roster."""
CallId = NewType("CallId", int)
"""A collective operation; one node numbers it."""
HandleId = NewType("HandleId", int)
"""An open file of the source, outside the node."""

ROOT = Path(b"")
COMPILED = b"__pycache__"
FANOUT = 8
"""The default: this number of nodes ask one node. The last of 16 waited longer than for one hop
more (decision 43).
"""

FILESYSTEM, OWN_INODE = 0x7FFF_FFFF, 0x8000_0000
"""Bits in ``flags`` of attributes, until the kernel gets them (``reader.h``)."""

# ino size blocks atime mtime ctime | their nanoseconds | mode nlink uid gid rdev blksize flags
_ATTRIBUTES = struct.Struct("<6Q10I")
ATTRIBUTES_BYTES = _ATTRIBUTES.size
assert ATTRIBUTES_BYTES == 88
_U32, _U64 = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF


class PeerRequest(NamedTuple):
    peer: NodeId
    number: int


class Version(NamedTuple):
    """While these facts stay the same, bytes of a file belong together, on all nodes."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    """The source's; 0 where its clients have different ones."""

    def is_another_than(self, other: "Version") -> bool:
        """Whether the inode numbers tell two files apart; 0 does not."""
        return self.inode != other.inode and self.inode != 0 and other.inode != 0


@dataclass(frozen=True, slots=True)
class ChunkKey:
    path: Path
    version: Version
    index: int


def _signed(seconds: int) -> int:
    """Times before 1970 travel as two's complement."""
    return seconds - (1 << 64) if seconds >= 1 << 63 else seconds


@dataclass(frozen=True, slots=True)
class Attributes:
    packed: bytes

    @classmethod
    def from_stat(cls, status: os.stat_result, flags: int = 0) -> "Attributes":
        """*flags* tell all nodes how far the inode number is valid."""
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
        """For a file that must not be looked up."""
        return cls(_ATTRIBUTES.pack(inode, *[0] * 8, mode, 1, 0, 0, 0, 4096, 0))

    @classmethod
    def of_values(cls, values: Sequence[int]) -> "Attributes":
        return cls(_ATTRIBUTES.pack(*values))

    def with_size(self, size: int) -> "Attributes":
        values = list(self.unpack())
        values[1] = size
        return Attributes.of_values(values)

    def with_mode(self, mode: int) -> "Attributes":
        values = list(self.unpack())
        values[9] = mode
        return Attributes.of_values(values)

    def unpack(self) -> tuple[int, ...]:
        """In the order of ``struct fuse_attr``."""
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

    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


@dataclass(frozen=True, slots=True)
class Entry:
    """*target* is that of a symbolic link."""

    attributes: Attributes
    target: bytes = b""
    unknown: bool = False
    """In a listing: only its number and type are valid."""


def join(directory: Path, name: bytes) -> Path:
    return Path(directory + b"/" + name if directory else name)


def split(path: Path) -> tuple[Path, bytes]:
    """The root has no name."""
    directory, _, name = path.rpartition(b"/")
    return Path(directory), name


def is_below(path: bytes, prefix: bytes) -> bool:
    """As paths, not as strings."""
    return not prefix or path == prefix or path.startswith(prefix + b"/")
