"""``copperfs mount``: find the other nodes, start the daemon, and return when the mount answers.

The daemon is a fresh process, not a fork of this one: it inherits nothing but its settings and its
launch. Where this process was a rank of MPI that is more than tidiness: see ``bootstrap/mpi.py``.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from copperfs.cli.options import add_option_flags, resolve_settings
from copperfs.cli.output import print_progress
from copperfs.config import Settings
from copperfs.errors import MountError

if TYPE_CHECKING:
    from copperfs.bootstrap.launch import Launch

NAME = "mount"
HELP = "mount a read-only view of a directory"

# Importing everything from a loaded parallel filesystem can take the daemon a while.
START_TIMEOUT_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="an existing directory")
    add_option_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve_settings(arguments.mountpoint, arguments)
    from copperfs.bootstrap.invitation import own_name
    from copperfs.bootstrap.launch import ByMpi, launch

    settings = replace(
        settings,
        source=os.path.abspath(settings.source),
        log_file=settings.log_file
        and os.path.abspath(settings.log_file.replace("%h", own_name(settings))),
        mountpoint=os.path.abspath(settings.mountpoint),
    )
    with _ended_by_sigterm():
        way, launched = launch(
            settings,
            os.environ,
            prepare=lambda: _refuse_if_mounted(settings.mountpoint),
            tell=print_progress,
        )
    if not settings.foreground:
        _start(settings, launched)
        return 0
    if isinstance(way, ByMpi):
        return _attend(_start(settings, launched))
    return _run_here(settings, launched)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Meanwhile SIGTERM, which schedulers send, ends this process tidily."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _refuse_if_mounted(mountpoint: str) -> None:
    from copperfs.fuse.mounting import FSTYPE, absolute, answers, clean_up_stale, mount_at

    mountpoint = absolute(mountpoint)
    clean_up_stale(mountpoint)
    mounted = mount_at(mountpoint)
    if mounted is None or mounted.fstype != FSTYPE:
        return
    if answers(mountpoint):
        raise MountError(
            f"{mountpoint} is mounted already; unmount it with: copperfs umount {mountpoint}"
        )
    raise MountError(
        f"{mountpoint} is mounted and does not answer; "
        f"clean it up with: copperfs umount --lazy {mountpoint}"
    )


def _run_here(settings: Settings, launch: "Launch | None") -> int:
    from copperfs.runtime.daemon import Daemon, set_up_logging

    set_up_logging(settings, to_stderr=True)
    Daemon(settings, launch).run(lambda: None)
    return 0


def _attend(daemon: "subprocess.Popen[bytes]") -> int:
    """Stay until the daemon ends, and pass on what it is told to do."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: daemon.send_signal(number))
    return 0 if daemon.wait() == 0 else 1


def _start(settings: Settings, launch: "Launch | None") -> "subprocess.Popen[bytes]":
    from copperfs.bootstrap.environment import without_mpi
    from copperfs.fuse.mounting import absolute, answers
    from copperfs.fuse.starting import let_live, started

    # Alone it waits for the source only, else for its parents, which start when they start.
    timeout_s = START_TIMEOUT_S + (0 if launch is None else settings.launch_timeout_s)
    with started(
        "copperfs.runtime.daemon",
        [settings.to_json(), "null" if launch is None else launch.to_json()],
        shown=settings.mountpoint,
        stderr=_stderr_of(settings),
        timeout_s=timeout_s,
        pass_fds=[] if launch is None else [launch.listener.fileno()],
        env=without_mpi(os.environ),
    ) as daemon:
        if not answers(absolute(settings.mountpoint)):
            raise MountError(f"{settings.mountpoint} is mounted but does not answer")
        if not settings.foreground:
            let_live(daemon)
    if launch is not None:
        launch.listener.close()  # it is the daemon's now
    return daemon.process


def _stderr_of(settings: Settings) -> int | None:
    """libfuse and Python itself write there."""
    if settings.foreground:
        return None  # ours
    if settings.log_file is None:
        return subprocess.DEVNULL
    try:
        return os.open(
            settings.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
    except OSError as error:
        raise MountError(f"{settings.log_file} cannot be written: {error.strerror}") from None
