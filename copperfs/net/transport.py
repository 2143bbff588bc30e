"""The seam to the other nodes: messages go out, arrivals come in, nothing here decides.

A node is reached through a *connection*: this node keeps one to each peer for which ``connect``
was called (its parents); peers that connected here (its children) are answered over theirs.
``send`` never waits: how much may be under way is the core's credit, not a socket's high-water
mark.

Implementations: ``zeromq.py``, and ``memory.py`` for tests and for a whole job in one process. One
contract suite holds both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from copperfs.core.messages import Message
from copperfs.types import NodeId
from copperfs.wire.payload import Payload as Payload


@dataclass(frozen=True, slots=True)
class Received:
    """A message that is well-formed, from the peer that it claims to be from. Its payload's bytes
    are valid while somebody holds ``data``; they are not to be kept for long (they pin a frame)."""

    peer: NodeId
    message: Message
    payload: Payload | None


@dataclass(frozen=True, slots=True)
class Corrupt:
    """The payload is not what its digest says; the message itself is whole."""

    peer: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Connected:
    """Messages pass: a handshake succeeded, in whichever direction it was begun. Said again when a
    connection was renewed: what was under way before it is lost."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Lost:
    """No connection to this peer is left."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Foreign:
    """A node of the job greeted that runs another version of the program: no message passes. Said
    each time that it greets."""

    peer: NodeId
    version: int
    """Of the wire."""
    release: str
    """Empty if it did not say."""


Arrival = Received | Corrupt | Connected | Lost | Foreign
Deliver = Callable[[Arrival], None]


class Transport(Protocol):
    def connect(self, peer: NodeId) -> None:
        """Keep a connection to *peer*, and renew it when it breaks, until ``disconnect``."""
        ...

    def disconnect(self, peer: NodeId) -> None:
        """Nothing goes to *peer* any more, unless it has connected here. Lost is said, if it was
        connected and is not now."""
        ...

    def send(self, peer: NodeId, message: Message, payload: Payload | None = None) -> bool:
        """False if there is no connection to *peer* now: the message is gone, ``Lost`` was or will
        be said. True is no promise that it arrives, only that it arrives once if at all, and in
        order. Raises Malformed for a message beyond the limits of the wire (a path of more than
        4,096 bytes, a batch of too many items), which nobody would take."""
        ...

    async def refuses(self, peer: NodeId) -> bool:
        """Whether nobody listens where *peer* should, which says that its process has ended. False
        within a second if that cannot be told: who is stopped or cut off does not refuse."""
        ...

    async def run(self, deliver: Deliver) -> None:
        """Hand over what arrives, one at a time, until ``close`` or cancelled. *deliver* may send,
        connect and disconnect; what that brings about is said after it has returned. An exception
        of *deliver* ends ``run``."""
        ...

    def statistics(self) -> "TransportStats": ...
    def reset_statistics(self) -> None: ...

    def close(self) -> None:
        """End ``run``, and all connections with it; nothing is said of that here. May be called
        again, and without ``run``."""
        ...


@dataclass(slots=True)
class TransportStats:
    """What passed, and what was turned away."""

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    malformed: int = 0
    """Frames that are no message of this version; dropped."""
    corrupt: int = 0
    strangers: int = 0
    """Handshakes with a key outside the roster, and messages in somebody else's name."""
    crowded: int = 0
    """Connections that were shut before they had greeted, because there were too many."""
    unsendable: int = 0
    """Messages for which there was no connection."""
    connections: int = 0
