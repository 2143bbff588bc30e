"""``copperfs umount``: unmounts, or cleans up what a killed daemon has left."""

import argparse
import os
import signal
import time
from contextlib import suppress

from copperfs.cli.output import console, print_json, printable, waiting
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.model.errors import ControlError, CopperError, MountError, UsageError
from copperfs.model.types import is_below

NAME = "umount"
HELP = "unmount; also cleans up after a daemon that was killed"

# The daemon ends by itself when its mount is gone.
DAEMON_ENDS_WITHIN_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "mountpoints",
        metavar="MNT",
        nargs="*",
        help="mounts of copperfs or pfs-sim to end",
    )
    parser.add_argument(
        "--stale",
        action="store_true",
        help="all mounts of this user, or for root of all users, whose daemons are gone; only "
        "those below MNT if given",
    )
    parser.add_argument("--json", action="store_true", help="with --stale, print JSON")
    parser.add_argument(
        "--lazy",
        action="store_true",
        help="detach it even if it is in use; its users may go on",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.stale:
        if len(arguments.mountpoints) > 1:
            raise UsageError("umount: --stale takes one directory, or none")
        return _unmount_stale(next(iter(arguments.mountpoints), None), as_json=arguments.json)
    return _unmount_all(arguments.mountpoints, lazy=arguments.lazy)


def _unmount_all(named: list[str], *, lazy: bool) -> int:
    """Each is tried, whatever became of the others."""
    left: list[str] = []
    if not named:
        raise UsageError("umount: nothing is named; give a mount point, or --stale")
    for each in named:
        try:
            _unmount(each, lazy=lazy)
        except CopperError as error:
            left.append(str(error))
    if left:
        raise MountError("; ".join(left))
    return 0


def _unmount_stale(within: str | None, *, as_json: bool) -> int:
    """For a scheduler's epilog: silent if there is nothing."""
    from copperfs.fuse.mounting import (
        FSTYPE,
        RUN_MOUNTPOINT,
        absolute,
        clean_up_stale,
        mount_at,
        mounts,
        owner_of,
    )

    top = b"" if within is None else os.fsencode(absolute(within))
    left: list[str] = []
    removed: list[str] = []
    for each in mounts():
        mine = os.geteuid() == 0 or owner_of(each) == os.geteuid()
        if each.fstype != FSTYPE or not mine or not is_below(each.mountpoint, top):
            continue
        mountpoint = os.fsdecode(each.mountpoint)
        try:
            if not clean_up_stale(mountpoint):
                continue
        except MountError as error:
            left.append(str(error))
            continue
        if RUN_MOUNTPOINT.fullmatch(mountpoint) and mount_at(mountpoint) is None:
            with suppress(OSError):
                os.rmdir(mountpoint)
        removed.append(mountpoint)
        if not as_json:
            console().print(
                f"unmounted {printable(mountpoint)}, whose daemon is gone", soft_wrap=True
            )
    if as_json:
        print_json({"version": 1, "unmounted": removed})
    if left:
        raise MountError("; ".join(left))
    return 0


def _unmount(named: str, *, lazy: bool) -> None:
    from copperfs.fuse.daemon_start import start_of
    from copperfs.fuse.mounting import (
        FSTYPE,
        PFS_SIM_FSTYPE,
        absolute,
        answers,
        mount_at,
        unmount,
    )

    mountpoint = absolute(named)
    mounted = mount_at(mountpoint)
    if mounted is None:
        if _end_inside(mountpoint):
            return
        raise MountError(f"{mountpoint} is not mounted")
    if mounted.fstype not in (FSTYPE, PFS_SIM_FSTYPE):
        raise MountError(f"{mountpoint} is a mount of type {mounted.fstype}, not one of copperfs")
    alive = answers(mountpoint)
    pid = _daemon_of(mountpoint) if alive else None
    started = None if pid is None else start_of(pid)
    with waiting(f"unmounting {mountpoint}"):
        unmount(mountpoint, lazy=lazy or alive is False)
        if pid is not None and started is not None and not lazy:
            _wait_for_end(pid, started)


def _end_inside(mountpoint: str) -> bool:
    """Whether it is of an in-place run. Its daemon ends; its processes get ENOTCONN then."""
    from copperfs.fuse.daemon_start import start_of
    from copperfs.fuse.inside_mounts import inside_mount

    inside = inside_mount(mountpoint)
    if inside is None:
        return False
    pid = _daemon_of(mountpoint)
    started = None if pid is None else start_of(pid)
    if pid is None or started is None:
        raise MountError(f"the daemon of {mountpoint} is gone; end the processes that use it")
    os.kill(pid, signal.SIGTERM)
    _wait_for_end(pid, started)
    return True


def _daemon_of(mountpoint: str) -> int | None:
    try:
        hello = ask_mount(mountpoint, IoctlRequest.HELLO)
    except ControlError:
        return None
    return int(hello["pid"]) if isinstance(hello, dict) else None


def _wait_for_end(pid: int, started: int) -> None:
    """Nothing is left when this command returns."""
    from copperfs.fuse.daemon_start import start_of

    deadline = time.monotonic() + DAEMON_ENDS_WITHIN_S
    while start_of(pid) == started and pid != os.getpid() and time.monotonic() < deadline:
        time.sleep(0.01)
