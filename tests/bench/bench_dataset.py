"""`dataset`: five epochs of a training on a dataset that fits into the disks of the nodes together.

4,096 files of 256 KiB to 8 MiB, eight nodes, two readers on each; the source is the stand-in at 1
ms and 200 MB/s. In each epoch a node reads other files, and each file is read by one node. The same
readers also read from the stand-in itself, each node as a separate client.

A reader drops the pages that it has read. Before a cold epoch the pages of all chunks on the disk
are dropped, too; chunks are read past the cache, so that should make no difference. The contestant
*in memory* has no disk, and a tier in memory that holds the whole dataset.

The source's reads have to be every byte once in the first epoch and nothing later. Its mount keeps
no pages, so it counts every read.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.altered_daemons import Alteration
from tests.bench.cluster import Cluster, cluster
from tests.bench.dataset import Dataset, Read, give_back_all, make_dataset, read_epoch
from tests.bench.lab import Context
from tests.bench.processes import CannotMeasureError
from tests.bench.results import JUDGED, Measure, Target, at_most
from tests.standin import StandIn

NODES = 8
COLD_EPOCHS, WARM_EPOCHS = 2, 2
"""Epochs after the first; the warm ones last."""
LATENCY_S = 1e-3
SERVERS = 4
BANDWIDTH_BYTES = 200_000_000
CACHE_S = 3900.0
MEMORY_MIB = 1536
"""The memory of each node that has no disk: of 9.66 GB a node owns 1.2, and an eighth of its memory
is for guests."""
DIRECT, WITH_CURVE, IN_MEMORY = "directly", "copperfs, CURVE", "copperfs, in memory"
OPTIONS: dict[str, tuple[object, ...]] = {
    JUDGED: ("--security", "none"),
    WITH_CURVE: ("--security", "curve"),
    IN_MEMORY: ("--security", "none", "--tier-memory", f"{MEMORY_MIB}MiB"),
}


@dataclass(slots=True)
class Trained:
    walls_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    source_bytes: list[int] = field(default_factory=list)
    each_once: bool = False
    owned_bytes: list[int] = field(default_factory=list)

    @property
    def imbalance(self) -> float:
        owned = self.owned_bytes
        return max(owned) * len(owned) / sum(owned) if owned else 0.0


def run(context: Context) -> Iterator[Measure]:
    dataset = make_dataset(context.cache / f"dataset-{context.files}", context.files)
    trained: dict[str, list[Trained]] = {}
    for turn in range(context.repeats):
        for name in (DIRECT, *OPTIONS):
            if context.wanted and name not in context.wanted:
                continue
            context.progress(f"dataset, {name}, round {turn + 1} of {context.repeats}")
            if name == DIRECT:
                done = _directly(dataset)
            else:
                done = _through_copperfs(context, dataset, name)
            trained.setdefault(name, []).append(done)
    label = f"{len(dataset.files)} files, {dataset.total_bytes / 1e9:.2f} GB, {NODES} nodes"
    yield from _measures(label, trained)


def _measures(label: str, trained: dict[str, list[Trained]]) -> Iterator[Measure]:
    cold = slice(1, 1 + COLD_EPOCHS)
    warm = slice(1 + COLD_EPOCHS, None)
    rows: list[tuple[str, slice, Target | None]] = [
        ("epoch 1", slice(0, 1), None),
        ("later, from disk", cold, at_most(0.2)),
        ("later, pages kept", warm, None),
    ]
    details = {
        f"{what} ({name})": value
        for name in OPTIONS
        for each in trained.get(name, [])[:1]
        for what, value in (
            ("each byte once in epoch 1", float(each.each_once)),
            ("source bytes in epoch 1", float(each.source_bytes[0])),
            ("source bytes later", float(sum(each.source_bytes[1:]))),
            ("imbalance", each.imbalance),
        )
        if value or what != "imbalance"
    }
    for what, chosen, target in rows:
        walls = {
            # Each epoch of direct readers is like the first.
            name: [wall for each in ways for wall in (each.walls_s or [0.0])[chosen]]
            if name != DIRECT
            else [each.walls_s[0] for each in ways]
            for name, ways in trained.items()
        }
        yield Measure("dataset", f"{label}: {what}", "s", walls, DIRECT, target, details)
        spent = {
            name: [cpu for each in ways for cpu in each.cpu_s[chosen]]
            for name, ways in trained.items()
            if name != DIRECT
        }
        yield Measure("dataset", f"{label}: {what}, CPU of daemons", "s", spent, None)


@contextlib.contextmanager
def stand_in(
    dataset: Dataset, clients: int, bandwidth_bytes: int = BANDWIDTH_BYTES
) -> Iterator[StandIn]:
    with tempfile.TemporaryDirectory(prefix="copperfs-bench-pfs-") as base:
        places = [Path(base).resolve() / f"client{number}" for number in range(clients)]
        for place in places:
            place.mkdir()
        with StandIn(
            dataset.directory,
            mountpoints=places,
            per_op_s=LATENCY_S,
            per_read_s=LATENCY_S,
            servers=SERVERS,
            bandwidth_bytes=bandwidth_bytes,
            timeout_s=CACHE_S,
        ) as standing:
            yield standing


@contextlib.contextmanager
def training(
    context: Context,
    dataset: Dataset,
    nodes: int,
    *options: object,
    disk: bool = True,
    alterations: Sequence[Alteration] = (),
) -> Iterator[tuple[StandIn, Cluster, Path]]:
    """A source, a job on it, and its tiers; each epoch begins with ready()."""
    tiers = context.cache / "tiers"
    shutil.rmtree(tiers, ignore_errors=True)
    size = 2 * dataset.total_bytes // nodes + (64 << 20)
    at_disk = ("--tier-dir", tiers, "--tier-size", size) if disk else ()
    try:
        with (
            stand_in(dataset, 1) as standing,
            cluster(
                nodes,
                standing.mountpoint,
                *("--ring", standing.mountpoint),
                *at_disk,
                *options,
                alterations=alterations,
            ) as job,
        ):
            yield standing, job, tiers
    finally:
        shutil.rmtree(tiers, ignore_errors=True)


def ready(standing: StandIn, dataset: Dataset, *more: Path) -> None:
    """Drop all pages of the source and below *more*, and reset the source's counts."""
    give_back_all(dataset.directory, *more)
    standing.reset_counts()


