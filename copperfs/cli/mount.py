"""``copperfs mount``: finds the other nodes, starts the daemon, and returns when the mount answers.

The daemon is a fresh process, which inherits only its settings and its launch; after MPI that is
required (``launch/mpi_launch.py``).
"""

import argparse
import os
import signal
from typing import TYPE_CHECKING

from copperfs.cli.options import (
    add_option_flags,
    given_flags,
    resolve_settings,
    take_mount_options,
)
from copperfs.cli.output import print_progress, waiting
from copperfs.cli.sigterm import ended_by_sigterm
from copperfs.config.settings import RUN_ONLY, Settings, check_tier
from copperfs.launch.launcher_variables import MOUNTPOINT_VARIABLE
from copperfs.model.errors import UsageError

if TYPE_CHECKING:
    import subprocess

    from copperfs.launch.launch_method import Launch

NAME = "mount"
HELP = "mount a read-only view of a directory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "mountpoint",
        metavar="MNT",
        nargs="?",
        help="the directory to mount over ($COPPERFS_MOUNTPOINT)",
    )
    parser.add_argument(
        "-o",
        dest="mount_options",
        metavar="OPTION,...",
        action="append",
        default=[],
        help="options as of mount.fuse: allow_other, or settings such as memory=4GiB",
    )
    add_option_flags(parser, without=RUN_ONLY)


def run(arguments: argparse.Namespace) -> int:
    mountpoint = arguments.mountpoint or os.environ.get(MOUNTPOINT_VARIABLE)
    if mountpoint is None:
        raise UsageError("mount: name a directory to mount over", "see: copperfs mount --help")
    take_mount_options(arguments)
    settings = resolve_settings(mountpoint, arguments)
    from copperfs.cli.preflight import at_mountpoint, on_this_node, prepare, with_tier_size
    from copperfs.launch.launch_method import ByMpi, launch

    settings = at_mountpoint(on_this_node(settings), os.path.abspath(settings.mountpoint))
    check_tier(settings)
    if settings.foreground and given_flags(arguments).get("takeover"):
        raise UsageError(
            "mount: a successor would not be in the foreground; leave out --takeover or "
            "--foreground"
        )
    settings = with_tier_size(settings)
    with ended_by_sigterm(), waiting("waiting for the other nodes"):
        way, launched = launch(
            settings,
            os.environ,
            prepare=lambda: prepare(settings),
            tell=print_progress,
        )
    if not settings.foreground:
        with waiting("waiting until the mount answers"):
            _start(settings, launched)
        return 0
    if isinstance(way, ByMpi):
        return _attend(_start(settings, launched))
    return _run_here(settings, launched)


def _run_here(settings: Settings, launch: "Launch | None") -> int:
    from copperfs.daemon.daemon_main import Daemon, set_up_logging

    set_up_logging(settings, to_stderr=True)
    Daemon(settings, launch).run(lambda: None)
    return 0


def _attend(daemon: "subprocess.Popen[bytes]") -> int:
    """Stay until the daemon ends, and pass on signals."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: daemon.send_signal(number))
    return 0 if daemon.wait() == 0 else 1


def _start(settings: Settings, launch: "Launch | None") -> "subprocess.Popen[bytes]":
    from copperfs.fuse.daemon_start import (
        DAEMON_STARTS_WITHIN_S,
        check_answers,
        let_live,
        starting_daemon,
    )
    from copperfs.launch.launch_method import line_of
    from copperfs.launch.launcher_variables import without_mpi

    # A node alone waits for the source only, others also for their parents.
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
