"""Namespace: the user and mount namespace of an in-place run, where files are seen at their own
paths.

``Namespace.make`` forks a helper. It unshares, mounts FUSE, and sends the descriptors of
``/dev/fuse`` and of the namespaces back; the daemon, which stays outside, serves the mount. When
the mount answers, the helper covers directories (``cover``), and ends. The namespace lives as long
as a process is in it or a descriptor of it is open; then the kernel removes all its mounts.

A namespace of mounts alone is enough for root. Other users need a user namespace around it, which
maps nothing but their own user and group. Then the kernel knows no other group: the front shows
files of a supplementary group as files of the primary one (decision 96).

All mounts of copperfs are on a small tmpfs inside. It lies over a directory that every machine with
FUSE has, and that no job needs, so no directory has to be made and removed.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from copperfs.inplace.syscalls import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MNT_DETACH,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_SLAVE,
    mount,
    setns,
    unmount,
    unshare,
)
from copperfs.model.errors import CopperError

# The tmpfs lies here. The kernel makes it with the fuse module, and fusectl is mounted there.
BASE = "/sys/fs/fuse/connections"
OVERLAY = os.path.join(BASE, ".overlay")
# It holds three directories.
BASE_OPTIONS = "size=64k,nr_inodes=16,mode=755"
FLAGS = MS_RDONLY | MS_NOSUID | MS_NODEV
MADE_WITHIN_S = 30.0
# Each directory is looked up in the source and in the mount.
COVERED_WITHIN_S = 120.0
ENDS_WITHIN_S = 5.0
RECEIVED_AT_ONCE = 1 << 16
DESCRIPTORS_MAX = 3


class CannotBeInPlace(CopperError):
    """This machine, or its settings, do not allow it."""


@dataclass(frozen=True, slots=True)
class FuseOptions:
    fstype: str
    name: str
    """The source, as mount tables show it."""
    allow_other: bool


@dataclass(frozen=True, slots=True)
class Covered:
    overlay: bool
    """Whether one lies between the mount and the covered directories."""
    directories: tuple[str, ...]
    failed: dict[str, str]
    """The reason for each directory that could not be covered, or left writable."""


@dataclass(slots=True)
class Namespace:
    mountpoint: str
    """Where FUSE is mounted, inside."""
    device: str
    fuse_fd: int
    mounts_fd: int
    users_fd: int | None
    """None: it has the users of the machine."""
    _channel: socket.socket
    _helper: int

    @classmethod
    def make(cls, name: str, options: FuseOptions) -> "Namespace":
        """CannotBeInPlace has the reason. Nothing answers in the mount yet."""
        ours, theirs = socket.socketpair()
        helper = os.fork()
        if helper == 0:
            ours.close()
            _help(theirs, name, options)
        theirs.close()
        fds: list[int] = []
        made = _ask(ours, helper, MADE_WITHIN_S, fds)
        for fd in fds:
            os.set_inheritable(fd, False)
        if "error" in made:
            ours.close()
            _reap(helper)
            raise CannotBeInPlace(made["error"])
        fuse, mounts, *users = fds
        users_fd = users[0] if users else None
        return cls(made["mountpoint"], made["device"], fuse, mounts, users_fd, ours, helper)

    def cover(
        self, source: str, directories: Sequence[str], writable: Sequence[str], *, overlay: bool
    ) -> "Covered":
        """Show the mount over *directories*, but not over *writable*."""
        request = {
            "source": source,
            "directories": directories,
            "writable": writable,
            "overlay": overlay,
        }
        with suppress(OSError):  # it was killed, and gives no answer
            _say(self._channel, request)
        said = _ask(self._channel, self._helper, COVERED_WITHIN_S)
        self._end_helper()
        if "error" in said:
            raise CannotBeInPlace(said["error"])
        return Covered(said["overlay"], tuple(said["directories"]), said["failed"])

    def close(self) -> None:
        """It ends, unless a process is in it."""
        self._end_helper()
        for fd in (self.fuse_fd, self.mounts_fd, self.users_fd):
            if fd is not None and fd >= 0:
                os.close(fd)

    def give_fuse_away(self) -> None:
        """The daemon has it now. Its death shows only if no other process keeps it."""
        os.close(self.fuse_fd)
        self.fuse_fd = -1

    def _end_helper(self) -> None:
        self._channel.close()
        if self._helper:
            _reap(self._helper)
            self._helper = 0


def enter(mounts_fd: int, users_fd: int | None) -> None:
    """For a process with one thread. Its working directory is the root afterwards."""
    if users_fd is not None:
        setns(users_fd, CLONE_NEWUSER)
    setns(mounts_fd, CLONE_NEWNS)


def open_namespaces(pid: int, life: ExitStack) -> tuple[int, int | None]:
    """The descriptors by which to ``enter`` those of a process. OSError if it ended."""

    def opened(kind: str) -> int:
        fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        life.callback(os.close, fd)
        return fd

    mounts_fd, users_fd = opened("mnt"), opened("user")
    is_own = os.fstat(users_fd).st_ino == os.stat("/proc/self/ns/user").st_ino
    return mounts_fd, None if is_own else users_fd


def _ask(
    channel: socket.socket, helper: int, within_s: float, fds: list[int] | None = None
) -> dict[str, Any]:
    """The helper's answer. A helper that gives none is killed."""
    channel.settimeout(within_s)
    try:
        said = _hear(channel, fds)
    except TimeoutError:
        os.kill(helper, signal.SIGKILL)
        return {"error": f"it took longer than {within_s:.0f} s; is the source hung?"}
    return said or {"error": "its helper was killed"}


