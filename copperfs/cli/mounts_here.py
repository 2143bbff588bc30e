"""Mounts here: asks all mounts of this user on this node for their state, whether they answer or
not. Each is asked by a process of its own, since a mount may hang."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from copperfs.cli.subprocess_deadline import Aside, python_aside

ANSWERS_WITHIN_S = 5.0
OK, SILENT, GONE = "ok", "does not answer", "daemon is gone"
REFUSED = "cannot be asked"
_SCRIPT = "import sys; from copperfs.cli.mounts_here import say; say(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class MountHere:
    mountpoint: str
    state: str
    source: str | None = None
    pid: int | None = None
    release: str | None = None
    age_s: float | None = None
    """Of the daemon, which a takeover or an upgrade replaces."""
    hits: int | None = None
    misses: int | None = None
    log_file: str | None = None

    @property
    def hit_ratio(self) -> float | None:
        """The share of requests that were answered from the cache."""
        if self.hits is None or self.misses is None or not self.hits + self.misses:
            return None
        return self.hits / (self.hits + self.misses)


def mounts_here() -> list[MountHere]:
    asked = [(where, Aside.start(python_aside(_SCRIPT, path))) for where, path in _places()]
    deadline = time.monotonic() + ANSWERS_WITHIN_S
    return [_state(where, aside, deadline) for where, aside in asked]


def _places() -> Iterator[tuple[str, str]]:
    """Mount points, and paths that lead there from here. Root sees all."""
    from copperfs.fuse.inside_mounts import inside_mounts
    from copperfs.fuse.mounting import FSTYPE, mounts, owner_of

    by_device = {
        each.device: os.fsdecode(each.mountpoint)
        for each in reversed(mounts())
        if each.fstype == FSTYPE and os.geteuid() in (0, owner_of(each))
    }
    yield from ((where, where) for where in reversed(by_device.values()))
    yield from ((each.mountpoint, each.path) for each in inside_mounts())


def _state(where: str, aside: Aside, deadline: float) -> MountHere:
    said = aside.said(max(deadline - time.monotonic(), 0.1))
    if said.code is None:
        return MountHere(where, SILENT)
    if said.code:
        return MountHere(where, said.output.strip() or SILENT)
    return MountHere(where, OK, **json.loads(said.output))


def say(path: str) -> None:
    """Runs in the process that asks one mount."""
    from copperfs.fuse.ioctl import IoctlRequest, ask_mount
    from copperfs.model.errors import ControlError

    try:
        hello: Any = ask_mount(path, IoctlRequest.HELLO)
        statistics: Any = ask_mount(path, IoctlRequest.STATISTICS)
        settings: Any = ask_mount(path, IoctlRequest.CONFIGURATION)
    except ControlError as error:
        print(GONE if "is gone" in str(error) else REFUSED)
        raise SystemExit(error.exit_code) from None
    told = {
        "source": hello["source"],
        "pid": hello["pid"],
        "release": hello.get("release"),
        "age_s": _age_s(int(hello["pid"])),
        "hits": statistics["hits"],
        "misses": statistics["misses"],
        "log_file": settings["log_file"],
    }
    print(json.dumps(told))


def _age_s(pid: int) -> float | None:
    from copperfs.fuse.daemon_start import start_of

    started = start_of(pid)
    if started is None:  # in another PID namespace
        return None
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(max(since_boot_s - started / os.sysconf("SC_CLK_TCK"), 0.0), 1)
