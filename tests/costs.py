"""What each test costs, in processor time and in waiting: a plugin of pytest, and a table.

    .venv/bin/pytest -p tests.costs --costs build/costs.jsonl tests/mount
    .venv/bin/python -m tests.costs build/costs.jsonl [--by file|directory|test]

Processor time is that of a control group (version 2) that the tests run in, so it has what daemons
took. It says the same on a busy machine. What daemons take after the end of a test counts for the
next one.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

# Version 2 alone, or beside version 1: it counts whichever version sets the limits.
_TOPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


class _Meter:
    """This process moves to the control group; writes one line for each test."""

    def __init__(self, out: Path) -> None:
        top = next((top for top in _TOPS if (top / "cgroup.procs").exists()), None)
        if top is None:
            raise pytest.UsageError("--costs needs control groups of version 2, and to be root")
        self._group = top / f"copperfs-costs-{os.getpid()}"
        self._group.mkdir()
        self._move_to(self._group)
        self._top = top
        out.parent.mkdir(parents=True, exist_ok=True)
        # Workers append to one file, each line by one write.
        self._out = out.open("a", buffering=1)

    @staticmethod
    def _move_to(group: Path) -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    def _cpu_s(self) -> float:
        stat = dict(line.split() for line in (self._group / "cpu.stat").read_text().splitlines())
        return int(stat["usage_usec"]) / 1e6

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        cpu, began = self._cpu_s(), time.monotonic()
        result = yield
        cost = {
            "test": item.nodeid,
            "cpu_s": round(self._cpu_s() - cpu, 4),
            "wall_s": round(time.monotonic() - began, 4),
            "worker": os.environ.get("PYTEST_XDIST_WORKER", ""),
        }
        self._out.write(json.dumps(cost) + "\n")
        return result

    def pytest_unconfigure(self) -> None:
        cost = {"test": "in all", "cpu_s": round(self._cpu_s(), 4)}
        self._out.write(json.dumps(cost) + "\n")
        self._out.close()
        self._move_to(self._top)
        try:
            self._group.rmdir()
        except OSError as error:  # a process still lives in it
            print(f"{self._group} stays: {error.strerror}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="append what each test costs to this file")


def pytest_configure(config: pytest.Config) -> None:
    if (out := config.getoption("costs")) is not None:
        config.pluginmanager.register(_Meter(out.absolute()), "costs")


def _key(test: str, by: str) -> str:
    path = test.partition("::")[0]
    return {"test": test, "file": path, "directory": str(Path(path).parent)}[by]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("costs", type=Path, nargs="+")
    parser.add_argument("--by", choices=("test", "file", "directory"), default="file")
    parser.add_argument("--lines", type=int, default=40)
    arguments = parser.parse_args()
    cpu: dict[str, float] = defaultdict(float)
    wall: dict[str, float] = defaultdict(float)
    number: dict[str, int] = defaultdict(int)
    for path in arguments.costs:
        for line in path.read_text().splitlines():
            cost = json.loads(line)
            if cost["test"] == "in all":
                continue
            for key in (_key(cost["test"], arguments.by), "in all"):
                cpu[key] += cost["cpu_s"]
                wall[key] += cost["wall_s"]
                number[key] += 1
    print(f"{'CPU':>8} {'wall':>8} {'tests':>6}")
    for key in sorted(cpu, key=lambda key: -cpu[key])[: arguments.lines + 1]:
        print(f"{cpu[key]:8.1f} {wall[key]:8.1f} {number[key]:6}  {key}")


if __name__ == "__main__":
    main()
