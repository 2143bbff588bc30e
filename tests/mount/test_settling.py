"""A version that is younger than a tick of the source's clock is not read: a second change within
the tick would leave no trace in it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.mount.conftest import Mounter

TICK_NS = 20_000_000
WHOLE: tuple[str, ...] = ()
BYPASS = ("--bypass-above", "1KiB")
CHUNKS = ("--tree-max", "1KiB", "--tier-memory", "64MiB")


@pytest.mark.parametrize("way", [WHOLE, BYPASS, CHUNKS], ids=["whole", "bypass", "chunks"])
def test_a_file_that_has_just_changed_is_read_a_tick_later(
    source: Path, mounted: Mounter, way: tuple[str, ...]
) -> None:
    directories = [source / str(number) for number in range(10)]
    for directory in directories:
        directory.mkdir()
    mount = mounted(*way)
    for directory in directories:
        (directory / "file").write_bytes(os.urandom(8192))
        changed_ns = (directory / "file").stat().st_ctime_ns
        shown = (mount / directory.name / "file").read_bytes()
        assert time.time_ns() - changed_ns >= TICK_NS
        assert shown == (directory / "file").read_bytes()
