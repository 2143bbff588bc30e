"""Subprocess with a deadline: does what may hang, and is left behind if it does.

A process that waits for a mount whose daemon is stopped cannot be killed, and a waiting thread
would keep this process from ending. So ``doctor`` and ``bugreport`` touch mounts, sources and name
servers only in subprocesses. One left behind was sent SIGKILL, and ends when its wait does.
"""

import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from copperfs.startup.bundle import environment_python


@dataclass(frozen=True, slots=True)
class Said:
    """*code* is None if it did not end in time."""

    code: int | None
    output: str
    errors: str


@dataclass(slots=True)
class Aside:
    """``said`` waits for it; several can run at once."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, command: Sequence[str], *, output: IO[str] | None = None) -> "Aside":
        """OSError if it cannot be started. *output* gets its standard output."""
        return cls(
            subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if output is None else output,
                stderr=subprocess.PIPE,
                text=True,
                errors="backslashreplace",
                cwd="/",
                start_new_session=True,
            )
        )

    def said(self, timeout_s: float) -> Said:
        try:
            output, errors = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._leave_behind()
            return Said(None, "", "")
        return Said(self.process.returncode, output or "", errors)

    def _leave_behind(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self.process.returncode = -signal.SIGKILL  # else subprocess would warn that it still runs


def run_aside(command: Sequence[str], timeout_s: float) -> Said:
    try:
        return Aside.start(command).said(timeout_s)
    except OSError as error:
        return Said(127, "", f"{command[0]} cannot be started: {error.strerror}")


def python_aside(script: str, *arguments: str) -> list[str]:
    return [environment_python(), "-P", "-c", script, *arguments]


def copperfs_aside(*arguments: str) -> list[str]:
    return [environment_python(), "-P", "-m", "copperfs.cli.main", *arguments]
