"""Payload: the bytes that travel beside a message, and their digest.

xxh3-128 finds what cables, memories and disks do to bytes; CURVE protects against attackers.
"""

from dataclasses import dataclass

import xxhash

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Payload:
    """A node that forwards a payload forwards the digest, and never computes a new one."""

    data: bytes | memoryview
    digest: bytes


def size_of(data: bytes | memoryview) -> int:
    return data.nbytes if isinstance(data, memoryview) else len(data)


def digest(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_128_digest(data)


def payload_of(data: bytes | memoryview) -> Payload:
    """For bytes just read from the source: the only place that computes their digest."""
    return Payload(data, digest(data))
