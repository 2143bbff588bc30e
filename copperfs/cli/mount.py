"""``copperfs mount``: find the other nodes, start the daemon, and return when the mount answers.

The daemon is a fresh process, not a fork of this one: it inherits nothing but its settings and its
launch. Where this process was a rank of MPI that is more than tidiness: see ``bootstrap/mpi.py``.
"""

import argparse
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from copperfs.cli.ending import ended_by_sigterm
from copperfs.cli.options import add_option_flags, resolve_settings
from copperfs.cli.output import print_progress
from copperfs.config import Settings, check_tier
from copperfs.errors import MountError

if TYPE_CHECKING:
    import subprocess

    from copperfs.bootstrap.launch import Launch

NAME = "mount"
HELP = "mount a read-only view of a directory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="an existing directory")
    add_option_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve_settings(arguments.mountpoint, arguments)
    from copperfs.bootstrap.invitation import own_name
    from copperfs.bootstrap.launch import ByMpi, launch

    name = own_name(settings)
    settings = replace(
        settings,
        source=os.path.abspath(settings.source),
        log_file=_of_this_node(settings.log_file, name),
        events=_of_this_node(settings.events, name),
        tier_dir=_of_this_node(settings.tier_dir, name),
        metrics=metrics_of_this_node(settings.metrics, name),
        mountpoint=os.path.abspath(settings.mountpoint),
    )
    check_tier(settings)
    settings = _with_tier_size(settings)
    with ended_by_sigterm():
        way, launched = launch(
            settings,
            os.environ,
            prepare=lambda: refuse_if_mounted(settings.mountpoint),
            tell=print_progress,
        )
    if not settings.foreground:
        _start(settings, launched)
        return 0
    if isinstance(way, ByMpi):
        return _attend(_start(settings, launched))
    return _run_here(settings, launched)


def metrics_of_this_node(where: str | None, name: str) -> str | None:
    return where if where is None or where.isdecimal() else _of_this_node(where, name)


def _of_this_node(path: str | None, name: str) -> str | None:
    return path and os.path.abspath(path.replace("%h", name))


def _with_tier_size(settings: Settings) -> Settings:
    """Said here, once, because the other nodes are told of it."""
    if settings.tier_dir is None or settings.tier_size_bytes is not None:
        return settings
    from copperfs.store.room import default_budget_bytes

    return replace(settings, tier_size_bytes=default_budget_bytes(settings.tier_dir))


def refuse_if_mounted(mountpoint: str) -> None:
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
    from copperfs.bootstrap.launch import line_of
    from copperfs.fuse.starting import (
        DAEMON_STARTS_WITHIN_S,
        check_answers,
        let_live,
        starting_daemon,
    )

    # Alone it waits for the source only, else for its parents, which start when they start.
    timeout_s = DAEMON_STARTS_WITHIN_S + (0 if launch is None else settings.launch_timeout_s)
    with starting_daemon(
        settings,
        line_of(launch),
        pass_fds=[] if launch is None else [launch.listener.fileno()],
        env=without_mpi(os.environ),
    ) as daemon:
        daemon.outcome(timeout_s)
        check_answers(settings)
        if not settings.foreground:
            let_live(daemon)
    if launch is not None:
        launch.listener.close()  # it is the daemon's now
    return daemon.process
