"""Peers: the driver's port to the network, over the transport.

Arrivals become events of the node. Payloads are lent to the blob table (``daemon_blobs.py``).
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import trio

from copperfs.daemon.daemon_blobs import DaemonBlobs
from copperfs.daemon.inode_comparison import Comparison
from copperfs.model.errors import MountError
from copperfs.model.types import NodeId
from copperfs.node.events import (
    ConnectionLost,
    ConnectionMade,
    Event,
    MessageCorrupt,
    MessageReceived,
    PeerDisagrees,
    Probed,
)
from copperfs.node.node import Node
from copperfs.node.peer.hello_exchange import Session
from copperfs.node.peer.messages import Batch, DataReply, Echo, EchoReply, Hello, Message, Offer
from copperfs.transport.interface import (
    Arrival,
    Connected,
    Corrupt,
    Foreign,
    Lost,
    ReceivedMessage,
    Transport,
)
from copperfs.wire.fields import Malformed
from copperfs.wire.payload import Payload
from copperfs.wire.wire_version import mismatch_sentence

log = logging.getLogger(__name__)

ECHO_WITHIN_S = 2.0
EMPTY = Payload(b"", b"")


@dataclass(slots=True)
class Peers:
    transport: Transport
    node: Node
    blobs: DaemonBlobs
    post: Callable[[Event], None]
    comparison: Comparison | None = None
    taken_bytes: int = 0
    """Bytes of listings and files from parents, without the messages around them."""
    given_bytes: int = 0
    _changed: trio.Event = field(default_factory=trio.Event)
    _echoes: dict[int, trio.Event] = field(default_factory=dict)
    _next_echo: int = 0
    _nursery: trio.Nursery | None = None

    @property
    def session(self) -> Session:
        assert self.node.session is not None, "a job of one has no peers"
        return self.node.session

    async def wait_in_touch(self) -> None:
        """Wait until this node can talk to every peer that it sends requests to. MountError if
        settings disagree."""
        while not self.node.is_in_touch():
            disagreeing = self.session.disagreeing
            wrong = [each for each in disagreeing if self.node.is_upstream(each)]
            if wrong:
                raise MountError(disagreeing[min(wrong)])
            await self._changed.wait()
        if self.comparison is not None:
            await self.comparison.wait()

    async def wait_disagreement(self) -> str:
        while not self.session.disagreeing:
            await self._changed.wait()
        return self.session.disagreeing[min(self.session.disagreeing)]

    async def wait_lost(self, peer: NodeId) -> None:
        session = self.session
        losses = session.losses[peer]
        while peer in session.connected and session.losses[peer] == losses:
            await self._changed.wait()

    async def round_trip(self, peer: NodeId) -> float | None:
        """Seconds until *peer* answered; None if it did not."""
        self._next_echo += 1
        number = self._next_echo
        self._echoes[number] = trio.Event()
        started = trio.current_time()
        try:
            if peer not in self.session.connected or not self.transport.send(peer, Echo(number)):
                return None
            with trio.move_on_after(ECHO_WITHIN_S):
                await self._echoes[number].wait()
                return trio.current_time() - started
            return None
        finally:
            del self._echoes[number]

    async def round_trips(self, peers: Collection[NodeId]) -> dict[NodeId, float | None]:
        found: dict[NodeId, float | None] = {}

        async def measure(peer: NodeId) -> None:
            found[peer] = await self.round_trip(peer)

        async with trio.open_nursery() as nursery:
            for each in peers:
                nursery.start_soon(measure, each)
        return found

    def reset_statistics(self) -> None:
        self.taken_bytes = self.given_bytes = 0
        self.transport.reset_statistics()

    def send(self, peer: NodeId, message: Message, payload: Payload | None) -> None:
        # If the send fails, the transport reports Lost, and the node chooses another peer.
        try:
            sent = self.transport.send(peer, message, payload)
        except Malformed:
            log.exception("a bug: no node would take this message to node %d", peer)
            return
        if sent and payload is not None:
            self.given_bytes += len(payload.data)

    def connect(self, peer: NodeId) -> None:
        self.transport.connect(peer)

    def disconnect(self, peer: NodeId) -> None:
        self.transport.disconnect(peer)

    def probe(self, peer: NodeId) -> None:
        assert self._nursery is not None, "peers are heard of while it runs"
        self._nursery.start_soon(self._probe, peer)

    async def _probe(self, peer: NodeId) -> None:
        self.post(Probed(peer, await self.transport.refuses(peer)))

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.comparison is not None:
                nursery.start_soon(self.comparison.run)
            nursery.start_soon(self.transport.run, self.arrived)

    def arrived(self, arrival: Arrival) -> None:
        """No message of a peer may end the daemon."""
        try:
            self._take(arrival)
        except Exception:
            log.exception("a bug: what node %d said could not be handled", arrival.peer)

    def _take(self, arrival: Arrival) -> None:
        match arrival:
            case Connected(peer):
                self._tell(ConnectionMade(peer))
            case Lost(peer):
                self._tell(ConnectionLost(peer))
            case Foreign(peer, version, release):
                me = f"this node, {self.session.me},"
                sentence = mismatch_sentence(f"node {peer}", version, release, me)
                self.post(PeerDisagrees(peer, sentence))
            case Corrupt(peer, message):
                log.info("node %d gave bytes that are not what their digest says", peer)
                self.post(MessageCorrupt(peer, message))
            case ReceivedMessage(peer, Hello() as hello, _):
                self._tell(MessageReceived(peer, hello))
            case ReceivedMessage(peer, message, payload):
                if peer in self.session.connected:
                    self._take_message(peer, message, payload)

    def _take_message(self, peer: NodeId, message: Message, payload: Payload | None) -> None:
        if payload is not None:
            self.taken_bytes += len(payload.data)
        if isinstance(message, DataReply | Offer | Batch):
            number = self.blobs.lend(payload or EMPTY)
            try:
                self.post(MessageReceived(peer, message, number))
            finally:
                self.blobs.take_back(number)
        elif isinstance(message, EchoReply):
            if message.number in self._echoes:
                self._echoes[message.number].set()
        else:
            self.post(MessageReceived(peer, message))

    def _tell(self, event: ConnectionMade | ConnectionLost | MessageReceived) -> None:
        self.post(event)
        self.changed()

    def changed(self) -> None:
        """A peer became reachable or unreachable, or this node has another parent."""
        self._changed.set()
        self._changed = trio.Event()
        if self.comparison is not None:
            self.comparison.wake()
