"""The log of a daemon in a file that may be rotated.

logrotate renames the file and expects the daemon to begin a new one. ``LogFile`` does so at the
next message, or when the daemon is sent SIGHUP. Standard error goes to the log, too
(``fuse/starting.py``), and moves along.
"""

import logging
import os
from contextlib import suppress
from typing import TextIO

from copperfs.errors import MountError
from copperfs.fuse.own_files import open_to_append

_STDERR = 2


class LogFile(logging.StreamHandler[TextIO]):
    """Appends to a file of this user's: to the one that has the name now."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._complained = False
        try:
            super().__init__(_stream(open_to_append(path)))
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
        if self.stream.closed:
            return  # at the very end
        if not self._has_the_name():
            self.reopen()
        super().emit(record)

    def reopen(self) -> None:
        """Go on in the file that has the name now; in the old one if that cannot be."""
        self.acquire()
        try:
            old = self.stream
            new = _stream(open_to_append(self._path))
            if _are_one(_STDERR, old.fileno()):
                os.dup2(new.fileno(), _STDERR)
            self.stream, self._complained = new, False
            with suppress(OSError):
                old.close()
        except OSError as error:
            self._complain(error)
        finally:
            self.release()

    def _complain(self, error: OSError) -> None:
        """Once; into the old file."""
        if self._complained:
            return
        self._complained = True
        text = "%s cannot be opened anew, and the log goes on in the old file: %s"
        told = (self._path, error.strerror)
        level = logging.WARNING
        super().emit(logging.LogRecord(__name__, level, __file__, 0, text, told, None))

    def _has_the_name(self) -> bool:
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(self.stream.fileno()))


def _stream(fd: int) -> TextIO:
    return open(fd, "a", encoding="utf-8", errors="backslashreplace")


def _are_one(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False


def reopen_logs() -> None:
    """All files that this process logs to; in a worker thread, since a filesystem may hang."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogFile):
            handler.reopen()
            logging.getLogger(__name__).info("SIGHUP: the log is opened anew")
