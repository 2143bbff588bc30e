"""Finds the peer that begins a message and never ends it.

ZeroMQ hands a message over once its last frame has come, and keeps those before it. It bounds how
long a frame may be (MAXMSGSIZE) and how many messages it keeps (RCVHWM), and has no option for how
many frames a message has: 30 MB of empty frames on the wire, two seconds' worth, became 940 MB.

What it has read of a connection can be asked of the kernel: the bytes that have come, less those
that nobody has read yet. Of an honest peer, whatever is more than one message has been handed over
once the socket was found empty. So a connection is looked at now and then, and is *endless* if

- more was read than any message has since the last message was taken from it, and
- after a look had found that, all that had come was taken, and it still gave no message: a node
  that was busy finds a backlog as well, at its first look.

Heartbeats are no messages; what they may have come to is allowed for.

Until it is noticed it costs what two looks let through. MAXMSGSIZE of a few bytes would bound it,
and the payloads; a proxy in front that counts frames would cost every message a copy.
"""

from dataclasses import dataclass

from copperfs.wire.codec import FRAME_BYTES_MAX

MESSAGE_BYTES_MAX = 2 * FRAME_BYTES_MAX
"""A message has two frames, of which the first is mostly far below its bound; so there is room for
what encryption adds to them."""
GREETING_BYTES_MAX = 64 << 10
"""Handshake and greeting together have below 2 KiB."""
HEARTBEATS_BYTES = 128
"""A ping and a pong, with CURVE, within one interval of them."""


@dataclass(slots=True)
class Watch:
    """Of one connection."""

    taken: int = 0
    """Messages, the greeting included; counted by whoever takes them."""
    _seen: int = 0
    """How many had been taken at the last look."""
    _base_bytes: int = 0
    """What had been read when a look last found that a message had been taken."""
    _since: float | None = None
    suspected: int | None = None
    """The pass of the look that found too much; whoever looked has to see to another pass."""

    _found: bool = False
    """Endless, and said so: its end takes a moment."""

    def is_endless(self, now: float, read_bytes: int, passes: int, heartbeat_s: float) -> bool:
        """*read_bytes* is what ZeroMQ has read of this connection; *passes* how often all that had
        come over the socket was taken."""
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
