"""Processes of a killed run: a command that was started by ``copperfs run`` and its children, found
by the token of the run in their environment."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from copperfs.launch.launcher_variables import RUN_VARIABLE

# Processes may start others while they are killed.
KILL_ROUNDS_MAX, KILL_ROUND_S = 100, 0.01


def kill_all_with(token: str) -> None:
    for _ in range(KILL_ROUNDS_MAX):
        found = list(processes_with(token))
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(KILL_ROUND_S)


def processes_with(token: str) -> Iterator[int]:
    """Those with the token in their environment; zombies have none."""
    needle = f"{RUN_VARIABLE}={token}".encode()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            # It may have ended, or belong to another user.
            with contextlib.suppress(OSError):
                if needle in (process / "environ").read_bytes().split(b"\0"):
                    yield int(process.name)
