"""``copperfs run``: runs a command that sees its environment through the mount.

The runs of a node share one daemon, as the ranks of ``mpiexec`` or ``srun`` do: the first starts it
and the last ends it (``launch/shared_mount_client.py``). They never speak MPI, since the command
may: the nodes find each other by a rendezvous.

This process stays the parent of the command, to unmount before the job's script continues.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import uuid
from collections.abc import Container
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from copperfs.cli.options import add_option_flags, resolve_options
from copperfs.cli.output import print_error, print_progress, waiting
from copperfs.cli.rewriting import PREFIX_ENV_DEFAULT, Rewriter
from copperfs.cli.sigterm import ended_by_sigterm
from copperfs.config.settings import Settings, check_tier, following_memory, settings_of
from copperfs.model.errors import ConfigError, CopperError, LaunchError, MountError

if TYPE_CHECKING:
    from copperfs.launch.launcher_variables import Companions
    from copperfs.launch.shared_mount_client import First, Use

NAME = "run"
HELP = "run a command that reads its environment through a mount of its own"
EPILOG = f"""\
All runs on this node with the same options in one launch share the mount, which ends with the last
of them. Paths on shared filesystems (--shared) are read through it: the entries of
{", ".join(PREFIX_ENV_DEFAULT)}, and an absolute path of the command. COPPERFS_MOUNTPOINT tells the
command where the mount is.

exit codes: that of the command; 128 and the number of the signal that ended it; 125 if copperfs
failed; 126 if the command cannot be executed; 127 if there is none.
"""

FAILED = 125
RENDEZVOUS_DEFAULT = "~/.copperfs/rendezvous"
# When a daemon ends, or a first run fails, the waiting runs start over.
TRIES_MAX = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "--mountpoint",
        metavar="DIR",
        help="where to mount; made if missing (a directory in /tmp named after user, job and "
        "options)",
    )
    parser.add_argument(
        "--prefix-env",
        metavar="NAMES",
        default=",".join(PREFIX_ENV_DEFAULT),
        help="comma-separated variables whose paths on shared filesystems are led through the "
        "mount; none for none (%(default)s)",
    )
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set a variable of the command, its paths led through the mount; repeatable",
    )
    add_option_flags(parser, without=("foreground",))
    parser.add_argument("program", metavar="COMMAND", nargs="+", help="after --, as on its own")


def run(arguments: argparse.Namespace) -> int:
    try:
        return _run(arguments)
    except CopperError as error:
        print_error(str(error))
        return FAILED


def _run(arguments: argparse.Namespace) -> int:
    from copperfs.launch.launcher_variables import RUN_VARIABLE, companions, look_around

    given = _given(arguments.env)
    resolved = resolve_options(arguments)
    settings, left_open = settings_of("/", resolved), following_memory(resolved)
    beside = companions(os.environ, settings.nodes)
    job = look_around(os.environ).job
    settings = _settings(settings, left_open, arguments.mountpoint, beside, job)
    wanted = _wanted(settings, left_open)
    token = uuid.uuid4().hex
    with ended_by_sigterm():
        with waiting("mounting"):
            use = _use(settings, wanted, beside, token, remove=arguments.mountpoint is None)
        names = [name for name in arguments.prefix_env.split(",") if name not in ("", "none")]
        rewriter = _rewriter(settings)
        environ = rewriter.environment(os.environ, names, given)
        command = [rewriter.path(arguments.program[0]), *arguments.program[1:]]
    environ |= {"COPPERFS_MOUNTPOINT": settings.mountpoint, RUN_VARIABLE: token}
    code = _command(command, environ, with_parent=beside.by_mpi)
    _leave(use, settings, remove=arguments.mountpoint is None)
    return code


def _given(variables: list[str]) -> dict[str, str]:
    given = {}
    for each in variables:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise ConfigError(f"--env {each} sets nothing; write --env NAME=VALUE")
        given[name] = value
    return given


def _settings(
    settings: Settings,
    left_open: Container[str],
    mountpoint: str | None,
    beside: "Companions",
    job: str,
) -> Settings:
    """The daemon's settings; except for *left_open* all runs that share it need the same."""
    from copperfs.cli.preflight import at_mountpoint, on_this_node
    from copperfs.fuse.mounting import absolute

    if settings.bootstrap == "mpi":
        raise LaunchError(
            "copperfs run leaves MPI to its command; leave out --bootstrap mpi, and give "
            "--rendezvous DIR if the nodes share no home directory"
        )
    if beside.nodes == 1 and settings.hostfile is None:
        settings = replace(settings, bootstrap="none", rendezvous=None)
    elif settings.hostfile is None and settings.bootstrap != "none":
        directory = settings.rendezvous or _own_rendezvous()
        settings = replace(settings, rendezvous=directory, nodes=beside.nodes)
    settings = on_this_node(settings)
    if mountpoint is None:
        wanted = json.dumps(_wanted(settings, left_open))
        digest = hashlib.blake2b(f"{job} {wanted}".encode(), digest_size=4)
        mountpoint = f"/tmp/copperfs-{os.getuid()}-{job[:40]}-{digest.hexdigest()}"
    settings = at_mountpoint(settings, absolute(mountpoint))
    check_tier(settings)
    return settings


def _wanted(settings: Settings, left_open: Container[str]) -> dict[str, object]:
    """The settings that this run needs; None where the first run's value will do."""
    return {name: None if name in left_open else value for name, value in asdict(settings).items()}


