"""Packaging: the built packages, and the recipes that list the dependencies again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from copperfs import __version__
from tests.mount.helpers import is_mounted
from tests.unit.test_layers import ROOT

WITHIN_S = 400.0
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The path of Debian's environment-modules.
MODULES = [*Path("/usr/lib").glob("modulecmd.tcl"), *Path("/usr/lib").glob("*/modulecmd.tcl")]


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, timeout=WITHIN_S, check=False,
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.mount
def test_the_sdist_makes_a_wheel_that_mounts(tmp_path: Path) -> None:
    pytest.importorskip("build")
    # Built files could hide that an sdist lacks one.
    top = tmp_path / "top"
    run("git", "clone", "--quiet", ROOT, top)
    for name in run("git", "ls-files", "--modified", "--others", "--exclude-standard").split():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, top / name)
    dist = tmp_path / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, top)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "copperfs").rglob("*.[ch]")}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "man").glob("*.1")}
    assert wanted <= sources
    files = zipfile.ZipFile(wheel).namelist()
    assert any(re.match(r"copperfs/native/_native\..*\.so$", each) for each in files)
    assert "copperfs/py.typed" in files
    assert any(each.endswith("share/man/man1/copperfs-run.1") for each in files)
    assert not any("tests/" in each for each in files)

    own = tmp_path / "own"
    run(sys.executable, "-m", "venv", own)
    run(own / "bin/pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = own / "bin/copperfs"
    assert run(command, "--version", env=env, cwd=tmp_path) == f"copperfs {__version__}\n"
    assert (own / "share/man/man1/copperfs.1").exists()
    source, mountpoint = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    (source / "file").write_text("content")
    flags: list[str | Path] = ["run", "--source", source, "--mountpoint", mountpoint, "--"]
    show = ["sh", "-c", 'cat "$COPPERFS_MOUNTPOINT/file"']
    assert run(command, *flags, *show, env=env, cwd=tmp_path) == "content"
    assert not is_mounted(mountpoint)


def test_the_recipe_for_spack_names_what_the_package_needs() -> None:
    recipe = (ROOT / "examples/spack/copperfs/package.py").read_text()
    compile(recipe, "package.py", "exec")
    assert f'version("{__version__}")' in recipe
    for each in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["mpi"]]:
        name, _, least = each.partition(">=")
        assert f'"py-{name.lower()}@{least}:"' in recipe, each


def test_the_modulefile_puts_only_the_command_on_the_path(tmp_path: Path) -> None:
    tclsh = shutil.which("tclsh")
    if not MODULES or tclsh is None:
        pytest.skip("environment-modules is not installed")
    env = {
        "MODULEPATH": str(ROOT / "examples/modulefiles"), "PATH": "/usr/bin:/bin",
        "COPPERFS_PREFIX": str(tmp_path), "HOME": str(tmp_path),
    }  # fmt: skip
    script = run(tclsh, MODULES[0], "bash", "load", "copperfs", env=env)
    assert f"PATH={tmp_path}/libexec/copperfs:/usr/bin:/bin" in script
    assert f"MANPATH={tmp_path}/share/man" in script


def test_the_modulefile_is_of_this_version() -> None:
    assert (ROOT / "examples/modulefiles/copperfs" / __version__).exists()
