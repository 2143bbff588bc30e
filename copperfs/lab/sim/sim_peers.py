"""Peers: the driver's port to the network, on top of the node's simulated transport.

What arrives becomes an event of the node, with its pieces lent to the blob table
(``sim_blobs.py``).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.lab.sim.payload_pieces import EMPTY, Piece, size_of
from copperfs.lab.sim.sim_blobs import SimulatedBlobs
from copperfs.lab.sim.sim_connection import End
from copperfs.lab.sim.sim_transport import Port
from copperfs.model.types import NodeId
from copperfs.node.events import (
    ConnectionLost,
    ConnectionMade,
    Event,
    MessageCorrupt,
    MessageReceived,
    Probed,
)
from copperfs.node.node import Node
from copperfs.node.peer.flow_control import WINDOW_BYTES
from copperfs.node.peer.hello_exchange import Agreement, Session
from copperfs.node.peer.messages import (
    Batch,
    Credit,
    DataReply,
    Hello,
    Message,
    Offer,
)
from copperfs.wire.codec import PAYLOAD_BYTES_MAX

AGREEMENT = Agreement("simulated", b"agreed")


@dataclass(slots=True, repr=False)
class SimulatedPeers:
    node: Node
    blobs: SimulatedBlobs
    post: Callable[[Event], None]
    port: Port = field(init=False)
    met: set[NodeId] = field(default_factory=set)
    """Peers that it was ever connected to."""
    taken_bytes: int = 0
    """Payload bytes, wanted or not."""
    given_bytes: Counter[NodeId] = field(default_factory=Counter)
    """Bytes sent, and not yet credited."""
    _given_over: dict[NodeId, End | None] = field(default_factory=dict)
    """The connection over which they were sent."""
    _given_before_bytes: Counter[NodeId] = field(default_factory=Counter)
    """Bytes sent over that connection before the credit began anew on it. Where hellos of two
    connections cross, the peer takes these in after its own credit began anew, and credits them."""

    def __post_init__(self) -> None:
        self.session.agreement = AGREEMENT
        self.node.attach(self.blobs)

    @property
    def session(self) -> Session:
        assert self.node.session is not None, "a simulated node has peers"
        return self.node.session

    # --- out -------------------------------------------------------------------------------------

    def send(self, peer: NodeId, message: Message, payload: tuple[Piece, ...] | None) -> None:
        if payload is None:
            self.port.send(peer, message)
        elif self.port.send(peer, message, payload):
            given = self.given_bytes[peer] + size_of(payload)
            self.given_bytes[peer] = given
            self._given_over[peer] = self.port.links.current(peer)
            assert given <= WINDOW_BYTES + PAYLOAD_BYTES_MAX

    def connect(self, peer: NodeId) -> None:
        self.port.connect(peer)

    def disconnect(self, peer: NodeId) -> None:
        self.port.disconnect(peer)

    def probe(self, peer: NodeId) -> None:
        self.port.probe(peer, lambda refused: self.post(Probed(peer, refused)))

    # --- in --------------------------------------------------------------------------------------

    def connected(self, peer: NodeId) -> None:
        self.post(ConnectionMade(peer))

    def lost(self, peer: NodeId) -> None:
        self.post(ConnectionLost(peer))

    def corrupt(self, peer: NodeId, message: Message) -> None:
        self.post(MessageCorrupt(peer, message))

    def received(self, peer: NodeId, message: Message, pieces: tuple[Piece, ...]) -> None:
        is_connected = peer in self.session.connected
        if isinstance(message, Hello):
            if not (is_connected and message.is_answer):
                self._begin_credit_anew(peer)
            self.met.add(peer)
            self.post(MessageReceived(peer, message))
            return
        if not is_connected:
            return  # it has not said hello
        if pieces:
            self.taken_bytes += size_of(pieces)
        if isinstance(message, DataReply | Offer | Batch):
            number = self.blobs.lend(pieces or EMPTY.alone)
            self.post(MessageReceived(peer, message, number))
            self.blobs.take_back(number)
        else:
            if isinstance(message, Credit):
                self._credited(peer, message.count_bytes)
            self.post(MessageReceived(peer, message))

    def _begin_credit_anew(self, peer: NodeId) -> None:
        if self._given_over.get(peer) is self.port.links.current(peer):
            self._given_before_bytes[peer] += self.given_bytes[peer]
        else:
            self._given_before_bytes[peer] = 0
        self.given_bytes[peer] = 0

    def _credited(self, peer: NodeId, count_bytes: int) -> None:
        given = self.given_bytes[peer] - count_bytes
        if given < 0:
            self._given_before_bytes[peer] += given
            assert self._given_before_bytes[peer] >= 0
        self.given_bytes[peer] = max(0, given)
