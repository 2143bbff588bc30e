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
import subprocess
import sys
import uuid
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from copperfs.cli.in_place import begin_in_place, covers_of, inside_of, why_not_in_place
from copperfs.cli.options import add_option_flags, resolve_options
from copperfs.cli.output import print_error, print_progress, waiting
from copperfs.cli.rewriting import PREFIX_ENV_DEFAULT, Rewriter, policy_of_paths, prefix_names
from copperfs.cli.sigterm import ended_by_sigterm
from copperfs.config.settings import (
    Settings,
    check_tier,
    following_memory,
    settings_of,
)
from copperfs.launch.join_socket import (
    ResolvedRun,
    decisive,
    read_by_run,
    refuse,
    taken_from_environment,
)
from copperfs.launch.launcher_variables import MOUNTPOINT_VARIABLE, RUN_VARIABLE
from copperfs.launch.run_report import RunReport
from copperfs.launch.shared_mount_client import LINE_MAX
from copperfs.model.errors import ConfigError, CopperError, LaunchError, MountError

if TYPE_CHECKING:
    from copperfs.cli.in_place import InPlaceRun, Inside
    from copperfs.inplace.covers import Covers
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
NOTHING_TO_COVER = "no environment of the command is known to be on a shared filesystem"
RENDEZVOUS_DEFAULT = "~/.copperfs/rendezvous"
LAUNCHERS = frozenset(
    [
        *("srun", "aprun", "jsrun", "ibrun", "lrun", "flux"),
        *("mpiexec", "mpirun", "mpiexec.hydra", "prun", "prterun"),
    ]
)
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
        "mount, instead of the default ones; +NAME adds to them; none for none (%(default)s)",
    )
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set a variable of the command, its paths led through the mount; repeatable",
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="say at the end which directories were covered, and what was read through the mount",
    )
    add_option_flags(parser, without=("foreground",))
    parser.add_argument("program", metavar="COMMAND", nargs="+", help="after --, as on its own")


def run(arguments: argparse.Namespace) -> int:
    with _JoinSocket(taken_from_environment()) as join_socket:
        try:
            return _run(arguments, join_socket)
        except CopperError as error:
            join_socket.refuse(str(error))
            print_error(str(error))
            return FAILED


def _run(arguments: argparse.Namespace, join_socket: "_JoinSocket") -> int:
    from copperfs.launch.launcher_variables import companions, look_around

    given = _given(arguments.env)
    _refuse_launchers(arguments.program[0], os.environ)
    resolved = resolve_options(arguments)
    settings, left_open = settings_of("/", resolved), following_memory(resolved)
    beside = companions(os.environ, settings.nodes)
    job = look_around(os.environ).job
    names = prefix_names(arguments.prefix_env)
    remove = arguments.mountpoint is None
    why_not = why_not_in_place(settings, arguments.program, os.environ, at_own_path=not remove)
    covers = None
    if why_not is None:
        also = [each for each in (*names, *given) if each not in PREFIX_ENV_DEFAULT]
        covers = covers_of(settings, os.environ | given, also, arguments.program)
        why_not = NOTHING_TO_COVER
    settings = _settings(settings, left_open, arguments.mountpoint, beside, job, covers)
    wanted = _wanted(settings, left_open)
    token = uuid.uuid4().hex
    with ended_by_sigterm():
        with waiting("mounting"):
            use, inside = _use(settings, wanted, beside, token, covers or why_not, remove=remove)
        mountpoint = settings.mountpoint if inside is None else inside.mountpoint
        rewriter = _rewriter(settings, mountpoint)
        if inside is not None and covers is not None:
            rewriter = _beside_covers(rewriter, covers)
        environ = rewriter.environment(_own_environment(), names, given)
        command = rewriter.command(arguments.program, environ.get("PATH", os.defpath))
    environ[MOUNTPOINT_VARIABLE] = mountpoint
    report = RunReport(
        mountpoint,
        None if inside is None or covers is None else tuple(covers.directories),
        why_not,
        () if covers is None else tuple(each.reason for each in covers.left_out),
        {} if inside is None else inside.failed,
        expects_reads=bool(settings.shared or covers),
        summary=arguments.summary,
    )
    given_words = tuple(sys.argv[2:])
    words = decisive(given_words)
    arguments_after = len(given_words) - len(words)
    changed = {*given, *(name for name, value in environ.items() if os.environ.get(name) != value)}
    remove = remove and inside is None
    join_socket.give(
        use,
        ResolvedRun(
            words,
            _cwd(),
            read_by_run(os.environ, names),
            tuple(names),
            tuple(command[: len(command) - arguments_after]),
            {name: environ[name] for name in changed},
            mountpoint,
            remove,
            beside.by_mpi,
            report,
        ),
    )
    environ[RUN_VARIABLE] = token
    code = _command(command, environ, inside, with_parent=beside.by_mpi)
    _leave(use, mountpoint, remove=remove)
    if look_around(os.environ).rank in (None, 0):  # one of thousands
        for line in report.lines(use.read):
            print_progress(line)
    return code


