"""Packaging: the built packages, and the recipes that list the dependencies again."""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from copperfs import __version__
from tests.mount.helpers import is_mounted
from tests.unit.test_documents import links
from tests.unit.test_layers import ROOT
from tests.wheels import build, install, plain_environment, run

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The path of Debian's environment-modules.
MODULES = [*Path("/usr/lib").glob("modulecmd.tcl"), *Path("/usr/lib").glob("*/modulecmd.tcl")]


@pytest.mark.mount
def test_the_sdist_makes_a_wheel_that_mounts(tmp_path: Path) -> None:
    pytest.importorskip("build")
    sdist, wheel = build(tmp_path, isolated=True)
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "copperfs").rglob("*.[ch]")}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "man").glob("*.1")}
    assert wanted <= sources
    files = zipfile.ZipFile(wheel).namelist()
    assert any(re.match(r"copperfs/native/_native\..*\.so$", each) for each in files)
    bundles = {f"copperfs/startup/{name}" for name in ("bundle", "standard_library")}
    assert {"copperfs/py.typed", *bundles} <= set(files)
    assert any(each.endswith("share/man/man1/copperfs-run.1") for each in files)
    assert not any("tests/" in each for each in files)
    documents = {each.partition("/share/doc/copperfs/")[2] for each in files} - {""}
    assert_documents_are_whole(documents)
    assert documents <= sources

    own, env = tmp_path / "own", plain_environment()
    install(wheel, own)
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


def assert_documents_are_whole(names: set[str]) -> None:
    """What they link to is there, but for code."""
    assert {"README.md", "docs/index.md", "examples/README.md"} <= names
    for name in filter(lambda each: each.endswith(".md"), names):
        for link in links(ROOT / name):
            target = (ROOT / name).parent / link.partition("#")[0]
            if "://" in link or link.startswith("#"):
                continue
            path = str(target.resolve().relative_to(ROOT))
            if path.startswith(("docs/", "examples/")) and (ROOT / path).is_file():
                assert path in names, f"{name} links to {path}"


def test_every_example_and_document_is_among_the_data_files() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = [each for found in tool["data-files"].values() for each in found]
    names = {str(path.relative_to(ROOT)) for each in patterns for path in ROOT.glob(each)}
    examples = {str(p.relative_to(ROOT)) for p in (ROOT / "examples").rglob("*") if p.is_file()}
    # The demo needs the tests' environment.
    assert {each for each in examples if "__pycache__" not in each} - {"examples/demo.py"} <= names
    assert_documents_are_whole(names)


def test_the_recipe_for_spack_names_what_the_package_needs() -> None:
    recipe = (ROOT / "examples/spack/py-copperfs/package.py").read_text()
    compile(recipe, "package.py", "exec")
    assert "class PyCopperfs(PythonPackage):" in recipe, "Spack derives it from the directory"
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
    assert f"MANPATH={tmp_path}/share/man:;" in script.replace("'", ""), "the system's pages, too"


def test_the_environment_of_the_readme_has_the_man_pages() -> None:
    """An editable installation leaves them out, and tests/setup.sh makes up for it."""
    kept = {path.name for path in (ROOT / "man").glob("*.1")}
    assert kept <= {path.name for path in Path(sys.prefix, "share/man/man1").glob("*.1")}


def test_the_modulefile_is_of_this_version() -> None:
    assert (ROOT / "examples/modulefiles/copperfs" / __version__).exists()


def test_the_build_has_what_goes_into_the_bundle() -> None:
    """In versions that a run may import (``copperfs/packaging/write_bundle.py``)."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert set(build) - {"setuptools>=77"} <= set(PROJECT["dependencies"])
