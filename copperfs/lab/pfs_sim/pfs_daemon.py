"""Process of the stand-in: starts and stops its parts.

``copperfs pfs-sim`` starts it as ``python -m copperfs.lab.pfs_sim.pfs_daemon FD``
(``copperfs/fuse/daemon_start.py``). It ends when its last mount is gone, and on SIGTERM, SIGINT and
SIGHUP. It then releases what hangs and detaches mounts in use, whose users get ENOTCONN.

The mounts are listed under the path of the control socket, so a mount point leads to it.
"""

import json
import os
import re
import resource
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path as FilePath

from copperfs.fuse.mounting import (
    PFS_SIM_FSTYPE,
    absolute,
    answers,
    clean_up_stale,
    mount_at,
    open_channel,
    unmount,
)
from copperfs.lab.pfs_sim.passthrough import PassthroughClient
from copperfs.lab.pfs_sim.pfs_control import PfsControlServer
from copperfs.lab.pfs_sim.pfs_settings import PfsSettings
from copperfs.lab.pfs_sim.request_loop import Loop
from copperfs.model.errors import CopperError, MountError

# Lustre's client reads this much at once; the kernel's default is 128 KiB.
READ_AHEAD_KIB = 1024
SOCKET_PATH_MAX = 107


class PfsDaemon:
    def __init__(self, settings: PfsSettings) -> None:
        self.settings = settings
        self._directory = os.path.realpath(settings.directory)
        self._mountpoints = [absolute(each) for each in settings.mountpoints]
        self._loop = Loop(settings)
        self._devices: dict[str, str] = {}
        """The devices of its own mounts: another mount may lie over them."""
        self._unmounting: threading.Thread | None = None
        self._wake, self._woken = socket.socketpair()

    def run(
        self, ready: Callable[[dict[str, object]], None], starter: socket.socket | None = None
    ) -> None:
        """The daemon ends when *starter* closes, if the settings say so."""
        _raise_descriptor_limit()
        with ExitStack() as cleanup:
            cleanup.callback(self._loop.close)
            self._check()
            control = self._control_path()
            try:
                server = PfsControlServer(self._loop, control, self.stop)
            except OSError as error:
                raise MountError(f"no socket can be made at {control}: {error.strerror}") from None
            cleanup.callback(server.close)
            cleanup.callback(self._unmount)
            self._watch_signals(cleanup)
            if starter is not None and self.settings.tied:
                self._loop.watch(starter.fileno(), lambda _: self._starter_said(starter))
            waiting = set(self._mountpoints)

            def mounted(mountpoint: str) -> None:
                waiting.discard(mountpoint)
                if not waiting:
                    ready({"pid": os.getpid(), "control": control})

            for mountpoint in self._mountpoints:
                self._mount(mountpoint, control, mounted)
            self._loop.run()
            if self._unmounting is not None:
                self._unmounting.join()

    def stop(self) -> None:
        """Unmount in a thread, which ends the loop: the kernel may need replies."""
        self._loop.heal()
        if self._unmounting is None:
            self._unmounting = threading.Thread(target=self._unmount_and_end)
            self._unmounting.start()

    # --- mounting --------------------------------------------------------------------------------

    def _mount(self, mountpoint: str, control: str, mounted: Callable[[str], None]) -> None:
        settings = self.settings
        options = ["ro", "nosuid", "nodev", "subtype=pfs-sim", f"fsname={control}"]
        if settings.permissions:
            options.append("default_permissions")
        if settings.allow_other:
            options.append("allow_other")
        fuse_fd = open_channel(mountpoint, options)
        os.set_blocking(fuse_fd, False)
        self._loop.add_client(
            PassthroughClient(
                self._directory,
                mountpoint,
                fuse_fd,
                self._loop.counts,
                cache_s=settings.cache_s,
                page_cache=settings.page_cache,
                own_inodes=settings.own_inodes,
                ready=lambda: self._ready(mountpoint, mounted),
            )
        )
        found = mount_at(mountpoint)
        assert found is not None, "mounted a moment ago"
        self._devices[mountpoint] = found.device

    def _ready(self, mountpoint: str, mounted: Callable[[str], None]) -> None:
        """The kernel's greeting resets the read-ahead to 128 KiB."""
        with suppress(OSError):
            knob = FilePath(f"/sys/class/bdi/{self._devices[mountpoint]}/read_ahead_kb")
            knob.write_text(str(READ_AHEAD_KIB))
        mounted(mountpoint)

    def _unmount(self) -> None:
        for mountpoint in list(self._devices):
            if not self._is_ours(mountpoint):
                continue
            try:
                unmount(mountpoint)
            except MountError:
                with suppress(MountError):
                    unmount(mountpoint, lazy=True)

    def _is_ours(self, mountpoint: str) -> bool:
        found = mount_at(mountpoint)
        return found is not None and found.device == self._devices[mountpoint]

    def _unmount_and_end(self) -> None:
        self._unmount()
        # A user of a detached mount keeps the connection open, so nothing else would end the loop.
        self._wake.send(b"\0")

    def _check(self) -> None:
        if not os.path.isdir(self._directory):
            raise MountError(f"{self.settings.directory} is not a directory that can be read")
        if len(set(self._mountpoints)) < len(self._mountpoints):
            raise MountError("each mount point can be given once only")
        for mountpoint in self._mountpoints:
            clean_up_stale(mountpoint, PFS_SIM_FSTYPE)
            mounted = mount_at(mountpoint)
            if mounted is not None and mounted.fstype == PFS_SIM_FSTYPE:
                state = "already" if answers(mountpoint) else "and does not answer"
                raise MountError(
                    f"{mountpoint} is mounted {state}; unmount it with: "
                    f"copperfs umount {mountpoint}"
                )
            if mounted is None and not os.path.isdir(mountpoint):
                raise MountError(
                    f"{mountpoint} is not a directory; make it with: mkdir {mountpoint}"
                )
            # Either would make the daemon wait for itself.
            pair = (mountpoint, self._directory)
            if os.path.commonpath(pair) in pair:
                raise MountError(
                    f"{mountpoint} and {self._directory} must not contain each other; "
                    "mount it somewhere else"
                )

    def _control_path(self) -> str:
        path = self.settings.control or f"{runtime_directory()}/{SOCKET_PREFIX}{os.getpid()}.sock"
        if not re.fullmatch(r"/[\w./+@%-]+", path, re.ASCII) or len(path) > SOCKET_PATH_MAX:
            raise MountError(
                f"the control socket cannot be {path}; give a short path of letters and digits"
            )
        return path

    # --- ending ----------------------------------------------------------------------------------

    def _watch_signals(self, cleanup: ExitStack) -> None:
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        before = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        cleanup.callback(signal.set_wakeup_fd, before)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # with any handler Python writes the number to the descriptor
            cleanup.callback(signal.signal, number, signal.signal(number, lambda *_: None))
        self._loop.watch(self._woken.fileno(), lambda _: self._wake_up())

    def _wake_up(self) -> None:
        for number in self._woken.recv(64):
            if number:
                self.stop()
            else:
                self._loop.ended = True

    def _starter_said(self, starter: socket.socket) -> None:
        self._loop.unwatch(starter.fileno())
        self.stop()


