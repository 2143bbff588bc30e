"""`throughput`: one reader, one file of 2 GiB, through the data tier.

- From the node's disk: a mount with almost nothing in the tier's memory, beside the same loop on
  the file itself, on the same disk. The pages of the file, of the chunks and of the mount are
  dropped before each.
- From a peer's memory: a job of two nodes over the loopback. The reading node keeps nothing, so the
  other one owns all chunks.

Both run with chunks of 1 MiB (the default) and of 256 KiB.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.bench_dataset import owned_bytes
from tests.bench.dataset import give_back, give_back_all
from tests.bench.lab import Context, make_file
from tests.bench.processes import CannotMeasureError, cpu_seconds
from tests.bench.results import JUDGED, MIB, Measure, Target, at_least
from tests.mount.helpers import Mount
from tests.mount.jobs import Job

FILE_MIB = 2048
DIRECT = "the file itself"
SMALL_CHUNKS, WITH_CURVE = f"{JUDGED}, chunks of 256 KiB", f"{JUDGED}, CURVE"
STALLED_S = 60.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Way:
    """A mount whose tier has the file, and its processes."""

    mounted: Path
    pids: list[int]
    drop: Callable[[], None]


def run(context: Context) -> Iterator[Measure]:
    file = make_file(context.cache / "trees" / f"tier-{FILE_MIB}" / "file", FILE_MIB * MIB)
    yield from _measure(
        context,
        f"{FILE_MIB} MiB from the disk of the node",
        file,
        {
            JUDGED: lambda: from_disk(context, file, "1MiB"),
            SMALL_CHUNKS: lambda: from_disk(context, file, "256KiB"),
        },
        at_least(0.5),
    )
    yield from _measure(
        context,
        f"{FILE_MIB} MiB from a peer's memory",
        file,
        {
            JUDGED: lambda: from_peer(file, "1MiB", "none"),
            SMALL_CHUNKS: lambda: from_peer(file, "256KiB", "none"),
            WITH_CURVE: lambda: from_peer(file, "1MiB", "curve"),
        },
        at_least(600e6, "value"),
    )


def _measure(
    context: Context,
    label: str,
    file: Path,
    ways: dict[str, Callable[[], contextlib.AbstractContextManager[Way]]],
    target: Target,
) -> Iterator[Measure]:
    rates: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    for name, way in ways.items():
        with way() as ready:
            for turn in range(context.repeats):
                context.progress(f"{label}, {name}, round {turn + 1} of {context.repeats}")
                give_back(file)
                rates.setdefault(DIRECT, []).append(context.client.run("read", file))
                ready.drop()
                before = cpu_seconds(ready.pids)
                rates.setdefault(name, []).append(context.client.run("read", ready.mounted))
                cpu.setdefault(name, []).append(cpu_seconds(ready.pids) - before)
    yield Measure("throughput", label, "bytes/s", rates, DIRECT, target)
    yield Measure("throughput", f"{label}, CPU of the daemons", "s", cpu, None)


@contextlib.contextmanager
def from_disk(context: Context, file: Path, chunk: str) -> Iterator[Way]:
    tier = context.cache / "tiers"
    shutil.rmtree(tier, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="copperfs-bench-") as base:
        try:
            with Mount(
                file.parent,
                Path(base).resolve() / "mnt",
                *("--tier-dir", str(tier), "--tier-size", "3GiB", "--tier-memory", "0"),
                *("--chunk-size", chunk),
            ) as mount:
                mounted = mount / file.name
                fill(tier, mounted)

                def drop() -> None:
                    give_back(mounted)
                    give_back_all(tier)

                yield Way(mounted, [mount.pid], drop)
        finally:
            shutil.rmtree(tier, ignore_errors=True)


def fill(tier: Path, mounted: Path) -> None:
    """The mount reads the source as fast as the disk of the tier takes it."""
    done = 0
    with mounted.open("rb", buffering=0) as reading:
        while got := reading.read(MIB):
            done += len(got)
    written, since = owned_bytes(tier), time.monotonic()
    while written < done:
        if time.monotonic() > since + STALLED_S:
            missing = (done - written) // MIB
            raise CannotMeasureError(
                f"{missing} MiB of chunks are not on the disk, and none came for {STALLED_S:.0f} s"
            )
        time.sleep(POLL_S)
        before, written = written, owned_bytes(tier)
        if written > before:
            since = time.monotonic()


@contextlib.contextmanager
def from_peer(file: Path, chunk: str, security: str) -> Iterator[Way]:
    """Node 1 reads, node 0 owns."""
    with (
        tempfile.TemporaryDirectory(prefix="copperfs-bench-") as base,
        Job(
            file.parent,
            Path(base).resolve() / "job",
            2,
            *("--security", security, "--chunk-size", chunk),
            only={0: ("--tier-memory", "3GiB"), 1: ("--tier-memory", "0")},
        ) as job,
    ):
        mounted = job[1] / file.name
        with mounted.open("rb", buffering=0) as reading:
            while reading.read(MIB):
                pass
        yield Way(mounted, [each.pid for each in job.nodes], lambda: give_back(mounted))
