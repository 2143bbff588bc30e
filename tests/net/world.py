"""Test nodes: their transports, the messages each received, and waiting for them.

``ZeroWorld`` runs them over ZeroMQ on loopback, ``MemoryWorld`` over the in-process fake. A test
waits for a message, and fails at a generous deadline.
"""

import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ParamSpec, Protocol, TypeVar

import trio
import zmq

from copperfs.model.roster import Member, Roster
from copperfs.model.types import NodeId, Path, Version
from copperfs.node.peer.messages import ContentKind, DataReply, Message, Request
from copperfs.transport.interface import (
    Arrival,
    Connected,
    Lost,
    Payload,
    ReceivedMessage,
    Transport,
)
from copperfs.transport.zeromq import ZeroTransport
from copperfs.transport.zmq_sockets import SocketLimits
from copperfs.wire.payload import payload_of
from tests.net.memory_network import MemoryNetwork

ANY = Version(1, 2, 3, 4)


DEADLINE_S = 60.0
LIMITS = SocketLimits(backoff_first_s=0.01, backoff_last_s=0.1)

P = ParamSpec("P")
T = TypeVar("T")


def trio_test(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            with trio.fail_after(DEADLINE_S):
                await test(*args, **kwargs)

        trio.run(main)

    return run


def ask(number: int, path: bytes = b"etc/hosts") -> Request:
    return Request(number, 0, ContentKind.OBJECT, Path(path), ANY)


def part(number: int, data: bytes | memoryview) -> tuple[DataReply, Payload]:
    return DataReply(number, 0, 0, len(data)), payload_of(data)


class Node:
    def __init__(self, node: NodeId, transport: Transport) -> None:
        self.id = node
        self.transport = transport
        self.heard: list[Arrival] = []
        self.answer: Callable[[Arrival], None] | None = None
        """Called during the delivery of each arrival."""
        self.ended = trio.Event()
        self._changed = trio.Event()

    def deliver(self, arrival: Arrival) -> None:
        self.heard.append(arrival)
        if self.answer is not None:
            self.answer(arrival)
        self._changed.set()

    async def until(self, holds: Callable[[], T]) -> T:
        while not (value := holds()):
            self._changed = trio.Event()
            await self._changed.wait()
        return value

    async def hears(self, arrival: Arrival, times: int = 1) -> None:
        await self.until(lambda: self.heard.count(arrival) >= times)

    def received(self, peer: "Node | None" = None) -> list[Message]:
        return [
            arrival.message
            for arrival in self.heard
            if isinstance(arrival, ReceivedMessage) and (peer is None or arrival.peer == peer.id)
        ]

    def said_of(self, peer: "Node") -> list[Arrival]:
        return [
            arrival
            for arrival in self.heard
            if isinstance(arrival, Connected | Lost) and arrival.peer == peer.id
        ]

    async def run(self) -> None:
        try:
            await self.transport.run(self.deliver)
        finally:
            self.ended.set()

    async def stop(self) -> None:
        self.transport.close()
        await self.ended.wait()

    def send(self, peer: "Node", message: Message, payload: Payload | None = None) -> bool:
        return self.transport.send(peer.id, message, payload)


async def meet(caller: Node, called: Node) -> None:
    """Connect them. Each end learns of the connection by itself, so both are waited for."""
    caller.transport.connect(called.id)
    await caller.hears(Connected(called.id))
    await called.hears(Connected(caller.id))


class World(Protocol):
    async def start(self, node: int) -> Node: ...


MakeWorld = Callable[[int], AbstractAsyncContextManager[World]]


class MemoryWorld:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.network = MemoryNetwork()
        self._nursery = nursery

    async def start(self, node: int) -> Node:
        started = Node(NodeId(node), self.network.transport(NodeId(node)))
        self._nursery.start_soon(started.run)
        return started


class ZeroWorld:
    """Each with a place in the roster and a reserved port, silent until its start."""

    def __init__(
        self,
        nursery: trio.Nursery,
        count: int,
        *,
        curve: bool = False,
        limits: SocketLimits = LIMITS,
    ) -> None:
        self._nursery = nursery
        self._limits = limits
        self._ports = [_bound(0) for _ in range(count)]
        self._numbers = [port.getsockname()[1] for port in self._ports]
        keys = [zmq.curve_keypair() if curve else None for _ in range(count)]
        self.secret_keys = [None if pair is None else pair[1].decode() for pair in keys]
        self.roster = Roster(
            "test",
            tuple(
                Member(
                    f"node{i}",
                    f"tcp://127.0.0.1:{number}",
                    "" if pair is None else pair[0].decode(),
                )
                for i, (number, pair) in enumerate(zip(self._numbers, keys, strict=True))
            ),
        )
        self.roster.check()

    def listener(self, node: int) -> socket.socket:
        port = self._ports[node]
        if port.fileno() < 0:
            port = _bound(self._numbers[node])
        port.listen(128)
        return port

    def transport(self, node: int, limits: SocketLimits | None = None) -> ZeroTransport:
        return ZeroTransport(
            self.roster,
            NodeId(node),
            secret_key=self.secret_keys[node],
            listener=self.listener(node),
            limits=limits or self._limits,
        )

    async def start(self, node: int, limits: SocketLimits | None = None) -> Node:
        started = Node(NodeId(node), self.transport(node, limits))
        self._nursery.start_soon(started.run)
        return started

    def close(self) -> None:
        for port in self._ports:
            port.close()


def _bound(number: int) -> socket.socket:
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", number))
    return port


@asynccontextmanager
async def memory_world(count: int) -> AsyncIterator[MemoryWorld]:
    async with trio.open_nursery() as nursery:
        yield MemoryWorld(nursery)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def zero_world(
    count: int, *, curve: bool = False, limits: SocketLimits = LIMITS
) -> AsyncIterator[ZeroWorld]:
    async with trio.open_nursery() as nursery:
        world = ZeroWorld(nursery, count, curve=curve, limits=limits)
        try:
            yield world
        finally:
            nursery.cancel_scope.cancel()
            world.close()
