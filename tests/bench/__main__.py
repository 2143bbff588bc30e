"""`python -m tests.bench`: choose, run, print one table, write JSON, and pictures beside it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from tests.bench import (
    bench_cached,
    bench_chunk_size,
    bench_dataset,
    bench_erasure,
    bench_front,
    bench_import,
    bench_in_place,
    bench_job,
    bench_memory,
    bench_owners_die,
    bench_placement,
    bench_push,
    bench_sequential,
    bench_simulated,
    bench_small_files,
    bench_store,
    bench_throughput,
    bench_transport,
    packages,
    plots,
)
from tests.bench.client import Client
from tests.bench.lab import FAILURES, Context
from tests.bench.processes import CannotMeasureError
from tests.bench.results import JUDGED, Measure, table

PROJECT = Path(__file__).resolve().parents[2]
JSON_VERSION = 1
TABLE_WIDTH_MIN = 160
STOPPING = (signal.SIGINT, signal.SIGTERM)

BENCHES: dict[str, Callable[[Context], Iterator[Measure]]] = {
    "kernel-cached": bench_cached.run,
    "front": bench_front.run,
    "sequential": bench_sequential.run,
    "memory": bench_memory.run,
    "import": bench_import.run,
    "in-place": bench_in_place.run,
    "tree": bench_transport.run,
    "push": bench_push.run,
    "job": bench_job.run,
    "placement": bench_placement.run,
    "store": bench_store.run,
    "erasure": bench_erasure.run,
    "dataset": bench_dataset.run,
    "owners-die": bench_owners_die.run,
    "chunk-size": bench_chunk_size.run,
    "small-files": bench_small_files.run,
    "throughput": bench_throughput.run,
    "simulated": bench_simulated.run,
}


def arguments() -> argparse.Namespace:
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    default = os.environ.get
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure copperfs against a bind mount and other filesystems.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="name the benchmarks and exit")
    parser.add_argument("--only", nargs="+", choices=list(BENCHES), metavar="NAME")
    parser.add_argument(
        "--contestants",
        nargs="+",
        default=[],
        metavar="NAME",
        help="only these; the yardstick should be among them",
    )
    parser.add_argument("--repeats", type=int, default=7, metavar="N")
    parser.add_argument(
        "--json", type=Path, default=PROJECT / "build" / "bench.json", metavar="FILE"
    )
    parser.add_argument(
        "--packages",
        type=Path,
        default=default("COPPERFS_BENCH_PACKAGES"),
        metavar="DIR",
        help="a tree with numpy, scipy, pandas and sympy"
        " [$COPPERFS_BENCH_PACKAGES; otherwise installed once with pip]",
    )
    parser.add_argument(
        "--torch",
        type=Path,
        default=default("COPPERFS_BENCH_TORCH"),
        metavar="DIR",
        help="a tree with torch [$COPPERFS_BENCH_TORCH]",
    )
    parser.add_argument(
        "--processes",
        type=int,
        nargs="+",
        default=[1, 12],
        metavar="N",
        help="how many import at once",
    )
    parser.add_argument(
        "--big-mib", type=int, default=1024, metavar="N", help="size of the large file"
    )
    parser.add_argument(
        "--files", type=int, default=4096, metavar="N", help="how many files a dataset has"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=default("COPPERFS_BENCH_CACHE", f"{cache}/copperfs-bench"),
        metavar="DIR",
        help="trees, images and programs, kept between runs",
    )
    return parser.parse_args()  # fmt: skip


def machine() -> dict[str, Any]:
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def run(options: argparse.Namespace, console: Console) -> tuple[list[Measure], Context]:
    chosen = options.only or list(BENCHES)
    options.cache.mkdir(parents=True, exist_ok=True)
    context = Context(
        console=console,
        repeats=options.repeats,
        cache=options.cache,
        client=Client(options.cache),
        package_sets=(),
        process_counts=options.processes,
        big_mib=options.big_mib,
        files=options.files,
        wanted=frozenset(options.contestants),
    )
    measures: list[Measure] = []
    try:
        if {"import", "in-place", "memory", "job", "chunk-size"} & set(chosen):
            context.package_sets, note = packages.find(
                options.cache, options.packages, options.torch
            )
            if note:
                context.note(note)
        for name in chosen:
            try:
                measures.extend(BENCHES[name](context))
            except FAILURES as error:
                context.note(f"{name}: {error}")
    except KeyboardInterrupt:
        context.note("interrupted")
    return measures, context


def main() -> int:
    options = arguments()
    if options.list:
        print("\n".join(BENCHES))
        return 0
    # Raise through every `with` and `finally`, so that nothing stays mounted.
    for number in STOPPING:
        signal.signal(number, _interrupt)
    console = Console(stderr=True)
    report: dict[str, Any] = {
        "version": JSON_VERSION,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "repeats": options.repeats,
    }
    try:
        measures, context = run(options, console)
    except CannotMeasureError as error:
        console.print(f"cannot measure: {error}", style="red", markup=False)
        return 1
    report |= {"notes": context.notes, "measures": [measure.as_json() for measure in measures]}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    printed = Console()
    if not printed.is_terminal:
        printed.width = max(printed.width, TABLE_WIDTH_MIN)
    printed.print(table(measures))
    for note in context.notes:
        printed.print(f"note: {note}", markup=False)
    for path in [options.json, *plots.write(report, options.json.parent / "plots")]:
        printed.print(f"written: {path}", markup=False)
    wanted = not options.contestants or JUDGED in options.contestants
    measured = all(JUDGED in measure.samples for measure in measures)
    return 0 if measures and (measured or not wanted) else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    # A second signal would interrupt the cleanup, which has its own deadlines.
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
