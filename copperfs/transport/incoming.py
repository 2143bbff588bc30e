"""Incoming connections: those that peers began, over one ROUTER and its monitor.

The ROUTER knows a connection by the routing id that it drew, its monitor by the descriptor. The
greeting carries both (``SRCFD``). A descriptor is reused as soon as its connection is closed, so
all pending events of the monitor are handled before a greeting is read.

The monitor often reports the end of a connection before the ROUTER has handed over its last
messages. So the link goes down only once the ROUTER was found empty, or has handed over as many
messages as it can hold.

ZeroMQ cannot end one connection of a ROUTER, so this module shuts down its descriptor.
"""

import logging
import socket
from dataclasses import dataclass, field
from typing import Protocol

import trio
import zmq

from copperfs.model.types import NodeId
from copperfs.transport import zmq_sockets as sockets
from copperfs.transport.descriptor_limits import Door, room_for
from copperfs.transport.endless_message_guard import Watch
from copperfs.transport.frames import Frames, send_frames
from copperfs.transport.interface import Payload, TransportStats
from copperfs.transport.socket_pump import Pump
from copperfs.wire.fields import Malformed
from copperfs.wire.greeting import Greeting, decode_greeting

logger = logging.getLogger(__name__)


class IncomingOwner(Protocol):
    me: NodeId
    stats: TransportStats

    def fault_in_greeting(self, greeting: Greeting, position: str | None) -> str | None:
        """The fault of a greeting, for the log; None if it is for this node, from the node it
        names."""
        ...

    def meet_foreign(self, greeting: Greeting, position: str | None) -> None: ...

    def greet(self, peer: NodeId, serial: int) -> bytes: ...
    def up(self, link: "Incoming") -> bool: ...
    def down(self, link: "Incoming") -> None: ...
    def receive(self, link: "Incoming", frames: Frames) -> int: ...
    def flush(self) -> None: ...


@dataclass(slots=True, eq=False)
class Incoming:
    peer: NodeId
    serial: int
    _router: "Router"
    _route: bytes
    _connection: "_Connection"
    alive: bool = True
    outgoing: bool = field(default=False, init=False)

    @property
    def watch(self) -> Watch:
        return self._connection.watch

    def transmit(self, header: bytes, payload: Payload | None) -> bool:
        return self.alive and self._router.send(self._route, header, payload)

    def cut(self) -> None:
        self.alive = False
        self._connection.shut_down()


@dataclass(slots=True, eq=False)
class _Connection:
    descriptor: int
    address: sockets.Address
    deadline: float
    """The deadline of its greeting."""
    route: bytes | None = None
    watch: Watch = field(default_factory=Watch)

    def shut_down(self) -> None:
        sockets.shut_down(self.descriptor, self.address)


def _said_of(frame: zmq.Frame, name: int | str) -> int | str | bytes | None:
    try:
        return frame.get(name)
    except zmq.ZMQError:
        return None


