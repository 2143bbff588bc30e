"""What copperfs does, shown once: ``make demo``, or ``.venv/bin/python examples/demo.py``.

A copy of a real Python package is mounted, and imported through the mount twice, each time by a
fresh process. The table says what that asked of the daemon and of the source. Only the command line
is used, as a user would.

Everything happens in a directory of its own below ``build/``, which is removed at the end, also
after Ctrl-C, SIGTERM or a failure. "Cold" means that copperfs and the kernel's view of the mount
are: the files were copied a moment ago, so the source itself answers from memory.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
COPPERFS = Path(sys.executable).parent / "copperfs"
COMMAND_WITHIN_S = 180
ENDS_WITHIN_S = 15

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
    """One import by a fresh process: how long it took, and what the daemon counted meanwhile."""

    seconds: float
    statistics: dict[str, Any]


def main() -> int:
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with workshop() as directory:
            show(*run(directory))
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; everything was cleaned up", file=sys.stderr)
        return 130
    return 0


def run(directory: Path) -> tuple[str, float, list[tuple[str, Import]]]:
    """Name of what was imported, seconds without copperfs, and the imports through the mount."""
    source, mountpoint = directory / "source", directory / "mnt"
    mountpoint.mkdir()
    module = copy_package(source)
    direct_s = import_from(source, module)
    cli("mount", mountpoint, "--source", source)
    imports = [
        (name, import_and_count(mountpoint, module))
        for name in ("cold, 1st process", "warm, 2nd process")
    ]
    cli("umount", mountpoint)
    return module, direct_s, imports


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
    mountpoint = directory / "mnt"
    # From mountinfo: a mount whose daemon died must not be touched to find out.
    if f" {mountpoint} " in Path("/proc/self/mountinfo").read_text():
        for flags in ((), ("--lazy",)):
            with suppress(DemoError):
                cli("umount", *flags, mountpoint)
                break
    if f" {mountpoint} " in Path("/proc/self/mountinfo").read_text():
        print(f"demo: {mountpoint} is still mounted; see: copperfs umount", file=sys.stderr)
        return
    shutil.rmtree(directory, ignore_errors=True)
    with suppress(OSError):
        directory.parent.rmdir()  # build/, if nothing else is in it


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


def import_from(directory: Path, module: str) -> float:
    """Import *module* from *directory* in a fresh process; the seconds that the process took."""
    # -S: no site-packages, so that nothing can come from anywhere else. -P: nor from here.
    program = f"import {module}, sys; print(sys.modules[{module.partition('.')[0]!r}].__file__)"
    started = time.perf_counter()
    imported = command(
        [sys.executable, "-S", "-P", "-c", program],
        os.environ | {"PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    seconds = time.perf_counter() - started
    if not imported.startswith(f"{directory}/"):
        raise DemoError(f"{module} was imported from {imported.strip()}, not from {directory}")
    return seconds


def import_and_count(mountpoint: Path, module: str) -> Import:
    cli("stats", "--reset", mountpoint)
    seconds = import_from(mountpoint, module)
    return Import(seconds, json.loads(cli("stats", "--json", mountpoint)))


def cli(*arguments: object) -> str:
    return command([str(COPPERFS), *map(str, arguments)])


def command(words: list[str], environ: dict[str, str] | None = None) -> str:
    """What a command printed. DemoError if it fails; if we are interrupted, so is it."""
    try:
        # A session of its own: a Ctrl-C at the terminal then reaches it once, from here.
        process = subprocess.Popen(
            words,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise DemoError(f"{words[0]} is missing; run: make demo") from None
    with process:
        try:
            printed, complaint = process.communicate(timeout=COMMAND_WITHIN_S)
        except BaseException as error:
            end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                what = " ".join(words)
                raise DemoError(f"no answer within {COMMAND_WITHIN_S} s: {what}") from None
            raise
    if process.returncode:
        raise DemoError(f"{' '.join(words)}: {complaint.strip() or process.returncode}")
    return printed


def end(process: subprocess.Popen[str]) -> None:
    """SIGINT first: ``copperfs mount`` then ends the daemon that it has begun to start."""
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_WITHIN_S)
    process.kill()


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


# --- the table -----------------------------------------------------------------------------------


def answered_in_c(statistics: dict[str, Any]) -> int:
    return sum(
        each["count"]
        for answers in statistics["operations"].values()
        for answer, each in answers.items()
        if answer != "miss"
    )


# What a row says, and how it is found in the daemon's statistics (docs/statistics.md).
ROWS: tuple[tuple[str, Callable[[dict[str, Any]], int]], ...] = (
    ("requests to Python", lambda all_of_it: all_of_it["handlers"]["requests"]),
    ("requests answered in C alone", answered_in_c),
    ("source: files opened", lambda all_of_it: all_of_it["source"]["open"]),
    ("source: bytes read", lambda all_of_it: all_of_it["source"]["read_bytes"]),
    ("source: stats", lambda all_of_it: all_of_it["source"]["stat"]),
    ("source: directories listed", lambda all_of_it: all_of_it["source"]["scandir"]),
)


def show(module: str, direct_s: float, imports: list[tuple[str, Import]]) -> None:
    table = Table(title=f"import {module}, through the mount", title_justify="left")
    table.add_column("")
    for name, _ in imports:
        table.add_column(name, justify="right")
    table.add_row("seconds, the whole process", *(f"{each.seconds:.2f}" for _, each in imports))
    for label, count in ROWS:
        table.add_row(label, *(f"{count(each.statistics):,}" for _, each in imports))
    console = Console()
    console.print(table)
    console.print(f"The same import straight from the source took {direct_s:.2f} s.")


if __name__ == "__main__":
    sys.exit(main())
