"""Succession: what a daemon does so that another can go on with its mount, and how it goes on with
another's (``--takeover``; decision 98).

What the kernel knows lies in memory that the front fills (``native/front/connection_state.h``). The
keeper holds it together with the daemon's descriptors (``daemon/keeper.py``).
"""

import faulthandler
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import trio

from copperfs.config.settings import Settings
from copperfs.daemon.engine import Engine
from copperfs.daemon.handover import Handover, Takeover, memory_file
from copperfs.daemon.keeper import SIGN_EVERY_S, Keeper
from copperfs.daemon.memory_pressure import go_first, own_score
from copperfs.daemon.takeover_history import TakeoverHistory
from copperfs.native import (
    NO_TAKEOVER,
    TAKEOVER_BY_RESEND,
    TAKEOVER_UNDECIDED,
    Front,
)
from copperfs.node.actions import LogEvent
from copperfs.node.node import Node

log = logging.getLogger(__name__)

# The kernel negotiates before its first request.
NEGOTIATES_EVERY_S = 0.02
UPGRADE = "upgrade"


@dataclass(frozen=True, slots=True)
class UpgradeRequest:
    """By ``copperfs upgrade``."""

    number: str
    """Random; it tells upgrades apart."""
    command: list[str]
    """It starts a standby."""
    changes: dict[str, Any]

    @classmethod
    def of(cls, data: bytes) -> "UpgradeRequest":
        words = json.loads(data)
        number, command, changes = words["number"], words["command"], words["settings"]
        texts = isinstance(number, str) and all(isinstance(each, str) for each in command)
        if not texts or not command or any("\0" in each for each in command):
            raise ValueError
        return cls(number, list(command), dict(changes))


