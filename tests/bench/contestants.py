"""Contestants: the filesystems that are compared, and how each of them shows a tree.

Each contestant mounts a source directory read-only for the length of a `with` block. FUSE daemons
run in the foreground, so that their pids are known and none is left behind.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import passthrough
from tests.bench.altered_daemons import Alteration, altered
from tests.bench.processes import CannotMeasureError, daemon, mountpoint, process_tree, unmount


@dataclass(frozen=True, slots=True)
class Mounted:
    path: Path
    daemon_pid: int | None = None  # None: the kernel alone

    @property
    def pids(self) -> list[int]:
        return [] if self.daemon_pid is None else process_tree(self.daemon_pid)


class Contestant(abc.ABC):
    name: str

    def missing(self) -> str | None:
        return None

    @abc.abstractmethod
    def mounted(self, source: Path) -> contextlib.AbstractContextManager[Mounted]:
        """Show `source` somewhere until the block ends."""


class Bind(Contestant):
    name = "bind"

    def missing(self) -> str | None:
        return None if os.geteuid() == 0 else "a bind mount needs root"

    @contextlib.contextmanager
    def mounted(self, source: Path) -> Iterator[Mounted]:
        with mountpoint() as path:
            subprocess.run(["mount", "--bind", "-o", "ro", str(source), str(path)], check=True)
            try:
                yield Mounted(path)
            finally:
                unmount(path)


class FuseProgram(Contestant):
    def __init__(self, name: str, program: str) -> None:
        self.name = name
        self.program = program

    def missing(self) -> str | None:
        return None if shutil.which(self.program) else f"{self.program} is not installed"

    @abc.abstractmethod
    def command(self, source: Path, path: Path) -> list[str]: ...

    def environment(self) -> Mapping[str, str]:
        return {}

    @contextlib.contextmanager
    def mounted(self, source: Path) -> Iterator[Mounted]:
        if reason := self.missing():
            raise CannotMeasureError(reason)
        with (
            mountpoint() as path,
            daemon(self.command(source, path), path, self.environment()) as process,
        ):
            yield Mounted(path, process.pid)


class Bindfs(FuseProgram):
    def __init__(self, *, kernel_cache: bool = True, threads: bool = False) -> None:
        super().__init__("bindfs" if kernel_cache else "bindfs, uncached", "bindfs")
        self._options = ["--multithreaded"] if threads else []
        if not kernel_cache:
            self._options += ["-o", "attr_timeout=0,entry_timeout=0"]

    def command(self, source: Path, path: Path) -> list[str]:
        return ["bindfs", "-f", "-r", *self._options, str(source), str(path)]


class Squashfuse(FuseProgram):
    def __init__(self, images: Path, *flags: str) -> None:
        program = "squashfuse_ll" if shutil.which("squashfuse_ll") else "squashfuse"
        super().__init__("squashfuse", program)
        self._images = images
        self._flags = flags

    def missing(self) -> str | None:
        if not shutil.which("mksquashfs"):
            return "mksquashfs is not installed"
        return super().missing()

    def command(self, source: Path, path: Path) -> list[str]:
        image = self.image_of(source)
        _warm(image)
        return [self.program, "-f", *self._flags, str(image), str(path)]

    def image_of(self, source: Path) -> Path:
        state = hashlib.sha256(os.fsencode(source))
        for directory, names, files in os.walk(source):
            names.sort()
            for name in sorted(files):
                status = os.lstat(os.path.join(directory, name))
                state.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        image = self._images / f"{source.name}-{state.hexdigest()[:16]}.squashfs"
        if not image.exists():
            self._images.mkdir(parents=True, exist_ok=True)
            for stale in self._images.glob(f"{source.name}-{'?' * 16}.squashfs"):
                stale.unlink()
            partial = image.with_suffix(".partial")
            subprocess.run(
                ["mksquashfs", source, partial, "-comp", "lz4", "-noappend", "-quiet"],
                stdout=subprocess.DEVNULL,
                check=True,
            )
            partial.rename(image)
        return image


class PassthroughHp(FuseProgram):
    def __init__(self, cache: Path) -> None:
        super().__init__("passthrough_hp", str(cache / "passthrough_hp" / "passthrough_hp"))
        self._cache = cache

    def missing(self) -> str | None:
        try:
            passthrough.build(self._cache)
        except CannotMeasureError as reason:
            return str(reason)
        return None

    def command(self, source: Path, path: Path) -> list[str]:
        return [self.program, "--nocache", "--foreground", str(source), str(path)]


class Copperfs(FuseProgram):
    def __init__(self, name: str, *mount_flags: str, alterations: Sequence[Alteration]) -> None:
        beside = Path(sys.executable).parent / "copperfs"
        super().__init__(name, str(beside) if beside.exists() else "copperfs")
        self._flags = mount_flags
        self._env = altered(*alterations)

    def command(self, source: Path, path: Path) -> list[str]:
        flags = ["--source", str(source), "--foreground", *self._flags]
        return [self.program, "mount", str(path), *flags]

    def environment(self) -> Mapping[str, str]:
        return self._env

    def handler_requests(self, mounted: Mounted) -> int | None:
        """Requests that reached Python; None if it does not report them."""
        try:
            done = subprocess.run(
                [self.program, "stats", str(mounted.path), "--json"],
                capture_output=True,
                check=True,
                timeout=30,
            )
            statistics: dict[str, Any] = json.loads(done.stdout)
            return int(statistics["handlers"]["requests"])
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
            return None


def _warm(file: Path) -> None:
    with file.open("rb", buffering=0) as stream:
        while stream.read(1 << 22):
            pass


def copperfs(*more: str, alterations: Sequence[Alteration] = ()) -> Copperfs:
    name = "copperfs, busy" if "busy" in alterations else "copperfs"
    return Copperfs(name, *more, alterations=alterations)


def standard(cache: Path) -> list[Contestant]:
    return [Bind(), Bindfs(), Squashfuse(cache / "images"), copperfs()]
