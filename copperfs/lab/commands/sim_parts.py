"""Parts of the simulator's commands: workloads and costs by name, progress, files."""

import argparse
import os
import stat
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from copperfs.cli.output import console
from copperfs.model.errors import SimulationError

if TYPE_CHECKING:
    from copperfs.lab.sim.workload import Workload
    from copperfs.model.types import Path

WORKLOADS = ("torch", "torch-small", "mpi4py")
COMPUTE_S = 1.0
"""A recorded workload does not say how long it computes."""


def add_workload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workload",
        default="torch-small",
        metavar="WHAT",
        help="torch, torch-small (no files above 10 MiB; the default), mpi4py, "
        "dataset:FILES:BYTES:EPOCHS, a file of copperfs record, or a trace",
    )
    parser.add_argument("--source", metavar="DIR", help="the recorded files, for their sizes")
    parser.add_argument(
        "--compute",
        type=float,
        metavar="SECONDS",
        help=f"computing time of a process (as measured for the imports, else {COMPUTE_S:g})",
    )


def add_costs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--costs",
        default="slingshot",
        metavar="FILE|PRESET",
        help="slingshot (the default), 10gbe, or a file of sim calibrate",
    )


def workload_of(arguments: argparse.Namespace, nodes: int) -> "Workload":
    from dataclasses import replace

    from copperfs.lab.sim import workload

    name: str = arguments.workload
    compute_s: float | None = arguments.compute
    if name == "torch":
        found = workload.torch()
    elif name == "torch-small":
        found = workload.torch().small_only(10 * workload.MIB)
    elif name == "mpi4py":
        found = workload.mpi4py()
    elif name.startswith("dataset:"):
        found = _dataset(name, nodes, compute_s)
    else:
        found = _recorded(name, arguments.source, compute_s)
    return found if compute_s is None else replace(found, compute_s=compute_s)


def _dataset(name: str, nodes: int, compute_s: float | None) -> "Workload":
    from copperfs.lab.sim.workload import dataset

    try:
        files, size, epochs = (int(each) for each in name.split(":")[1:])
    except ValueError:
        raise SimulationError(f"--workload {name}: give dataset:FILES:BYTES:EPOCHS") from None
    if min(files, size, epochs) < 1:
        raise SimulationError(f"--workload {name}: give numbers of at least 1")
    return dataset(nodes, files, size, epochs, 1, COMPUTE_S if compute_s is None else compute_s)


def _recorded(name: str, source: str | None, compute_s: float | None) -> "Workload":
    from copperfs.lab.sim.workload import from_manifest, from_trace

    seconds = COMPUTE_S if compute_s is None else compute_s
    try:
        with open(name, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(WORKLOADS)
        raise SimulationError(
            f"--workload {name} cannot be read ({error}); give {known}, dataset:..., or a file"
        ) from None
    if lines and '"op"' in lines[0]:
        return from_trace(os.path.basename(name), lines, seconds)
    if source is None:
        raise SimulationError(
            "a record has paths and no sizes: give --source, the directory that was mounted"
        )
    base = os.fsencode(source)

    def size_of(path: "Path") -> int | None:
        try:
            status = os.lstat(os.path.join(base, path))
        except OSError:
            return None
        return 0 if stat.S_ISDIR(status.st_mode) else status.st_size

    return from_manifest(os.path.basename(name), lines, size_of, seconds)


def progress_bar(*, quiet: bool) -> Progress:
    terminal = console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=terminal,
        transient=True,
        disable=quiet or not terminal.is_terminal,
    )