def _reap(helper: int) -> None:
    """It has answered, or its channel is closed, so it ends. One that hangs in the kernel is left
    to the process that comes to own it."""
    deadline = time.monotonic() + ENDS_WITHIN_S
    with suppress(ChildProcessError):  # the launcher ignores SIGCHLD, and so do we
        while os.waitpid(helper, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.001)


def _say(channel: socket.socket, words: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    line = json.dumps(words).encode("ascii") + b"\n"
    sent = socket.send_fds(channel, [line], fds)
    channel.sendall(line[sent:])


def _hear(channel: socket.socket, fds: list[int] | None = None) -> dict[str, Any] | None:
    """None at the end of the other side."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            more, came, _, _ = socket.recv_fds(channel, RECEIVED_AT_ONCE, DESCRIPTORS_MAX)
        except ConnectionError:
            return None
        if not more:
            return None
        line += more
        if fds is not None:
            fds += came
    words: dict[str, Any] = json.loads(line)
    return words


# ---- the helper ----------------------------------------------------------------------------------


def _help(channel: socket.socket, name: str, options: FuseOptions) -> NoReturn:
    """The forked process ends here in every case."""
    try:
        _close_all_but(channel.fileno())
        _answer(channel, lambda: _make(channel, name, options))
        _answer(channel, lambda: _cover(channel))
    except BaseException:  # noqa: BLE001 - a forked process must not go on as its parent
        os._exit(1)
    os._exit(0)


def _answer(channel: socket.socket, action: Callable[[], None]) -> None:
    try:
        action()
    except OSError as error:
        _say(channel, {"error": reason(error)})
        raise


def _close_all_but(kept: int) -> None:
    """The run's own sockets would not end with it."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != kept:
            with suppress(OSError):  # that of the listing
                os.close(fd)


def _make(channel: socket.socket, name: str, options: FuseOptions) -> None:
    with_users = os.geteuid() != 0
    become_private(with_users=with_users)
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)  # also loads the module
    mount("copperfs", BASE, "tmpfs", MS_NOSUID | MS_NODEV, BASE_OPTIONS)
    mountpoint = os.path.join(BASE, name)
    for each in (mountpoint, os.path.join(BASE, ".empty"), OVERLAY):
        os.mkdir(each, 0o755)
    mount(options.name, mountpoint, options.fstype, FLAGS, _fuse_data(fuse, options))
    kinds = ("mnt", "user") if with_users else ("mnt",)
    fds = [fuse, *(os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds)]
    made = {"mountpoint": mountpoint, "device": _device_of(mountpoint)}
    _say(channel, made, fds)
    for fd in fds:
        os.close(fd)


def become_private(*, with_users: bool) -> None:
    """Mounts made later, elsewhere, still arrive (slave), as an automounter's have to."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWNS | (CLONE_NEWUSER if with_users else 0))
    if with_users:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"),
                           ("gid_map", f"{gid} {gid} 1")):  # fmt: skip
            _write(f"/proc/self/{name}", text)
    mount("none", "/", None, MS_REC | MS_SLAVE)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)


def _fuse_data(fd: int, options: FuseOptions) -> str:
    """``default_permissions``: the kernel checks access by the modes that are shown."""
    data = [f"fd={fd}", "rootmode=40000", f"user_id={os.geteuid()}", f"group_id={os.getegid()}"]
    # In a user namespace there is one user; the option would keep that one out from outside.
    others = options.allow_other and os.geteuid() == 0
    return ",".join([*data, "default_permissions", *(["allow_other"] * others)])


def _device_of(mountpoint: str) -> str:
    """By the kernel's table: the mount does not answer yet."""
    wanted = os.fsencode(mountpoint)
    with open("/proc/self/mountinfo", "rb") as table:
        found = [line.split(b" ") for line in table]
    return next(os.fsdecode(each[2]) for each in reversed(found) if each[4] == wanted)


