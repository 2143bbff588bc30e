"""What the two ends of a connection tell each other before the first message.

The node that connects greets, the node that it reached greets back, and only then do both say
Connected. A greeting says who is speaking to whom and in which job, so that a port that somebody
else has taken meanwhile, or a node of last week's job, is noticed before a message is lost to it.

*serial* tells the connections of one node to another apart: of two that are there at the same time
the one with the larger serial was made later, also across a restart of the node, since it begins
with the clock. A clock that was turned back in between costs a wait until the older connection is
found dead.
"""

import struct
from dataclasses import dataclass

import xxhash

from copperfs.roster import Roster
from copperfs.types import NodeId
from copperfs.wire.codec import MAGIC, VERSION
from copperfs.wire.fields import Malformed

_GREETING = struct.Struct("<5s16sIIQ")
_PREFIX = MAGIC + bytes((VERSION, 0))
GREETING_BYTES = _GREETING.size


@dataclass(frozen=True, slots=True)
class Greeting:
    job: bytes
    """``job_digest`` of the roster."""
    speaker: NodeId
    listener: NodeId
    serial: int


def job_digest(roster: Roster) -> bytes:
    """Of the job's name and its nodes: both ends must have the same list to mean the same node."""
    return xxhash.xxh3_128_digest(roster.to_json().encode())


def encode_greeting(greeting: Greeting) -> bytes:
    return _GREETING.pack(
        _PREFIX, greeting.job, greeting.speaker, greeting.listener, greeting.serial
    )


def decode_greeting(frame: bytes) -> Greeting:
    """Malformed if it is none."""
    if len(frame) != GREETING_BYTES or not frame.startswith(_PREFIX):
        raise Malformed("no greeting of this version")
    _, job, speaker, listener, serial = _GREETING.unpack(frame)
    return Greeting(job, NodeId(speaker), NodeId(listener), serial)