SOCKET_PREFIX = "pfs-sim-"


def runtime_directory() -> str:
    """The directory of control sockets, for this user alone; cleans it up."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    path = f"{base}/copperfs" if os.path.isdir(base) else f"/tmp/copperfs-{os.geteuid()}"
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise MountError(
            f"{path} is not a directory that only you may enter; remove it, or give --control"
        )
    for name in os.listdir(path):
        if name.startswith(SOCKET_PREFIX):
            _remove_if_dead(f"{path}/{name}")
    return path


def _remove_if_dead(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                os.unlink(path)
        except OSError:
            return


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Settings in on descriptor FD, one line of outcome out."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    with channel.makefile("r", encoding="ascii") as lines:
        settings = PfsSettings.from_json(lines.readline())

    def tell(outcome: dict[str, object]) -> None:
        with suppress(OSError):
            channel.sendall(json.dumps(outcome).encode() + b"\n")
        if not settings.tied:
            channel.close()

    try:
        PfsDaemon(settings).run(tell, channel)
    except CopperError as error:
        tell({"error": str(error)})
        return 1
    except BaseException as error:
        tell({"error": f"pfs-sim failed: {error!r}; run it with --foreground to see more"})
        raise
    return 0


if __name__ == "__main__":
    code = main()
    # All that others see is cleaned up, and the interpreter would take long to end.
    os._exit(code)
