"""Keeper: starts the process that holds a mount while its daemon is dead (``keeper.c``).

The daemon starts it once the mount answers, gives it what a successor needs, and starts another
should it die. At its own end the daemon says so, and the keeper ends, too.
"""

import errno
import logging
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import trio

from copperfs.config.settings import Settings
from copperfs.daemon.handover import DESCRIPTORS_MAX, MESSAGE_MAX, Handover
from copperfs.daemon.memory_pressure import stay
from copperfs.startup.bundle import environment_elsewhere, passed_to_python, python_of, started_from

log = logging.getLogger(__name__)

NAME = "copperfs-keeper"
PROGRAM = "copperfs"
# More deaths than this in that time: something ends each of them.
STARTS_MAX, STARTS_WITHIN_S = 5, 60.0
SIGN_EVERY_S = 0.25
TELLS_WITHIN_S = 1.0
_STDERR = 2


def program() -> str | None:
    """Our program in C, which is the keeper under another name."""
    return next((each for each in _places() if os.access(each, os.X_OK)), None)


def _places() -> Iterator[str]:
    bundle = started_from()
    if bundle is not None:
        yield bundle.program
    yield os.path.join(os.path.dirname(sys.executable), PROGRAM)
    yield os.path.join(sysconfig.get_path("scripts"), PROGRAM)
    yield os.path.join(sysconfig.get_path("scripts", "posix_user"), PROGRAM)


@dataclass(slots=True)
class Keeper:
    settings: Settings
    describe: Callable[[], Handover]
    """What a successor needs now."""
    heard: Callable[[bytes], None]
    """Called with a message of the keeper's, and with none once it has died."""
    oom_score: str
    channel: socket.socket | None = None
    """To the keeper; a successor has it from its own start."""
    is_ended: bool = False
    owes: bool = False
    """Its socket was full, or its descriptors were too few; to be tried again soon."""
    _owes_log: bool = False
    _process: "subprocess.Popen[bytes] | None" = None
    _started: deque[float] = field(default_factory=lambda: deque(maxlen=STARTS_MAX))

    async def run(self, is_settled: trio.Event) -> None:
        """Until the keepers die by themselves. *is_settled*: whether there is one."""
        while not self.is_ended and (self.channel is not None or self._start()):
            assert self.channel is not None
            self.leave()
            self.follow_log()
            is_settled.set()
            await self._hear(self.channel)
            self.heard(b"")
            if not self.is_ended:
                log.warning("the keeper of this mount has died; another one is started")
        is_settled.set()

    def leave(self) -> None:
        """Give the keeper what a successor needs now."""
        self.owes = not self._tell(b"H", self.describe()) and not self.is_ended

    def follow_log(self) -> None:
        """From now on it writes where the standard error of this process leads."""
        self._owes_log = not self._send(b"S", [_STDERR]) and not self.is_ended

    def pay(self) -> None:
        """Tell it what it could not be told before."""
        if self._owes_log:
            self.follow_log()
        if self.owes:
            self.leave()

    def propose(self, command: list[str], handover: Handover) -> bool:
        """That later standbys are started by *command*, and go on with *handover*. Its answer is
        heard."""
        settings = handover.settings_changed()
        words = [*_bounds(settings), *command]
        return self._tell(b"U" + b"\0".join(map(os.fsencode, words)), handover)

    def say_last(self, handover: Handover) -> bool:
        """The daemon must end now."""
        return self._tell(b"L", handover)

    def end(self) -> None:
        """The daemon ends by itself, and needs no successor."""
        self.is_ended = True
        if self.channel is not None:
            self.channel.settimeout(TELLS_WITHIN_S)  # no later message makes up for this one
        self._tell(b"E")

    def _start(self) -> bool:
        now = time.monotonic()
        if len(self._started) == STARTS_MAX and now - self._started[0] < STARTS_WITHIN_S:
            log.error("the keepers of this mount die; if the daemon dies now, the mount ends")
            return False
        self._started.append(now)
        path = program()
        if path is None:
            log.error("the program copperfs is not found; if the daemon dies, the mount ends")
            return False
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:  # strangers have all descriptors
            log.error("no keeper: %s; if the daemon dies, the mount ends", error)
            return False
        words = [NAME, str(theirs.fileno()), str(os.getpid()), *_bounds(self.settings)]
        words += python_of("copperfs.daemon.standby")
        with theirs:
            try:
                self._process = subprocess.Popen(
                    words,
                    executable=path,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *passed_to_python()],
                    start_new_session=True,
                    cwd="/",
                    env=environment_elsewhere(os.environ),
                )
                stay(self._process.pid, self.oom_score)
            except OSError as error:
                ours.close()
                log.error("no keeper: %s; if the daemon dies, the mount ends", error)
                return False
        ours.setblocking(False)
        self.channel = ours
        return True

    async def _hear(self, channel: socket.socket) -> None:
        """Until its end."""
        while True:
            await trio.lowlevel.wait_readable(channel)
            try:
                message = channel.recv(MESSAGE_MAX)
            except BlockingIOError:
                continue
            except OSError:
                break
            if not message:
                break
            if message == b"A":
                self.owes = self._owes_log = True
            else:
                self.heard(message)
        channel.close()
        self.channel = None
        if self._process is not None:
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

    def _tell(self, message: bytes, handover: Handover | None = None) -> bool:
        try:
            fds = [] if handover is None else handover.to_fds()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            return False  # strangers have them all for a moment
        try:
            return self._send(message, fds)
        finally:
            for words_fd in fds[1:2]:
                os.close(words_fd)

    def _send(self, message: bytes, fds: list[int]) -> bool:
        try:
            if len(fds) > DESCRIPTORS_MAX:
                log.error("too many runs here for a takeover; if the daemon dies, the mount ends")
                self.end()
                return False
            if self.channel is None:
                return False
            socket.send_fds(self.channel, [message], fds)
        except OSError as error:
            # A socket is full for a moment; of a keeper that has died, the end is seen soon.
            passing = (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS)
            if error.errno not in (*passing, errno.EPIPE, errno.ECONNRESET):
                log.exception("a bug: the keeper cannot be told")
            return False
        return True


def _bounds(settings: Settings) -> list[str]:
    hang_ms = 0 if settings.hang_after_s is None else int(settings.hang_after_s * 1000)
    return [str(hang_ms), str(settings.takeovers_max)]
