"""The words of the system as types: paths, versions, attributes, entries.

Paths are bytes, relative to the source's root, without a leading slash; the root is ``b""``. They
are bytes because a name on Linux need not be UTF-8.

Attributes are kept packed, in the layout of the kernel's ``struct fuse_attr``: 88 bytes where a
dataclass of sixteen integers takes 700, and nothing to convert on the way to the front or, later,
onto the wire. They are taken apart only where somebody looks.
"""

import os
import stat
import struct
from dataclasses import dataclass
from typing import NamedTuple, NewType

Path = NewType("Path", bytes)
RequestId = NewType("RequestId", int)
"""A question put to a node; its answer carries the same number."""
FetchId = NewType("FetchId", int)
"""One attempt to obtain something elsewhere; several requests may wait on it."""
BlobId = NewType("BlobId", int)
"""A handle to bytes outside the core; whoever performs its actions knows which."""
NodeId = NewType("NodeId", int)
"""A node of the job: its place in the roster."""
CallId = NewType("CallId", int)
"""Something that all nodes do, as one of them numbers it."""
HandleId = NewType("HandleId", int)
"""A handle to an open file of the source, outside the core like the bytes of a blob."""

ROOT = Path(b"")
COMPILED = b"__pycache__"
"""Where Python keeps what it has compiled of the files beside it."""
FANOUT = 8
"""So many nodes ask one, and have one chunk from one, if nobody says otherwise. A node serves those
who ask it one after the other, so the last of 16 waited longer than a hop more would take
(decision 43)."""

FILESYSTEM, OWN_INODE = 0x7FFF_FFFF, 0x8000_0000
"""In ``flags`` of attributes, until they are shown to the kernel: which filesystem the file is on
(0: that of the source's root), and whether the inode number is one that only the client knows that
has looked (``reader.h``)."""

# ino size blocks atime mtime ctime | their nanoseconds | mode nlink uid gid rdev blksize flags
_ATTRIBUTES = struct.Struct("<6Q10I")
ATTRIBUTES_BYTES = _ATTRIBUTES.size
assert ATTRIBUTES_BYTES == 88
_U32, _U64 = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF


class PeerRequest(NamedTuple):
    """A question that a peer put, by its own number."""

    peer: NodeId
    number: int


class Version(NamedTuple):
    """What must stay the same for bytes of a file to belong together, as all nodes see it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    """The source's own number; 0 where its clients have different ones."""

    def is_another_than(self, other: "Version") -> bool:
        """Whether the numbers tell two files apart. 0 does not, nor from what was looked at before
        the numbers were left out."""
        return self.inode != other.inode and self.inode != 0 and other.inode != 0


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """The name of a chunk: the *index*-th piece of a file, in one version of it."""

    path: Path
    version: Version
    index: int


def _signed(seconds: int) -> int:
    """Times before 1970 travel as two's complement."""
    return seconds - (1 << 64) if seconds >= 1 << 63 else seconds


@dataclass(frozen=True, slots=True)
class Attributes:
    """What ``stat`` tells of one file, packed."""

    packed: bytes

    @classmethod
    def from_stat(cls, status: os.stat_result, flags: int = 0) -> "Attributes":
        """From ``os.lstat``; *flags* say what all nodes have to know of the inode number."""
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
        """Of something that is not to be looked at: its number and type."""
        return cls(_ATTRIBUTES.pack(inode, *[0] * 8, mode, 1, 0, 0, 0, 4096, 0))

    def with_size(self, size: int) -> "Attributes":
        """The same, but for the size."""
        values = list(self.unpack())
        values[1] = size
        return Attributes(_ATTRIBUTES.pack(*values))

    def with_mode(self, mode: int) -> "Attributes":
        """The same, but for type and permissions."""
        values = list(self.unpack())
        values[9] = mode
        return Attributes(_ATTRIBUTES.pack(*values))

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
        """Access, modification and change."""
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
    """The metadata of one name that exists; the target is a symbolic link's."""

    attributes: Attributes
    target: bytes = b""
    unknown: bool = False
    """In a listing: it could not be looked at, and only its number and type are true of it."""


def join(directory: Path, name: bytes) -> Path:
    """The path of *name* in *directory*."""
    return Path(directory + b"/" + name if directory else name)


def split(path: Path) -> tuple[Path, bytes]:
    """The directory that holds *path*, and its name there; the root has no name."""
    directory, _, name = path.rpartition(b"/")
    return Path(directory), name


def is_below(path: bytes, prefix: bytes) -> bool:
    """Whether *path* is *prefix* or something in it, as paths, not as strings."""
    return not prefix or path == prefix or path.startswith(prefix + b"/")
