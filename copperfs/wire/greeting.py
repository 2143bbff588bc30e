"""Greeting: what the two ends of a connection exchange before the first message.

The connecting node greets, the reached node greets back, and only then do both report Connected. A
greeting names the speaker, the listener and the job. So a node notices a foreign process on a
peer's port, or a node of an earlier job, before a message is lost to it.

*serial* orders the connections of one node to another: of two that exist at the same time the one
with the larger serial is newer. It begins with the clock, so that holds across a restart of the
node. If the clock was set back in between, the node waits until the older connection is found dead.

**Every version reads the greeting of every other.** So a node refuses a node of another version
with a reason, and greets back, which tells the other the reason. Therefore a later version may not
change the beginning of a greeting: speaker, listener, job, and the release as text. It appends its
additions. (Version 3 ended before the release.)
"""

import struct
from dataclasses import dataclass

import xxhash

from copperfs import __version__
from copperfs.model.roster import Roster
from copperfs.model.types import NodeId
from copperfs.wire.codec import MAGIC, VERSION
from copperfs.wire.fields import Malformed

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
    """The version of the wire format."""
    release: str = __version__
    """The release of the program, for users; empty if the peer did not send it."""

    @property
    def is_foreign(self) -> bool:
        """The peer has another wire version, so this node understands only its greeting."""
        return self.version != VERSION


def job_digest(roster: Roster) -> bytes:
    """A digest of the job's name and nodes: both ends must have the same list to mean the same
    node."""
    return xxhash.xxh3_128_digest(roster.to_json().encode())


def encode_greeting(greeting: Greeting) -> bytes:
    release = greeting.release.encode("ascii", "replace")[:RELEASE_MAX]
    prefix = MAGIC + bytes((greeting.version, 0))
    fixed = _GREETING.pack(
        prefix, greeting.job, greeting.speaker, greeting.listener, greeting.serial
    )
    return fixed + bytes((len(release),)) + release


def decode_greeting(frame: bytes) -> Greeting:
    """Decode a greeting; Malformed if it is none."""
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


def versions_differ(peer: str, version: int, release: str, me: str) -> str:
    """One sentence about a node of another version, *peer*, and this one, both by their names for
    users. *release* may be empty."""
    theirs = f"copperfs {release}".rstrip()
    return (
        f"{peer} runs {theirs} (wire version {version}) and {me} runs copperfs {__version__} (wire "
        f"version {VERSION}): start all nodes from one installation"
    )
