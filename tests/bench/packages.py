"""Packages that the import benchmarks import, and how they are imported.

A tree is installed once with `pip install --target` into the cache, or named with `--packages` and
`--torch`. Its `.pyc` files are compiled beforehand. The importing interpreter sees the mount and
its own standard library alone: -S (no site-packages), -s (no user site), -P (no current directory).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.bench.processes import CannotMeasureError
from tests.standin import StandIn

SCIENTIFIC = ("numpy", "scipy", "pandas", "sympy")
SCIENTIFIC_STATEMENT = "import numpy, scipy.stats, pandas, sympy"
TORCH_STATEMENT = "import torch"


@dataclass(frozen=True, slots=True)
class PackageSet:
    name: str
    tree: Path
    statement: str


@dataclass(frozen=True, slots=True)
class Usage:
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Touched:
    directories: frozenset[str]
    file_bytes: dict[str, int]


def find(cache: Path, scientific: Path | None, torch: Path | None) -> tuple[list[PackageSet], str]:
    """The available sets, installing the first if need be; a note if torch is missing."""
    tree = scientific or _installed(cache / "packages" / "scientific", SCIENTIFIC)
    sets = [PackageSet("scientific", tree.resolve(), SCIENTIFIC_STATEMENT)]
    note = ""
    for candidate in (torch, cache / "packages" / "torch", tree):
        if candidate is not None and (candidate / "torch" / "__init__.py").is_file():
            sets.append(PackageSet("torch", candidate.resolve(), TORCH_STATEMENT))
            break
    else:
        note = "torch is not installed (--torch DIR names a tree that has it)"
    for one in sets:
        _compile(one.tree, cache)
    return sets, note


def _installed(tree: Path, names: Sequence[str]) -> Path:
    if not tree.is_dir():
        tree.parent.mkdir(parents=True, exist_ok=True)
        # Another run may install the same now.
        partial = tree.with_name(f"{tree.name}.{os.getpid()}.partial")
        install = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target"]
        if subprocess.run([*install, partial, *names], check=False).returncode != 0:
            raise CannotMeasureError(f"pip cannot install {' '.join(names)}; use --packages DIR")
        try:
            partial.rename(tree)
        except OSError:
            if not tree.is_dir():
                raise
            shutil.rmtree(partial)
    return tree


def _compile(tree: Path, cache: Path) -> None:
    mark = hashlib.sha256(f"{tree}\0{tree.stat().st_mtime_ns}\0{sys.version}".encode()).hexdigest()
    done = cache / "compiled" / mark[:16]
    if done.exists() or not os.access(tree, os.W_OK):
        return
    # The status is ignored: packages have templates that are not valid Python.
    command = [interpreter(), "-m", "compileall", "-q", "-j", "0", str(tree)]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done.parent.mkdir(parents=True, exist_ok=True)
    done.touch()


def interpreter() -> str:
    """It must not look into the virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def import_once(mount: Path, statement: str, processes: int = 1) -> Usage:
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(mount),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        # As launchers do for ranks that share a node; otherwise each starts a thread per core.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    arguments = [interpreter(), "-S", "-s", "-P", "-c", statement]
    with tempfile.TemporaryFile() as log:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
        ]
        start = time.monotonic()
        running = [
            os.posix_spawn(arguments[0], arguments, environment, file_actions=actions)
            for _ in range(processes)
        ]
        cpu_s, failed = 0.0, 0
        try:
            while running:
                _, status, usage = os.wait4(running[-1], 0)
                running.pop()
                failed += status != 0
                cpu_s += usage.ru_utime + usage.ru_stime
        finally:
            for pid in running:  # interrupted: do not leave them importing
                os.kill(pid, 9)
                os.waitpid(pid, 0)
        wall_s = time.monotonic() - start
        if failed:
            log.seek(0)
            said = log.read().decode(errors="replace").strip()[-1000:]
            raise CannotMeasureError(f"{failed} of {processes} imports failed: {said}")
    return Usage(wall_s, cpu_s)


def check_origin(mount: Path, statement: str) -> None:
    check = f"{statement}; assert {_first(statement)}.__file__.startswith({str(mount)!r})"
    import_once(mount, check)


def _first(statement: str) -> str:
    return statement.removeprefix("import ").split(",")[0].split(".")[0]


def touched(packages: PackageSet) -> Touched:
    with StandIn(packages.tree) as counting:
        import_once(counting.mountpoint, packages.statement)
        counts = counting.counts()
    asked = counts.paths("lookup")
    directories = counts.paths("opendir") | {str(PurePosixPath(path).parent) for path in asked}
    sizes = {path: (packages.tree / path).stat().st_size for path in counts.paths("open")}
    return Touched(frozenset(directories), sizes)
