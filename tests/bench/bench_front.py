"""`front`: how fast a hit is answered when the kernel has to ask, and the effect of Python's GIL.

With kernel caching off every getattr and lookup is a request. The yardstick is libfuse's C++
`passthrough_hp --nocache`, or bindfs without cache. A lookup opens a path with O_PATH, relative to
an open directory. The kernel first requests the directory's attributes (both mounts use
default_permissions), so it is one LOOKUP and one GETATTR; the row of getattr tells the share of the
latter.

"busy" is a daemon with a thread that computes in Python without end. Since that thread also takes a
core, `load` in the details shows the yardstick beside a process that takes one.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.contestants import (
    Bind,
    Bindfs,
    Contestant,
    Mounted,
    PassthroughHp,
    copperfs,
)
from tests.bench.lab import Context, Samples, make_file
from tests.bench.processes import cpu_seconds
from tests.bench.results import JUDGED, Measure, Target, Unit, at_least, at_most

COUNT = 20_000
CLIENTS = 8
CLIENTS_SECONDS = 1.0
MANY = f"getattr/s, {CLIENTS} clients"
# 8 clients: 100,000/s where passthrough_hp reaches 90,000, whatever the machine's speed.
MANY_RATIO = 100_000 / 90_000
UNITS: dict[str, Unit] = {MANY: "1/s"}


def run(context: Context) -> Iterator[Measure]:
    tree = _tree(context.cache / "trees" / "front")
    hp, bindfs = PassthroughHp(context.cache), Bindfs(kernel_cache=False)
    quiet = [Bind(), hp, bindfs, copperfs(alterations=["uncached"])]
    busy = copperfs(alterations=["uncached", "busy"])
    contestants = context.taking_part([*quiet, busy])
    yardstick = hp.name if hp in contestants else bindfs.name
    with context.all_mounted(contestants, tree) as places:

        def sample(contestant: Contestant) -> dict[str, float]:
            return _sample(context, places[contestant])

        taken = context.interleave("front", list(places), sample)
        loaded = [one for one in places if one.name == yardstick]
        with _other_process_computing():
            under_load = context.interleave("front beside a busy process", loaded, sample)
    yield from _rows(taken, under_load, yardstick)


def _sample(context: Context, mounted: Mounted) -> dict[str, float]:
    root = mounted.path
    before_s = cpu_seconds(mounted.pids)
    getattr_ns = context.client.run("getattr", root / "file0", COUNT)
    daemon_s = cpu_seconds(mounted.pids) - before_s
    return {
        "getattr": getattr_ns,
        "getattr, the daemon's CPU": daemon_s / COUNT * 1e9,
        "lookup": context.client.run("lookup", root, "file0", COUNT),
        "lookup of a missing name": context.client.run("lookup", root, "absent", COUNT),
        MANY: context.client.run("getattrs", root / "file", CLIENTS, CLIENTS_SECONDS),
    }


def _rows(taken: Samples, under_load: Samples, yardstick: str) -> Iterator[Measure]:
    for what, by_contestant in taken.items():
        unit = UNITS.get(what, "ns")
        quiet = {_column(name): samples for name, samples in by_contestant.items()}
        busy = quiet.pop("copperfs, busy", None)
        goal: Target | None = at_most(1.0)
        if what == MANY:
            goal = at_least(round(MANY_RATIO, 2))
        elif what.endswith("CPU"):
            goal = None
        base = _column(yardstick)
        yield Measure("front", what, unit, quiet, base, goal)
        if busy is None or goal is None:
            continue
        load = Measure("front", what, unit, under_load.get(what, {}), None).value(yardstick)
        yield Measure(
            "front",
            f"{what}, daemon's Python busy",
            unit,
            {base: quiet.get(base, []), JUDGED: busy},
            base,
            # At most 1.3 times as long; for a rate: at least 1 / 1.3 of it.
            at_least(round(1 / 1.3, 2)) if what == MANY else at_most(1.3),
            {} if load is None else {f"{base} under load": load},
        )


def _column(name: str) -> str:
    return "bindfs" if name == "bindfs, uncached" else name


def _tree(tree: Path) -> Path:
    for index in range(CLIENTS):
        make_file(tree / f"file{index}", 4096)
    return tree


@contextlib.contextmanager
def _other_process_computing() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()
