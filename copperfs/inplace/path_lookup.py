"""Path lookup: resolves symbolic links step by step, and examines each path once.

``os.path.realpath`` names neither the links that it passed nor remembers anything: each entry of
``PATH`` would examine ``/lus``, ``/lus/sw`` and so on again.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

LINKS_MAX = 40  # as the kernel has it


class PathLookup:
    def __init__(self) -> None:
        self._modes: dict[str, int] = {}
        self._targets: dict[str, str] = {}

    def walk(self, path: str) -> tuple[str, list[str]]:
        """*path*, absolute, without links, and each link passed, whose directory is without links.
        OSError if it does not exist."""
        real = "/"
        links: list[str] = []
        pending = path.split("/")[::-1]
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                real = os.path.dirname(real)
                continue
            child = os.path.join(real, name)
            mode = self._mode(child)
            if not mode:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if not stat.S_ISLNK(mode):
                real = child
                continue
            links.append(child)
            if len(links) > LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = self._target(child)
            real = "/" if target.startswith("/") else real
            pending += target.split("/")[::-1]
        return real, links

    def real(self, path: str) -> str:
        """*path* need not exist."""
        try:
            return self.walk(path)[0]
        except OSError:
            return os.path.realpath(path)

    def exists(self, path: str) -> bool:
        """Also for a link that leads nowhere."""
        return self._mode(path) != 0

    def is_directory(self, path: str) -> bool:
        return stat.S_ISDIR(self._followed(path))

    def is_file(self, path: str) -> bool:
        return stat.S_ISREG(self._followed(path))

    def _followed(self, path: str) -> int:
        mode = self._mode(path)
        if not stat.S_ISLNK(mode):
            return mode
        with suppress(OSError):
            return self._mode(self.walk(path)[0])
        return 0

    def _mode(self, path: str) -> int:
        """0 if there is none, or it cannot be had."""
        if path not in self._modes:
            self._modes[path] = 0
            with suppress(OSError):
                self._modes[path] = os.lstat(path).st_mode
        return self._modes[path]

    def _target(self, link: str) -> str:
        if link not in self._targets:
            self._targets[link] = os.readlink(link)
        return self._targets[link]


def contains(directory: str, path: str) -> bool:
    """Also if they are equal."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def upwards(path: str) -> Iterator[str]:
    """*path*, absolute, and the directories above it, without the root."""
    while path != "/":
        yield path
        path = os.path.dirname(path)
