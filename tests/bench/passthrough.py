"""Fetches and builds libfuse's `passthrough_hp`, the fastest FUSE pass-through that we know.

libfuse's source package has it, in exactly the version of the installed library. This module copies
the machine's own apt sources, with "deb" turned to "deb-src", into a private apt configuration. If
any step fails, the benchmark uses bindfs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.processes import CannotMeasureError

APT_TIMEOUT_S = 300
BUILD_TIMEOUT_S = 300
SOURCES = Path("/etc/apt")


def build(cache: Path) -> Path:
    """From the cache if it is there; otherwise raises with the reason."""
    home = cache / "passthrough_hp"
    program = home / "passthrough_hp"
    if program.exists():
        return program
    failed = home / "failed"
    if failed.exists():
        raise CannotMeasureError(f"{failed.read_text().strip()} (remove {failed} to try again)")
    home.mkdir(parents=True, exist_ok=True)
    try:
        for tool in ("apt-get", "g++", "pkg-config", "tar"):
            if not shutil.which(tool):
                raise CannotMeasureError(f"passthrough_hp: {tool} is not installed")
        with tempfile.TemporaryDirectory(prefix="copperfs-bench-") as work:
            _compile(_fetch(Path(work)), program)
    except CannotMeasureError as reason:
        failed.write_text(f"{reason}\n")
        raise
    return program


def deb_src(text: str, name: str) -> str:
    if name.endswith(".sources"):
        return re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.MULTILINE)
    return re.sub(r"^deb(?=\s)", "deb-src", text, flags=re.MULTILINE)


def _fetch(work: Path) -> Path:
    parts = work / "parts"
    for folder in (parts, work / "lists" / "partial", work / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True)
    originals = [SOURCES / "sources.list", *sorted((SOURCES / "sources.list.d").glob("*"))]
    for original in originals:
        if original.suffix in (".list", ".sources") and original.is_file():
            changed = deb_src(original.read_text(), original.name)
            (parts / original.name).write_text(changed)
    apt = [
        "apt-get",
        "-q",
        "-o",
        "Dir::Etc::sourcelist=/dev/null",
        "-o",
        f"Dir::Etc::sourceparts={parts}",
        "-o",
        f"Dir::State::lists={work / 'lists'}",
        "-o",
        f"Dir::Cache={work / 'cache'}",
        # apt's own user could not enter the private directory.
        "-o",
        "APT::Sandbox::User=",
    ]
    _run([*apt, "update"], work, APT_TIMEOUT_S)
    _run([*apt, "source", "--download-only", f"fuse3={_installed()}"], work, APT_TIMEOUT_S)
    # By hand, so that dpkg-dev need not be there; the example has no Debian patches.
    archives = [path for path in work.glob("fuse3_*.orig.tar.*") if path.suffix != ".asc"]
    if not archives:
        raise CannotMeasureError("passthrough_hp: the source package holds no original archive")
    _run(["tar", "-xf", str(archives[0])], work, BUILD_TIMEOUT_S)
    found = list(work.glob("fuse-*/example/passthrough_hp.cc"))
    if not found:
        raise CannotMeasureError("passthrough_hp: this libfuse has no such example")
    return found[0]


def _installed() -> str:
    query = ["dpkg-query", "-W", "-f", "${source:Version}", "libfuse3-dev"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotMeasureError("passthrough_hp: libfuse3-dev is not installed")
    return done.stdout.strip()


def _compile(example: Path, program: Path) -> None:
    flags = _run(["pkg-config", "--cflags", "--libs", "fuse3"], example.parent, 30).split()
    partial = program.with_suffix(".partial")
    options = ["-O2", "-std=c++17", "-pthread", "-DHAVE_STRUCT_STAT_ST_ATIM"]
    _run(["g++", *options, "-o", str(partial), example.name, *flags],
         example.parent, BUILD_TIMEOUT_S)  # fmt: skip
    partial.rename(program)


def _run(command: Sequence[str], where: Path, timeout_s: float) -> str:
    try:
        done = subprocess.run(
            command, cwd=where, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotMeasureError(f"passthrough_hp: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CannotMeasureError(f"passthrough_hp: {command[0]} failed: {last}")
    return done.stdout
