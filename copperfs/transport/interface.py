"""Transport interface: sends messages to the other nodes and delivers what arrives; decides
nothing.

A node keeps a *connection* to its parents, and replies to its children over theirs. ``send`` never
blocks: the node's credit limits how much is under way. One contract suite checks ``zeromq.py`` and
the in-process implementation of the tests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from copperfs.model.types import NodeId
from copperfs.node.peer.messages import Message
from copperfs.wire.payload import Payload as Payload


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A well-formed message, from the peer that it names. The payload is valid while a reference to
    ``data`` exists, which pins a frame: keep it briefly."""

    peer: NodeId
    message: Message
    payload: Payload | None


@dataclass(frozen=True, slots=True)
class Corrupt:
    """The payload does not match its digest."""

    peer: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Connected:
    """A handshake succeeded, in either direction. Reported again for a renewed connection: what was
    under way is lost."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Lost:
    """No connection to this peer is left."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Foreign:
    """A node with another version of the program greeted: no message passes. Reported for each
    greeting."""

    peer: NodeId
    version: int
    release: str
    """Empty if the greeting has none."""


Arrival = ReceivedMessage | Corrupt | Connected | Lost | Foreign
Deliver = Callable[[Arrival], None]


class Transport(Protocol):
    def connect(self, peer: NodeId) -> None:
        """Keep a connection to *peer* up until ``disconnect``."""
        ...

    def disconnect(self, peer: NodeId) -> None:
        """Stop sending to *peer*, unless it has connected here. Reports ``Lost`` if that ends the
        connection."""
        ...

    def send(self, peer: NodeId, message: Message, payload: Payload | None = None) -> bool:
        """False if there is no connection to *peer* now: the message is gone, and ``Lost`` is
        reported. True does not promise that it arrives, only that it arrives at most once, and in
        order. Raises Malformed beyond the limits of the wire (a path of more than 4,096 bytes, a
        batch of too many items)."""
        ...

    async def refuses(self, peer: NodeId) -> bool:
        """Whether the port of *peer* refuses connections, since its process has ended. False within
        a second otherwise, as for a stopped or cut-off node."""
        ...

    async def run(self, deliver: Deliver) -> None:
        """Deliver what arrives, one at a time, until ``close`` or cancelled. *deliver* may send,
        connect and disconnect; the consequences are delivered after it has returned. Its exceptions
        end ``run``."""
        ...

    def statistics(self) -> "TransportStats": ...
    def reset_statistics(self) -> None: ...

    def close(self) -> None:
        """End ``run`` and all connections without a report. May be called again, and without
        ``run``."""
        ...


@dataclass(slots=True)
class TransportStats:
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    malformed: int = 0
    """Frames that are no message of this version."""
    corrupt: int = 0
    strangers: int = 0
    """Handshakes with a key outside the roster, and messages in another node's name."""
    crowded: int = 0
    """Connections that were too many before they greeted."""
    unsendable: int = 0
    connections: int = 0
