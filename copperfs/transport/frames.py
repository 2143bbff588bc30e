"""Frames: one message on a ZeroMQ socket, received and sent without blocking.

Long payloads are not copied; up to about 64 KiB a copy is cheaper than handing over a buffer. The
blob of a payload that arrived in a longer frame has adopted the frame's memory.
"""

import zmq

from copperfs.wire.payload import Payload, size_of

ZERO_COPY_BYTES = 64 << 10

# As numbers: an operation on pyzmq's enumerations costs as much as a system call.
_NOW = int(zmq.NOBLOCK)
_NOW_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_RCVMORE = int(zmq.RCVMORE)


class Frames:
    """In a process that was just woken, copying a frame and asking the socket for more is quicker
    than making a ``zmq.Frame``."""

    __slots__ = ("_socket", "more")

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self.more = False

    def route(self) -> bytes:
        """The connection, on a ROUTER; zmq.Again if there is no message."""
        route = self._socket.recv(_NOW)
        self.more = True
        return route

    def next_frame(self) -> zmq.Frame:
        """zmq.Again if there is no message."""
        frame = self._socket.recv(_NOW, copy=False, track=False)
        self.more = frame.more
        return frame

    def next(self) -> bytes:
        """A copy; zmq.Again if there is no message."""
        data = self._socket.recv(_NOW)
        self.more = bool(self._socket.get(_RCVMORE))
        return data

    def next_payload(self, expected_bytes: int) -> bytes | memoryview:
        return self.next() if expected_bytes < ZERO_COPY_BYTES else self.next_frame().buffer

    def skip(self) -> int:
        """Drop the rest of the message; returns its size."""
        skipped = 0
        while self.more:
            skipped += len(self.next_frame())
        return skipped


def send_frames(
    socket: "zmq.Socket[bytes]", route: bytes | None, header: bytes, payload: Payload | None
) -> bool:
    """False if the connection is gone, or its queue is full."""
    for last_attempt in (False, True):
        try:
            if route is not None:
                socket.send(route, _NOW_MORE)
            if payload is None:
                socket.send(header, _NOW)
            else:
                socket.send(header, _NOW_MORE)
                copies = size_of(payload.data) < ZERO_COPY_BYTES
                socket.send(payload.data, _NOW, copy=copies, track=False)
        except zmq.Again:
            if last_attempt:
                return False
            # ZeroMQ rarely checks whether the other end has read; this makes it check.
            socket.get(zmq.EVENTS)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        else:
            return True
    raise AssertionError("both attempts return")
