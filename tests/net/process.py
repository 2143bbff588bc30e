"""One node as a process of its own: passes requests up its tree and answers down, and no more.

``python -m tests.net.process`` reads its ``Spec`` as one line of JSON from standard input, says
``listening``, and ``connected`` when its parent is. Each further line ``SIZE COUNT`` has it ask for
an object of that size so often, one after the other, and print the seconds of each as JSON. It ends
when its standard input does.
"""

import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace

import trio

from copperfs.core.messages import PART_BYTES, Ask, GivePart, What
from copperfs.net.sockets import Limits
from copperfs.net.transport import Arrival, Connected, Payload, Received
from copperfs.net.zeromq import ZeroTransport
from copperfs.roster import Roster
from copperfs.types import NodeId, Path, Version
from copperfs.wire.payload import payload_of

ANY = Version(1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Spec:
    roster: str
    me: int
    descriptor: int
    """Of the listening socket, inherited."""
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
        """Who asked this node, and by which number; None: itself."""
        self._parts: dict[int, Payload] = {}

    def deliver(self, arrival: Arrival) -> None:
        match arrival:
            case Connected(peer) if peer == self.parent:
                print("connected", flush=True)
            case Received(peer, Ask() as ask, _):
                if self.parent is None:
                    self._give(peer, ask)
                else:
                    self._pass_up(ask, (peer, ask.number))
            case Received(_, GivePart() as part, payload):
                asker = self._askers[part.number]
                if asker is not None:
                    self.transport.send(asker[0], replace(part, number=asker[1]), payload)
                if (part.index + 1) * PART_BYTES >= part.total_bytes:
                    del self._askers[part.number]
                    if asker is None:
                        self.done.set()

    def _pass_up(self, ask: Ask, asker: tuple[NodeId, int] | None) -> None:
        assert self.parent is not None
        self._last += 1
        self._askers[self._last] = asker
        self.transport.send(self.parent, replace(ask, number=self._last))

    def _give(self, peer: NodeId, ask: Ask) -> None:
        left = total = int(ask.path)
        index = 0
        while left > 0:
            size = min(left, PART_BYTES)
            # Its digest is taken once, as it is where the source is read.
            if size not in self._parts:
                self._parts[size] = payload_of(os.urandom(size))
            part = GivePart(ask.number, ask.epoch, index, total)
            self.transport.send(peer, part, self._parts[size])
            left -= size
            index += 1

    async def measure(self, size: int, count: int) -> list[float]:
        taken = []
        for _ in range(count):
            self.done = trio.Event()
            began = time.perf_counter()
            self._pass_up(Ask(0, 0, What.OBJECT, Path(b"%d" % size), ANY), None)
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
        limits=Limits(heartbeat_s=spec.heartbeat_s, silent_s=spec.silent_s),
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
