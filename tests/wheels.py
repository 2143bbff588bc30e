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


def install(wheel: Path, environment: Path) -> None:
    """Into a new virtual environment, with what it depends on."""
    run(sys.executable, "-m", "venv", environment)
    run(environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check", wheel)


def plain_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Without the copperfs that is tested otherwise."""
    return {name: value for name, value in environ.items() if name != "PYTHONPATH"}
