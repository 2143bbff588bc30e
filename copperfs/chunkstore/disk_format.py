"""The format of a store on disk: names, headers, and which of them are trusted.

::

    DIR/lock                              flock of the daemon that uses it; what this directory is
    DIR/tmp/NAME                          being written; of an earlier daemon: deleted
    DIR/chunks/3f/3f..e1.SERIAL.BYTES     one chunk: a header of whole pages, then the bytes

A name has a digest of the key, a serial number that grows with each chunk written, and the size of
the file, so a restart opens no file. When the chunk is loaded, its header must have the same key
and size, and the bytes their digest.

The key in the digest begins with the *scope*: the source and the size of chunks, which must be the
same after a restart. Decision 61 has the reasons.
"""

import hashlib
import re
import struct
from dataclasses import dataclass

from copperfs.chunkstore.store_interface import in_pages
from copperfs.model.types import ChunkKey
from copperfs.wire.payload import DIGEST_BYTES, digest

MAGIC = b"COPPERCH"
FORMAT = 2
"""2: a version has the source's inode number, which all nodes see."""
# magic, format, bytes of the key, bytes of the chunk | digest of the chunk | digest of the header
_HEADER = struct.Struct("<8sIIQ16s")
_FIXED_BYTES = _HEADER.size + DIGEST_BYTES

NAME_BYTES = 16
_SIZE_BITS = 44
_NAME = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{1,14})\.([0-9a-f]{1,11})")
LOCK_TEXT = b"copperfs store %d\n" % FORMAT


class Erasure(Exception):
    """A chunk is not what it should be; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    name: bytes
    serial: int
    size: int
    """Of the file, with its header."""

    @property
    def cost(self) -> int:
        return in_pages(self.size)

    @property
    def packed(self) -> int:
        return self.serial << _SIZE_BITS | self.size

    @property
    def file(self) -> str:
        return f"{self.name.hex()}.{self.serial:x}.{self.size:x}"

    @property
    def directory(self) -> str:
        return self.name.hex()[:2]

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.file}"


def unpacked(name: bytes, packed: int) -> ChunkPlace:
    return ChunkPlace(name, packed >> _SIZE_BITS, size_of(packed))


def size_of(packed: int) -> int:
    return packed & (1 << _SIZE_BITS) - 1


def parsed(file: str) -> tuple[bytes, int] | None:
    """None: the file is not ours."""
    found = _NAME.fullmatch(file)
    if found is None:
        return None
    return bytes.fromhex(found[1]), int(found[2], 16) << _SIZE_BITS | int(found[3], 16)


def scope_of(source: bytes, chunk_bytes: int) -> bytes:
    return hashlib.blake2b(b"%d %s" % (chunk_bytes, source), digest_size=NAME_BYTES).digest()


def encoded(scope: bytes, key: ChunkKey) -> bytes:
    """Decimal numbers, since a time may be larger than any fixed field."""
    return scope + b"%d %d %d %d %d " % (*key.version, key.index) + key.path


def name_of(encoded_key: bytes) -> bytes:
    return hashlib.blake2b(encoded_key, digest_size=NAME_BYTES).digest()


def header_bytes(encoded_key: bytes) -> int:
    return in_pages(_FIXED_BYTES + len(encoded_key))


def header(encoded_key: bytes, size: int, chunk_digest: bytes) -> bytes:
    fixed = _HEADER.pack(MAGIC, FORMAT, len(encoded_key), size, chunk_digest)
    whole = fixed + digest(fixed + encoded_key) + encoded_key
    return whole.ljust(header_bytes(encoded_key), b"\0")


@dataclass(frozen=True, slots=True)
class Header:
    encoded_key: bytes
    size: int
    digest: bytes


def read_header(raw: bytes | bytearray | memoryview) -> Header:
    if len(raw) < _FIXED_BYTES:
        raise Erasure("the header is cut off")
    magic, form, key_bytes, size, chunk_digest = _HEADER.unpack_from(raw)
    if magic != MAGIC or form != FORMAT:
        raise Erasure("there is no header")
    key = bytes(raw[_FIXED_BYTES : _FIXED_BYTES + key_bytes])
    own = bytes(raw[_HEADER.size : _FIXED_BYTES])
    if len(key) != key_bytes or digest(bytes(raw[: _HEADER.size]) + key) != own:
        raise Erasure("the header is damaged")
    return Header(key, size, chunk_digest)
