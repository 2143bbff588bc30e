"""The commands of docs/cluster.md, for real, in a directory of the test's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from copperfs.cli import main as cli
from tests.cluster.helpers import Cluster
from tests.cluster.test_links import networks_can_be_made
from tests.conftest import mounts_below
from tests.mount.helpers import copperfs
from tests.unit.test_layers import ROOT

DOCUMENT = (ROOT / "docs" / "cluster.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
WITHIN_S = 120.0


@pytest.mark.parametrize("block", BLOCKS, ids=["first steps", "read once", "kill", "cut links"])
def test_the_commands_of_the_document_work(tmp_path: Path, block: str) -> None:
    if "sudo" in block and not networks_can_be_made():
        pytest.skip("needs root")
    packages = tmp_path / "home" / "env" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "numpy.py").write_text("print('imported from', __file__)\n")
    cluster, lustre = tmp_path / "copper_cluster", tmp_path / "lustre"
    script = f"set -ex\n{block}".replace("sudo ", "").replace("/tmp/", f"{tmp_path}/")
    scripts = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    try:
        done = subprocess.run(
            ["sh", "-c", script],
            env=os.environ
            | {
                "HOME": str(tmp_path / "home"),
                "PATH": os.pathsep.join([*scripts, os.environ["PATH"]]),
            },
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        if "numpy" in block:
            assert done.stdout.count("imported from") == 8
            assert re.search(r"open +1\b", done.stdout), done.stdout
        assert not mounts_below(tmp_path)
        assert not cluster.exists()
    finally:
        Cluster(cluster, 8, tmp_path).remove()
        if mounts_below(tmp_path):
            copperfs("umount", "--lazy", lustre)


def test_the_document_has_all_commands() -> None:
    commands = {each.NAME for each in cli.COMMANDS if each.NAME.startswith("cluster ")}
    assert commands == set(re.findall(r"^\| `(cluster \w+)", DOCUMENT, re.MULTILINE))