def _own_rendezvous() -> str:
    """In the user's home, whose parent is made if missing; that of a given directory is not, since
    it may be misspelled."""
    directory = os.path.expanduser(RENDEZVOUS_DEFAULT)
    with contextlib.suppress(OSError):  # the rendezvous reports the error
        os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
    return directory


def _rewriter(settings: Settings) -> Rewriter:
    from copperfs.daemon.path_policy_from_mounts import policy_for
    from copperfs.fuse.mounting import mounts

    root = os.path.realpath(settings.source)
    policy = policy_for(settings, mounts(), os.fsencode(root))
    # The policy refuses its own mount point, whose paths are classified here.
    policy.refused = frozenset()
    return Rewriter(settings.mountpoint, settings.source, root, policy)


def _command(command: list[str], environ: dict[str, str], *, with_parent: bool) -> int:
    from copperfs.cli.child_command import NOT_EXECUTABLE, NOT_FOUND, run_command

    try:
        return run_command(command, environ, with_parent=with_parent)
    except OSError as error:
        print_error(f"{command[0]} cannot be started: {error.strerror}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


# ---- the mount -----------------------------------------------------------------------------------


def _use(
    settings: Settings,
    wanted: dict[str, object],
    beside: "Companions",
    token: str,
    *,
    remove: bool,
) -> "Use":
    from copperfs.fuse.daemon_start import DAEMON_STARTS_WITHIN_S
    from copperfs.launch.shared_mount_client import First, Vanished, come

    # Runs may wait for other nodes, and then for the daemon.
    timeout_s = DAEMON_STARTS_WITHIN_S + 2 * settings.launch_timeout_s
    hello: dict[str, object] = {"settings": wanted, "token": token}
    for _ in range(TRIES_MAX):
        came = come(settings.mountpoint, hello, timeout_s)
        if isinstance(came, First):
            try:
                use = _begin(settings, came, hello, beside.here, remove=remove)
            except BaseException as error:
                if remove:  # what the daemon would have done
                    with contextlib.suppress(OSError):
                        os.rmdir(settings.mountpoint)
                sentence = str(error) if isinstance(error, CopperError) else "it was ended"
                came.refuse(f"the mount of this node failed: {sentence}")
                raise
        else:
            use = came
        with contextlib.suppress(Vanished):
            use.wait_ready(timeout_s)
            return use
    raise MountError(f"the daemon of {settings.mountpoint} ended {TRIES_MAX} times; see its log")


def _begin(
    settings: Settings, first: "First", hello: dict[str, object], here: int, *, remove: bool
) -> "Use":
    """Start the daemon, whose first user is this process."""
    from copperfs.cli.preflight import prepare, with_tier_size
    from copperfs.fuse.daemon_start import DAEMON_STARTS_WITHIN_S, let_live, starting_daemon
    from copperfs.launch.launch_method import launch, line_of
    from copperfs.launch.launcher_variables import without_mpi
    from copperfs.launch.shared_mount_client import Line, Use
    from copperfs.launch.shared_mount_client import line_of as line_of_users

    _make(settings.mountpoint, private=remove)
    settings = with_tier_size(settings)
    _, launched = launch(
        settings,
        os.environ,
        prepare=lambda: prepare(settings),
        tell=print_progress,
        rank_is_node=False,
    )
    ours, theirs = socket.socketpair()
    fds = [first.counter.fileno(), theirs.fileno()]
    with (
        theirs,
        starting_daemon(
            settings,
            line_of(launched),
            users=line_of_users(first.counter, theirs, here, remove=remove),
            pass_fds=[*fds, *([] if launched is None else [launched.listener.fileno()])],
            env=without_mpi(os.environ),
        ) as daemon,
    ):
        use = Use(Line(ours))
        use.line.say(**hello)
        daemon.outcome(
            DAEMON_STARTS_WITHIN_S + (0 if launched is None else settings.launch_timeout_s)
        )
        let_live(daemon)
    if launched is not None:
        launched.listener.close()
    first.counter.close()
    return use


def _make(mountpoint: str, *, private: bool) -> None:
    """*private*: its name is predictable, so it must not be another user's."""
    from copperfs.fuse.mounting import clean_up_stale

    clean_up_stale(mountpoint)
    try:
        os.makedirs(mountpoint, mode=0o700, exist_ok=True)
        found = os.lstat(mountpoint)
    except OSError as error:
        raise MountError(f"{mountpoint} cannot be made: {error.strerror}") from None
    if private and found.st_uid != os.getuid():
        raise MountError(f"{mountpoint} is of user {found.st_uid}; give another --mountpoint")


def _leave(use: "Use", settings: Settings, *, remove: bool) -> None:
    from copperfs.fuse.mounting import clean_up_stale, mount_at
    from copperfs.launch.shared_mount_client import Ending

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it is ending, and that takes a moment
    ending = use.leave()
    if ending is Ending.SLOW:
        # It will read the bye, and unmounts then.
        print_error(
            f"the daemon of {settings.mountpoint} did not answer in time; if the mount stays, end "
            f"it with: copperfs umount {settings.mountpoint}"
        )
    if ending is not Ending.LOST:
        return
    print_error(f"the daemon of {settings.mountpoint} had ended before the command did")
    with contextlib.suppress(MountError):  # other runs here may do the same
        clean_up_stale(settings.mountpoint)
    if mount_at(settings.mountpoint) is None and remove:
        with contextlib.suppress(OSError):
            os.rmdir(settings.mountpoint)
