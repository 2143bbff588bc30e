"""What the two ends of a connection tell each other before the first message.

The node that connects greets, the node that it reached greets back, and only then do both say
Connected. A greeting says who is speaking to whom and in which job, so that a port that somebody
else has taken meanwhile, or a node of last week's job, is noticed before a message is lost to it.

*serial* tells the connections of one node to another apart: of two that are there at the same time
the one with the larger serial was made later, also across a restart of the node, since it begins
with the clock. A clock that was turned back in between costs a wait until the older connection is
found dead.
**Every version reads the greeting of every other**, so that a node of another one is refused with a
reason, and told the reason by being greeted back. So a later version may not change what a greeting
begins with, which is who speaks to whom and the release as text; it puts what it adds behind that.
(Version 3 ended before the release.)
"""

import struct
from dataclasses import dataclass

import xxhash

from copperfs import __version__
from copperfs.roster import Roster
from copperfs.types import NodeId
from copperfs.wire.codec import MAGIC, VERSION
from copperfs.wire.fields import Malformed

_GREETING = struct.Struct("<5s16sIIQ")
_VERSION_AT, _CODE_AT = len(MAGIC), len(MAGIC) + 1
RELEASE_MAX = 64
GREETING_BYTES_MAX = 4096
"""Of any version."""


@dataclass(frozen=True, slots=True)
class Greeting:
    job: bytes
    """``job_digest`` of the roster."""
    speaker: NodeId
    listener: NodeId
    serial: int
    version: int = VERSION
    """Of the wire."""
    release: str = __version__
    """Of the program, for people; empty if it did not say."""

    @property
    def is_foreign(self) -> bool:
        """Nothing but the greeting can be understood."""
        return self.version != VERSION


def job_digest(roster: Roster) -> bytes:
    """Of the job's name and its nodes: both ends must have the same list to mean the same node."""
    return xxhash.xxh3_128_digest(roster.to_json().encode())


def encode_greeting(greeting: Greeting) -> bytes:
    release = greeting.release.encode("ascii", "replace")[:RELEASE_MAX]
    prefix = MAGIC + bytes((greeting.version, 0))
    fixed = _GREETING.pack(
        prefix, greeting.job, greeting.speaker, greeting.listener, greeting.serial
    )
    return fixed + bytes((len(release),)) + release


def decode_greeting(frame: bytes) -> Greeting:
    """Malformed if it is none."""
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
    """One sentence about a node of another version, *peer*, and this one, both by what people call
    them. A *release* may be empty."""
    theirs = f"copperfs {release}".rstrip()
    return (
        f"{peer} runs {theirs} (wire version {version}) and {me} runs copperfs {__version__} (wire "
        f"version {VERSION}): start all nodes from one installation"
    )
