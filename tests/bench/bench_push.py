"""`push`: a working set reaches all nodes of a job: requested file by file, and pushed down.

The set has the shape of the paper's for torch: 728 files of together 36.3 MB, with the sizes of a
recorded import. 31 real daemons with real mounts run on this machine. Requested: `cat` of every
file on every mount at once. Pushed: `copperfs warmup` on a leaf, until every node has reported that
it holds everything. Both begin with empty memories.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.cluster import Cluster, cluster, copperfs
from tests.bench.lab import Context, make_file
from tests.bench.processes import CannotMeasureError
from tests.bench.results import JUDGED, Measure, at_most

NODES = 31
FILES, TOTAL_BYTES = 728, 36_300_000
MEMORY = "128MiB"
TRACE = Path(__file__).parents[3] / "shared" / "workload" / "import-torch.jsonl.gz"
WITHIN_S = 300.0


def run(context: Context) -> Iterator[Measure]:
    tree = working_set(context.cache / "trees" / "torch-set")
    for security in ("none", "curve"):
        wall: dict[str, list[float]] = {"pull": [], JUDGED: []}
        cpu: dict[str, list[float]] = {"pull": [], JUDGED: []}
        with cluster(NODES, tree, "--memory", MEMORY, "--security", security) as job:
            for turn in range(context.repeats):
                context.progress(f"push, {security}, round {turn + 1} of {context.repeats}")
                for name, act in (("pull", pull), (JUDGED, push)):
                    job.clear()
                    before = job.cpu_s()
                    wall[name].append(act(job))
                    cpu[name].append(job.cpu_s() - before)
        suffix = ", curve" if security == "curve" else ""
        target = at_most(0.5)
        yield Measure("push", f"31 nodes, 728 files{suffix}", "s", wall, "pull", target)
        yield Measure("push", f"31 nodes, CPU of the daemons{suffix}", "s", cpu, "pull")


def pull(job: Cluster) -> float:
    start = time.monotonic()
    readers = [
        subprocess.Popen(
            ["find", ".", "-type", "f", "-exec", "cat", "{}", "+"],
            cwd=mount,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for mount in job.mounts
    ]
    codes = [reader.wait(WITHIN_S) for reader in readers]
    taken = time.monotonic() - start
    if any(codes):
        raise CannotMeasureError("a node could not read the set")
    return taken


def push(job: Cluster) -> float:
    start = time.monotonic()
    copperfs("warmup", job.mounts[-1], ".", "--json", timeout_s=WITHIN_S)
    return time.monotonic() - start


def working_set(tree: Path) -> Path:
    """The number of files is the paper's; the sizes are a recorded import's, scaled to its
    total."""
    sizes: dict[str, int] = {}
    if not TRACE.exists():
        raise CannotMeasureError(f"{TRACE} is not there")
    with gzip.open(TRACE, "rt") as trace:
        for line in trace:
            each = json.loads(line)
            if each["op"] == "open" and each["found"] and 0 < each["size"] <= 10_000_000:
                sizes.setdefault(each["path"], each["size"])
    chosen = dict(list(sizes.items())[:FILES])
    scale = TOTAL_BYTES / sum(chosen.values())
    for path, size in chosen.items():
        make_file(tree / os.path.normpath(path), max(1, round(size * scale)))
    return tree.resolve()
