"""Connections that have not greeted: how many there may be, and which of them goes first.

Anybody may connect who reaches the port, and each connection takes a descriptor before it has shown
a key. Without a bound there were none left for the source, and readers were told EMFILE. So

- the connections that have not greeted are bounded, by the size of the roster and by what this
  process may have open (``room_for``). The oldest is shut for each that is too many: a node of the
  job greets within moments, and tries again if it was too slow;
- part of the descriptors is kept for everything else, the source above all. The kernel gives the
  lowest number that is free, so the number of a new connection says whether the others have begun
  to take from that part;
- a peer that has greeted is never shut for want of descriptors.

Connections that come within moments may use up all descriptors before anybody is told of them, and
others of this process may have used them up. ZeroMQ then tries to accept without a pause, and its
thread keeps a core busy. So the ``Door`` keeps one descriptor, with which it accepts what waits
and closes it: the other end finds that its connection has ended, and tries again.
"""

import errno
import os
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass

import trio

RESERVE_MAX = 512
"""For everything but connections: files that the front and the source keep open (256 and 64), those
that are being read, the store, the control sockets. Of a low limit, half."""
UNGREETED_BASE = 64
UNGREETED_MIN = 8
"""Connections that may always be under way, whatever else is open."""
ACCEPTS_AGAIN_S = 0.05
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Room:
    """What connections that have not greeted may take."""

    ungreeted: int
    """At most so many."""
    descriptors: int
    """One with a number from here on takes from what is kept for others."""

    def is_exceeded(self, ungreeted: int, descriptor: int) -> bool:
        return ungreeted > self.ungreeted or (
            ungreeted > UNGREETED_MIN and descriptor >= self.descriptors
        )


def room_for(nodes: int, limit: int | None = None) -> Room:
    """For a job of so many nodes, each of which may come twice at once (it renews a connection
    before this end has noticed the loss). *limit*: on descriptors; without it, this process's."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            limit = 1 << 20
    free = limit - min(limit // 2, RESERVE_MAX)
    return Room(max(UNGREETED_MIN, min(UNGREETED_BASE + 2 * nodes, free // 2)), free)


class Door:
    """The listening socket, beside ZeroMQ: for turning away who waits there, if there is no
    descriptor to accept with."""

    def __init__(
        self,
        listener: socket.socket,
        make_room: Callable[[], bool],
        turned_away: Callable[[], None],
    ) -> None:
        """*make_room* shuts a connection that can be spared, if there is one."""
        self._listener = listener
        self._make_room = make_room
        self._turned_away = turned_away
        self._spare = self._new_spare()

    @staticmethod
    def _new_spare() -> int:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    async def run(self, every_s: float) -> None:
        while True:
            await trio.sleep(every_s)
            while self._is_shut():
                if not (self._make_room() or self._turn_away()):
                    await trio.sleep(ACCEPTS_AGAIN_S)
                    continue
                await trio.sleep(ACCEPTS_AGAIN_S)
                with trio.move_on_after(every_s):
                    await trio.lowlevel.wait_readable(self._listener)

    def _is_shut(self) -> bool:
        """Whether no descriptor is left."""
        try:
            if self._spare < 0:
                self._spare = self._new_spare()
            os.close(os.dup(self._spare))
        except OSError as error:
            return error.errno in _NONE_LEFT
        return False

    def _turn_away(self) -> bool:
        """All who wait now; False if somebody else took the descriptor that was kept."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        try:
            while True:
                self._listener.accept()[0].close()
                self._turned_away()
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in _NONE_LEFT:
                return False
        try:
            self._spare = self._new_spare()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._listener.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
