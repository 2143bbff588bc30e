"""`in-place`: warm imports of an ordinary user, at the packages' own paths through copperfs, beside
the local filesystem, a bind mount, a squashfs image in the kernel, and squashfuse_ll.

Each contestant has a process of its own, in its namespace and as that user, that starts the imports
(`python -m tests.bench.bench_in_place TREE`): so no time is spent on entering. It needs root, to
become another user and for the loop device of the image.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from tests.bench.contestants import Bind, Mounted, Squashfuse, copperfs
from tests.bench.lab import FAILURES, Context
from tests.bench.packages import PackageSet, import_once
from tests.bench.processes import CannotMeasureError, mountpoint, unmount
from tests.bench.results import Measure, at_most
from tests.mount.helpers import COPPERFS, PROJECT
from tests.mount.ordinary_user import USER, as_user

SERVES_WITHIN_S = 120.0


class Importer:
    """The process that starts the imports of one contestant."""

    def __init__(self, name: str, tree: Path, before: list[str]) -> None:
        self.name = name
        words = [sys.executable, "-m", "tests.bench.bench_in_place", str(tree)]
        self._process = subprocess.Popen(
            as_user([*before, *words]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(PROJECT), "HOME": "/nonexistent"},
        )

    def ask(self, statement: str, processes: int) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([statement, processes]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise CannotMeasureError("its importer ended")
        values: dict[str, float] = json.loads(line)
        return values

    def end(self) -> None:
        try:
            self._process.communicate(timeout=SERVES_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


class KernelSquashfs(Squashfuse):
    """The same image, mounted by the kernel."""

    def __init__(self, images: Path) -> None:
        super().__init__(images)
        self.name = "squashfs"
        self.program = "mount"

    @contextlib.contextmanager
    def mounted(self, source: Path) -> Iterator[Mounted]:
        with mountpoint() as path:
            image = self.image_of(source)
            subprocess.run(["mount", "-o", "loop,ro", str(image), str(path)], check=True)
            try:
                yield Mounted(path)
            finally:
                unmount(path)


def run(context: Context) -> Iterator[Measure]:
    if os.geteuid() != 0:
        context.note("in-place: becoming another user needs root")
        return
    for packages in context.package_sets:
        with (
            tempfile.TemporaryDirectory(prefix="copperfs-bench-") as directory,
            _importers(context, packages, Path(directory)) as importers,
        ):
            for processes in context.process_counts:
                yield from _rows(context, packages, processes, importers)


def _rows(
    context: Context, packages: PackageSet, processes: int, importers: list[Importer]
) -> Iterator[Measure]:
    label = f"{packages.name} x{processes}, warm"
    taken = context.interleave(label, importers, lambda one: one.ask(packages.statement, processes))
    target = at_most(1.03 if processes == 1 else 1.04)
    yield Measure("in-place", f"{label}: wall", "s", taken["wall_s"], "local", target)
    yield Measure("in-place", f"{label}: CPU of the imports", "s", taken["cpu_s"], "local")


@contextlib.contextmanager
def _importers(context: Context, packages: PackageSet, directory: Path) -> Iterator[list[Importer]]:
    """Each has imported once, so that all is warm."""
    os.chmod(directory, 0o755)
    own = directory / "tree"  # which the user can reach
    shutil.copytree(packages.tree, own, symlinks=True)
    in_place = [*COPPERFS, "run", "--in-place", "always", "--shared", str(own)]
    in_place += ["--in-place-at", str(own)]
    with contextlib.ExitStack() as stack:
        found: list[Importer] = []

        def add(name: str, tree: Callable[[], Path], before: list[str]) -> None:
            try:
                importer = Importer(name, tree(), before)
                stack.callback(importer.end)
                importer.ask(packages.statement, 1)
            except FAILURES as error:
                context.note(f"in-place: {name}: {error}")
            else:
                found.append(importer)

        add("local", lambda: own, [])
        for contestant in (
            Bind(),
            KernelSquashfs(context.cache / "images"),
            Squashfuse(context.cache / "images", "-o", "allow_other"),
            copperfs("--allow-other"),
        ):
            if contestant.missing() is None:
                add(
                    "copperfs, mounted" if contestant.name == "copperfs" else contestant.name,
                    lambda one=contestant: _reachable(stack.enter_context(one.mounted(own)).path),  # type: ignore[misc]
                    [],
                )
        add("copperfs", lambda: own, [*in_place, "--"])
        add("copperfs, bound", lambda: own, [*in_place, "--revalidate", "3600", "--"])
        yield found


def _reachable(mounted: Path) -> Path:
    """The directory of the mount point is a new one of root."""
    os.chmod(mounted.parent, 0o755)
    return mounted


def main() -> int:
    """The importer: a line `[statement, processes]` in, a line of what it took out."""
    tree = Path(sys.argv[1])
    assert os.geteuid() == USER
    for line in sys.stdin:
        statement, processes = json.loads(line)
        print(json.dumps(asdict(import_once(tree, statement, processes))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
