"""Outgoing connections: those that this node began, each over a DEALER of its own.

A renewal gets a fresh DEALER, which would otherwise give the peer's successor what was sent before.
A connection is up once the peer has replied to the greeting: a stopped process still accepts, by
its backlog.
"""

import logging
from typing import Protocol

import trio
import zmq

from copperfs.model.types import NodeId
from copperfs.transport import zmq_sockets as sockets
from copperfs.transport.endless_message_guard import Watch
from copperfs.transport.frames import Frames, send_frames
from copperfs.transport.interface import Payload, TransportStats
from copperfs.transport.socket_pump import Pump
from copperfs.wire.fields import Malformed
from copperfs.wire.greeting import Greeting, decode_greeting

logger = logging.getLogger(__name__)


class OutgoingOwner(Protocol):
    me: NodeId
    stats: TransportStats

    def fault_in_greeting(self, greeting: Greeting, position: str | None) -> str | None: ...
    def meet_foreign(self, greeting: Greeting, position: str | None) -> None: ...
    def greet(self, peer: NodeId, serial: int) -> bytes: ...
    def up(self, link: "Outgoing") -> bool: ...
    def down(self, link: "Outgoing") -> None: ...
    def receive(self, link: "Outgoing", frames: Frames) -> int: ...
    def flush(self) -> None: ...
    def rouse(self) -> None: ...


class Outgoing:
    outgoing = True

    def __init__(
        self,
        peer: NodeId,
        serial: int,
        socket: "zmq.Socket[bytes]",
        endpoint: str,
        owner: OutgoingOwner,
        limits: sockets.SocketLimits,
    ) -> None:
        self.peer = peer
        self.serial = serial
        self.was_up = False
        self._alive = True
        self._socket = socket
        self._monitor = sockets.new_monitor(socket, sockets.DEALER_EVENTS)
        self._endpoint = endpoint
        self._owner = owner
        self._limits = limits
        self._frames = Frames(socket)
        self._pump = Pump(socket, self._take, self._found_empty)
        self._monitor_pump = Pump(self._monitor, self._take_event)
        self._scope = trio.CancelScope()
        self._descriptor: int | None = None
        self._watch = Watch()
        self._passes = 0

    async def run(self) -> None:
        try:
            with self._scope:
                self._scope.deadline = trio.current_time() + self._limits.handshake_s
                self._socket.connect(self._endpoint)
                send_frames(self._socket, None, self._owner.greet(self.peer, self.serial), None)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump.run)
                    nursery.start_soon(self._monitor_pump.run)
        finally:
            self._alive = False
            sockets.close_watched(self._socket, self._monitor)
            self._owner.down(self)
            self._owner.rouse()

    def wake(self) -> None:
        """For tests."""
        self._pump.wake()
        self._monitor_pump.wake()

    def transmit(self, header: bytes, payload: Payload | None) -> bool:
        if not self._alive:
            return False
        sent = send_frames(self._socket, None, header, payload)
        self._pump.touched()
        return sent

    def cut(self) -> None:
        self._alive = False
        self._scope.cancel()

    def _take(self) -> int:
        if not self._alive:
            raise zmq.Again
        receive = self._receive if self.was_up else self._take_greeting
        size = receive()
        self._watch.taken += 1
        self._owner.flush()
        return size

    def _found_empty(self) -> None:
        self._passes += 1

    def cut_if_endless(self) -> None:
        if not self._alive or self._descriptor is None:
            return
        read = sockets.read_bytes(self._descriptor)
        if read is not None and self._watch.is_endless(
            trio.current_time(), read, self._passes, self._limits.heartbeat_s
        ):
            self._owner.stats.malformed += 1
            logger.info("left node %d: a message without end", self.peer)
            self.cut()
        elif self._watch.suspected is not None:
            self._pump.wake()

    def _receive(self) -> int:
        return self._owner.receive(self, self._frames)

    def _take_greeting(self) -> int:
        frame = self._frames.next()
        size = len(frame) + self._frames.skip()
        fault: str | None
        try:
            greeting = decode_greeting(frame)
        except Malformed as error:
            self._owner.stats.malformed += 1
            fault = str(error)
        else:
            if greeting.is_foreign:
                self._owner.meet_foreign(greeting, str(self.peer))
                self.cut()
                return size
            fault = self._owner.fault_in_greeting(greeting, str(self.peer))
            self._owner.stats.strangers += fault is not None
        if fault is None:
            self.was_up = True
            self._scope.deadline = float("inf")
            self._owner.up(self)
        else:
            self.cut()
        return size

    def _take_event(self) -> int:
        event, value = sockets.receive_event(self._monitor)
        if event == sockets.CONNECTED:
            self._descriptor = value
            return 0
        # All other events mean the end. Messages that came before it are delivered before it.
        self._pump.drain()
        self.cut()
        return 0
