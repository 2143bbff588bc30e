"""Attachment: how the daemon gets its mount, and how the mount ends.

``MountedHere`` mounts at a path that all processes see. ``MountedInside`` is in the namespace of an
in-place run: it was mounted there by a helper (``inplace/namespace.py``), and the daemon has only
``/dev/fuse``. It ends with the last process of the namespace, and the daemon never sees its paths.
"""

import json
import logging
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import trio

from copperfs.config.settings import Settings
from copperfs.fuse.inside_mounts import other_namespaces
from copperfs.fuse.mounting import (
    FSTYPE,
    clean_up_stale,
    mount_at,
    mount_options,
    open_channel,
    unmount,
)
from copperfs.inplace.namespace import open_namespaces
from copperfs.model.errors import MountError
from copperfs.startup.bundle import passed_to_python, python_of

log = logging.getLogger(__name__)

CHANGED_WITHIN_S = 30.0
RENEWED_EVERY_S = 0.5


class Attachment(Protocol):
    @property
    def mountpoint(self) -> str: ...

    @property
    def device(self) -> str:
        """MAJOR:MINOR of the mount, once it is open."""
        ...

    def check(self) -> None:
        """MountError if it cannot be mounted."""

    def open(self) -> int:
        """The descriptor of ``/dev/fuse``, which the caller closes."""
        ...

    def unmount(self) -> bool:
        """Whether the kernel tells its end; if not, its users may keep the connection open."""
        ...

    def unmount_at_last(self) -> None:
        """After a failure."""


@dataclass(slots=True)
class MountedHere:
    settings: Settings
    device: str = ""

    @property
    def mountpoint(self) -> str:
        return self.settings.mountpoint

    def check(self) -> None:
        where = self.mountpoint
        if mount_at(where) is None and not os.path.isdir(where):
            raise MountError(f"{where} is not a directory; make it with: mkdir {where}")

    def open(self) -> int:
        options = mount_options(self.settings.source, allow_other=self.settings.allow_other)
        if clean_up_stale(self.mountpoint):
            log.info("cleaned up what a killed daemon had left at %s", self.mountpoint)
        fd = open_channel(self.mountpoint, options)
        mounted = mount_at(self.mountpoint)
        if mounted is None:
            os.close(fd)
            raise MountError(f"{self.mountpoint} was unmounted while it was mounted; try again")
        self.device = mounted.device  # remembered, since its mount may end at any time
        return fd

    def unmount(self) -> bool:
        try:
            unmount(self.mountpoint)
        except MountError as error:
            log.info("%s; detaching it", error)
            with suppress(MountError):
                unmount(self.mountpoint, lazy=True)
            return False
        return True

    def unmount_at_last(self) -> None:
        mounted = mount_at(self.mountpoint)
        if mounted is not None and mounted.fstype == FSTYPE:
            with suppress(MountError):
                unmount(self.mountpoint, lazy=True)


@dataclass(slots=True)
class TakenOver(MountedHere):
    """Mounted by a daemon that has died. Its mount point is not touched: nothing answers there."""

    fuse_fd: int = -1

    def check(self) -> None:
        pass

    def open(self) -> int:
        return self.fuse_fd


