"""Missing C extension: nothing mounts, and one message says what to do."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import copperfs

PACKAGE = Path(copperfs.__file__).parent
SENTENCE = (
    r"copperfs: the C extension of copperfs cannot be loaded \(.*\); build it with a C compiler "
    r"and the headers of Python: install copperfs again, or in a checkout run: tests/setup.sh check"
)


@pytest.fixture
def unbuilt(tmp_path: Path) -> Path:
    without = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "top" / "copperfs", ignore=without)
    return tmp_path / "top"


def ran(unbuilt: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "copperfs.cli.main", *arguments],
        env={**os.environ, "PYTHONPATH": str(unbuilt)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("foreground", [(), ("--foreground",)], ids=["daemon", "foreground"])
def test_mount_fails_with_a_sentence_that_says_how_to_build(
    unbuilt: Path, tmp_path: Path, foreground: tuple[str, ...]
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "mnt").mkdir()
    done = ran(unbuilt, "mount", tmp_path / "mnt", "--source", tmp_path / "source", *foreground)
    assert done.returncode == 3
    assert done.stdout == ""
    assert re.fullmatch(SENTENCE, " ".join(done.stderr.split())), done.stderr


def test_doctor_says_that_it_was_not_built_and_other_commands_work(unbuilt: Path) -> None:
    doctor = ran(unbuilt, "doctor", "--json")
    assert doctor.returncode == 1
    assert "the C extension of copperfs cannot be loaded" in doctor.stdout
    assert ran(unbuilt, "config", "show").returncode == 0
