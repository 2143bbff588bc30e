"""The commands of the README, in their order, for real.

Every line of the ``sh`` blocks is executed by one shell in an empty directory, with the paths of
the example replaced. Left out are ``make`` targets and ``mpiexec``, which are other tests'
business, and activating the environment: it is put on the path instead.
"""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import mounts_below
from tests.unit.test_layers import ROOT

WITHIN_S = 120.0
MOUNTPOINT = "/tmp/copper_mnt"
PFS_SIM = "/tmp/lustre"
CLUSTER = "/tmp/copper_cluster"

pytestmark = pytest.mark.mount


def shell_lines() -> list[str]:
    """What the README has its reader type, but for what is not to be executed here."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line and not line.startswith(("make ", "mpiexec ", ". "))]


def test_the_readme_uses_each_command_that_it_should() -> None:
    used = {words[1] for line in shell_lines() if (words := line.split())[0] == "copperfs"}
    wanted = {
        "mount",
        "warmup",
        "stats",
        "clear",
        "umount",
        "config",
        "pfs-sim",
        "pfs-ask",
        "cluster",
    }
    assert wanted <= used


def test_the_commands_of_the_readme_work(tmp_path: Path) -> None:
    home, empty = tmp_path / "home", tmp_path / "empty"
    packages = home / "env" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    empty.mkdir()
    (packages / "mypackage.py").write_text("print('imported from', __file__)\n")
    mountpoint = tmp_path / "mnt"
    script = "\n".join(["set -ex", *shell_lines()]).replace(MOUNTPOINT, str(mountpoint))
    script = script.replace(PFS_SIM, str(tmp_path / "lustre"))
    cluster = str(tmp_path / "cluster")
    script = script.replace(CLUSTER, cluster)
    scripts = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    try:
        done = subprocess.run(
            ["sh", "-c", script],
            cwd=empty,
            env=os.environ
            | {"HOME": str(home), "PATH": os.pathsep.join([*scripts, os.environ["PATH"]])},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown = f"{mountpoint}{packages}/mypackage.py"
        assert f"imported from {shown}" in done.stdout, done.stdout
        assert not mounts_below(tmp_path)
    finally:
        if mounts_below(tmp_path):
            for words in (
                ["umount", "--lazy", str(mountpoint)],
                ["cluster", "down", "--dir", cluster],
            ):
                subprocess.run(
                    [sys.executable, "-m", "copperfs.cli.main", *words],
                    timeout=WITHIN_S,
                    check=False,
                )
