"""Handover: what a daemon leaves with its keeper, so that a successor can go on with its mount.

The descriptors have a fixed order: the connection's state (``native/front/connection_state.h``),
the daemon's own words as JSON in memory, ``/dev/fuse``, in a job the socket on which its peers find
it and the launch as JSON, those of the users of a ``copperfs run``, and the *exclusives*. These are
what only one process can have: the lock of the tier's directory, and the port of the metrics. A
daemon whose threads hang in the kernel keeps its descriptors though it was killed, so its successor
could not open them anew.
"""

import errno
import json
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from copperfs import __version__
from copperfs.config.settings import Settings
from copperfs.daemon.path_policy_from_mounts import PathClasses
from copperfs.daemon.takeover_history import TakeoverHistory
from copperfs.launch.launch_method import Launch
from copperfs.model.errors import MountError
from copperfs.native import CONNECTION_MAGIC, CONNECTION_VERSION

VERSION = 2
"""Of what is left here, and of the keeper's messages: a successor of another one refuses."""
WORDS_MAX = 64 << 20
"""A roster of 100,000 nodes is 10 MB."""
MESSAGE_MAX = 1024
TIER_LOCK, METRICS_PORT = "tier-lock", "metrics-port"
DESCRIPTORS_MAX = 250
"""The kernel passes 253 at once; also in keeper.c."""


_MFD_NOEXEC_SEAL = 0x8
"""From Linux 6.3. Where ``vm.memfd_noexec`` is 2, all else is refused."""


def memory_file(name: str) -> int:
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create(name, os.MFD_CLOEXEC)


