"""Greeting: what the two ends of a connection exchange before the first message.

The connecting node greets, the reached node greets back, and only then do both report Connected. A
greeting names speaker, listener and job, so that no message is lost to a foreign process on a
peer's port, or to a node of an earlier job.

Of two connections of one node to another, the one with the larger *serial* is newer. It begins with
the clock, so that holds across a restart. If the clock was set back, the node waits until the older
connection is found dead.

**Every version reads the greeting of every other**, to refuse it with a reason. So a later version
may not change the beginning: speaker, listener, job, and the release as text. It appends its
additions.
"""

import struct
from dataclasses import dataclass

import xxhash

from copperfs import __version__
from copperfs.model.roster import Roster
from copperfs.model.types import NodeId
from copperfs.wire.fields import Malformed
from copperfs.wire.wire_version import MAGIC, VERSION

_GREETING = struct.Struct("<5s16sIIQ")
_VERSION_AT, _CODE_AT = len(MAGIC), len(MAGIC) + 1
RELEASE_MAX = 64
GREETING_BYTES_MAX = 4096
"""The limit for any version."""


@dataclass(frozen=True, slots=True)
class Greeting:
    job: bytes
    """``job_digest`` of the roster."""
    speaker: NodeId
    listener: NodeId
    serial: int
    version: int = VERSION
    release: str = __version__
    """For users; empty if the peer did not send it."""

    @property
    def is_foreign(self) -> bool:
        """This node understands only the greeting of another wire version."""
        return self.version != VERSION


def job_digest(roster: Roster) -> bytes:
    """Both ends must have the same list to mean the same node."""
    return xxhash.xxh3_128_digest(roster.to_json().encode())


def encode_greeting(greeting: Greeting) -> bytes:
    release = greeting.release.encode("ascii", "replace")[:RELEASE_MAX]
    prefix = MAGIC + bytes((greeting.version, 0))
    fixed = _GREETING.pack(
        prefix, greeting.job, greeting.speaker, greeting.listener, greeting.serial
    )
    return fixed + bytes((len(release),)) + release


def decode_greeting(frame: bytes) -> Greeting:
    size = _GREETING.size
    if not (
        size <= len(frame) <= GREETING_BYTES_MAX
        and frame.startswith(MAGIC)
        and frame[_CODE_AT] == 0
    ):
        raise Malformed("no greeting")
    version = frame[_VERSION_AT]
    _, job, speaker, listener, serial = _GREETING.unpack(frame[:size])
    length, release = frame[size : size + 1], b""
    if length:
        release = frame[size + 1 : size + 1 + length[0]]
        if len(release) != length[0] or length[0] > RELEASE_MAX:
            raise Malformed("a greeting that is cut off")
    if version == VERSION and len(frame) != size + 1 + len(release):
        raise Malformed("no greeting of this version")
    text = release.decode("ascii", "replace")
    if not text.isprintable():
        raise Malformed("a release that cannot be printed")
    return Greeting(job, NodeId(speaker), NodeId(listener), serial, version, text)
