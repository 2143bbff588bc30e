"""Messages at the join socket (``launch/join_socket.py``): how the daemon reads and sends them."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from copperfs.launch.join_socket import LENGTH, message, strings_of

# Arguments and environment of a process are at most 6 MiB.
MESSAGE_MAX = 16 << 20
READ_AT_ONCE = 1 << 16


class Ended(Exception):  # no fault: a process may end whenever it likes
    """A connection is over."""


@dataclass(slots=True)
class JoinMessages:
    sock: socket.socket

    async def next(self) -> list[str]:
        (length,) = LENGTH.unpack(await self._bytes(LENGTH.size))
        if not 0 < length <= MESSAGE_MAX:
            raise Ended
        return strings_of(await self._bytes(length))

    async def say(self, *strings: str) -> None:
        await self.send(message(*strings))

    async def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        while data:
            try:
                sent = socket.send_fds(self.sock, [data], fds)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.sock)
                continue
            except OSError:
                raise Ended from None
            data, fds = data[sent:], ()

    async def _bytes(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            await trio.lowlevel.wait_readable(self.sock)
            try:
                more = self.sock.recv(min(count - len(received), READ_AT_ONCE))
            except BlockingIOError:
                continue
            except OSError:
                more = b""
            if not more:
                raise Ended
            received += more
        return bytes(received)
