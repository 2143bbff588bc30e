"""Succession: what a daemon does so that another can go on with its mount, and how it goes on with
another's (``--takeover``; decision 98).

What the kernel knows lies in memory that the front fills (``native/front/connection_state.h``). The
keeper holds it together with the daemon's descriptors (``daemon/keeper.py``).
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from copperfs.config.settings import Settings
from copperfs.daemon.engine import Engine
from copperfs.daemon.handover import Handover, Takeover, memory_file
from copperfs.daemon.keeper import SIGN_EVERY_S, Keeper
from copperfs.native import Front
from copperfs.node.node import Node

log = logging.getLogger(__name__)

# The kernel negotiates before its first request.
NEGOTIATES_EVERY_S = 0.02


@dataclass(slots=True)
class Succession:
    settings: Settings
    takeover: Takeover | None
    """By which this process became the daemon."""
    channel: socket.socket | None
    """To the keeper that has let it take over."""
    took_over_s: float = 0.0
    """How long no daemon had answered."""
    connection_fd: int | None = None
    is_mounted: trio.Event = field(default_factory=trio.Event)
    _keeper: Keeper | None = None
    _is_ending: bool = False
    _left_out: int = 0

    @property
    def count(self) -> int:
        return 0 if self.takeover is None else self.takeover.number

    def has_successor(self) -> bool:
        if self._keeper is None:
            return self.channel is not None and not self._is_ending
        return not self._keeper.is_ended

    def keep_connection(self, front: Front, node: Node) -> None:
        """Before the front starts."""
        if self.takeover is not None:
            self.connection_fd = self.takeover.handover.connection_fd
            front.keep_connection(self.connection_fd, True)
            node.resume(_connection_of(front)[1])
        elif self.settings.takeover:
            # Never closed: threads of the front use it to the end.
            fd = memory_file("copperfs-connection")
            try:
                front.keep_connection(fd, False)
            except OSError as error:  # a limit of file sizes
                log.warning("no takeover: its memory cannot be had: %s", error.strerror)
                os.close(fd)
                return
            self.connection_fd = fd

    def go_on(self, front: Front, mountpoint: str) -> None:
        """Once the front has started: it answers what its predecessor did not."""
        if self.takeover is None:
            return
        front.resend()
        self.took_over_s = time.monotonic() - self.takeover.since_s
        cause = self.takeover.cause
        log.warning(
            "took over %s %.3f s after its daemon had ended (%s)",
            mountpoint,
            self.took_over_s,
            cause,
        )

    async def run(self, front: Front, engine: Engine, describe: Callable[[], Handover]) -> None:
        """Until the daemon ends."""
        await self.is_mounted.wait()
        if self.connection_fd is None:
            return
        while (connection := _connection_of(front))[4] < 0:  # noqa: ASYNC110  # C knows it
            await trio.sleep(NEGOTIATES_EVERY_S)
        _, epoch, told_epoch, _, kernel_resends = connection
        if not kernel_resends:
            log.warning("no takeover: it needs Linux 6.9, and this kernel resends no requests")
            return
        if self._is_ending:
            return
        if told_epoch < epoch:  # its predecessor died amid a clear
            engine.notifications.add_everything(lambda: engine.publications.invalidate_all()[1])
        self._keeper = keeper = Keeper(self.settings, describe, self.channel)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run)
            while True:
                front.sign_of_life()
                if keeper.owes:
                    keeper.leave()
                self._tell_left_out(front)
                await trio.sleep(SIGN_EVERY_S)

    def changed(self) -> None:
        """A successor would need to know more."""
        if self._keeper is not None:
            self._keeper.leave()

    def end(self) -> None:
        """The daemon ends by itself."""
        self._is_ending = True
        if self._keeper is None and self.channel is not None:  # it had no time to leave anything
            self._keeper = Keeper(self.settings, _nothing_left, self.channel)
        if self._keeper is not None:
            self._keeper.end()

    def _tell_left_out(self, front: Front) -> None:
        left_out = _connection_of(front)[3]
        if left_out and not self._left_out:
            log.error("memory was short: after a takeover, some open files would be ESTALE")
        self._left_out = left_out


def _nothing_left() -> Handover:
    raise AssertionError("a daemon that ends leaves nothing")


def _connection_of(front: Front) -> tuple[int, int, int, int, int]:
    connection = front.connection()
    assert connection is not None
    return connection
