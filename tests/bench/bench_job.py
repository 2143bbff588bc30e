"""`job`: a whole job imports the same packages at once, from a loaded parallel filesystem.

The source is the stand-in with its realistic defaults. Every node is a separate client with one
process:

- copperfs: the daemons read through the mount of the first, since all but the roots read nothing.
- directly: each process has its own mount of the stand-in.
- image: each node mounts, with squashfuse_ll, the image that lies on its own mount of the stand-in.

Everything runs on the cores of one machine, so the CPU time of all participants except the stand-in
is shown beside the wall time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.bench.cluster import Cluster, cluster
from tests.bench.lab import Context
from tests.bench.packages import PackageSet, import_once
from tests.bench.processes import CannotMeasureError, cpu_seconds, daemon, mountpoint
from tests.bench.results import JUDGED, Measure, at_most
from tests.standin import StandIn

NODES = 8
COUNTS = (1, 2, 4, 8, 16, 32)
LATENCY_S = 1e-3
SERVERS = 4
BANDWIDTH_BYTES = 10**9
CACHE_S = 3900.0
MEMORY = "256MiB"
DIRECT, IMAGE, ALONE = "directly", "image", "copperfs, 1 node"
IMAGE_FOR_TWO, FOR_TWO = "image, 2 nodes", "copperfs, 2 nodes"


@dataclass(frozen=True, slots=True)
class Taken:
    wall_s: float
    cpu_s: float
    metadata: int


def run(context: Context) -> Iterator[Measure]:
    for packages in context.package_sets:
        yield from _ways(context, packages)
    yield from _counts(context, context.package_sets[0])


@contextlib.contextmanager
def stand_in(tree: Path, clients: int) -> Iterator[StandIn]:
    """None of its clients has cached anything."""
    with tempfile.TemporaryDirectory(prefix="copperfs-bench-pfs-") as base:
        places = [Path(base).resolve() / f"client{number}" for number in range(clients)]
        for place in places:
            place.mkdir()
        with StandIn(
            tree,
            mountpoints=places,
            per_op_s=LATENCY_S,
            per_read_s=LATENCY_S,
            servers=SERVERS,
            bandwidth_bytes=BANDWIDTH_BYTES,
            timeout_s=CACHE_S,
            page_cache=True,
        ) as standing:
            yield standing


# ---- the ways ----------------------------------------------------------------------------------


def _ways(context: Context, packages: PackageSet) -> Iterator[Measure]:
    image = _image(context.cache, packages)
    ways: dict[str, Callable[[], list[Taken]]] = {
        DIRECT: lambda: _directly(packages),
        IMAGE: lambda: _from_image(packages, image, NODES),
        JUDGED: lambda: _through_copperfs(packages, NODES),
        ALONE: lambda: _through_copperfs(packages, 1),
        # Two nodes, as many as cores: computing time does not decide.
        IMAGE_FOR_TWO: lambda: _from_image(packages, image, 2),
        FOR_TWO: lambda: _through_copperfs(packages, 2),
    }
    taken: dict[str, dict[str, list[float]]] = {}
    for turn in range(context.repeats):
        for name, way in ways.items():
            context.progress(f"job, {packages.name}, {name}, round {turn + 1}")
            for state, each in zip(("cold", "again"), way(), strict=True):
                for what, value in (("wall", each.wall_s), ("CPU", each.cpu_s)):
                    taken.setdefault(f"{state}: {what}", {}).setdefault(name, []).append(value)
                metadata = taken.setdefault(f"{state}: metadata operations", {})
                metadata.setdefault(name, []).append(each.metadata)
    for name, samples in taken.items():
        target = at_most(1.0) if name == "cold: wall" else None
        unit = "requests" if "metadata" in name else "s"
        label = f"{packages.name}, {NODES} nodes, {name}"
        yield Measure("job", label, unit, samples, IMAGE, target)  # type: ignore[arg-type]


def _twice(
    mounts: list[Path], packages: PackageSet, standing: StandIn, cpu_s: Callable[[], float]
) -> list[Taken]:
    result = []
    for _ in range(2):
        standing.reset_counts()
        before = cpu_s()
        start = time.monotonic()
        with ThreadPoolExecutor(len(mounts)) as pool:
            used = list(pool.map(lambda mount: import_once(mount, packages.statement), mounts))
        wall_s = time.monotonic() - start
        spent = cpu_s() - before + sum(each.cpu_s for each in used)
        result.append(Taken(wall_s, spent, standing.counts().metadata.operations))
    return result


def _directly(packages: PackageSet) -> list[Taken]:
    with stand_in(packages.tree, NODES) as standing:
        return _twice(standing.mountpoints, packages, standing, lambda: 0.0)


def _through_copperfs(packages: PackageSet, nodes: int) -> list[Taken]:
    with (
        stand_in(packages.tree, 1) as standing,
        cluster(nodes, standing.mountpoint, "--memory", MEMORY) as job,
    ):
        return _twice(job.mounts, packages, standing, job.cpu_s)


def _from_image(packages: PackageSet, image: Path, nodes: int) -> list[Taken]:
    with (
        stand_in(image.parent, nodes) as standing,
        contextlib.ExitStack() as stack,
    ):
        mounts, pids = [], []
        for client in standing.mountpoints:
            place = stack.enter_context(mountpoint())
            command = ["squashfuse_ll", "-f", str(client / image.name), str(place)]
            pids.append(stack.enter_context(daemon(command, place)).pid)
            mounts.append(place)
        return _twice(mounts, packages, standing, lambda: cpu_seconds(pids))


def _image(cache: Path, packages: PackageSet) -> Path:
    """Alone in a directory; made once."""
    if shutil.which("squashfuse_ll") is None or shutil.which("mksquashfs") is None:
        raise CannotMeasureError("squashfuse_ll and mksquashfs are needed for the image")
    image = cache / "images" / f"job-{packages.name}" / "packages.squashfs"
    if not image.exists():
        image.parent.mkdir(parents=True, exist_ok=True)
        partial = image.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        command = ["mksquashfs", str(packages.tree), str(partial), "-comp", "lz4", "-no-progress"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        os.rename(partial, image)
    return image.resolve()


# ---- how often the source is asked ---------------------------------------------------------------


def _counts(context: Context, packages: PackageSet) -> Iterator[Measure]:
    """From 1 to 32 nodes the source always gets the same operations."""
    asked: dict[str, list[float]] = {}
    for nodes in COUNTS:
        context.progress(f"job, operations at the source, {nodes} nodes")
        asked[f"{nodes} nodes"] = [float(_count(packages, nodes))]
    asked[JUDGED] = asked[f"{COUNTS[-1]} nodes"]
    target = at_most(1.0)
    yield Measure(
        "job",
        f"{packages.name}, all operations at the source",
        "requests",
        asked,
        "1 nodes",
        target,
    )


def _count(packages: PackageSet, nodes: int) -> int:
    # no latency: operations are counted; and no file is too large for the tree
    with (
        StandIn(packages.tree, timeout_s=CACHE_S, page_cache=True) as standing,
        _large_memory(nodes, standing.mountpoint) as job,
    ):
        standing.reset_counts()
        with ThreadPoolExecutor(nodes) as pool:
            list(pool.map(lambda mount: import_once(mount, packages.statement), job.mounts))
        return standing.counts().total()


@contextlib.contextmanager
def _large_memory(nodes: int, source: Path) -> Iterator[Cluster]:
    with cluster(nodes, source, "--memory", "512MiB", "--tree-max", "64MiB") as job:
        yield job
