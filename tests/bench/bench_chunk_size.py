"""`chunk-size`: how much of the large libraries `import torch` fetches, by the size of chunks.

Of two nodes one imports. The source is the stand-in without latency, which counts reads of files
above 10 MiB (`--tree-max`). The minimum is the chunks of which a page was touched, recorded by
importing from the tree itself. (The kernel maps pages around a fault, within 64 KiB: it tells too
many pages, and the right chunks.) All else is read-ahead: the kernel's, and the sequential one
(``node/prefetch/sequential.py``).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.cluster import cluster
from tests.bench.lab import Context
from tests.bench.packages import PackageSet, import_once
from tests.bench.processes import CannotMeasureError
from tests.bench.results import JUDGED, Measure
from tests.standin import StandIn

KIB, MIB = 1 << 10, 1 << 20
TREE_MAX = 10 * MIB
FETCHED = (64 * KIB, 256 * KIB, MIB)
COMPUTED = (*FETCHED, 4 * MIB)
PAGE = os.sysconf("SC_PAGE_SIZE")
TOUCHED = "chunks that were touched"

RECORD = """
import json, struct
pages = {{}}
with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", 0) as pagemap:
    for line in maps:
        words = line.split(None, 5)
        if len(words) < 6 or not words[5].startswith({tree!r}):
            continue
        start, end = (int(each, 16) for each in words[0].split("-"))
        pagemap.seek(start // {page} * 8)
        count = (end - start) // {page}
        flags = struct.unpack(f"{{count}}Q", pagemap.read(8 * count))
        first = int(words[2], 16) // {page}
        there = [first + each for each, flag in enumerate(flags) if flag >> 62]
        pages.setdefault(words[5].strip(), []).extend(there)
with open({out!r}, "w") as out:
    json.dump(pages, out)
"""


def run(context: Context) -> Iterator[Measure]:
    sets = [each for each in context.package_sets if each.name == "torch"]
    if not sets:
        raise CannotMeasureError("--torch DIR names a tree that has torch")
    pages = touched_pages(sets[0])
    in_pages = float(sum(map(len, pages.values())) * PAGE)
    whole = float(sum(Path(each).stat().st_size for each in pages))
    for chunk in COMPUTED:
        chunks = {
            (name, page * PAGE // chunk): Path(name).stat().st_size
            for name, each in pages.items()
            for page in each
        }
        would = sum(min(chunk, size - index * chunk) for (_, index), size in chunks.items())
        samples = {TOUCHED: [float(would)]}
        if chunk in FETCHED:
            context.progress(f"chunk-size, {chunk >> 10} KiB")
            samples[JUDGED] = [float(fetched_bytes(sets[0], chunk))]
        yield Measure(
            "chunk-size",
            f"torch, chunks of {chunk >> 10} KiB",
            "bytes",
            samples,
            TOUCHED,
            details={"pages that were touched": in_pages, "files": whole},
        )


def touched_pages(packages: PackageSet) -> dict[str, set[int]]:
    with tempfile.TemporaryDirectory(prefix="copperfs-bench-") as base:
        out = Path(base) / "pages"
        record = RECORD.format(tree=f"{packages.tree}/", page=PAGE, out=str(out))
        import_once(packages.tree, packages.statement + record)
        found = json.loads(out.read_text())
    return {
        name: set(pages) for name, pages in found.items() if Path(name).stat().st_size > TREE_MAX
    }


def fetched_bytes(packages: PackageSet, chunk: int) -> int:
    with (
        StandIn(packages.tree) as standing,
        cluster(
            2,
            standing.mountpoint,
            *("--security", "none", "--chunk-size", chunk, "--tier-memory", "1GiB"),
        ) as job,
    ):
        import_once(job.mounts[1], packages.statement)
        return sum(
            count
            for name, count in standing.counts().read_bytes.items()
            if (packages.tree / name).stat().st_size > TREE_MAX
        )
