"""Raw peer: sends any bytes that a test wants, over a ZeroMQ socket or over plain TCP."""

import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self

import trio
import zmq

from copperfs.model.roster import Member
from copperfs.transport import zmq_sockets as sockets

POLL_S = 0.002
"""Between polls for a state that signals no change. No outcome depends on it."""


async def polls(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - see POLL_S
        await trio.sleep(POLL_S)


class RawPeer:
    def __init__(
        self,
        member: Member,
        keys: tuple[bytes, bytes] | None = None,
        routing_id: bytes | None = None,
        received_max: int = 1000,
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RECONNECT_IVL, -1)
        self.socket.set(zmq.RCVHWM, received_max)
        if routing_id is not None:
            self.socket.set(zmq.ROUTING_ID, routing_id)
        if keys is not None:
            self.socket.set(zmq.CURVE_SERVERKEY, member.public_key.encode())
            self.socket.set(zmq.CURVE_PUBLICKEY, keys[0])
            self.socket.set(zmq.CURVE_SECRETKEY, keys[1])
        self._monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.connect(member.endpoint)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sockets.close_watched(self.socket, self._monitor)
        self._context.destroy(0)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames, zmq.NOBLOCK)

    async def ended(self) -> None:
        await polls(lambda: bool(self._monitor.poll(0)))

    async def receive(self) -> list[bytes]:
        await polls(lambda: bool(self.socket.poll(0)))
        return self.socket.recv_multipart(zmq.NOBLOCK)


class Tcp:
    def __init__(self, member: Member) -> None:
        host, port = member.endpoint.removeprefix("tcp://").split(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setblocking(False)

    @classmethod
    def of(cls, connection: socket.socket) -> Self:
        peer = cls.__new__(cls)
        peer.socket = connection
        return peer

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return

    async def ended(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.socket)
            try:
                if not self.socket.recv(65536):
                    return
            except BlockingIOError:
                continue
            except ConnectionError:
                return

    def close(self) -> None:
        self.socket.close()
