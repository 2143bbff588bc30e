"""Node processes, started without the environment variables of the launcher that runs the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from copperfs.launch.launcher_variables import without_mpi
from copperfs.model.roster import Roster
from tests.mount.helpers import PROJECT

ATTEND = [sys.executable, "-P", "-m", "tests.bootstrap.attend"]
WITHIN_S = 60.0
_SCHEDULERS = ("SLURM", "PBS_", "FLUX_", "LSB_", "COPPERFS_")


def clean_environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in without_mpi(os.environ).items()
        if not name.startswith(_SCHEDULERS)
    }
    return kept | {"PYTHONPATH": str(PROJECT), "HOME": "/nonexistent"}


@dataclass(frozen=True)
class Ended:
    code: int
    lines: list[dict[str, Any]]
    stderr: str

    @property
    def last(self) -> dict[str, Any]:
        assert self.lines, self.stderr
        return self.lines[-1]

    @property
    def error(self) -> str:
        assert self.code == 1, (self.code, self.lines, self.stderr)
        return str(self.last["error"])

    @property
    def roster(self) -> Roster:
        assert self.code == 0, (self.code, self.lines, self.stderr)
        return Roster.from_json(self.last["roster"])


class Node:
    def __init__(self, *flags: str | Path, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*ATTEND, *map(str, flags)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment() | (env or {}),
        )

    def ended(self) -> Ended:
        output, errors = self.process.communicate(timeout=WITHIN_S)
        lines = [json.loads(line) for line in output.splitlines()]
        return Ended(self.process.returncode, lines, errors)


class Nodes:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, *flags: str | Path, env: dict[str, str] | None = None) -> Node:
        node = Node(*flags, env=env)
        self._stack.callback(self._end, node)
        return node

    @staticmethod
    def _end(node: Node) -> None:
        if node.process.poll() is None:
            node.process.kill()
        node.process.communicate(timeout=WITHIN_S)


@contextmanager
def starting_nodes() -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(stack)