@dataclass(slots=True)
class Succession:
    settings: Settings
    takeover: Takeover | None
    """By which this process became the daemon."""
    channel: socket.socket | None
    """To the keeper that has let it take over."""
    oom_score: str = field(init=False)
    """Of this process before it became the first to go."""
    takeovers: TakeoverHistory = field(init=False)
    connection_fd: int | None = None
    is_mounted: trio.Event = field(default_factory=trio.Event)
    is_settled: trio.Event = field(default_factory=trio.Event)
    """Whether there is a keeper."""
    standbys_fail: bool = False
    """They end by themselves, and the keeper starts them more seldom."""
    _keeper: Keeper | None = None
    _is_ending: bool = False
    _left_out: int = 0
    _describe: Callable[[], Handover] | None = None
    _wanted: UpgradeRequest | None = None
    _refusal: str | None = None
    """Why the upgrade was not made."""

    def __post_init__(self) -> None:
        before = None if self.takeover is None else self.takeover.handover
        self.oom_score = own_score() if before is None else before.oom_score
        self.takeovers = TakeoverHistory() if before is None else before.takeovers

    def has_successor(self) -> bool:
        if self._keeper is None:
            return self.channel is not None and not self._is_ending
        return self._keeper.channel is not None and not self._keeper.is_ended

    def keep_connection(self, front: Front, node: Node) -> None:
        """Before the front starts."""
        if self.takeover is not None:
            self.connection_fd = self.takeover.handover.connection_fd
            front.keep_connection(self.connection_fd, True, *self._ways)
            node.resume(_connection_of(front).epoch)
        elif self.settings.takeover and not self.settings.foreground:
            # Never closed: threads of the front use it to the end.
            fd = memory_file("copperfs-connection")
            try:
                front.keep_connection(fd, False, *self._ways)
            except OSError as error:  # a limit of file sizes
                log.warning("no takeover: its memory cannot be had: %s", error.strerror)
                os.close(fd)
                return
            self.connection_fd = fd

    @property
    def _ways(self) -> tuple[bool, bool]:
        """Whether the kernel may resend requests, and whether the front may record them."""
        by = self.settings.takeover_by
        return by != "memory", by != "resend"

    def go_on(self, front: Front, mountpoint: str, happened: Callable[[LogEvent], object]) -> None:
        """Once the front has started: it answers what its predecessor did not."""
        if self.takeover is None:
            return
        if _connection_of(front).takeover_by == TAKEOVER_BY_RESEND:
            front.resend()
        took_s = time.monotonic() - self.takeover.since_s
        cause = self.takeover.cause
        self.takeovers.add(self.takeover.number, cause, took_s)
        happened(LogEvent("takeover", None, cause, took_s))
        log.log(
            logging.INFO if cause == UPGRADE else logging.WARNING,
            "took over %s %.3f s after its daemon had ended (%s)",
            mountpoint,
            took_s,
            cause,
        )

    async def run(self, front: Front, engine: Engine, describe: Callable[[], Handover]) -> None:
        """Until the daemon ends."""
        await self.is_mounted.wait()
        if self.connection_fd is None:
            self.is_settled.set()
            return
        while (connection := _connection_of(front)).takeover_by == TAKEOVER_UNDECIDED:  # noqa: ASYNC110  # C knows it
            await trio.sleep(NEGOTIATES_EVERY_S)
        if connection.takeover_by == NO_TAKEOVER:
            log.warning(
                "no takeover: this kernel resends no requests, which it does from Linux 6.9 on; "
                "leave out --takeover-by resend"
            )
            self.is_settled.set()
            return
        if self._is_ending:
            return
        if connection.told_epoch < connection.epoch:  # its predecessor died amid a clear
            engine.notifications.add_everything(lambda: engine.publications.invalidate_all()[1])
        self._describe = describe
        self._keeper = keeper = Keeper(
            self.settings, describe, self._heard, self.oom_score, self.channel
        )
        go_first()
        # Into the log: the keeper asks a hung daemon before it ends it.
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run, self.is_settled)
            while True:
                front.sign_of_life()
                keeper.pay()
                self._tell_left_out(front)
                await trio.sleep(SIGN_EVERY_S)

    # ---- upgrade ---------------------------------------------------------------------------------

    @property
    def upgraded_by(self) -> str | None:
        """The latest upgrade of this mount."""
        return None if self.takeover is None else self.takeover.handover.upgrade

    def has_begun(self, wanted: UpgradeRequest) -> bool:
        mine = None if self._wanted is None else self._wanted.number
        return wanted.number in (mine, self.upgraded_by)

    def begin_upgrade(self, wanted: UpgradeRequest) -> str | None:
        """The reason if it does not begin."""
        if self._wanted is not None and self._refusal is None:
            return "another upgrade of it is under way"
        if self._keeper is None or self._keeper.channel is None or self._keeper.is_ended:
            return (
                "no keeper holds it, which needs the program copperfs; the log of its daemon says "
                "more"
            )
        self._wanted, self._refusal = wanted, None
        log.info("an upgrade is asked for, to be started by %s", " ".join(wanted.command))
        if not self._keeper.propose(wanted.command, self._left_for(wanted)):
            self._refuse("the keeper of the mount does not take it; try again")
            return self._refusal
        return None

    def state_of_upgrade(self) -> dict[str, Any]:
        if self._wanted is None:
            number, phase = self.upgraded_by, "idle" if self.upgraded_by is None else "done"
        else:
            number, phase = self._wanted.number, "begun" if self._refusal is None else "refused"
        error = self._refusal
        took_s = 0.0 if self.takeovers.last is None else self.takeovers.last.took_s
        return {"number": number, "phase": phase, "error": error, "took_s": took_s}

    def _left_for(self, wanted: UpgradeRequest) -> Handover:
        assert self._describe is not None
        return replace(self._describe(), upgrade=wanted.number, changes=wanted.changes)

    def _heard(self, message: bytes) -> None:
        """From the keeper."""
        if message[:1] == b"B":
            self.standbys_fail = message == b"B1"
            return
        if not message:
            self.standbys_fail = False
        if self._wanted is None or self._refusal is not None:
            return
        if not message:
            self._refuse("the keeper of the mount has died; try again")
        elif message[:1] == b"F":
            self._refuse(message[1:].decode(errors="replace"))
        elif message[:1] == b"G":
            assert self._keeper is not None
            # From here on no user may come of whom the successor does not know.
            if not self._keeper.say_last(self._left_for(self._wanted)):
                self._refuse("the keeper of the mount does not take it; try again")
                return
            log.info("ending, so that the upgrade goes on")
            logging.shutdown()
            os._exit(0)

    def _refuse(self, why: str) -> None:
        self._refusal = why
        log.warning("no upgrade: %s", why)

    def changed(self) -> None:
        """A successor would need to know more."""
        if self._keeper is not None and not self._keeper.is_ended:
            self._keeper.leave()

    def follow_log(self) -> None:
        """Standard error leads elsewhere."""
        if self._keeper is not None:
            self._keeper.follow_log()

    def end(self) -> None:
        """The daemon ends by itself."""
        self._is_ending = True
        if self._keeper is None and self.channel is not None:  # it had no time to leave anything
            self._keeper = Keeper(
                self.settings, _nothing_left, self._heard, self.oom_score, self.channel
            )
        if self._keeper is not None:
            self._keeper.end()

    def _tell_left_out(self, front: Front) -> None:
        left_out = _connection_of(front).left_out
        if left_out and not self._left_out:
            log.error("memory was short: after a takeover, some open files would be ESTALE")
        self._left_out = left_out


def _nothing_left() -> Handover:
    raise AssertionError("a daemon that ends leaves nothing")


class _Connection(NamedTuple):
    epoch: int
    told_epoch: int
    """The last one of which the kernel was told."""
    left_out: int
    """Names that a successor does not know."""
    takeover_by: int
    """How a successor gets the requests that were not answered."""


def _connection_of(front: Front) -> _Connection:
    connection = front.connection()
    assert connection is not None
    return _Connection(*connection)