class Router:
    def __init__(
        self,
        router: "zmq.Socket[bytes]",
        owner: IncomingOwner,
        limits: sockets.SocketLimits,
        *,
        nodes: int,
        encrypted: bool,
    ) -> None:
        self._socket = router
        self._monitor = sockets.new_monitor(router, sockets.ROUTER_EVENTS)
        self._owner = owner
        self._limits = limits
        self._encrypted = encrypted
        self._frames = Frames(router)
        self._links: dict[bytes, Incoming | None] = {}
        """By routing id; None for a refused connection."""
        self._connections: dict[int, _Connection] = {}
        """By descriptor."""
        self._ungreeted: dict[int, _Connection] = {}
        """Connections that may still greet, the oldest first."""
        self._room = room_for(nodes, limits.descriptors)
        self._door: Door | None = None
        self._crowded = False
        self._ending: list[tuple[bytes, int]] = []
        """Closed ones, with the message count after which none of their messages is left."""
        self._taken = 0
        self._passes = 0
        self._pass_until = 0
        """At this message count it counts as drained, even if it was never found empty."""
        self._pump = Pump(router, self._take, self._found_empty)
        self._monitor_pump = Pump(self._monitor, self._take_event)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pump.run)
            nursery.start_soon(self._monitor_pump.run)
            nursery.start_soon(self._turn_out_the_silent)
            if self._door is not None:
                nursery.start_soon(self._door.run, self._limits.look_s)

    def listen(self, listener: socket.socket | str) -> None:
        other = sockets.listen(self._socket, listener)
        if other is not None:
            self._door = Door(other, self._shut_the_oldest, self._count_crowded)

    def close(self) -> None:
        if self._door is not None:
            self._door.close()
        sockets.close_watched(self._socket, self._monitor)

    def wake(self) -> None:
        """For tests."""
        self._pump.wake()
        self._monitor_pump.wake()

    def send(self, route: bytes, header: bytes, payload: Payload | None) -> bool:
        sent = send_frames(self._socket, route, header, payload)
        self._pump.touched()
        return sent

    # ---- messages

    def _take(self) -> int:
        route = self._frames.route()
        self._taken += 1
        if route not in self._links:
            size = self._take_greeting(route)
        elif (link := self._links[route]) is not None and link.alive:
            link.watch.taken += 1
            size = self._owner.receive(link, self._frames)
        else:
            size = self._frames.skip()
        if self._ending:
            self._end_those_up_to(self._taken)
        self._owner.flush()
        return size

    def _take_greeting(self, route: bytes) -> int:
        frame = self._frames.next_frame()
        surplus = self._frames.skip()
        size = len(frame) + surplus
        self._monitor_pump.drain()
        descriptor = _said_of(frame, zmq.SRCFD)
        if not isinstance(descriptor, int):
            # Peers of ZeroMQ's versions before 3 have no descriptor. Their deadline ends them.
            self._owner.stats.malformed += 1
            return size
        connection = self._connections.get(descriptor)
        if connection is None:
            return size  # gone again
        if connection.route is not None:
            # Its descriptor was reused, and the greeting was matched to the later connection.
            self._forget(connection.route)
        connection.route = route
        connection.watch.taken += 1
        self._ungreeted.pop(descriptor, None)
        try:
            if surplus:
                raise Malformed("more than a greeting")
            greeting = decode_greeting(frame.bytes)
        except Malformed as error:
            self._owner.stats.malformed += 1
            self._turn_away(connection, str(error))
            return size
        position = str(_said_of(frame, "User-Id")) if self._encrypted else None
        if greeting.is_foreign:
            self._refuse_foreign(connection, greeting, position)
            return size
        if (fault := self._owner.fault_in_greeting(greeting, position)) is not None:
            self._owner.stats.strangers += 1
            self._turn_away(connection, fault)
            return size
        link = Incoming(greeting.speaker, greeting.serial, self, route, connection)
        self._links[route] = link
        connection.deadline = float("inf")
        # The reply to the greeting must precede all messages sent once this link is up.
        answer = self._owner.greet(link.peer, greeting.serial)
        if not (self.send(route, answer, None) and self._owner.up(link)):
            link.cut()
        return size

    def _refuse_foreign(
        self, connection: _Connection, greeting: Greeting, position: str | None
    ) -> None:
        assert connection.route is not None
        self._links[connection.route] = None
        self._ungreeted[connection.descriptor] = connection
        self._owner.meet_foreign(greeting, position)
        self.send(connection.route, self._owner.greet(greeting.speaker, greeting.serial), None)

    def _turn_away(self, connection: _Connection, why: str) -> None:
        logger.info("turned away %s: %s", connection.address, why)
        assert connection.route is not None
        self._links[connection.route] = None
        connection.shut_down()

    def _found_empty(self) -> None:
        self._passes += 1
        if self._ending:
            self._end_those_up_to(None)
            self._owner.flush()

    # ---- connections

    def _take_event(self) -> int:
        event, value = sockets.receive_event(self._monitor)
        if event == sockets.ACCEPTED:
            address = sockets.remote_address(value)
            if address is not None:
                deadline = trio.current_time() + self._limits.handshake_s
                self._ungreeted.pop(value, None)
                self._ungreeted[value] = _Connection(value, address, deadline)
                self._connections[value] = self._ungreeted[value]
                if self._room.is_exceeded(len(self._ungreeted), value):
                    self._shut_the_oldest()
        elif event == sockets.DISCONNECTED:
            self._ungreeted.pop(value, None)
            connection = self._connections.pop(value, None)
            if connection is not None and connection.route is not None:
                self._forget(connection.route)
        elif event & sockets.REFUSED:
            self._owner.stats.strangers += 1
        return 0

    def _shut_the_oldest(self) -> bool:
        """False if there is none."""
        oldest = next(iter(self._ungreeted), None)
        if oldest is None:
            return False
        self._ungreeted.pop(oldest).shut_down()
        self._count_crowded()
        return True

    def _count_crowded(self) -> None:
        self._owner.stats.crowded += 1
        if not self._crowded:
            self._crowded = True
            logger.warning(
                "too many connections that do not greet: more than %d, or they take the "
                "descriptors that reading the source needs; the oldest is shut for each that "
                "comes (the statistics count them as crowded; this is said once)",
                self._room.ungreeted,
            )

    def _forget(self, route: bytes) -> None:
        """Its messages left in the ROUTER are still delivered."""
        self._ending.append((route, self._taken + self._kept_most()))
        self._pump.wake()

    def _kept_most(self) -> int:
        return (len(self._links) + 1) * (self._limits.untaken + 1)

    def cut_the_endless(self) -> int:
        """End those whose peers do not end a message; returns the number of all connections."""
        if self._taken >= self._pass_until:
            self._passes += 1
            self._pass_until = self._taken + self._kept_most()
        now = trio.current_time()
        for each in self._connections.values():
            read = sockets.read_bytes(each.descriptor)
            if read is not None and each.watch.is_endless(
                now, read, self._passes, self._limits.heartbeat_s
            ):
                self._owner.stats.malformed += 1
                logger.info("turned out %s: a message without end", each.address)
                each.shut_down()
            elif each.watch.suspected is not None:
                self._pump.wake()
        return len(self._connections)

    def _end_those_up_to(self, taken: int | None) -> None:
        """The ended links of which no message can be left after *taken* messages; None: all."""
        ending, self._ending = self._ending, []
        for route, last in ending:
            if taken is not None and taken < last:
                self._ending.append((route, last))
                continue
            link = self._links.pop(route, None)
            if link is not None:
                link.alive = False
                self._owner.down(link)

    async def _turn_out_the_silent(self) -> None:
        while True:
            await trio.sleep(self._limits.handshake_s / 2)
            now = trio.current_time()
            for connection in self._connections.values():
                if connection.deadline < now:
                    connection.deadline = float("inf")
                    self._ungreeted.pop(connection.descriptor, None)
                    logger.info("turned out %s: no greeting", connection.address)
                    connection.shut_down()
