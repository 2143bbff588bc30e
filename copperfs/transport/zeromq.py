"""ZeroMQ transport: the transport interface over ZeroMQ sockets.

docs/architecture.md has the parts, between nodes. Invariants:

- All of it runs in trio's thread. ZeroMQ has one thread of its own for I/O, and pyzmq one for the
  whole process that releases buffers sent without copying.
- No send blocks. ZeroMQ takes or refuses a message at once. A peer with more than
``SocketLimits.unread``
  messages waiting counts as lost: its connection is cut, which frees the messages.
- The greeting settles which node a connection belongs to. With CURVE ZeroMQ itself vouches for the
  key, and with it for the position in the roster. A node that speaks in another's name is cut off.
- Without CURVE a peer is believed. That is for networks that no one else can reach.
"""

import logging
import random
import socket
import time
from dataclasses import replace

import trio
import zmq

from copperfs.model.roster import BadRoster, Roster
from copperfs.model.types import NodeId
from copperfs.node.peer.connection_choice import ConnectionChoice
from copperfs.node.peer.messages import Hello, Message
from copperfs.transport import zmq_sockets as sockets
from copperfs.transport.admission import Admission
from copperfs.transport.arrival_queue import ArrivalQueue
from copperfs.transport.frames import Frames
from copperfs.transport.incoming import Incoming, Router
from copperfs.transport.interface import (
    Connected,
    Corrupt,
    Deliver,
    Foreign,
    Lost,
    Payload,
    ReceivedMessage,
    TransportStats,
)
from copperfs.transport.outgoing import Outgoing
from copperfs.transport.resolver import Resolver
from copperfs.transport.socket_pump import Pump
from copperfs.transport.zmq_sockets import SocketLimits
from copperfs.wire.codec import CorruptPayload, check_payload, decode_header, encode_frames
from copperfs.wire.fields import Malformed
from copperfs.wire.greeting import Greeting, encode_greeting, job_digest
from copperfs.wire.payload import size_of

logger = logging.getLogger(__name__)

Link = Incoming | Outgoing

JITTER = 0.25
"""Orphans of one peer must not reconnect in step."""


