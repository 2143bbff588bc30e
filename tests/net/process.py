"""Relay node as a process: passes requests up its tree and replies down.

``python -m tests.net.process`` reads its ``Spec`` as one line of JSON from standard input. It
prints ``listening``, and ``connected`` when its parent is. A line ``SIZE COUNT`` makes it request
an object of that size COUNT times, one after the other, and print the seconds of each as JSON. It
ends with its standard input.
"""

import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace

import trio

from copperfs.model.roster import Roster
from copperfs.model.types import NodeId, Path, Version
from copperfs.node.peer.messages import PART_BYTES, ContentKind, DataReply, Request
from copperfs.transport.interface import Arrival, Connected, Payload, ReceivedMessage
from copperfs.transport.zeromq import ZeroTransport
from copperfs.transport.zmq_sockets import SocketLimits
from copperfs.wire.payload import payload_of

ANY = Version(1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Spec:
    roster: str
    me: int
    descriptor: int
    parent: int | None = None
    secret_key: str | None = None
    heartbeat_s: float = 2.0
    silent_s: float = 10.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Relay:
    def __init__(self, transport: ZeroTransport, parent: NodeId | None) -> None:
        self.transport = transport
        self.parent = parent
        self.done = trio.Event()
        self._last = 0
        self._askers: dict[int, tuple[NodeId, int] | None] = {}
        """The peer and the number of each request; None for this node's own."""
        self._parts: dict[int, Payload] = {}

    def deliver(self, arrival: Arrival) -> None:
        match arrival:
            case Connected(peer) if peer == self.parent:
                print("connected", flush=True)
            case ReceivedMessage(peer, Request() as ask, _):
                if self.parent is None:
                    self._give(peer, ask)
                else:
                    self._pass_up(ask, (peer, ask.number))
            case ReceivedMessage(_, DataReply() as part, payload):
                asker = self._askers[part.number]
                if asker is not None:
                    self.transport.send(asker[0], replace(part, number=asker[1]), payload)
                if (part.index + 1) * PART_BYTES >= part.total_bytes:
                    del self._askers[part.number]
                    if asker is None:
                        self.done.set()

    def _pass_up(self, ask: Request, asker: tuple[NodeId, int] | None) -> None:
        assert self.parent is not None
        self._last += 1
        self._askers[self._last] = asker
        self.transport.send(self.parent, replace(ask, number=self._last))

    def _give(self, peer: NodeId, ask: Request) -> None:
        left = total = int(ask.path)
        index = 0
        while left > 0:
            size = min(left, PART_BYTES)
            # The digest is computed once, as where the source is read.
            if size not in self._parts:
                self._parts[size] = payload_of(os.urandom(size))
            part = DataReply(ask.number, ask.epoch, index, total)
            self.transport.send(peer, part, self._parts[size])
            left -= size
            index += 1

    async def measure(self, size: int, count: int) -> list[float]:
        taken = []
        for _ in range(count):
            self.done = trio.Event()
            began = time.perf_counter()
            self._pass_up(Request(0, 0, ContentKind.OBJECT, Path(b"%d" % size), ANY), None)
            await self.done.wait()
            taken.append(time.perf_counter() - began)
        return taken


async def main() -> None:
    commands = trio.lowlevel.FdStream(os.dup(0))
    lines = _lines(commands)
    spec = Spec(**json.loads(await anext(lines)))
    transport = ZeroTransport(
        Roster.from_json(spec.roster),
        NodeId(spec.me),
        secret_key=spec.secret_key,
        listener=socket.socket(fileno=spec.descriptor),
        limits=SocketLimits(heartbeat_s=spec.heartbeat_s, silent_s=spec.silent_s),
    )
    parent = None if spec.parent is None else NodeId(spec.parent)
    relay = Relay(transport, parent)
    if parent is not None:
        transport.connect(parent)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run, relay.deliver)
        print("listening", flush=True)
        async for line in lines:
            size, count = map(int, line.split())
            print(json.dumps(await relay.measure(size, count)), flush=True)
        nursery.cancel_scope.cancel()


async def _lines(stream: trio.lowlevel.FdStream) -> AsyncIterator[bytes]:
    rest = b""
    while data := await stream.receive_some():
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line


if __name__ == "__main__":
    trio.run(main)
    sys.exit()
