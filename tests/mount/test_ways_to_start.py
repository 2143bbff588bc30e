"""Each way to start Python of an environment on a shared filesystem reads it in place.

``sys.prefix`` is the environment's own path. The source is a stand-in that counts: every file of
the environment is opened once at most, although the command runs twice on the node.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.bootstrap.helpers import clean_environment
from tests.mount.helpers import COMMAND_TIMEOUT_S, COPPERFS
from tests.standin.client import StandIn

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the stand-in is seen by root alone")

SHOW = """\
import json, os, sys, mine
files = {m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)}
inside = [each for each in files if each.startswith(os.environ["ENVIRONMENT"])]
print(json.dumps({"prefix": sys.prefix, "mine": mine.__file__,
                  "devices": sorted({os.stat(each).st_dev for each in inside})}))
"""
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass
class Environments:
    tree: Path
    shown: Path
    standin: StandIn
    made: dict[str, Path] = field(default_factory=dict)

    def make(self, kind: str) -> Path:
        """Where it is seen."""
        name = self.tree / kind
        if kind == "conda":
            self._conda(name)
        else:
            how = "--copies" if kind == "copies" else "--symlinks"
            words = [sys.executable, "-m", "venv", "--without-pip", how, str(name)]
            subprocess.run(words, check=True, timeout=COMMAND_TIMEOUT_S)
        packages = name / f"lib/{VERSION}/site-packages"
        packages.mkdir(parents=True, exist_ok=True)
        (packages / "mine.py").write_text("VALUE = 1\n")
        shown = self.shown / kind
        for script, first in (("tool", f"{shown}/bin/python3"), ("by-env", "/usr/bin/env python3")):
            path = name / "bin" / script
            path.write_text(f"#!{first}\n{SHOW}")
            path.chmod(0o755)
        for config in name.glob("pyvenv.cfg"):
            config.write_text(config.read_text().replace(str(self.tree), str(self.shown)))
        return shown

    @staticmethod
    def _conda(name: Path) -> None:
        """An installation of its own: the interpreter finds its library beside itself."""
        (name / "conda-meta").mkdir(parents=True)
        (name / "bin").mkdir()
        library = name / f"lib/{VERSION}"
        library.mkdir(parents=True)
        base = Path(sys.base_prefix)
        shutil.copy2((base / "bin" / VERSION).resolve(), name / "bin/python3")
        for each in (base / f"lib/{VERSION}").iterdir():
            if each.name not in ("site-packages", "__pycache__"):
                (library / each.name).symlink_to(each)


@pytest.fixture
def environments(tmp_path: Path) -> Iterator[Environments]:
    tree = tmp_path / "tree"
    tree.mkdir()
    with StandIn(tree) as standin:
        yield Environments(tree, standin.mountpoint, standin)


Way = Callable[[Path], list[str]]
WAYS: dict[str, tuple[str, bool, Way]] = {
    "a venv by path": ("venv", False, lambda env: [f"{env}/bin/python3", "-c", SHOW]),
    "activated": ("venv", True, lambda env: ["python3", "-c", SHOW]),
    "a relative path": ("venv", False, lambda env: [f"./{env.name}/bin/python3", "-c", SHOW]),
    "env": ("venv", True, lambda env: ["env", "python3", "-c", SHOW]),
    "a shell": ("venv", True, lambda env: ["sh", "-c", 'python3 -c "$0"', SHOW]),
    "a venv of copies": ("copies", False, lambda env: [f"{env}/bin/python3", "-c", SHOW]),
    "a console script": ("venv", False, lambda env: [f"{env}/bin/tool"]),
    "a console script, activated": ("venv", True, lambda env: ["tool"]),
    "a script of env": ("venv", True, lambda env: ["by-env"]),
    "conda": ("conda", True, lambda env: ["python3", "-c", SHOW]),
    "conda by path": ("conda", False, lambda env: [f"{env}/bin/python3", "-c", SHOW]),
}


@pytest.mark.parametrize(("kind", "is_activated", "way"), WAYS.values(), ids=WAYS)
def test_all_of_the_environment_comes_through_the_mount(
    environments: Environments, kind: str, is_activated: bool, way: Way, tmp_path: Path
) -> None:
    env = environments.make(kind)
    environ = clean_environment() | {"ENVIRONMENT": str(env), "PYTHONDONTWRITEBYTECODE": "1"}
    if is_activated:
        name = "CONDA_PREFIX" if kind == "conda" else "VIRTUAL_ENV"
        environ |= {name: str(env), "PATH": f"{env}/bin:{environ['PATH']}"}
    environments.standin.reset()
    run = [*COPPERFS, "run", "--in-place", "always", "--shared", str(env.parent), "--"]
    begun = [
        subprocess.Popen(
            [*run, *way(env)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, env=environ | ranks(number), cwd=env.parent,
        )
        for number in range(2)
    ]  # fmt: skip
    outside = os.stat(env).st_dev
    for each in begun:
        output, errors = each.communicate(timeout=COMMAND_TIMEOUT_S)
        assert (each.returncode, errors) == (0, "")
        found = json.loads(output)
        assert found["prefix"] == str(env)
        assert found["mine"] == f"{env}/lib/{VERSION}/site-packages/mine.py"
        assert outside not in found["devices"]
    opened = environments.standin.counts().operations["open"]
    modules = {path: count for path, count in opened.items() if path.endswith((".py", ".so"))}
    assert f"{kind}/lib/{VERSION}/site-packages/mine.py" in modules
    assert set(modules.values()) == {1}


def test_an_editable_install_is_covered_where_it_is(environments: Environments) -> None:
    """Its directory is in no variable, so it is named."""
    env = environments.make("venv")
    project = environments.tree / "project/src"
    project.mkdir(parents=True)
    packages = environments.tree / f"venv/lib/{VERSION}/site-packages"
    (packages / "mine.py").rename(project / "mine.py")
    shown = environments.shown / "project"
    (packages / "__editable__.mine.pth").write_text(f"{shown}/src\n")
    run = [*COPPERFS, "run", "--in-place", "always", "--shared", str(env.parent)]
    done = subprocess.run(
        [*run, "--in-place-at", str(shown), "--", f"{env}/bin/tool"],
        capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S, cwd="/",
        env=clean_environment() | {"ENVIRONMENT": str(env.parent)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["prefix"], found["mine"]) == (str(env), f"{shown}/src/mine.py")
    assert os.stat(env).st_dev not in found["devices"]


def test_torchrun_reads_its_environment_through_the_mount() -> None:
    environment = (Path(sys.prefix) / "torch").resolve()  # of its own (tests/setup.sh)
    if not (environment / "bin/torchrun").exists():
        pytest.skip("pip knows no PyTorch for CPUs")
    run = [*COPPERFS, "run", "--in-place", "always", "--shared", str(environment), "--summary"]
    done = subprocess.run(
        [*run, "--", str(environment / "bin/torchrun"), "--help"],
        capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S, cwd="/",
        env=clean_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "usage: torchrun" in done.stdout
    assert f"covered, and read-only for the command: {environment}\n" in done.stderr
    files = re.search(r"; ([\d,]+) files and ", done.stderr)
    assert files is not None
    assert int(files[1].replace(",", "")) > 300, "modules of torch alone are more"


def ranks(number: int) -> dict[str, str]:
    """Two ranks of one launch share a daemon, also if the first ends before the second begins."""
    return {
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(number),
    }
