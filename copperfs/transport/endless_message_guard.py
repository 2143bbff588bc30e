"""Message size guard: finds peers that begin a message and never end it.

ZeroMQ bounds the length of a frame (MAXMSGSIZE) and the number of messages (RCVHWM), but not the
number of frames in a message: 30 MB of empty frames on the wire became 940 MB.

The kernel tells how much ZeroMQ has read of a connection. For an honest peer, all but one message
of this has been handed over once the socket was found empty. So a connection is *endless* if

- more was read than any message has since the last message was taken from it, and
- after a check found that, the socket was drained and still gave no message: a node that was busy
  finds a backlog as well, at its first check.

The bytes of heartbeats are allowed for.
"""

from dataclasses import dataclass

from copperfs.wire.codec import FRAME_BYTES_MAX

MESSAGE_BYTES_MAX = 2 * FRAME_BYTES_MAX
"""Two frames; the first is mostly small, which leaves room for encryption."""
GREETING_BYTES_MAX = 64 << 10
"""Handshake and greeting together have below 2 KiB."""
HEARTBEATS_BYTES = 128
"""A ping and a pong, with CURVE, within one heartbeat interval."""


@dataclass(slots=True)
class Watch:
    taken: int = 0
    """Messages taken, the greeting included; the receiver counts them."""
    _seen: int = 0
    """*taken* at the last check."""
    _base_bytes: int = 0
    """*read_bytes* when a check last found that a message had been taken."""
    _since: float | None = None
    suspected: int | None = None
    """The pass in which a check found too much; the caller sees to another pass."""

    _found: bool = False
    """Already reported: its end takes a moment."""

    def is_endless(self, now: float, read_bytes: int, passes: int, heartbeat_s: float) -> bool:
        """*read_bytes*: what ZeroMQ has read of this connection; *passes*: drains of the socket."""
        if self._since is None or self.taken != self._seen:
            if self._since is not None:
                self._base_bytes = read_bytes
            self._seen, self._since, self.suspected = self.taken, now, None
            return False
        heartbeats = HEARTBEATS_BYTES * (1 + (now - self._since) / heartbeat_s)
        most = MESSAGE_BYTES_MAX if self.taken else GREETING_BYTES_MAX
        if read_bytes - self._base_bytes <= most + heartbeats:
            return False
        if self.suspected is None:
            self.suspected = passes
        if self._found or passes == self.suspected:
            return False
        self._found = True
        return True
