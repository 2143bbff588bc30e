"""What copperfs does, shown once: ``make demo``, or ``.venv/bin/python examples/demo.py``.

Four nodes on this machine import a real Python package at the same time: first straight from what
is as slow as a loaded parallel filesystem (``copperfs pfs-sim``), then through copperfs, cold and
warm. The table says for each node what its kernel asked of it and who had the answer; below it
stands what the filesystem was asked in all. Only the command line is used, as a user would.

Everything happens in a directory of its own below ``build/``, which is removed at the end, also
after Ctrl-C, SIGTERM or a failure.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
COPPERFS = Path(sys.executable).parent / "copperfs"
COMMAND_WITHIN_S = 180
ENDS_WITHIN_S = 15
NODES = 4
# Two nodes ask node 0, and node 3 asks node 1. The largest library of numpy has 25 MB; each node
# reads for itself what is above --tree-max.
SETTINGS = ("--fanout", "2", "--tree-max", "64MiB", "--memory", "512MiB")

# What to import, and the directories of site-packages that it consists of. The first that is
# installed is taken; rich and what it needs always is, because copperfs needs it.
PACKAGES = (
    ("numpy", ("numpy", "numpy.libs")),
    ("rich.console", ("rich", "pygments", "markdown_it", "mdurl")),
)


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import by a fresh process on each node, all at the same time."""

    seconds: float
    asked: dict[str, dict[str, int]]
    """What the filesystem was asked meanwhile: how often, by operation and path."""
    statistics: list[dict[str, Any]]
    """What each daemon counted meanwhile; none without copperfs."""


@dataclass(frozen=True, slots=True)
class Shown:
    module: str
    nodes: list[dict[str, Any]]
    direct: Import
    cold: Import
    warm: Import


def main() -> int:
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with workshop() as directory:
            show(run(directory))
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; everything was cleaned up", file=sys.stderr)
        return 130
    return 0


def run(directory: Path) -> Shown:
    source, cluster = directory / "source", directory / "cluster"
    module = copy_package(source)
    # A client of the filesystem for each node without copperfs, and another one for copperfs.
    *clients, lustre = (directory / f"lustre{index}" for index in range(NODES + 1))
    for each in (*clients, lustre):
        each.mkdir()
    cli("pfs-sim", source, *clients, lustre)
    direct = import_everywhere(clients, module, lustre, daemons=False)
    up = ("cluster", "up", "-n", NODES, "--dir", cluster, "--source", lustre, *SETTINGS, "--json")
    nodes = json.loads(cli(*up))["nodes"]
    mountpoints = [Path(each["mountpoint"]) for each in nodes]
    cold, warm = (import_everywhere(mountpoints, module, lustre) for _ in range(2))
    cli("cluster", "down", "--dir", cluster)
    cli("pfs-ask", lustre, "stop")
    return Shown(module, nodes, direct, cold, warm)


# --- the steps -----------------------------------------------------------------------------------


@contextmanager
def workshop() -> Iterator[Path]:
    """A directory for this run alone; nothing is mounted in it and it is gone afterwards."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="demo-", dir=build))
    try:
        yield directory
    finally:
        # A second Ctrl-C must not stop this half-way.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        clean_up(directory)


def clean_up(directory: Path) -> None:
    with suppress(DemoError):
        cli("cluster", "down", "--dir", directory / "cluster")
    for mountpoint in mounted_below(directory):
        for flags in ((), ("--lazy",)):
            with suppress(DemoError):
                cli("umount", *flags, mountpoint)
                break
    if left := mounted_below(directory):
        print(f"demo: {left[0]} is still mounted; see: copperfs umount", file=sys.stderr)
        return
    shutil.rmtree(directory, ignore_errors=True)
    with suppress(OSError):
        directory.parent.rmdir()  # build/, if nothing else is in it


def mounted_below(directory: Path) -> list[Path]:
    """From mountinfo: a mount whose daemon died must not be touched to find out."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounted = [Path(line.split()[4]) for line in lines]
    return [each for each in mounted if directory in each.parents]


def copy_package(source: Path) -> str:
    """Make *source* a directory with a package in it; what to import from there."""
    installed = Path(sysconfig.get_path("purelib"))
    for module, directories in PACKAGES:
        if (installed / directories[0]).is_dir():
            for name in directories:
                if (installed / name).is_dir():
                    shutil.copytree(installed / name, source / name, symlinks=True)
            return module
    raise DemoError(f"no package to import in {installed}; run: make demo")