def checked(read: Read) -> Read:
    if read.errors:
        raise CannotMeasureError(f"{len(read.errors)} files not read, the first: {read.errors[0]}")
    return read


def _directly(dataset: Dataset) -> Trained:
    with stand_in(dataset, NODES) as standing:
        give_back_all(dataset.directory)
        read = checked(read_epoch(dataset, dict(enumerate(standing.mountpoints)), 0))
        return Trained([read.wall_s])


def _through_copperfs(context: Context, dataset: Dataset, name: str) -> Trained:
    trained = Trained()
    disk = name != IN_MEMORY
    with training(context, dataset, NODES, *OPTIONS[name], disk=disk) as (standing, job, tiers):
        mounts = dict(enumerate(job.mounts))
        for epoch in range(1 + COLD_EPOCHS + WARM_EPOCHS):
            ready(standing, dataset, *([tiers] if disk and epoch <= COLD_EPOCHS else []))
            before = job.cpu_s()
            read = checked(read_epoch(dataset, mounts, epoch))
            trained.walls_s.append(read.wall_s)
            trained.cpu_s.append(job.cpu_s() - before)
            counted = standing.counts().read_bytes
            trained.source_bytes.append(sum(counted.values()))
            if epoch == 0:
                trained.each_once = counted == {each.name: each.size for each in dataset.files}
            context.progress(
                f"  epoch {epoch + 1}: {read.wall_s:.2f} s, {trained.cpu_s[-1]:.1f} s of CPU, "
                f"the source read {sum(counted.values()):,} bytes"
            )
        if disk:
            trained.owned_bytes = [owned_bytes(tiers / f"node{node}") for node in range(NODES)]
    return trained


def owned_bytes(tier: Path) -> int:
    """A chunk has a header of two pages at most."""
    return sum(each.stat().st_size for each in (tier / "chunks").glob("*/*"))
