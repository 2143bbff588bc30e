"""The shell blocks of the documents are typed in order; nothing may fail, and nothing may stay.

The test takes every block of shell in the README and in ``docs/``, with the paths that they name
created elsewhere, and without lines that begin with what ``NOT_HERE`` names.
``tests/unit/test_document_commands.py`` has the parser read those, and indented blocks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.bootstrap.helpers import clean_environment
from tests.bootstrap.mpis import installed
from tests.bootstrap.slurm import free_ports
from tests.cluster.helpers import Cluster
from tests.cluster.test_links import networks_can_be_made
from tests.conftest import mounts_below
from tests.mount.helpers import copperfs
from tests.unit.test_layers import ROOT

WITHIN_S = 180.0
# One machine cannot run these, or other tests do.
NOT_HERE = re.compile(
    r'(make|srun|pdsh|mpiexec -n (128|1536)|pip|"\$HOME/env/bin/pip"|apt-get|\.) '
)
MOUNT = (
    "copperfs mount /copper_mnt --shared /lus --ring /lus/me/dataset --memory 64MiB "
    "--tier-dir /nvme/copperfs --tier-size 64MiB"
)
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PATHS = re.compile(r"(?<![\w$}/.\0])/(copper_mnt|lus|nvme|tmp|var/lib)\b")
_SHOWN = re.compile(r"(?<![\w$}/.])/copper_mnt/lus\b")
PORT = 9400


@dataclass(frozen=True)
class Guide:
    """A document, the commands that precede it, and the output that has to be seen."""

    path: str
    before: str = ""
    check: Callable[[str, Path], None] = field(default=lambda printed, world: None)
    parted: bool = False


def imported(printed: str, world: Path) -> None:
    home = world / "home/env/lib/python3.11/site-packages"
    assert f"imported from {world}/tmp/copper_mnt{home}/numpy.py" in printed, printed


def read_once(printed: str, world: Path) -> None:
    if "numpy" in printed:
        assert printed.count("imported from") == 8, printed
        assert re.search(r"open +1\b", printed), printed
    assert not (world / "tmp/copper_cluster").exists()


def profiled(printed: str, world: Path) -> None:
    assert "</html>" in (world / "work/profile.html").read_text()


def measured(printed: str, world: Path) -> None:
    assert "copperfs_info{" in printed, printed


def filled(printed: str, world: Path) -> None:
    assert "held by 1 of 1 node" in printed, printed
    assert "all are held by their owners" in printed, printed
    assert "numpy.py" in (world / "work/import.manifest").read_text()


GUIDES = (
    Guide("README.md", check=imported),
    Guide("docs/cluster.md", check=read_once, parted=True),
    Guide("docs/failures.md", MOUNT),
    Guide("docs/installing.md"),
    Guide("docs/launching.md"),
    Guide("docs/metrics.md", check=measured),
    Guide("docs/operations.md"),
    Guide("docs/pfs-sim.md"),
    Guide("docs/profiling.md", MOUNT, check=profiled),
    Guide("docs/protection.md"),
    Guide("docs/running.md"),
    Guide("docs/tier.md"),
    Guide("docs/troubleshooting.md", MOUNT),
    Guide("docs/warmup.md", MOUNT, check=filled),
    Guide("docs/watching.md", MOUNT),
)


def scripts(guide: Guide) -> Iterator[str]:
    blocks = _BLOCK.findall((ROOT / guide.path).read_text())
    for block in blocks if guide.parted else ["".join(blocks)]:
        lines = [
            line for line in block.replace("\\\n", " ").splitlines() if not NOT_HERE.match(line)
        ]
        yield "\n".join(filter(None, lines))


CASES = [
    pytest.param(guide, script, id=f"{guide.path}-{number}" if guide.parted else guide.path)
    for guide in GUIDES
    for number, script in enumerate(scripts(guide))
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """The places that documents name: a home with an environment, /lus, /nvme, /tmp."""
    module = "print('imported from', __file__)\n"
    for env in ("home/env", "lus/me/env"):
        packages = tmp_path / env / "lib/python3.11/site-packages"
        packages.mkdir(parents=True)
        for name in ("mypackage", "numpy"):
            (packages / f"{name}.py").write_text(module)
    dataset = tmp_path / "lus/me/dataset"
    dataset.mkdir()
    for number in range(4):
        (dataset / f"{number}").write_bytes(bytes(10_000))
    for name in ("work", "tmp", "nvme", "var/lib/node_exporter", "copper_mnt"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("app.py", "train.py"):
        (tmp_path / "work" / name).write_text("")
    app = tmp_path / "work/app"
    app.write_text("#!/bin/sh\n")
    app.chmod(0o755)
    yield tmp_path
    Cluster(tmp_path / "tmp/copper_cluster", 8, tmp_path).remove()
    for mountpoint in mounts_below(tmp_path):
        copperfs("umount", "--lazy", mountpoint)


def settled(script: str, world: Path) -> str:
    """Replace the paths by those of this world, in which the source is still ``/``."""
    script = _SHOWN.sub("\0/copper_mnt\0/lus", script)
    script = _PATHS.sub("\0/\\1", script).replace("\0", str(world))
    return script.replace(str(PORT), str(free_ports(1)[0])).replace("sudo ", "")


@pytest.mark.parametrize(("guide", "script"), CASES)
def test_what_a_document_has_its_reader_type_works(
    guide: Guide, script: str, world: Path, tmp_path: Path
) -> None:
    if "sudo " in script and not networks_can_be_made():
        pytest.skip("needs root")
    mpis = installed(tmp_path)
    variables = clean_environment() | {"HOME": str(world / "home")}
    path = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable), variables["PATH"]]
    if "mpiexec" in script:
        mpi = mpis.get("mpich-wheel")
        assert mpi is not None, "make test installs it"
        variables |= mpi.env
        path.insert(0, os.path.dirname(mpi.mpiexec))
    text = "\n".join(["set -ex", guide.before, script])
    done = subprocess.run(
        ["bash", "-c", settled(text, world)],
        cwd=world / "work",
        env=variables | {"PATH": os.pathsep.join(path), "COPPERFS_SHARED": str(world)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    guide.check(done.stdout, world)
    for mountpoint in mounts_below(world):  # which the reader would go on to use
        ended = copperfs("umount", mountpoint)
        assert ended.returncode == 0, ended.stderr
    assert not mounts_below(world)


def test_every_document_with_commands_is_here() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        if any(scripts(Guide(str(path.relative_to(ROOT)), parted=True)))
    }
    assert found == {guide.path for guide in GUIDES}
    assert all(script for guide in GUIDES for script in scripts(guide))


def test_the_readme_uses_each_command_that_it_should() -> None:
    (script,) = scripts(Guide("README.md"))
    used = {words[1] for line in script.splitlines() if (words := line.split())[0] == "copperfs"}
    assert used >= {
        *("mount", "warmup", "stats", "clear", "umount", "config", "pfs-sim", "pfs-ask"),
        *("cluster", "doctor", "run", "status"),
    }
