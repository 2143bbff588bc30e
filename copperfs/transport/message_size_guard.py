"""Message size guard: finds peers that begin a message and never end it.

ZeroMQ hands a message over once its last frame has come, and keeps the frames before it. It bounds
the length of a frame (MAXMSGSIZE) and the number of messages (RCVHWM), but not the number of frames
in a message: 30 MB of empty frames on the wire, two seconds' worth, became 940 MB.

The kernel tells how much ZeroMQ has read of a connection: the bytes received, less those not read
yet. For an honest peer, all but one message of this has been handed over once the socket was found
empty. So each connection is checked now and then, and is *endless* if

- more was read than any message has since the last message was taken from it, and
- after a check found that, the socket was drained and still gave no message: a node that was busy
  finds a backlog as well, at its first check.

Heartbeats are no messages; their bytes are allowed for.

Until it is noticed, an endless message costs what two checks let through. A MAXMSGSIZE of a few
bytes would bound it, and the payloads; a proxy in front that counts frames would cost every message
a copy.
"""

from dataclasses import dataclass

from copperfs.wire.codec import FRAME_BYTES_MAX

MESSAGE_BYTES_MAX = 2 * FRAME_BYTES_MAX
"""A message has two frames, the first mostly far below its bound, which leaves room for what
encryption adds."""
GREETING_BYTES_MAX = 64 << 10
"""Handshake and greeting together have below 2 KiB."""
HEARTBEATS_BYTES = 128
"""A ping and a pong, with CURVE, within one heartbeat interval."""


@dataclass(slots=True)
class Watch:
    """The guard's record of one connection."""

    taken: int = 0
    """Messages taken, the greeting included; the receiver counts them."""
    _seen: int = 0
    """The value of *taken* at the last check."""
    _base_bytes: int = 0
    """Bytes read when a check last found that a message had been taken."""
    _since: float | None = None
    suspected: int | None = None
    """The pass in which a check found too much; the caller sees to another pass."""

    _found: bool = False
    """Already reported as endless: its end takes a moment."""

    def is_endless(self, now: float, read_bytes: int, passes: int, heartbeat_s: float) -> bool:
        """*read_bytes* is what ZeroMQ has read of this connection; *passes* how often the socket
        was drained."""
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
