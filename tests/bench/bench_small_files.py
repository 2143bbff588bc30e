"""`small-files`: a dataset of small files through the ring, through the tree, and directly.

20,000 files of 20 KiB, four nodes, two readers on each, three epochs in each of which a node reads
other files; the source is the stand-in at 1 ms for each operation. Below `--ring` each file is one
chunk and has an owner. Time, CPU time of the daemons and messages are for each file.

A job of two nodes with one reader, of which one owns everything, bounds what one exchange for many
files could save.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.bench_dataset import checked, stand_in
from tests.bench.cluster import Cluster, cluster
from tests.bench.dataset import KIB, Dataset, make_dataset, read_epoch
from tests.bench.lab import Context
from tests.bench.processes import cpu_seconds
from tests.bench.results import JUDGED, Measure
from tests.mount.jobs import Job

FILES, SIZE = 20_000, 20 * KIB
NODES, EPOCHS = 4, 3
BANDWIDTH_BYTES = 10**9
DIRECT, TREE, OWNER = "directly", "tree", "on the owner"


def run(context: Context) -> Iterator[Measure]:
    dataset = make_dataset(context.cache / f"small-{FILES}", FILES, SIZE, SIZE)
    taken: dict[str, dict[str, list[float]]] = {}
    for turn in range(context.repeats):
        for name in (DIRECT, TREE, JUDGED):
            context.progress(f"small-files, {name}, round {turn + 1} of {context.repeats}")
            for epoch, values in enumerate(_train(dataset, name)):
                context.progress(f"  epoch {epoch + 1}: {values}")
                for what, value in values.items():
                    key = f"epoch {'1' if epoch == 0 else 'later'}, {what}"
                    taken.setdefault(key, {}).setdefault(name, []).append(value)
        context.progress(f"small-files, one reader, round {turn + 1} of {context.repeats}")
        for key, by_place in _one_reader(dataset).items():
            for place, value in by_place.items():
                taken.setdefault(key, {}).setdefault(place, []).append(value)
    for key, samples in taken.items():
        unit = "ns" if key.endswith("a file") else "requests"
        yield Measure("small-files", key, unit, samples, _yardstick(key))  # type: ignore[arg-type]


def _train(dataset: Dataset, name: str) -> Iterator[dict[str, float]]:
    count = len(dataset.files)
    with contextlib.ExitStack() as stack:
        standing = stack.enter_context(
            stand_in(dataset, NODES if name == DIRECT else 1, BANDWIDTH_BYTES)
        )
        if name == DIRECT:
            for epoch in range(EPOCHS):
                read = checked(read_epoch(dataset, dict(enumerate(standing.mountpoints)), epoch))
                yield {"time a file": read.wall_s / count * 1e9}
            return
        options = ("--ring", standing.mountpoint) if name == JUDGED else ()
        job = stack.enter_context(
            cluster(
                NODES,
                standing.mountpoint,
                *("--security", "none", "--memory", "1GiB", "--tier-memory", "512MiB", *options),
            )
        )
        mounts = dict(enumerate(job.mounts))
        for epoch in range(EPOCHS):
            standing.reset_counts()
            cpu_s, sent = job.cpu_s(), _sent(job)
            read = checked(read_epoch(dataset, mounts, epoch))
            counts = standing.counts()
            yield {
                "time a file": read.wall_s / count * 1e9,
                "CPU a file": (job.cpu_s() - cpu_s) / count * 1e9,
                "messages": _sent(job) - sent,
                "opens at the source": counts.total("open"),
            }


def _one_reader(dataset: Dataset) -> dict[str, dict[str, float]]:
    """On the owner, and on the other node, after everything was read once."""
    taken: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="copperfs-bench-") as base,
        Job(
            dataset.directory,
            Path(base).resolve() / "job",
            2,
            *("--security", "none", "--ring", str(dataset.directory)),
            only={0: ("--tier-memory", "1GiB"), 1: ("--tier-memory", "0")},
        ) as job,
    ):
        pids = [each.pid for each in job.nodes]
        checked(read_epoch(dataset, {0: job[0].mountpoint}, 0, readers=1))
        for name, node in ((OWNER, 0), (JUDGED, 1)):
            before = cpu_seconds(pids)
            read = checked(read_epoch(dataset, {node: job[node].mountpoint}, 0, readers=1))
            count = len(dataset.files)
            taken.setdefault("one reader, time a file", {})[name] = read.wall_s / count * 1e9
            used = (cpu_seconds(pids) - before) / count * 1e9
            taken.setdefault("one reader, CPU a file", {})[name] = used
    return taken


def _sent(job: Cluster) -> int:
    return sum(job.statistics(node)["transport"]["sent"] for node in range(NODES))


def _yardstick(key: str) -> str:
    if "one reader" in key:
        return OWNER
    return DIRECT if "time" in key else TREE
