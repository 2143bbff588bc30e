"""Messages of the users of a shared mount: how the daemon reads them, and how it sends those of the
join socket (``launch/join_socket.py``).

A message stays in the inbox until it is answered, so a successor of this daemon reads it again.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from copperfs.launch.join_socket import LENGTH, message, strings_of
from copperfs.launch.shared_mount_client import DESCRIPTORS_MAX

# Arguments and environment of a process are at most 6 MiB.
MESSAGE_MAX = 16 << 20
READ_AT_ONCE = 1 << 20


class Ended(Exception):  # no fault: a process may end whenever it likes
    """A connection is over."""


@dataclass(slots=True)
class Inbox:
    sock: socket.socket
    changed: Callable[[], None] = lambda: None
    """Called when a successor would need to know more."""
    data: bytearray = field(default_factory=bytearray)
    fds: list[int] = field(default_factory=list)
    """Descriptors that came with it."""
    _taken_bytes: int = 0

    async def receive(self) -> None:
        """More data."""
        while True:
            await trio.lowlevel.wait_readable(self.sock)
            try:
                more, fds, _, _ = socket.recv_fds(self.sock, READ_AT_ONCE, DESCRIPTORS_MAX)
            except BlockingIOError:
                continue
            except OSError:
                raise Ended from None
            if not more:
                raise Ended
            self.fds += fds
            self.data += more
            self.changed()
            return

    def take(self, begin: int, end: int) -> bytes:
        """The message between these bytes."""
        self._taken_bytes = end
        return bytes(self.data[begin:end])

    def answered(self) -> None:
        """The last message that was taken needs no further answer."""
        if self._taken_bytes:
            del self.data[: self._taken_bytes]
            self._taken_bytes = 0
            self.changed()


@dataclass(slots=True)
class JoinMessages:
    inbox: Inbox

    @property
    def sock(self) -> socket.socket:
        return self.inbox.sock

    async def next(self) -> list[str]:
        self.inbox.answered()
        await self._wait_for(LENGTH.size)
        (length,) = LENGTH.unpack_from(self.inbox.data)
        if not 0 < length <= MESSAGE_MAX:
            raise Ended
        await self._wait_for(LENGTH.size + length)
        return strings_of(self.inbox.take(LENGTH.size, LENGTH.size + length))

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

    async def _wait_for(self, count: int) -> None:
        while len(self.inbox.data) < count:
            await self.inbox.receive()