@dataclass(slots=True)
class _JoinSocket:
    """Where further runs of this node wait, if this process came from the program ``copperfs``."""

    sock: socket.socket | None

    def __enter__(self) -> "_JoinSocket":
        return self

    def __exit__(self, *_: object) -> None:
        if self.sock is not None:
            self.sock.close()

    def give(self, use: "Use", resolved_run: ResolvedRun) -> None:
        """Where arguments make it longer than a line, each run of the node starts by itself."""
        if self.sock is not None:
            line = resolved_run.line()
            if len(json.dumps(line)) < LINE_MAX // 2:
                use.line.say_with([self.sock.fileno()], join=line)
            self.sock.close()

    def refuse(self, sentence: str) -> None:
        if self.sock is not None:
            refuse(self.sock, sentence)


def _refuse_launchers(program: str, environ: Mapping[str, str]) -> None:
    """Processes that they start on other nodes would see no mount."""
    from copperfs.launch.launcher_variables import look_around

    name = os.path.basename(program)
    nodes = look_around(environ).nodes or 1
    if name in LAUNCHERS and nodes > 1:
        raise LaunchError(
            f"copperfs run starts one command on this node, and {name} would start its processes "
            f"without the mount; write: {name} [OPTIONS] copperfs run -- COMMAND"
        )


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
    covers: "Covers | None",
) -> Settings:
    """The daemon's settings; except for *left_open* all runs that share it need the same. Runs in
    place do not share with others."""
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
        # All that run in place share a namespace, whatever their environments.
        digest = hashlib.blake2b(f"{job} {wanted} {covers is None}".encode(), digest_size=4)
        mountpoint = f"/tmp/copperfs-{os.getuid()}-{job[:40]}-{digest.hexdigest()}"
    settings = at_mountpoint(settings, absolute(mountpoint))
    check_tier(settings)
    return settings


def _wanted(settings: Settings, left_open: Container[str]) -> dict[str, object]:
    """The settings that this run needs; None where the first run's value will do."""
    return {name: None if name in left_open else value for name, value in asdict(settings).items()}


def _own_environment() -> dict[str, str]:
    """Without what Python has added: without a locale it sets one for what it starts."""
    with open("/proc/self/environ", "rb") as file:
        given = file.read().split(b"\0")
    environ = dict(os.environ)
    if not any(each.startswith(b"LC_CTYPE=") for each in given):
        environ.pop("LC_CTYPE", None)
    return environ


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed; no cover is above it
        return "/"


def _own_rendezvous() -> str:
    """In the user's home, whose parent is made if missing; that of a given directory is not, since
    it may be misspelled."""
    directory = os.path.expanduser(RENDEZVOUS_DEFAULT)
    with contextlib.suppress(OSError):  # the rendezvous reports the error
        os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
    return directory


def _beside_covers(rewriter: Rewriter, covers: "Covers") -> Rewriter:
    """For what is shared and not covered. From here the mount is not seen, so links are followed in
    the source."""
    mountpoint, root = rewriter.mountpoint, rewriter.source_root.rstrip("/")

    def real(shown: str) -> str:
        if not shown.startswith(mountpoint):
            return os.path.realpath(shown)
        path = os.path.realpath(root + shown[len(mountpoint) :])
        return mountpoint + path[len(root) :] if path.startswith(root) else path

    return replace(rewriter, realpath=real, covered=covers.directories)


def _rewriter(settings: Settings, mountpoint: str) -> Rewriter:
    from copperfs.fuse.mounting import mounts

    root = os.path.realpath(settings.source)
    return Rewriter(mountpoint, settings.source, root, policy_of_paths(settings, mounts(), root))