def _cover(channel: socket.socket) -> None:
    request = _hear(channel)
    if request is None:
        return  # the run ended
    shown = mountpoint = mountpoint_inside()
    if request["overlay"]:
        shown = overlay_of(mountpoint) or mountpoint
    done = cover(shown, request["source"], request["directories"], request["writable"])
    _say(channel, {"overlay": shown != mountpoint} | done)


def mountpoint_inside() -> str:
    return next(os.path.join(BASE, each) for each in os.listdir(BASE) if not each.startswith("."))


def overlay_inside() -> str | None:
    """Where the overlay is mounted, if there is one."""
    return OVERLAY if os.path.ismount(OVERLAY) else None


def overlay_of(mountpoint: str, *, anew: bool = False) -> str | None:
    """A view of the mount through overlayfs, which answers ``ioctl`` itself. It wants two layers.
    None where the kernel has none for users (before 5.11)."""
    where = OVERLAY
    if anew:
        with suppress(OSError):  # an earlier renewal ended here
            unmount(where, MNT_DETACH)
    layers = ":".join(each.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
                      for each in (mountpoint, os.path.join(BASE, ".empty")))  # fmt: skip
    # The overlay copies the mode of the root, which the kernel does not know before it asks.
    os.stat(mountpoint)
    try:
        mount("copperfs", where, "overlay", FLAGS, f"lowerdir={layers}")
    except OSError:
        return None
    return where


def cover(
    shown: str,
    source: str,
    directories: Sequence[str],
    writable: Sequence[str],
    *,
    anew: bool = False,
) -> dict[str, Any]:
    """A fault of one directory stays with that one. *anew*: they are covered already. All that may
    take long comes before an old cover is removed."""
    covered: list[str] = []
    failed: dict[str, str] = {}
    with ExitStack() as life:
        views = {
            each: _opened(os.path.join(shown, os.path.relpath(each, source)), each, failed, life)
            for each in directories
        }
        # Opened before they are covered, so that they lead to the source; if they are, already do.
        kept = {each: _opened(each, each, failed, life) for each in writable}
        for each, view in views.items():
            if view is None:
                continue
            try:
                if anew:
                    with suppress(OSError):
                        unmount(each, MNT_DETACH)
                mount(f"/proc/self/fd/{view}", each, None, MS_BIND)
                covered.append(each)
            except OSError as error:
                failed[each] = os.strerror(error.errno or 0)
        for each, fd in kept.items():
            try:
                if fd is not None:
                    mount(f"/proc/self/fd/{fd}", each, None, MS_BIND | MS_REC)
            except OSError as error:
                failed[each] = os.strerror(error.errno or 0)
    return {"directories": covered, "failed": failed}


def _opened(path: str, named: str, failed: dict[str, str], life: ExitStack) -> int | None:
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        failed[named] = os.strerror(error.errno or 0)
        return None
    life.callback(os.close, fd)
    return fd


# ---- why not -------------------------------------------------------------------------------------

_LIMITS = "/proc/sys/user"


def reason(error: OSError) -> str:
    """What to tell the user, and what to do."""
    what = error.filename or ""
    if what == "unshare" or "/proc/self/" in str(what):
        kind = "user" if os.geteuid() != 0 else "mount"
        return (
            f"{kind} namespaces are closed here ({error.strerror}); an administrator opens them: "
            f"{_opens()}"
        )
    if what == "/dev/fuse":
        return f"/dev/fuse cannot be opened ({error.strerror}); an administrator gives access to it"
    if what == BASE:
        return f"{BASE} cannot be covered ({error.strerror}); is /sys mounted, and fuse loaded?"
    return f"{what} cannot be mounted in a namespace of this user ({error.strerror})"


def _opens() -> str:
    for path, remedy in (
        ("/proc/sys/kernel/unprivileged_userns_clone", "sysctl kernel.unprivileged_userns_clone=1"),
        (f"{_LIMITS}/max_user_namespaces", "sysctl user.max_user_namespaces=15000"),
        (f"{_LIMITS}/max_mnt_namespaces", "sysctl user.max_mnt_namespaces=15000"),
    ):
        try:
            with open(path, encoding="ascii") as file:
                if file.read().strip() == "0":
                    return remedy
        except OSError:
            continue
    return "see docs/running.md, and an AppArmor rule on Ubuntu"
