"""Clusters of real daemons on this machine, for the benchmarks of several nodes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.altered_daemons import Alteration, altered
from tests.bench.processes import CannotMeasureError, cpu_seconds

COMMAND = [sys.executable, "-m", "copperfs.cli.main"]
UP_WITHIN_S = 180.0


def copperfs(
    *arguments: object, timeout_s: float = UP_WITHIN_S, alterations: Sequence[Alteration] = ()
) -> str:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=os.environ | altered(*alterations),
        check=False,
    )
    if done.returncode != 0:
        raise CannotMeasureError(f"copperfs {arguments[0]}: {done.stderr.strip()[-1000:]}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Cluster:
    mounts: list[Path]
    pids: list[int]

    def statistics(self, node: int) -> dict[str, Any]:
        found = json.loads(copperfs("stats", self.mounts[node], "--json"))
        assert isinstance(found, dict)
        return found

    def cpu_s(self) -> float:
        return cpu_seconds(self.pids)

    def clear(self) -> None:
        copperfs("clear", self.mounts[0])


@contextlib.contextmanager
def cluster(
    nodes: int, source: Path, *options: object, alterations: Sequence[Alteration] = ()
) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="copperfs-bench-") as base:
        place = Path(base).resolve() / "cluster"
        try:
            words = ("-n", nodes, "--dir", place, "--source", source, *options)
            copperfs("cluster", "up", *words, alterations=alterations)
            state = json.loads(copperfs("cluster", "status", "--dir", place, "--json"))
            yield Cluster(
                [Path(each["mountpoint"]) for each in state["nodes"]],
                [int(each["pid"]) for each in state["nodes"]],
            )
        finally:
            copperfs("cluster", "down", "--dir", place)
