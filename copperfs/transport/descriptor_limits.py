"""Descriptor limits: keep connections that have not greeted from using up the descriptors.

Each connection takes a descriptor before it has shown a key, and the source needs descriptors, too.
So

- the connections that have not greeted are bounded by the size of the roster and the process's
  limit on descriptors (``room_for``). Above the bound the oldest is shut for each new one: a node
  of the job greets within moments, or tries again
- part of the descriptors is reserved for everything else. The kernel gives the lowest free number,
  so the number of a new connection tells whether the reserve is in use
- a peer that has greeted is never shut for lack of descriptors

A burst of connections may still use up all descriptors. ZeroMQ then tries to accept without a
pause. So the ``Door`` keeps one descriptor, with which it accepts a waiting connection and closes
it; the other end tries again.
"""

import errno
import os
import resource
import socket
from collections.abc import Callable

import trio

from copperfs.node.peer.connection_limits import Room, room_within

ACCEPTS_AGAIN_S = 0.05
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def room_for(nodes: int, limit: int | None = None) -> Room:
    """*limit* on descriptors: by default, this process's."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            limit = 1 << 20
    return room_within(limit, nodes)


class Door:
    """Refuses waiting connections when there is no descriptor."""

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
        try:
            if self._spare < 0:
                self._spare = self._new_spare()
            os.close(os.dup(self._spare))
        except OSError as error:
            return error.errno in _NONE_LEFT
        return False

    def _turn_away(self) -> bool:
        """Refuse all waiting connections; False if the spare descriptor was taken meanwhile."""
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
