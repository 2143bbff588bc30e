"""Socket pump: runs a ZeroMQ socket as a trio task.

A ZeroMQ socket's descriptor is edge-triggered: **any** call on the socket may consume the signal.
Then the descriptor stays silent although a message lies there. Hence three rules:

- A pump waits for the descriptor only after a receive has found nothing (``zmq.Again``), or a check
  of the socket's state has, made after the last other call.
- A sender tells the pump (``touched``), which then checks the state again if it waits.
- The same would hold for POLLOUT, but no sender waits here.

A pump takes a bounded number of messages, and of bytes, in one turn; then the other tasks have
theirs. docs/decisions/0020-zeromq-under-trio.md has the measured alternatives.
"""

from collections.abc import Callable

import trio
import zmq

TURN_MESSAGES = 64
TURN_BYTES = 4 << 20
"""About half a millisecond of digests."""


class Pump:
    """The caller owns the socket. ``take`` receives and handles one message without blocking,
    returns its size in bytes, and lets ``zmq.Again`` through."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        take: Callable[[], int],
        empty: Callable[[], None] | None = None,
    ) -> None:
        self._socket = socket
        self._descriptor = socket.fileno()
        self._take = take
        self._empty = empty
        """Called whenever the socket was found empty."""
        self._naps = False
        self._touched = False

    async def run(self) -> None:
        while True:
            if self.turn() or (self._touched and self._readable()):
                await trio.lowlevel.checkpoint()
                continue
            self._naps = True
            try:
                await trio.lowlevel.wait_readable(self._descriptor)
            except trio.ClosedResourceError:
                pass  # woken
            finally:
                self._naps = False

    def turn(self) -> bool:
        """Take some messages; False once there are none."""
        try:
            left_bytes = TURN_BYTES - self._take()
            # Mostly one message came. A check of the state costs half of a receive that finds
            # nothing.
            if self._readable():
                for _ in range(TURN_MESSAGES - 1):
                    if left_bytes <= 0:
                        break
                    left_bytes -= self._take()
                return True
        except zmq.Again:
            pass
        self._touched = False
        if self._empty is not None:
            self._empty()
        return False

    def drain(self) -> None:
        """Only for sockets that get few more messages."""
        while self.turn():
            pass

    def touched(self) -> None:
        """Call after every other call on the socket, which may consume the signal."""
        self._touched = True
        if self._naps and self._readable():
            self.wake()

    def wake(self) -> None:
        """Check the socket, whatever the descriptor says."""
        if self._naps:
            # This only ends the wait for the descriptor. A cancel scope around each nap takes 3.4
            # us more.
            trio.lowlevel.notify_closing(self._descriptor)

    def _readable(self) -> bool:
        if self._socket.closed:
            return False
        events = self._socket.get(zmq.EVENTS)
        assert isinstance(events, int)
        return bool(events & zmq.POLLIN)
