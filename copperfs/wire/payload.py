"""The bytes that travel beside a message, and the digest that they are checked against.

xxh3-128 is no signature: it finds what cables, memories and disks do to bytes, not what an enemy
does. Against those there is CURVE.
"""

from dataclasses import dataclass

import xxhash

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes that travel beside a message, with their xxh3-128 as it was taken where the source was
    read. A node that passes a payload on passes the digest on, and never makes a new one."""

    data: bytes | memoryview
    digest: bytes


def size_of(data: bytes | memoryview) -> int:
    return data.nbytes if isinstance(data, memoryview) else len(data)


def digest(data: bytes | memoryview) -> bytes:
    """The xxh3-128 of *data*, 16 bytes."""
    return xxhash.xxh3_128_digest(data)


def payload_of(data: bytes | memoryview) -> Payload:
    """A payload of bytes that were just read from the source: the one place to take a digest."""
    return Payload(data, digest(data))
