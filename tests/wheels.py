"""The packages that users install, built from this checkout as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITHIN_S = 400.0


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, timeout=WITHIN_S, check=False,
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(directory: Path, *, isolated: bool = False) -> tuple[Path, Path]:
    """The sdist and the wheel that is made of it. *isolated*: as pip does, with requirements of the
    build that are fetched for it."""
    # Built files could hide that an sdist lacks one.
    top, dist = directory / "top", directory / "dist"
    run("git", "clone", "--quiet", ROOT, top)
    changed = run("git", "diff", "--name-only", "HEAD").split()
    changed += run("git", "ls-files", "--others", "--exclude-standard").split()
    for name in changed:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, top / name)
        else:
            (top / name).unlink(missing_ok=True)
    how = [] if isolated else ["--no-isolation"]
    run(sys.executable, "-m", "build", *how, "--outdir", dist, top)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    return sdist, wheel


def install(wheel: Path, environment: Path, python: str | Path = sys.executable) -> None:
    """Into a new virtual environment, with what it depends on."""
    run(python, "-m", "venv", environment)
    run(environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check", wheel)


def copy_python(target: Path) -> Path:
    """The interpreter of a copy of this Python, which can be moved as one of conda."""
    base = Path(sys.base_prefix)
    version = Path(sys._stdlib_dir).name  # type: ignore[attr-defined]
    (target / "bin").mkdir(parents=True)
    python = target / "bin" / version
    shutil.copy(base / "bin" / version, python)
    (target / "bin/python3").symlink_to(version)
    for library in base.glob("lib/libpython*.so*"):
        (target / "lib").mkdir(exist_ok=True)
        shutil.copy(library, target / "lib", follow_symlinks=False)
    left_out = shutil.ignore_patterns(
        "test", "tests", "site-packages", "idlelib", "tkinter", "lib2to3", "config-*", "*.opt-*.pyc"
    )
    shutil.copytree(base / "lib" / version, target / "lib" / version, ignore=left_out)
    (target / "lib" / version / "site-packages").mkdir()
    before = f"{base}/lib\0".encode()
    for above, programs in (
        ("$ORIGIN/../lib", [python, *target.glob("lib/*.so.*")]),
        ("$ORIGIN/../..", target.glob("lib/*/lib-dynload/*.so")),
    ):
        for each in programs:
            content = each.read_bytes()
            after = above.encode().ljust(len(before), b"\0")
            assert len(after) == len(before), "this Python's own path is too short"
            each.write_bytes(content.replace(before, after))
    return python


def plain_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Without the copperfs that is tested otherwise."""
    return {name: value for name, value in environ.items() if name != "PYTHONPATH"}