class ZeroTransport:
    """It listens at once, and receives from ``run`` on.

    *listener* is a bound and listening TCP socket, which is taken over, or an address to bind;
    without one, the node's endpoint in the roster. *secret_key* (z85) is given exactly if the
    roster has keys.
    """

    def __init__(
        self,
        roster: Roster,
        me: NodeId,
        *,
        secret_key: str | None = None,
        listener: socket.socket | str | None = None,
        limits: SocketLimits | None = None,
    ) -> None:
        _check_keys(roster, me, secret_key)
        self.me = me
        self.stats = TransportStats()
        self._roster = roster
        self._job = job_digest(roster)
        self._secret_key = secret_key
        self._limits = limits or SocketLimits()
        self._arrivals = ArrivalQueue()
        self._links = ConnectionChoice[Link](
            lambda peer: self._arrivals.put(Connected(peer)),
            lambda peer: self._arrivals.put(Lost(peer)),
            lambda link: link.cut(),
        )
        self._names = Resolver()
        self._wanted: dict[NodeId, trio.CancelScope | None] = {}
        """With the scope of the task that keeps the connection, once it runs."""
        self._begun: dict[NodeId, Outgoing] = {}
        self._nursery: trio.Nursery | None = None
        self._last_serial = 0
        self._closed = False
        self._context = sockets.new_context()
        try:
            self._admission = None
            if secret_key is not None:
                self._admission = Admission(self._context, roster)
            router = sockets.new_router(self._context, self._limits, secret_key)
            self._router = Router(
                router, self, self._limits, nodes=len(roster), encrypted=secret_key is not None
            )
            self._router.listen(listener or roster.member(me).endpoint)
            self.endpoint = sockets.endpoint_of(router)
        except BaseException:
            self._context.destroy(0)
            raise
        if secret_key is None:
            logger.info(
                "no security: whoever reaches %s is believed to be who it says", self.endpoint
            )

    # ---- the interface

    def connect(self, peer: NodeId) -> None:
        assert peer != self.me
        if peer not in self._wanted:
            self._wanted[peer] = None
            if self._nursery is not None:
                self._nursery.start_soon(self._keep, peer)

    def disconnect(self, peer: NodeId) -> None:
        scope = self._wanted.pop(peer, None)
        if scope is not None:
            scope.cancel()
        link = self._begun.pop(peer, None)
        if link is not None:
            self._give_up(link)

    def send(self, peer: NodeId, message: Message, payload: Payload | None = None) -> bool:
        header, payload = encode_frames(message, payload)
        link = None if self._closed else self._links.current(peer)
        while link is not None and not link.transmit(header, payload):
            # Another link of this peer may exist.
            self._give_up(link)
            link = self._links.current(peer)
        if link is None:
            self.stats.unsendable += 1
            return False
        self.stats.sent += 1
        self.stats.sent_bytes += len(header)
        if payload is not None:
            self.stats.sent_bytes += size_of(payload.data)
        return True

    async def refuses(self, peer: NodeId) -> bool:
        known = self._names.known(self._roster.member(peer).endpoint)
        with trio.move_on_after(sockets.REFUSED_WITHIN_S):
            return bool(known) and all([await sockets.is_refused(each) for each in known])
        return False

    async def run(self, deliver: Deliver) -> None:
        assert self._nursery is None
        if self._closed:
            return
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._arrivals.run, deliver)
                nursery.start_soon(self._router.run)
                nursery.start_soon(self._cut_endless)
                if self._admission is not None:
                    pump = Pump(self._admission.socket, self._admission.take)
                    nursery.start_soon(pump.run)
                for peer in self._wanted:
                    nursery.start_soon(self._keep, peer)
        finally:
            self._nursery = None
            self._closed = True
            self._destroy()

    async def _cut_endless(self) -> None:
        connections = 0
        while True:
            await trio.sleep(self._limits.look_s + connections / 1000)
            connections = self._router.cut_the_endless() + len(self._begun)
            for link in self._begun.values():
                link.cut_if_endless()

    def _give_up(self, link: Link) -> None:
        self._links.down(link)
        link.cut()
        self._arrivals.wake()

    def statistics(self) -> TransportStats:
        self.stats.connections = len(self._links)
        return self.stats

    def reset_statistics(self) -> None:
        self.stats = TransportStats()

    def close(self) -> None:
        self._closed = True
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
        else:
            self._destroy()

    def wake(self) -> None:
        """For tests."""
        self._router.wake()
        for link in self._begun.values():
            link.wake()

    def _destroy(self) -> None:
        # A context left to the garbage collector waits there for its sockets.
        self._router.close()
        if not self._context.closed:
            self._context.destroy(0)

    # ---- connections that this node keeps

    async def _keep(self, peer: NodeId) -> None:
        with trio.CancelScope() as scope:
            if self._wanted.get(peer, scope) is not None:
                return  # not wanted any more, or kept already
            self._wanted[peer] = scope
            pause_s = 0.0
            member = self._roster.member(peer)
            assert self._nursery is not None, "this is one of its tasks"
            while True:
                began = trio.current_time()
                try:
                    endpoint = await self._names.find(member.endpoint, self._nursery)
                    if endpoint is not None:
                        link = self._begun[peer] = self._new_link(peer, endpoint)
                        await link.run()
                        if not link.was_up:
                            self._names.failed(member.endpoint, endpoint)
                except zmq.ZMQError as error:
                    logger.warning("no connection to node %d can be begun: %s", peer, error)
                if trio.current_time() - began > self._limits.backoff_last_s:
                    pause_s = 0.0
                await trio.sleep(pause_s * random.uniform(1 - JITTER, 1 + JITTER))
                pause_s = min(
                    max(2 * pause_s, self._limits.backoff_first_s), self._limits.backoff_last_s
                )

    def _new_link(self, peer: NodeId, endpoint: str) -> Outgoing:
        """With an address in the *endpoint*."""
        member = replace(self._roster.member(peer), endpoint=endpoint)
        dealer = sockets.new_dealer(self._context, self._limits, self._secret_key, member)
        self._last_serial = max(self._last_serial + 1, time.time_ns())
        return Outgoing(peer, self._last_serial, dealer, endpoint, self, self._limits)

    # ---- for the links

    def greet(self, peer: NodeId, serial: int) -> bytes:
        return encode_greeting(Greeting(self._job, self.me, peer, serial))

    def fault_in_greeting(self, greeting: Greeting, position: str | None) -> str | None:
        if greeting.job != self._job:
            return "a node of another job"
        if greeting.listener != self.me or greeting.speaker == self.me:
            return f"looks for node {greeting.listener}"
        if greeting.speaker >= len(self._roster):
            return f"there is no node {greeting.speaker}"
        if self._secret_key is not None and position not in (None, str(greeting.speaker)):
            return f"node {position} in the name of node {greeting.speaker}"
        return None

    def meet_foreign(self, greeting: Greeting, position: str | None) -> None:
        self.stats.strangers += 1
        if position is not None and position.isdecimal():
            peer = NodeId(int(position))
        elif greeting.job == self._job:
            peer = greeting.speaker
        else:
            return  # it cannot be told, and may be of another job
        if peer < len(self._roster) and peer != self.me:
            self._arrivals.put(Foreign(peer, greeting.version, greeting.release))

    def up(self, link: Link) -> bool:
        return self._links.up(link)

    def down(self, link: Link) -> None:
        self._links.down(link)

    def flush(self) -> None:
        self._arrivals.deliver_all()

    def rouse(self) -> None:
        self._arrivals.wake()

    def receive(self, link: Incoming | Outgoing, frames: Frames) -> int:
        """Returns the message's size in bytes; zmq.Again if there is none."""
        first = frames.next()
        size = len(first)
        try:
            envelope = decode_header(first)
            data = None
            if frames.more:
                data = frames.next_payload(envelope.payload_bytes)
                size += size_of(data)
                if frames.more:
                    raise Malformed("more than two frames")
            payload = check_payload(envelope, data)
            if isinstance(envelope.message, Hello) and envelope.message.node != link.peer:
                return self._cut_impostor(link, envelope.message.node, size)
            arrival: ReceivedMessage | Corrupt = ReceivedMessage(
                link.peer, envelope.message, payload
            )
        except CorruptPayload as error:
            self.stats.corrupt += 1
            logger.info("a payload from node %d was damaged on the way", link.peer)
            arrival = Corrupt(link.peer, error.message)
        except Malformed as error:
            size += frames.skip()
            self.stats.malformed += 1
            logger.info("dropped what node %d sent: %s", link.peer, error)
            return size
        if self._links.hears(link):
            self.stats.received += 1
            self.stats.received_bytes += size
            self._arrivals.put(arrival)
        return size

    def _cut_impostor(self, link: Link, claimed: NodeId, size: int) -> int:
        self.stats.strangers += 1
        logger.info("node %d spoke in the name of node %d", link.peer, claimed)
        self._give_up(link)
        return size


def _check_keys(roster: Roster, me: NodeId, secret_key: str | None) -> None:
    """Raise BadRoster unless all nodes use keys or none does, and the secret key is this node's."""
    public_key = roster.member(me).public_key
    if secret_key is None:
        if public_key:
            raise BadRoster("the roster has keys and this node has none: launch the job again")
        return
    try:
        derived = zmq.curve_public(secret_key.encode()).decode()
    except (zmq.ZMQError, ValueError) as error:
        raise BadRoster(f"this node's key is none ({error}): launch the job again") from None
    if derived != public_key:
        raise BadRoster(f"the key of node {me} is not the one in the roster: launch the job again")
