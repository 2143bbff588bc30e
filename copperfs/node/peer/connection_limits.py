"""Connection limits: how many connections may be open that have not sent a greeting.

The rest of the descriptors is reserved. ``transport/descriptor_limits.py`` gives the reasons and
enforces it.
"""

from dataclasses import dataclass

RESERVE_MAX = 512
"""Descriptors for everything else: the files that the front and the source keep open (256 and 64),
those being read, the store, the control sockets. Under a low limit, half of it."""
UNGREETED_BASE = 64
UNGREETED_MIN = 8
"""This number is allowed whatever else is open."""


@dataclass(frozen=True, slots=True)
class Room:
    ungreeted: int
    descriptors: int
    """Descriptors from this number on belong to the reserve."""

    def is_exceeded(self, ungreeted: int, descriptor: int) -> bool:
        return ungreeted > self.ungreeted or (
            ungreeted > UNGREETED_MIN and descriptor >= self.descriptors
        )


def room_within(limit: int, nodes: int) -> Room:
    """Each node may come twice at once: it may renew a connection before this end notices the
    loss."""
    free = limit - min(limit // 2, RESERVE_MAX)
    return Room(max(UNGREETED_MIN, min(UNGREETED_BASE + 2 * nodes, free // 2)), free)