def _command(
    command: list[str], environ: dict[str, str], inside: "Inside | None", *, with_parent: bool
) -> int:
    from copperfs.cli.child_command import NOT_EXECUTABLE, NOT_FOUND, run_command

    try:
        if inside is None:
            return run_command(command, environ, with_parent=with_parent)
        return run_command(
            command, environ, with_parent=with_parent, enter=inside.enter, begun=inside.close
        )
    except subprocess.SubprocessError:
        assert inside is not None, "only entering runs between fork and exec"
        inside.close()
        print_error(
            "the command's process could not enter the namespace of this node's runs; is the "
            "working directory gone? copperfs run --in-place never does without"
        )
        return FAILED
    except OSError as error:
        if inside is not None:
            inside.close()
        print_error(f"{command[0]} cannot be started: {error.strerror}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


# ---- the mount -----------------------------------------------------------------------------------


def _use(
    settings: Settings,
    wanted: dict[str, object],
    beside: "Companions",
    token: str,
    covers: "Covers | str",
    *,
    remove: bool,
) -> "tuple[Use, Inside | None]":
    from copperfs.fuse.daemon_start import DAEMON_STARTS_WITHIN_S
    from copperfs.launch.shared_mount_client import First, Vanished, come

    # Runs may wait for other nodes, and then for the daemon.
    timeout_s = DAEMON_STARTS_WITHIN_S + 2 * settings.launch_timeout_s
    hello: dict[str, object] = {"settings": wanted, "token": token, "cwd": _cwd()}
    for _ in range(TRIES_MAX):
        came = come(settings.mountpoint, hello, timeout_s)
        if isinstance(came, First):
            try:
                use = _begin(settings, came, hello, beside.here, covers, remove=remove)
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
            inside = inside_of(use.wait_ready(timeout_s), use.line.fds)
            if inside is not None and not isinstance(covers, str) and not isinstance(came, First):
                asked = {"directories": covers.directories, "writable": covers.writable}
                inside.failed |= use.cover(timeout_s, **asked)
            return use, inside
    raise MountError(f"the daemon of {settings.mountpoint} ended {TRIES_MAX} times; see its log")


def _begin(
    settings: Settings,
    first: "First",
    hello: dict[str, object],
    here: int,
    covers: "Covers | str",
    *,
    remove: bool,
) -> "Use":
    """Start the daemon, whose first user is this process. *covers* may be the reason why there are
    none."""
    found = covers if isinstance(covers, str) else begin_in_place(settings, covers)
    if isinstance(found, str):
        return _begin_with(settings, first, hello, here, found, remove=remove)
    with contextlib.closing(found.namespace):
        return _begin_with(settings, first, hello, here, found, remove=remove)


def _begin_with(
    settings: Settings,
    first: "First",
    hello: dict[str, object],
    here: int,
    in_place: "InPlaceRun | str",
    *,
    remove: bool,
) -> "Use":
    """*in_place* may be the reason why it is not."""
    from copperfs.cli.preflight import prepare, with_tier_size
    from copperfs.fuse.daemon_start import DAEMON_STARTS_WITHIN_S, let_live, starting_daemon
    from copperfs.launch.launch_method import launch, line_of
    from copperfs.launch.launcher_variables import without_mpi
    from copperfs.launch.shared_mount_client import Line, Use
    from copperfs.launch.shared_mount_client import line_of as line_of_users

    place, told = (None, in_place) if isinstance(in_place, str) else (in_place, in_place.line())
    if place is None:
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
    fds = [first.counter.fileno(), theirs.fileno(), *([] if place is None else place.fds)]
    with (
        theirs,
        starting_daemon(
            settings,
            line_of(launched),
            users=line_of_users(
                first.counter,
                theirs,
                here,
                remove=remove and place is None,
                in_place=told,
            ),
            pass_fds=[*fds, *([] if launched is None else [launched.listener.fileno()])],
            env=without_mpi(os.environ),
        ) as daemon,
    ):
        if place is not None:
            place.namespace.give_fuse_away()
        use = Use(Line(ours))
        use.line.say(**hello)
        daemon.outcome(
            DAEMON_STARTS_WITHIN_S + (0 if launched is None else settings.launch_timeout_s)
        )
        if place is not None:
            use.line.say(covered=_cover(place, settings))
        let_live(daemon)
    if launched is not None:
        launched.listener.close()
    first.counter.close()
    return use


def _cover(place: "InPlaceRun", settings: Settings) -> dict[str, Any]:
    covered = place.cover(settings)
    if settings.in_place == "always" and covered["failed"]:
        [(directory, reason), *_] = covered["failed"].items()
        raise MountError(f"{directory} cannot be covered, or left writable: {reason}")
    return covered


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


def _leave(use: "Use", mountpoint: str, *, remove: bool) -> None:
    from copperfs.fuse.mounting import clean_up_stale, mount_at
    from copperfs.launch.shared_mount_client import Ending

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it is ending, and that takes a moment
    ending = use.leave()
    if ending is Ending.SLOW:
        # It will read the bye, and unmounts then.
        print_error(
            f"the daemon of {mountpoint} did not answer in time; if the mount stays, end "
            f"it with: copperfs umount {mountpoint}"
        )
    if ending is not Ending.LOST:
        return
    print_error(f"the daemon of {mountpoint} had ended before the command did")
    with contextlib.suppress(MountError):  # other runs here may do the same
        clean_up_stale(mountpoint)
    if mount_at(mountpoint) is None and remove:
        with contextlib.suppress(OSError):
            os.rmdir(mountpoint)
