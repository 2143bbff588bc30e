"""Starts the process behind a mount, and waits until it reports the outcome.

It is a fresh process, not a fork: it inherits only its settings, as lines of JSON through a socket.
One line comes back when the mount answers, or when it is clear why it never will.
"""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from copperfs.config.settings import Settings
from copperfs.fuse.mounting import absolute, answers
from copperfs.fuse.safe_open import open_to_append
from copperfs.model.errors import MountError
from copperfs.startup.bundle import environment_elsewhere, passed_to_python, python_of

ENDS_WITHIN_S = 5.0
# Importing from a loaded parallel filesystem may take long.
DAEMON_STARTS_WITHIN_S = 120.0
HEARS_WITHIN_S = DAEMON_STARTS_WITHIN_S


class EndedSilentlyError(MountError):
    """A daemon ended without a reason; its log may have one."""


@dataclass(frozen=True, slots=True)
class Starting:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    shown: str

    def outcome(self, timeout_s: float) -> dict[str, Any]:
        """MountError with the process's reason if it has not mounted."""
        self.channel.settimeout(timeout_s)
        try:
            with self.channel.makefile("r", encoding="utf-8") as lines:
                line = lines.readline()
        except TimeoutError:
            raise MountError(
                f"the daemon did not mount {self.shown} within {timeout_s:.0f} s; is the source "
                "hung?"
            ) from None
        except ConnectionResetError:
            line = ""  # it ended before it had read its settings
        if not line:
            raise EndedSilentlyError(
                f"the daemon for {self.shown} ended before it had mounted; "
                "run it with --foreground to see why"
            )
        outcome: dict[str, Any] = json.loads(line)
        if "error" in outcome:
            raise MountError(outcome["error"])
        return outcome


@dataclass(slots=True)
class Started:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    outcome: dict[str, Any]


@contextmanager
def starting(
    module: str,
    lines: Sequence[str],
    *,
    shown: str,
    stderr: int | None,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    inside: Sequence[str] = (),
) -> Iterator[Starting]:
    """Run `python -m module FD`; end it again if anything fails in the `with` block.

    *inside* is a command that executes the rest of its arguments.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [*inside, *python_of(module), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[theirs.fileno(), *pass_fds, *passed_to_python()],
                start_new_session=True,
                cwd="/",
                env=environment_elsewhere(os.environ if env is None else env),
            )
        try:
            _tell(ours, lines, shown)
            yield Starting(process, ours, shown)
        except BaseException:
            # SIGTERM: it cleans up after itself at any stage
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def _tell(channel: socket.socket, lines: Sequence[str], shown: str) -> None:
    """A roster of thousands is more than the socket takes before it is read."""
    channel.settimeout(HEARS_WITHIN_S)
    try:
        # If it has ended already, the missing outcome tells more.
        with suppress(BrokenPipeError):
            channel.sendall("".join(f"{line}\n" for line in lines).encode("ascii"))
    except TimeoutError:
        raise MountError(
            f"the process for {shown} did not begin within {HEARS_WITHIN_S:.0f} s; is the "
            "filesystem hung that Python and copperfs are on?"
        ) from None


@contextmanager
def started(
    module: str,
    lines: Sequence[str],
    *,
    shown: str,
    stderr: int | None,
    timeout_s: float,
) -> Iterator[Started]:
    """Like ``starting``, but wait until it has mounted."""
    with starting(module, lines, shown=shown, stderr=stderr) as daemon:
        yield Started(daemon.process, daemon.channel, daemon.outcome(timeout_s))


def let_live(daemon: Starting | Started) -> None:
    """Keeps subprocess from warning about a daemon that outlives this process."""
    daemon.process.returncode = 0


def start_of(pid: int) -> int | None:
    """When a process started; None if there is none, or only a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            values = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if values[0] in "ZX" else int(values[19])


# ---- our own daemon ------------------------------------------------------------------------------


@contextmanager
def starting_daemon(
    settings: Settings,
    launch: str,
    *,
    users: str = "null",
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    inside: Sequence[str] = (),
) -> Iterator[Starting]:
    """*launch* is its line about the other nodes, *users* about the users that it serves; "null"
    leaves either out."""
    with ExitStack() as life:
        with _stderr_of(settings) as stderr:
            daemon = life.enter_context(
                starting(
                    "copperfs.daemon.daemon_main",
                    [settings.to_json(), launch, users],
                    shown=settings.mountpoint,
                    stderr=stderr,
                    pass_fds=pass_fds,
                    env=env,
                    inside=inside,
                )
            )
        yield daemon


def check_answers(settings: Settings) -> None:
    """MountError unless the mount can be used."""
    if not answers(absolute(settings.mountpoint)):
        raise MountError(f"{settings.mountpoint} is mounted but does not answer")


@contextmanager
def _stderr_of(settings: Settings) -> Iterator[int | None]:
    """libfuse and Python itself write there."""
    if settings.foreground:
        yield None  # ours
        return
    if settings.log_file is None:
        yield subprocess.DEVNULL
        return
    try:
        log = open_to_append(settings.log_file)
    except OSError as error:
        raise MountError(f"{settings.log_file} cannot be written: {error.strerror}") from None
    try:
        yield log
    finally:
        os.close(log)
