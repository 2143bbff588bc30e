"""Directories below a granted listing are listed by the front, once each, without Python."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mount.conftest import Mounter
from tests.mount.helpers import COPPERFS, Mount, errno_of, eventually, name_of, run
from tests.standin import StandIn

PROCESSES = 12


def make_tree(root: Path, directories: int, files: int) -> int:
    for number in range(directories):
        below = root / f"{number % 7}" / f"{number}"
        below.mkdir(parents=True)
        for each in range(files):
            (below / f"{each:03}-{'n' * 60}").write_bytes(b"%d" % each)
    return 1 + min(7, directories) + directories


def walk(root: Path) -> str:
    found = run(["find", ".", "-printf", "%p %y %s %i %l\\n"], cwd=root)
    assert found.returncode == 0, found.stderr
    return "\n".join(sorted(found.stdout.splitlines()[1:]))  # but for the root itself


def test_many_processes_at_once_cause_one_scan_of_each_directory(
    source: Path, mounted: Mounter
) -> None:
    directories = make_tree(source, 60, 5)
    mount = mounted()
    mount.reset()
    with ThreadPoolExecutor(PROCESSES) as pool:
        walks = list(pool.map(walk, [mount.mountpoint] * PROCESSES))
    assert set(walks) == {walk(source)}
    asked = mount.stats()
    assert asked["source"]["scandir"] == directories
    assert asked["source"]["stat"] <= directories + 60 * 5 + 1
    # the root, at most once each; mounting looks it up, too
    assert asked["handlers"]["requests"] <= 2 * PROCESSES
    eventually(
        lambda: mount.stats()["node"]["listed_on_credit"] == directories - 1,
        "the node has heard of all",
    )


def test_what_has_to_be_shown_otherwise_is_listed_once_as_well(
    source: Path, mounted: Mounter
) -> None:
    (source / "large").mkdir()
    for number in range(50):
        (source / "large" / f"{number}").write_bytes(b"x" * number)
    (source / "links").mkdir()
    (source / "links" / "absolute").symlink_to(source / "large" / "7")
    (source / "links" / "relative").symlink_to("../large/8")
    mount = mounted("--listing-max", "20")
    mount.reset()
    assert len(os.listdir(mount / "large")) == 50
    assert (mount / "large" / "9").stat().st_size == 9
    assert os.readlink(mount / "links" / "absolute") == str(mount / "large" / "7")
    assert os.readlink(mount / "links" / "relative") == "../large/8"
    assert (mount / "links" / "absolute").read_bytes() == b"x" * 7
    assert mount.stats()["source"]["scandir"] == 3


def test_listings_on_credit_stay_within_a_tiny_budget(source: Path, mounted: Mounter) -> None:
    make_tree(source, 60, 60)
    mount = mounted("--memory", "1MiB")
    with ThreadPoolExecutor(3) as pool:
        walks = list(pool.map(walk, [mount.mountpoint] * 3))
    assert set(walks) == {walk(source)}
    cache = mount.stats()["cache"]
    assert cache["evictions"] > 0
    assert cache["held_bytes"] + cache["reserved_bytes"] <= cache["budget_bytes"]


def test_what_began_to_be_listed_before_clear_is_not_shown_after_it(
    source: Path, tmp_path: Path
) -> None:
    (source / "directory").mkdir()
    (source / "directory" / "old").touch()
    with (
        StandIn(source) as standin,
        Mount(standin.mountpoint, tmp_path / "mnt") as mount,
        ThreadPoolExecutor(1) as pool,
    ):
        os.lstat(mount / "directory")
        # its names are read, and its entries are being looked up
        standin.hang("directory/old", ops=["lookup", "getattr"], times=1)
        listing = pool.submit(errno_of, (mount / "directory" / "new").lstat)
        standin.wait_for_hanging()
        (source / "directory" / "new").touch()
        # this waits for the kernel, which may wait for the lookup that hangs
        clearing = subprocess.Popen([*COPPERFS, "clear", mount.mountpoint], stdout=subprocess.PIPE)
        eventually(lambda: mount.stats()["epoch"] == 2, "a new epoch has begun")
        standin.heal()
        listing.result(30)
        clearing.communicate(timeout=30)
        assert sorted(os.listdir(mount / "directory")) == ["new", "old"]
        assert (mount / "directory" / "new").exists()


def test_a_mount_made_later_far_below_is_refused_and_others_are_listed_again(
    source: Path, mounted: Mounter
) -> None:
    (source / "a" / "b" / "later").mkdir(parents=True)
    make_tree(source / "other", 20, 1)
    mount = mounted()
    assert os.listdir(mount / "a") == ["b"]
    subprocess.run(["mount", "--bind", mount.mountpoint, source / "a/b/later"], check=True)
    try:
        assert os.listdir(mount / "a" / "b") == ["later"]
        assert name_of(errno_of(lambda: os.listdir(mount / "a/b/later"))) == "ELOOP"
        assert len(os.listdir(mount / "other")) == 7
    finally:
        subprocess.run(["umount", "-l", source / "a/b/later"], check=True)

    def front_lists() -> bool:
        mount.clear()
        mount.reset()
        assert len(list((mount / "other").rglob("*/*"))) >= 20
        return bool(mount.stats()["operations"]["readdir"]["fetch"]["count"])

    eventually(front_lists, "the front lists again")
