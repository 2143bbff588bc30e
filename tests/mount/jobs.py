"""A job of several nodes on this machine: real daemons, started as a launcher would start them.

Node *i* is ``n<i>``, since a rendezvous sorts by name.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.mount.helpers import COMMAND_TIMEOUT_S, COPPERFS, Mount, copperfs, is_mounted


class JobNode(Mount):
    name: str = ""
    inside: Sequence[str | Path] = ()

    def begin(
        self, before: tuple[str, ...] = (), environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """*before* starts the command, such as ``prlimit``."""
        self.mountpoint.mkdir(exist_ok=True)
        return subprocess.Popen(
            [*self.inside, *before, *COPPERFS, "mount", self.mountpoint, "--source", self.source,
             "--log-file", self.log, "--node-name", self.name, *self.flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(environ or {})},
        )  # fmt: skip

    def is_up(self, started: subprocess.Popen[str]) -> None:
        _, said = started.communicate(timeout=COMMAND_TIMEOUT_S)
        assert started.returncode == 0, said
        self.pid = self._find_pid()

    def remove(self) -> None:
        if self.pid or is_mounted(self.mountpoint):
            super().remove()


class Job:
    def __init__(
        self,
        source: Path,
        where: Path,
        count: int,
        *flags: str,
        only: dict[int, tuple[str, ...]] | None = None,
    ) -> None:
        flags = (
            *("--rendezvous", str(where / "rendezvous"), "--nodes", str(count)),
            *("--listen", "127.0.0.1", "--launch-timeout", "30", "--wait-all"),
            *flags,
        )
        where.mkdir(exist_ok=True)
        (where / "rendezvous").mkdir(0o700)
        only = only or {}
        self.nodes = [
            JobNode(source, where / f"n{each}", *flags, *only.get(each, ()))
            for each in range(count)
        ]
        for node in self.nodes:
            node.name = node.mountpoint.name
        self._stack = ExitStack()

    def __getitem__(self, number: int) -> JobNode:
        return self.nodes[number]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            started = []
            for node in self.nodes:
                stack.callback(node.remove)
                started.append(node.begin())
                # Not killed: its daemon would go on to mount.
                stack.callback(started[-1].communicate, timeout=COMMAND_TIMEOUT_S)
            for node, process in zip(self.nodes, started, strict=True):
                node.is_up(process)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stack.close()
        if kind is None:
            for node in self.nodes:
                node.check_log()

    def all_stats(self, asked: int = 0) -> dict[str, Any]:
        return self.ask(asked, "stats", "--all")

    def tree(self, asked: int = 0) -> dict[str, Any]:
        return self.ask(asked, "tree")

    def ask(self, number: int, command: str, *flags: str) -> dict[str, Any]:
        done = copperfs(command, self[number].mountpoint, *flags, "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
