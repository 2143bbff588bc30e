"""Log file: the daemon's log, which may be rotated.

After logrotate has renamed the file, ``LogWatch`` opens a new one within some seconds, or on
SIGHUP. Standard error (``fuse/daemon_start.py``) moves along.

The log's filesystem may hang. So a worker thread does whatever concerns the name of the file,
without the handler's lock, which each message takes.

A mount with ``--takeover`` and no log file has its log in memory that is standard error of daemon,
keeper and standby. So it outlives each daemon, ``copperfs bugreport`` finds it, and nothing is left
when the last of them has ended.
"""

import fcntl
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TextIO

import trio

from copperfs.daemon.handover import memory_file
from copperfs.fuse.safe_open import open_to_append
from copperfs.model.errors import MountError

LOOKS_EVERY_S = 3.0
OPENS_WITHIN_S = 0.5
"""In a successor, which applications wait for."""
LOOK_THREAD = "copperfs-look"
MEMORY_LOG = "copperfs-log"
"""Also in bugreport_archive.py."""
MEMORY_LOG_MAX, MEMORY_LOG_KEPT = 256 << 10, 128 << 10
_STDERR = 2


class LogFile(logging.StreamHandler[TextIO]):
    """The file must belong to this user."""

    def __init__(self, path: str, *, goes_on: bool = False) -> None:
        """*goes_on*: to write where standard error leads, which is the predecessor's log, until
        ``look`` can open the file."""
        self._path = path
        self._complained = False
        try:
            super().__init__(_stream(os.dup(_STDERR) if goes_on else open_to_append(path)))
        except OSError as error:
            raise MountError(f"{path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        self.acquire()
        try:
            with suppress(OSError):
                self.stream.close()
            super().close()
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        if not self.stream.closed:
            super().emit(record)

    def look(self, *, reopens: bool = False) -> bool:
        """Switch to the file that has the name now, or stay in the old one if that fails;
        *reopens*: switch even if it is the same file. Log calls do not wait for it. Whether
        standard error has moved along."""
        old = self.stream
        try:
            if not reopens and self._has_the_name(old):
                return False
            new = _stream(open_to_append(self._path))
        except OSError as error:
            self._complain(error)
            return False
        except ValueError:
            return False  # closed: this is the very end
        moves_stderr = _are_one(_STDERR, old)
        self.acquire()
        try:
            if old.closed:
                new.close()
                return False
            self.stream, self._complained = new, False
        finally:
            self.release()
        if moves_stderr:
            os.dup2(new.fileno(), _STDERR)
        with suppress(OSError):
            old.close()
        return moves_stderr

    def look_briefly(self) -> None:
        """Wait for ``OPENS_WITHIN_S`` at most; the thread goes on if the filesystem hangs."""
        thread = threading.Thread(target=self.look, name=LOOK_THREAD, daemon=True)
        thread.start()
        thread.join(OPENS_WITHIN_S)

    def _complain(self, error: OSError) -> None:
        if self._complained:
            return
        self._complained = True
        text = "%s cannot be opened anew, and the log goes on in the old file: %s"
        told = (self._path, error.strerror)
        level = logging.WARNING
        self.handle(logging.LogRecord(__name__, level, __file__, 0, text, told, None))

    def _has_the_name(self, stream: TextIO) -> bool:
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(stream.fileno()))


class MemoryLog(logging.StreamHandler[TextIO]):
    """Keeps the newest messages, and what else is written to standard error: by the keeper, and
    the stacks of a daemon that hung or crashed."""

    def __init__(self) -> None:
        if not _is_memory_log(_STDERR):  # else it is that of the daemon before
            fd = memory_file(MEMORY_LOG)
            # Several processes write.
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
            os.dup2(fd, _STDERR)
            os.close(fd)
        super().__init__(_stream(_STDERR, closefd=False))

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        size = os.fstat(_STDERR).st_size
        if size > MEMORY_LOG_MAX:
            # by the descriptor there is: no other one may be free
            kept = os.pread(_STDERR, MEMORY_LOG_KEPT, size - MEMORY_LOG_KEPT)
            os.ftruncate(_STDERR, 0)
            os.write(_STDERR, kept.partition(b"\n")[2])


def _is_memory_log(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{MEMORY_LOG} ")
    except OSError:
        return False


def _stream(fd: int, *, closefd: bool = True) -> TextIO:
    return open(fd, "a", encoding="utf-8", errors="backslashreplace", closefd=closefd)


def _are_one(fd: int, stream: TextIO) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.fstat(stream.fileno()))
    except (OSError, ValueError):
        return False


def look_at_logs(*, reopens: bool) -> bool:
    """In a worker thread, since a filesystem may hang. Whether standard error has moved along."""
    has_moved = False
    for handler in open_logs():
        has_moved |= handler.look(reopens=reopens)
        if reopens:
            logging.getLogger(__name__).info("SIGHUP: the log is opened anew")
    return has_moved


def open_logs() -> list[LogFile]:
    return [each for each in logging.getLogger().handlers if isinstance(each, LogFile)]


class LogWatch:
    def __init__(self, moved: Callable[[], None]) -> None:
        """*moved* is called when standard error leads to another file."""
        self._moved = moved
        self._asked = trio.Event()

    def reopen(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        while open_logs():
            with trio.move_on_after(LOOKS_EVERY_S):
                await self._asked.wait()
            reopens, self._asked = self._asked.is_set(), trio.Event()
            if await trio.to_thread.run_sync(
                partial(look_at_logs, reopens=reopens), abandon_on_cancel=True
            ):
                self._moved()