@dataclass(frozen=True, slots=True)
class Handover:
    settings: Settings
    launch: Launch | None
    source_root: bytes
    source_device: int
    statfs: os.statvfs_result
    """The last numbers of the source, which may not answer the successor."""
    device: str
    """MAJOR:MINOR of the mount."""
    connection_fd: int
    fuse_fd: int
    launch_fd: int | None = None
    """What ``launch_file`` made of the launch."""
    oom_kills: int = 0
    """How many processes of this cgroup the kernel had killed for want of memory."""
    oom_score: str = "0"
    """Of a process that is not the first to be killed."""
    users: dict[str, Any] | None = None
    users_fds: Sequence[int] = ()
    pid: int = 0
    """Of the daemon that leaves it."""
    exclusives: dict[str, int] = field(default_factory=dict)
    """Descriptors of what only one process can have, by the names above."""
    upgrade: str | None = None
    """The latest upgrade by which a successor came, or is to come."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings that the successor is to have, as its own version writes them. To a successor, those
    that differ from its predecessor's."""
    takeovers: TakeoverHistory = field(default_factory=TakeoverHistory)
    tier_device: int | None = None
    """Of the tier's directory. The path of a disk that was unmounted leads to another."""
    domains: tuple[int, ...] = ()
    """Failure domains that the job's other nodes have agreed to, whatever a file says now."""
    path_classes: PathClasses | None = None
    """Whatever is mounted now. None in a daemon that does not know them yet."""

    def settings_changed(self) -> Settings:
        """As far as this version knows them."""
        return Settings.of_another_version(asdict(self.settings) | self.changes)

    def check_connection(self) -> None:
        header = struct.Struct("=II")
        magic, version = header.unpack(os.pread(self.connection_fd, header.size, 0))
        if (magic, version) != (CONNECTION_MAGIC, CONNECTION_VERSION):
            raise MountError(
                f"copperfs {__version__} cannot read what its daemon knows of the kernel, which "
                f"has the form {version}, and not {CONNECTION_VERSION}; unmount it, and mount it "
                "again"
            )

    def close(self) -> None:
        """In a process that does not go on with it."""
        if self.launch is not None:
            self.launch.listener.close()
        if self.launch_fd is not None:
            os.close(self.launch_fd)
        for each in (
            self.connection_fd,
            self.fuse_fd,
            *self.users_fds,
            *self.exclusives.values(),
        ):
            os.close(each)

    def to_fds(self) -> list[int]:
        """The second one is new, and the caller closes it."""
        words = {
            "version": VERSION,
            "release": __version__,
            "upgrade": self.upgrade,
            "changes": self.changes,
            "settings": self.settings.to_json(),
            "launch": self.launch is not None,
            "source_root": os.fsdecode(self.source_root),
            "source_device": self.source_device,
            "statfs": tuple(self.statfs),
            "device": self.device,
            "oom_kills": self.oom_kills,
            "oom_score": self.oom_score,
            "users": self.users,
            "pid": self.pid,
            "exclusives": list(self.exclusives),
            "takeovers": self.takeovers.to_json(),
            "tier_device": self.tier_device,
            "domains": self.domains,
            "path_classes": None if self.path_classes is None else self.path_classes.to_json(),
        }
        words_fd = _written("copperfs-handover", json.dumps(words))
        of_job = []
        if self.launch is not None:
            assert self.launch_fd is not None
            of_job = [self.launch.listener.fileno(), self.launch_fd]
        return [
            self.connection_fd,
            words_fd,
            self.fuse_fd,
            *of_job,
            *self.users_fds,
            *self.exclusives.values(),
        ]

    @classmethod
    def from_fds(cls, fds: list[int]) -> "Handover":
        """Takes the descriptors."""
        connection_fd, words_fd, fuse_fd, *sockets = fds
        try:
            words = json.loads(os.pread(words_fd, WORDS_MAX, 0))
        finally:
            os.close(words_fd)
        if words["version"] != VERSION:
            raise MountError(
                f"copperfs {__version__} cannot go on with a mount of copperfs "
                f"{words.get('release', 'of another version')}, which leaves it in the form "
                f"{words['version']}, and not {VERSION}; unmount it, and mount it again"
            )
        classes = words["path_classes"]
        launch = launch_fd = None
        if words["launch"]:
            listener, launch_fd = socket.socket(fileno=sockets.pop(0)), sockets.pop(0)
            launch = Launch.from_json(os.pread(launch_fd, WORDS_MAX, 0).decode("ascii"), listener)
        names, before = words["exclusives"], json.loads(words["settings"])
        changes = {
            name: value for name, value in words["changes"].items() if before.get(name) != value
        }
        users_count = len(sockets) - len(names)
        return cls(
            _settings_of(before | words["changes"]),
            launch,
            os.fsencode(words["source_root"]),
            words["source_device"],
            os.statvfs_result(words["statfs"]),
            words["device"],
            connection_fd,
            fuse_fd,
            launch_fd,
            words["oom_kills"],
            words["oom_score"],
            words["users"],
            sockets[:users_count],
            words["pid"],
            dict(zip(names, sockets[users_count:], strict=True)),
            words["upgrade"],
            changes,
            takeovers=TakeoverHistory.of_json(words["takeovers"]),
            tier_device=words["tier_device"],
            domains=tuple(words["domains"]),
            path_classes=None if classes is None else PathClasses.of_json(classes),
        )


def launch_file(launch: Launch) -> int:
    """It never changes, and a roster of 8,300 nodes takes 100 ms to write."""
    return _written("copperfs-launch", launch.to_json())


def _written(name: str, text: str) -> int:
    fd = memory_file(name)
    with open(fd, "wb", closefd=False) as file:
        file.write(text.encode("ascii"))
    return fd


def _settings_of(values: dict[str, Any]) -> Settings:
    unknown = sorted(values.keys() - {each.name for each in fields(Settings)})
    if unknown:
        raise MountError(
            f"copperfs {__version__} does not know what this mount is set to: "
            f"{', '.join(unknown)}; unmount it, and mount it again"
        )
    return Settings.of_another_version(values)


@dataclass(frozen=True, slots=True)
class Takeover:
    """Why and when a successor goes on."""

    handover: Handover
    cause: str
    """``upgrade``, ``hang``, ``signal-9``, ``exit-1``; ``death`` where the keeper knows no more."""
    number: int
    """How many times a successor of this mount has gone on."""
    since_s: float
    """Of the monotonic clock: since then no daemon has answered."""

    @classmethod
    def of_message(cls, message: bytes, fds: list[int]) -> "Takeover":
        cause, number, since_ns = message[1:].decode("ascii").split()
        return cls(Handover.from_fds(fds), cause, int(number), int(since_ns) / 1e9)
