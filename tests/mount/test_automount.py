"""A filesystem that is mounted on access (autofs) shows up below the mount, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.automounter import automounted
from tests.mount.conftest import Mounter

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def trigger(source: Path) -> Iterator[Path]:
    (source / "projects" / "one").mkdir(parents=True)
    with automounted(sys.executable, source / "projects" / "one") as directory:
        yield directory


def mounts_at(directory: Path) -> int:
    table = Path("/proc/self/mountinfo").read_text()
    return sum(line.split(" ")[4] == str(directory) for line in table.splitlines())


def test_who_lists_and_looks_mounts_nothing(trigger: Path, mounted: Mounter) -> None:
    mount = mounted()
    assert os.listdir(mount / "projects") == ["one"]
    assert (mount / "projects/one").is_dir()
    assert mounts_at(trigger) == 1


@pytest.mark.parametrize("other", [(), ("--allow-other",)], ids=["own", "others"])
@pytest.mark.parametrize("goes_in", ["reads", "lists"])
def test_who_goes_in_finds_what_is_mounted(
    trigger: Path, mounted: Mounter, other: tuple[str, ...], goes_in: str
) -> None:
    mount = mounted(*other)
    (mount / "projects/one").stat()
    if goes_in == "lists":
        assert os.listdir(mount / "projects/one") == ["file"]
    assert (mount / "projects/one/file").read_text() == "mounted"
    assert os.listdir(mount / "projects/one") == ["file"]
    assert mounts_at(trigger) == 2
