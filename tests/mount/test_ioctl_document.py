"""The programs in docs/ioctl.md compile, run, and print what they say."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_layers import ROOT

WITHIN_S = 120.0
COPPERFS = [sys.executable, "-m", "copperfs.cli.main"]

pytestmark = pytest.mark.mount


def program(language: str) -> str:
    text = (ROOT / "docs" / "ioctl.md").read_text()
    found = re.search(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def run(*command: str | Path) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WITHIN_S, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    source, mountpoint = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    (source / "file").write_text("content")
    run(*COPPERFS, "mount", mountpoint, "--source", source)
    try:
        yield mountpoint
    finally:
        run(*COPPERFS, "umount", mountpoint)


def test_the_python_program_prints_the_statistics_of_any_file(
    mountpoint: Path, tmp_path: Path
) -> None:
    script = tmp_path / "ask.py"
    script.write_text(program("python"))
    for path in (mountpoint, mountpoint / "file"):
        assert json.loads(run(sys.executable, script, path))["version"] == 1


def test_the_c_program_prints_the_statistics_of_any_file(mountpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "ask.c").write_text(program("c"))
    run("gcc", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "ask", tmp_path / "ask.c")
    for path in (mountpoint, mountpoint / "file"):
        assert json.loads(run(tmp_path / "ask", path))["version"] == 1
