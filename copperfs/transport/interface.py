"""Transport interface: sends messages to the other nodes and delivers what arrives; decides
nothing.

A node is reached through a *connection*. This node keeps one to each peer for which ``connect`` was
called (its parents); it replies to peers that connected here (its children) over theirs. ``send``
never blocks: the node's credit limits how much is under way, not a socket's high-water mark.

``zeromq.py`` implements it. The tests have an implementation within one process; one contract suite
checks both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from copperfs.model.types import NodeId
from copperfs.node.peer.messages import Message
from copperfs.wire.payload import Payload as Payload


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A well-formed message, from the peer that it claims to be from. The payload's bytes are valid
    while a reference to ``data`` exists. Do not keep it for long: it pins a frame."""

    peer: NodeId
    message: Message
    payload: Payload | None


@dataclass(frozen=True, slots=True)
class Corrupt:
    """The message is whole, but its payload does not match its digest."""

    peer: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Connected:
    """Messages pass: a handshake succeeded, in either direction. Reported again when a connection
    was renewed: what was under way before is lost."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Lost:
    """No connection to this peer is left."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Foreign:
    """A node of the job greeted that runs another version of the program: no message passes.
    Reported each time that it greets."""

    peer: NodeId
    version: int
    """The wire version."""
    release: str
    """Empty if the greeting has none."""


Arrival = ReceivedMessage | Corrupt | Connected | Lost | Foreign
Deliver = Callable[[Arrival], None]


class Transport(Protocol):
    def connect(self, peer: NodeId) -> None:
        """Keep a connection to *peer*, and renew it when it breaks, until ``disconnect``."""
        ...

    def disconnect(self, peer: NodeId) -> None:
        """Stop sending to *peer*, unless it has connected here. ``Lost`` is reported if it was
        connected and is not now."""
        ...

    def send(self, peer: NodeId, message: Message, payload: Payload | None = None) -> bool:
        """False if there is no connection to *peer* now: the message is gone, and ``Lost`` was or
        will be reported. True does not promise that it arrives, only that it arrives at most once,
        and in order. Raises Malformed for a message beyond the limits of the wire (a path of more
        than 4,096 bytes, a batch of too many items), which no node would accept."""
        ...

    async def refuses(self, peer: NodeId) -> bool:
        """Whether the port of *peer* refuses connections, which shows that its process has ended.
        False within a second if that cannot be told: a node that is stopped or cut off does not
        refuse."""
        ...

    async def run(self, deliver: Deliver) -> None:
        """Deliver what arrives, one at a time, until ``close`` or cancelled. *deliver* may send,
        connect and disconnect; what that causes is delivered after it has returned. An exception of
        *deliver* ends ``run``."""
        ...

    def statistics(self) -> "TransportStats": ...
    def reset_statistics(self) -> None: ...

    def close(self) -> None:
        """End ``run``, and all connections with it, without reporting them. May be called again,
        and without ``run``."""
        ...


@dataclass(slots=True)
class TransportStats:
    """What passed, and what was refused."""

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    malformed: int = 0
    """Frames that are no message of this version; dropped."""
    corrupt: int = 0
    strangers: int = 0
    """Handshakes with a key outside the roster, and messages in another node's name."""
    crowded: int = 0
    """Connections shut before they greeted, because there were too many."""
    unsendable: int = 0
    """Messages for which there was no connection."""
    connections: int = 0