def import_everywhere(
    mountpoints: list[Path], module: str, lustre: Path, *, daemons: bool = True
) -> Import:
    """Import *module* on all nodes at once, and have everything counted that is asked meanwhile."""
    if daemons:
        for each in mountpoints:
            cli("stats", "--reset", each)
    cli("pfs-ask", lustre, "reset")
    started = time.perf_counter()
    processes = [start_import(each, module) for each in mountpoints]
    try:
        for process, mountpoint in zip(processes, mountpoints, strict=True):
            finish_import(process, mountpoint)
    finally:
        for process in processes:
            end(process)
    seconds = time.perf_counter() - started
    asked = json.loads(cli("pfs-ask", lustre, "counts", "--json"))["operations"]
    statistics = [json.loads(cli("stats", "--json", each)) for each in mountpoints if daemons]
    return Import(seconds, asked, statistics)


def start_import(directory: Path, module: str) -> subprocess.Popen[str]:
    """Import *module* from *directory* in a fresh process, which prints where it found it."""
    # -S: no site-packages, so that nothing can come from anywhere else. -P: nor from here.
    program = f"import {module}, sys; print(sys.modules[{module.partition('.')[0]!r}].__file__)"
    return start(
        [sys.executable, "-S", "-P", "-c", program],
        os.environ | {"PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def finish_import(process: subprocess.Popen[str], directory: Path) -> None:
    imported = finish(process)
    if not imported.startswith(f"{directory}/"):
        raise DemoError(f"the package came from {imported.strip()}, not from {directory}")


def cli(*arguments: object) -> str:
    return finish(start([str(COPPERFS), *map(str, arguments)]))


def start(words: list[str], environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
    try:
        # A session of its own: a Ctrl-C at the terminal then reaches it once, from here.
        return subprocess.Popen(
            words,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise DemoError(f"{words[0]} is missing; run: make demo") from None


def finish(process: subprocess.Popen[str]) -> str:
    """What a command printed. DemoError if it fails; if we are interrupted, so is it."""
    assert isinstance(process.args, list)
    what = " ".join(map(str, process.args))
    with process:
        try:
            printed, complaint = process.communicate(timeout=COMMAND_WITHIN_S)
        except BaseException as error:
            end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise DemoError(f"no answer within {COMMAND_WITHIN_S} s: {what}") from None
            raise
    if process.returncode:
        raise DemoError(f"{what}: {complaint.strip() or process.returncode}")
    return printed


def end(process: subprocess.Popen[str]) -> None:
    """SIGINT first: what ``copperfs`` has begun to start then ends as well."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_WITHIN_S)
    process.kill()


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


# --- the table -----------------------------------------------------------------------------------

# What kernels ask for the import; asking for the statistics takes an open and an ioctl.
KINDS = ("lookup", "getattr", "readlink", "read", "readdir")


def show(shown: Shown) -> None:
    console = Console()
    table = Table(
        title=f"import {shown.module} on {NODES} nodes at once, through copperfs",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    for name in ("", "node", "parent"):
        table.add_column(name, no_wrap=True)
    for name in ("requests", "hits", "misses", "from the\nparent", "from the\nsource"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, imported in (("cold", shown.cold), ("warm", shown.warm)):
        for node, statistics in zip(shown.nodes, imported.statistics, strict=True):
            parent = node["parents"][0]
            table.add_row(name, node["name"], parent or "-", *_row(statistics, root=parent is None))
        table.add_section()
    console.print(table)
    for line in _sentences(shown):
        console.print(line, highlight=False)


def _row(statistics: dict[str, Any], *, root: bool) -> list[str]:
    operations = [statistics["operations"][kind] for kind in KINDS]
    asked = sum(each["count"] for answers in operations for each in answers.values())
    hits = sum(answers["hit"]["count"] for answers in operations)
    source, received = statistics["source"], statistics["transport"]["received_bytes"]
    reads = source["open"] + source["scandir"]
    fetched = statistics["node"]["answers"]
    return [
        f"{asked:,}",
        f"{hits:,}",
        f"{asked - hits:,}",
        "-" if root else _amount(fetched, received),
        _amount(reads, source["read_bytes"]),
    ]


def _amount(count: int, size_bytes: int) -> str:
    return f"{count:,}, {size_bytes / 1e6:.0f} MB" if count else "0"


def _sentences(shown: Shown) -> Iterator[str]:
    opens, lists = (shown.cold.asked.get(op, {}) for op in ("open", "opendir"))
    most = max([*opens.values(), *lists.values()], default=0)
    if most == 1:
        yield (
            f"The source was read once: {len(opens):,} files, {sum(opens.values()):,} opens; "
            f"{len(lists):,} directories, {sum(lists.values()):,} listings."
        )
    else:
        yield f"The source was not read once: something in it was read {most} times."
    for name, each in (
        ("Without copperfs", shown.direct),
        ("With it, cold", shown.cold),
        ("With it, warm", shown.warm),
    ):
        total = sum(count for paths in each.asked.values() for count in paths.values())
        yield f"{name}: {total:,} operations of the filesystem, {each.seconds:.1f} s in all."
    yield "Requests are those of a kernel to its node, as hits and misses of its memory."
    yield "node0 reads for all nodes and ahead; one reply may serve several misses."


if __name__ == "__main__":
    sys.exit(main())
