"""In-process transport: connects nodes within one process.

Its network injects faults, but never reorders or duplicates what one peer sends to another, since
no transport may. Messages pass through the codec, so what cannot be sent for real cannot be sent
here.
"""

from collections import deque

import trio

from copperfs.model.types import NodeId
from copperfs.node.peer.messages import Message
from copperfs.transport.interface import (
    Arrival,
    Connected,
    Corrupt,
    Deliver,
    Lost,
    Payload,
    ReceivedMessage,
    TransportStats,
)
from copperfs.wire.codec import CorruptPayload, decode, encode
from copperfs.wire.payload import size_of

Pair = frozenset[NodeId]

TURN = 64
"""Arrivals between two checkpoints."""


def _pair(one: NodeId, other: NodeId) -> Pair:
    return frozenset((one, other))


class MemoryNetwork:
    def __init__(self) -> None:
        self._running: dict[NodeId, MemoryTransport] = {}
        self._up: set[Pair] = set()
        self._severed: set[Pair] = set()
        self._damaged: set[tuple[NodeId, NodeId]] = set()

    def transport(self, me: NodeId) -> "MemoryTransport":
        """A second one is the node restarted."""
        return MemoryTransport(self, me)

    def sever(self, one: NodeId, other: NodeId) -> None:
        self._severed.add(_pair(one, other))
        self._take_down(_pair(one, other))

    def heal(self, one: NodeId, other: NodeId) -> None:
        self._severed.discard(_pair(one, other))
        self._settle()

    def break_connection(self, one: NodeId, other: NodeId) -> None:
        """As a restarting router does; the connection is renewed at once if either keeps it."""
        self._take_down(_pair(one, other))
        self._settle()

    def damage_next(self, sender: NodeId, receiver: NodeId) -> None:
        self._damaged.add((sender, receiver))

    # ---- for the transports

    def start(self, transport: "MemoryTransport") -> None:
        assert transport.me not in self._running, "this node runs already"
        self._running[transport.me] = transport
        self._settle()

    def stop(self, transport: "MemoryTransport") -> None:
        if self._running.get(transport.me) is transport:
            del self._running[transport.me]
            self._settle()

    def changed(self) -> None:
        self._settle()

    def is_up(self, one: NodeId, other: NodeId) -> bool:
        return _pair(one, other) in self._up

    def refuses(self, one: NodeId, other: NodeId) -> bool:
        return other not in self._running and _pair(one, other) not in self._severed

    def connections(self, me: NodeId) -> int:
        return sum(me in pair for pair in self._up)

    def pass_on(
        self, sender: NodeId, receiver: NodeId, header: bytes, payload: Payload | None
    ) -> None:
        data = None if payload is None else payload.data
        if data and (sender, receiver) in self._damaged:
            self._damaged.discard((sender, receiver))
            data = bytes((data[0] ^ 1,)) + bytes(data[1:])
        transport = self._running[receiver]
        frames = [header] if data is None else [header, data]
        try:
            message, received = decode(frames)
        except CorruptPayload as error:
            transport.stats.corrupt += 1
            transport.put(Corrupt(sender, error.message))
            return
        transport.stats.received += 1
        transport.stats.received_bytes += sum(map(size_of, frames))
        transport.put(ReceivedMessage(sender, message, received))

    def _settle(self) -> None:
        due = {
            _pair(transport.me, peer)
            for transport in self._running.values()
            for peer in transport.wanted
            if peer in self._running
        } - self._severed
        for pair in self._up - due:
            self._take_down(pair)
        for pair in due - self._up:
            self._up.add(pair)
            self._tell(pair, Connected)

    def _take_down(self, pair: Pair) -> None:
        if pair in self._up:
            self._up.discard(pair)
            self._tell(pair, Lost)

    def _tell(self, pair: Pair, what: type[Connected] | type[Lost]) -> None:
        one, other = sorted(pair)
        for me, peer in ((one, other), (other, one)):
            if me in self._running:
                self._running[me].put(what(peer))


class MemoryTransport:
    def __init__(self, network: MemoryNetwork, me: NodeId) -> None:
        self.me = me
        self.wanted: set[NodeId] = set()
        self.stats = TransportStats()
        self._network = network
        self._inbox: deque[Arrival] = deque()
        self._filled = trio.Event()
        self._closed = False

    def connect(self, peer: NodeId) -> None:
        assert peer != self.me
        self.wanted.add(peer)
        self._network.changed()

    def disconnect(self, peer: NodeId) -> None:
        self.wanted.discard(peer)
        self._network.changed()

    def send(self, peer: NodeId, message: Message, payload: Payload | None = None) -> bool:
        header = encode(message, payload)
        if self._closed or not self._network.is_up(self.me, peer):
            self.stats.unsendable += 1
            return False
        self.stats.sent += 1
        self.stats.sent_bytes += len(header) + (size_of(payload.data) if payload else 0)
        self._network.pass_on(self.me, peer, header, payload)
        return True

    async def refuses(self, peer: NodeId) -> bool:
        await trio.lowlevel.checkpoint()
        return self._network.refuses(self.me, peer)

    async def run(self, deliver: Deliver) -> None:
        if self._closed:
            return
        self._network.start(self)
        try:
            while not self._closed:
                for _ in range(min(len(self._inbox), TURN)):
                    deliver(self._inbox.popleft())
                if self._inbox:
                    await trio.lowlevel.checkpoint()
                else:
                    self._filled = trio.Event()
                    await self._filled.wait()
        finally:
            self.close()

    def statistics(self) -> TransportStats:
        self.stats.connections = self._network.connections(self.me)
        return self.stats

    def reset_statistics(self) -> None:
        self.stats = TransportStats()

    def close(self) -> None:
        self._closed = True
        self._inbox.clear()
        self._filled.set()
        self._network.stop(self)

    def put(self, arrival: Arrival) -> None:
        self._inbox.append(arrival)
        self._filled.set()
