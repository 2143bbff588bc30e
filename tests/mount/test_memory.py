"""The memory of a daemon: each object is charged with its real size, and resident memory stays near
the budget."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from copperfs.daemon.daemon_main import INODE_BYTES
from tests.mount.conftest import Mounter
from tests.mount.helpers import Mount, eventually

MIB = 1 << 20
DIRECTORIES = 20_000


def large_directories(source: Path) -> None:
    (source / "0").mkdir()
    for name in range(1000):
        (source / "0" / f"a-name-{name:04}.suffix").touch()
    for number in range(1, 60):
        (source / f"{number}").mkdir()
        for name in range(1000):
            os.link(
                source / "0" / f"a-name-{name:04}.suffix",
                source / f"{number}" / f"a-name-{name:04}.suffix",
            )


def small_directories(source: Path) -> None:
    (source / "file").touch()
    for number in range(8000):
        if number % 1000 == 0:
            (source / f"{number // 1000}").mkdir()
        (source / f"{number // 1000}" / f"{number}").mkdir()
        os.link(source / "file", source / f"{number // 1000}" / f"{number}" / "x")


def small_files(source: Path) -> None:
    for number in range(16):
        (source / f"{number}").mkdir()
        for name in range(1000):
            (source / f"{number}" / f"{name}").write_bytes(os.urandom(1000))


def walk(root: Path) -> None:
    for directory, _, names in os.walk(root):
        for name in names:
            if directory == str(root) or os.stat(os.path.join(directory, name)).st_size:
                Path(directory, name).read_bytes()


def look_through(mount: Mount) -> dict[str, Any]:
    walk(mount.mountpoint)
    copied: list[dict[str, Any]] = [mount.stats()]

    def is_settled() -> bool:
        copied.append(mount.stats())
        return bool(copied[-1]["cache"]["held_bytes"] == copied[-2]["cache"]["held_bytes"])

    eventually(is_settled, "the node has heard of all")
    return copied[-1]


@pytest.mark.parametrize("make", [large_directories, small_directories, small_files])
def test_what_is_held_is_charged_with_what_it_takes(
    source: Path, mounted: Mounter, make: Callable[[Path], None]
) -> None:
    make(source)
    mount = mounted("--memory", "1GiB")
    before = mount.stats()
    after = look_through(mount)
    assert after["cache"]["evictions"] == 0
    charged = after["cache"]["held_bytes"] - before["cache"]["held_bytes"]
    taken = after["process"]["resident_bytes"] - before["process"]["resident_bytes"]
    # the front's table of names is no part of the budget; two MiB are its empty buckets, stacks of
    # threads, and what is loaded with the first request
    taken -= after["front"]["nodes"] * INODE_BYTES + 2 * MIB
    assert charged > 10 * MIB
    assert taken <= 1.1 * charged
    assert taken >= 0.6 * charged, "the budget is for what is held"


def test_what_is_resident_stays_near_the_budget(source: Path, mounted: Mounter) -> None:
    (source / "files").mkdir()
    small_files(source / "files")
    (source / "directories").mkdir()
    small_directories(source / "directories")
    memory = 16 * MIB
    mount = mounted("--memory", "16MiB")
    before = mount.stats()["process"]["resident_bytes"]
    walk(mount / "files")
    walk(mount / "directories")
    assert mount.stats()["cache"]["evictions"] > 0
    found: dict[str, Any] = {}

    def is_near() -> bool:
        found.update(mount.stats())
        return bool(found["process"]["resident_bytes"] - before <= allowed())

    def allowed() -> int:
        # half of the budget more for memory that is freed and not given back yet
        return int(1.5 * memory) + int(found["front"]["nodes"]) * INODE_BYTES

    eventually(is_near, lambda: f"{found['process']} is at most {allowed()} more than {before}")


def test_more_directories_than_the_table_is_meant_for_are_all_found(
    source: Path, mounted: Mounter
) -> None:
    """The kernel is not made to forget a directory, for a process may work in it."""
    for number in range(DIRECTORIES):
        if number % 1000 == 0:
            (source / f"{number // 1000}").mkdir()
        (source / f"{number // 1000}" / f"{number}").mkdir()
    mount = mounted("--memory", "16MiB")
    nodes_max = mount.stats()["front"]["nodes_max"]
    assert nodes_max * 4 < DIRECTORIES
    for number in range(DIRECTORIES):
        os.stat(mount / f"{number // 1000}" / f"{number}")
    front = mount.stats()["front"]
    assert front["nodes"] > DIRECTORIES
    assert front["unanswered"] == front["protocol_errors"] == front["no_room"] == 0


def test_names_of_files_are_forgotten_as_soon_as_there_are_too_many(
    source: Path, mounted: Mounter
) -> None:
    files = 3 * 4096
    for number in range(files):
        (source / f"{number}").touch()
    mount = mounted("--memory", "16MiB", "--listing-max", f"{files}")
    for number in range(files):
        os.stat(mount / f"{number}")
    nodes_max = mount.stats()["front"]["nodes_max"]
    eventually(
        lambda: mount.stats()["front"]["nodes"] <= nodes_max, f"there are at most {nodes_max} nodes"
    )