@dataclass(slots=True)
class MountedInside:
    mountpoint: str
    device: str
    _fuse_fd: int
    _mounts_fd: int
    _users_fd: int | None
    namespace: tuple[int, int]
    """Device and number of the mount namespace, by which its processes are found."""
    _changing: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of_line(cls, words: dict[str, Any]) -> "MountedInside":
        fds = [fd for fd in (words["fuse"], words["mounts"], words["users"]) if fd is not None]
        for fd in fds:
            os.set_inheritable(fd, False)
        status = os.fstat(words["mounts"])
        return cls(
            words["mountpoint"],
            words["device"],
            words["fuse"],
            words["mounts"],
            words["users"],
            (status.st_dev, status.st_ino),
        )

    def left(self, fds: list[int]) -> dict[str, Any]:
        """What a successor needs; adds to *fds* the descriptors of which it has the numbers."""
        namespaces = self.namespace_fds()
        fds += namespaces
        return {
            "mountpoint": self.mountpoint,
            "device": self.device,
            "mounts": len(fds) - len(namespaces) if namespaces else None,
            "users": len(fds) - 1 if self._users_fd is not None else None,
            "namespace": self.namespace,
        }

    @classmethod
    def resumed(cls, words: dict[str, Any], fds: Sequence[int], fuse_fd: int) -> "MountedInside":
        mounts, users = words["mounts"], words["users"]
        return cls(
            words["mountpoint"],
            words["device"],
            fuse_fd,
            -1 if mounts is None else fds[mounts],
            None if users is None else fds[users],
            tuple(words["namespace"]),
        )

    def check(self) -> None:
        pass

    def open(self) -> int:
        return self._fuse_fd

    def unmount(self) -> bool:
        return False

    def unmount_at_last(self) -> None:
        self.let_go()

    def groups(self) -> tuple[list[int], int]:
        """The groups whose files the front shows as files of the second: the user's own, of which a
        user namespace knows the primary one only."""
        primary = os.getegid()
        if self._users_fd is None and _knows_all_groups():
            return [], primary
        return [each for each in os.getgroups() if each != primary], primary

    def send(self, sock: socket.socket, line: bytes) -> None:
        """*line* with the descriptors by which a process enters."""
        with suppress(OSError):
            socket.send_fds(sock, [line], self.namespace_fds())

    def namespace_fds(self) -> list[int]:
        return [fd for fd in (self._mounts_fd, self._users_fd) if fd is not None and fd >= 0]

    def let_go(self) -> None:
        """From now on the namespace ends with its last process."""
        for fd in (self._mounts_fd, self._users_fd):
            if fd is not None and fd >= 0:
                os.close(fd)
        self._mounts_fd, self._users_fd = -1, None

    def renew(self, covered: Mapping[str, Any], source: str) -> None:
        """Blocks. A new overlay takes the place of the old one."""
        if covered.get("overlay"):
            done = self._change(covered["directories"], covered["writable"], source, anew=True)
            if done["failed"]:
                log.warning("not all covers could be renewed: %s", done["failed"])

    def cover_more(
        self, directories: Sequence[str], writable: Sequence[str], source: str
    ) -> dict[str, Any]:
        """Blocks. The directories that are covered now, and the reasons for the others."""
        return self._change(directories, writable, source, anew=False)

    def _change(
        self, directories: Sequence[str], writable: Sequence[str], source: str, *, anew: bool
    ) -> dict[str, Any]:
        request = {"directories": directories, "writable": writable, "source": source, "anew": anew}
        with self._changing, ExitStack() as ends:
            fds = self._opened(ends)
            if fds is None:
                return {"directories": [], "failed": {}}
            mounts_fd, users_fd = fds
            done = subprocess.run(
                [*python_of("copperfs.inplace.change_covers"), str(mounts_fd), str(users_fd)],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                pass_fds=[*(fd for fd in fds if fd >= 0), *passed_to_python()],
                timeout=CHANGED_WITHIN_S,
                check=False,
            )
        if done.returncode != 0:
            log.warning("covers could not be changed: %s", done.stderr.strip())
            reason = "the covers of this node could not be changed; see the log of its daemon"
            return {"directories": [], "failed": dict.fromkeys(directories, reason)}
        changed: dict[str, Any] = json.loads(done.stdout)
        return changed

    def _opened(self, ends: ExitStack) -> tuple[int, int] | None:
        """Descriptors of the namespaces of mounts and users, -1 for that of the machine; None if no
        process is inside."""
        if self._mounts_fd >= 0:
            return self._mounts_fd, -1 if self._users_fd is None else self._users_fd
        for pid in processes_in(self.namespace):
            with suppress(OSError):  # it ended
                mounts_fd, users_fd = open_namespaces(pid, ends)
                status = os.fstat(mounts_fd)
                if (status.st_dev, status.st_ino) == self.namespace:
                    return mounts_fd, -1 if users_fd is None else users_fd
                # else the number is another process's by now
        return None

    def is_used(self) -> bool:
        """Whether a process sees the mount: one that a command has left in the background, also in
        a container."""
        device = f" {self.device} ".encode()
        return any(device in table for _, table in other_namespaces())


def _knows_all_groups() -> bool:
    """Not in the user namespace of a container, where others are shown as 65534."""
    try:
        with open("/proc/self/gid_map", encoding="ascii") as file:
            return file.read().split() == ["0", "0", "4294967295"]
    except OSError:
        return True


@dataclass(slots=True)
class OverlayRenewal:
    """Once files have other numbers without a clear, the overlay is renewed soon, and once for all
    of them."""

    renew: Callable[[], object]
    _asked: trio.Event = field(default_factory=trio.Event)

    def ask(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        while True:
            await self._asked.wait()
            await trio.sleep(RENEWED_EVERY_S)
            self._asked = trio.Event()
            await trio.to_thread.run_sync(self.renew, abandon_on_cancel=True)


def processes_in(namespace: tuple[int, int]) -> Iterator[int]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                status = os.stat(process / "ns" / "mnt")
                if (status.st_dev, status.st_ino) == namespace:
                    yield int(process.name)
