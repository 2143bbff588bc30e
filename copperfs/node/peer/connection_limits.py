"""Connection limits: how many connections may be open that have not sent a greeting.

The rest of the descriptors is reserved. ``transport/descriptor_limits.py`` gives the reasons and
enforces it.
"""

from dataclasses import dataclass

RESERVE_MAX = 512
"""Descriptors reserved for everything else: the files that the front and the source keep open (256
and 64), those being read, the store, the control sockets. Under a low limit, half of it."""
UNGREETED_BASE = 64
UNGREETED_MIN = 8
"""Connections that may always be under way, whatever else is open."""


@dataclass(frozen=True, slots=True)
class Room:
    """The limits for connections that have not sent a greeting."""

    ungreeted: int
    """Their number at most."""
    descriptors: int
    """A descriptor with this number or a higher one belongs to the reserve."""

    def is_exceeded(self, ungreeted: int, descriptor: int) -> bool:
        return ungreeted > self.ungreeted or (
            ungreeted > UNGREETED_MIN and descriptor >= self.descriptors
        )


def room_within(limit: int, nodes: int) -> Room:
    """Divide *limit* descriptors in a job of *nodes*. Each node may come twice at once: it may
    renew a connection before this end notices the loss."""
    free = limit - min(limit // 2, RESERVE_MAX)
    return Room(max(UNGREETED_MIN, min(UNGREETED_BASE + 2 * nodes, free // 2)), free)
