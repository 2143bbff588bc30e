"""Kernel notifications: one about a directory does not wait for one about another directory.

A lookup holds its directory's lock, and a notification about that directory waits for it.
"""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.mount.helpers import COPPERFS, Mount, errno_of, eventually, told_of_a_read
from tests.standin import StandIn

DEADLINE_S = 60.0


@pytest.fixture
def hanging(source: Path, tmp_path: Path) -> Iterator[tuple[StandIn, Mount]]:
    """A lookup in each of some directories hangs. A file beside it has changed and was read, so
    that the kernel has to look it up again."""
    for number in range(3):
        (source / f"hung-{number}").mkdir()
        (source / f"hung-{number}" / "file").write_bytes(b"old")
        (source / f"hung-{number}" / "slow").touch()
    for name in ("one", "other"):
        (source / name).mkdir()
        (source / name / "file").write_bytes(b"old")
    # every name is looked up by itself
    flags = ("--listing-max", "1", "--source-deadline", str(DEADLINE_S))
    with (
        StandIn(source) as standin,
        Mount(standin.mountpoint, tmp_path / "mnt", *flags) as mount,
    ):
        threads: list[threading.Thread] = []
        try:
            for number in range(3):
                directory = mount / f"hung-{number}"
                fd = os.open(directory / "file", os.O_RDONLY)
                standin.hang(f"hung-{number}/slow", ops=["lookup", "getattr"])
                threads.append(threading.Thread(target=os.path.lexists, args=[directory / "slow"]))
                threads[-1].start()
                standin.wait_for_hanging(number + 1)
                changes(source / f"hung-{number}" / "file")
                assert errno_of(partial(os.read, fd, 10)) == told_of_a_read(errno.ESTALE)
                os.close(fd)
            yield standin, mount
        finally:
            standin.heal()
            for thread in threads:
                thread.join()


def changes(file: Path) -> None:
    file.with_name("new").write_bytes(b"new bytes")
    os.replace(file.with_name("new"), file)


def has_changed(file: Path) -> bool:
    return file.stat().st_size == len(b"new bytes")


def test_a_lookup_that_hangs_keeps_no_file_elsewhere_stale(
    source: Path, hanging: tuple[StandIn, Mount]
) -> None:
    _, mount = hanging
    for name in ("one", "other"):
        (mount / name / "file").stat()
        changes(source / name / "file")
        assert errno_of((mount / name / "file").read_bytes) == told_of_a_read(errno.ESTALE)
        assert (mount / name / "file").read_bytes() == b"new bytes"


def test_what_waited_for_a_lookup_is_told_when_it_ends(
    source: Path, hanging: tuple[StandIn, Mount]
) -> None:
    standin, mount = hanging
    assert mount.stats()["kernel"]["waiting"] >= 3  # one for each, or two if it read twice
    standin.heal()
    eventually(lambda: mount.stats()["kernel"]["waiting"] == 0, "the kernel was told")
    for number in range(3):
        assert (mount / f"hung-{number}" / "file").read_bytes() == b"new bytes"


def test_clear_tells_of_all_other_directories_before_it_waits_for_one_that_hangs(
    source: Path, hanging: tuple[StandIn, Mount]
) -> None:
    standin, mount = hanging
    for name in ("one", "other"):
        assert (mount / name / "file").stat().st_size == len(b"old")
        changes(source / name / "file")
    with subprocess.Popen([*COPPERFS, "clear", mount.mountpoint], stdout=subprocess.PIPE) as clear:
        for name in ("one", "other"):
            shown = mount / name / "file"
            eventually(partial(has_changed, shown), f"{name} shows the change")
        assert standin.counts().hanging >= 3
        assert clear.poll() is None, "it has not told of everything"
        standin.heal()
        assert clear.wait(DEADLINE_S) == 0
