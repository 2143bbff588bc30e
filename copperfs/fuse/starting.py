"""Starting the process behind a mount, and waiting until it says how that went.

It is a fresh process, not a fork of this one: it inherits nothing but its settings, which it gets
as lines of JSON through a socket. One line comes back when the mount answers, or when it is
clear why it never will.
"""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from copperfs.errors import MountError

ENDS_WITHIN_S = 5.0


@dataclass(slots=True)
class Started:
    """A daemon that has mounted, what it said, and the socket to it."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    outcome: dict[str, Any]


@contextmanager
def started(
    module: str,
    lines: Sequence[str],
    *,
    shown: str,
    stderr: int | None,
    timeout_s: float,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[Started]:
    """Run `python -m module FD`; if anything goes wrong in the `with` block, end it again.

    *lines* are what it is told; *shown* is the mount point as sentences name it.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[theirs.fileno(), *pass_fds],
                start_new_session=True,
                cwd="/",
                env=env,
            )
        try:
            yield Started(process, ours, _outcome(ours, lines, shown, timeout_s))
        except BaseException:
            # SIGTERM: it cleans up after itself, whatever it had got to
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def let_live(daemon: Started) -> None:
    """It goes on when this process ends; this only keeps subprocess from warning about it."""
    daemon.process.returncode = 0


def _outcome(
    channel: socket.socket, said: Sequence[str], shown: str, timeout_s: float
) -> dict[str, Any]:
    channel.settimeout(timeout_s)
    try:
        channel.sendall("".join(f"{line}\n" for line in said).encode("ascii"))
        with channel.makefile("r", encoding="utf-8") as lines:
            line = lines.readline()
    except TimeoutError:
        raise MountError(
            f"the daemon did not mount {shown} within {timeout_s:.0f} s; is the source hung?"
        ) from None
    if not line:
        raise MountError(
            f"the daemon for {shown} ended before it had mounted; "
            "run it with --foreground to see why"
        )
    outcome: dict[str, Any] = json.loads(line)
    if "error" in outcome:
        raise MountError(outcome["error"])
    return outcome
