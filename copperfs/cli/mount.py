"""``copperfs mount``: start the daemon, and return when the mount answers.

The daemon is a fresh process, not a fork of this one: it inherits nothing but its settings.
"""

import argparse
import os
import subprocess
from dataclasses import replace

from copperfs.cli.options import add_option_flags, resolve_settings
from copperfs.config import Settings
from copperfs.errors import MountError

NAME = "mount"
HELP = "mount a read-only view of a directory"

# Importing everything from a loaded parallel filesystem can take the daemon a while.
START_TIMEOUT_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="an existing directory")
    add_option_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve_settings(arguments.mountpoint, arguments)
    settings = replace(
        settings,
        source=os.path.abspath(settings.source),
        log_file=settings.log_file and os.path.abspath(settings.log_file),
        mountpoint=os.path.abspath(settings.mountpoint),
    )
    _refuse_if_mounted(settings.mountpoint)
    if settings.foreground:
        return _run_here(settings)
    _start(settings)
    return 0


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


def _run_here(settings: Settings) -> int:
    from copperfs.runtime.daemon import Daemon, set_up_logging

    set_up_logging(settings, to_stderr=True)
    Daemon(settings).run(lambda: None)
    return 0


def _start(settings: Settings) -> None:
    from copperfs.fuse.mounting import absolute, answers
    from copperfs.fuse.starting import let_live, started

    with started(
        "copperfs.runtime.daemon",
        settings.to_json(),
        shown=settings.mountpoint,
        stderr=_stderr_of(settings),
        timeout_s=START_TIMEOUT_S,
    ) as daemon:
        if not answers(absolute(settings.mountpoint)):
            raise MountError(f"{settings.mountpoint} is mounted but does not answer")
        let_live(daemon)


def _stderr_of(settings: Settings) -> int:
    """libfuse and Python itself write there."""
    if settings.log_file is None:
        return subprocess.DEVNULL
    try:
        return os.open(
            settings.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
    except OSError as error:
        raise MountError(f"{settings.log_file} cannot be written: {error.strerror}") from None
