"""Read-ahead of a single node."""

from __future__ import annotations

import errno
import marshal
import os
import random
from concurrent.futures import ThreadPoolExecutor
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from copperfs.lab.pfs_sim.pfs_client import ReportedCounts
from tests.mount.conftest import Mounter
from tests.mount.helpers import Mount, errno_of, eventually
from tests.standin import StandIn

WAYS = {"ahead": (), "off": ("--no-read-ahead",)}


def fill(directory: Path, ending: str, count: int, size: int = 1000) -> dict[str, bytes]:
    directory.mkdir(exist_ok=True)
    data = {f"{n:03}{ending}": random.Random(n).randbytes(size) for n in range(count)}
    for name, content in data.items():
        (directory / name).write_bytes(content)
    return data


def opened(counts: ReportedCounts) -> dict[str, int]:
    return {path: counts.total("open", path) for path in counts.paths("open")}


@pytest.mark.parametrize("way", list(WAYS))
def test_what_is_read_of_the_source_follows_from_what_was_asked_for(
    source: Path, mounted: Mounter, way: str
) -> None:
    for name, ending, count, size in (
        ("some", ".p", 20, 1000),
        ("some", ".q", 5, 1000),
        ("many", ".p", 513, 10),
        ("large", ".p", 33, 128 << 10),
        ("apart", ".p", 3, (128 << 10) + 1),
        ("bare", "", 6, 100),
    ):
        fill(source / name, ending, count, size)
    asked = [
        *("some/007.p", "some/003.p", "some/001.q"),
        *("many/000.p", "many/001.p", "large/000.p", "large/001.p"),
        *("apart/000.p", "apart/001.p", "bare/000", "bare/001"),
    ]
    wanted = set(asked)
    if way != "off":
        wanted |= {f"some/{n:03}.p" for n in range(20)}
    with StandIn(source) as standing:
        mount = mounted(*WAYS[way], of=standing.mountpoint)
        for path in asked:
            assert (mount / path).read_bytes() == (source / path).read_bytes()
        eventually(lambda: set(opened(standing.counts())) == wanted, "all is read")
        for n in range(20):
            assert (mount / f"some/{n:03}.p").read_bytes() == (
                source / f"some/{n:03}.p"
            ).read_bytes()
        found = opened(standing.counts())
        assert set(found) == wanted | {f"some/{n:03}.p" for n in range(20)}
        assert set(found.values()) == {1}
        mount.__exit__(None, None, None)  # while the source is there


def package(directory: Path, source: str = "", modules: tuple[str, ...] = ()) -> None:
    directory.mkdir(parents=True)
    compiled = directory / "__pycache__"
    compiled.mkdir()
    for name, text in ({"__init__": source} | dict.fromkeys(modules, "")).items():
        (directory / f"{name}.py").write_text(text)
        code = marshal.dumps(compile(text, "x.py", "exec"))
        (compiled / f"{name}.cpython-311.pyc").write_bytes(MAGIC_NUMBER + bytes(12) + code)


@pytest.mark.parametrize("way", list(WAYS))
def test_what_a_package_mentions_is_there_before_it_is_asked_for(
    source: Path, mounted: Mounter, way: str
) -> None:
    package(source / "p", "from . import sub, lib\nimport p.deep.er", ("m",))
    package(source / "p" / "sub", "from . import below")
    package(source / "p" / "sub" / "below")
    package(source / "p" / "deep")
    package(source / "p" / "other")
    for name in ("lib.cpython-311.so", "els.so"):
        (source / "p" / name).write_bytes(b"x" * 200_000)
    asked, ahead = ["p/__pycache__/__init__.cpython-311.pyc"], []
    listed, listed_ahead = [".", "p", "p/__pycache__"], []
    if way != "off":
        ahead = ["p/__pycache__/m.cpython-311.pyc", "p/lib.cpython-311.so"]
        listed_ahead = ["p/sub", "p/sub/__pycache__", "p/deep", "p/deep/__pycache__"]
    with StandIn(source) as standing:
        mount = mounted(*WAYS[way], of=standing.mountpoint)
        for path in asked:
            assert (mount / path).read_bytes() == (source / path).read_bytes()

        def all_is_there() -> bool:
            counts = standing.counts()
            directories = {path: counts.total("opendir", path) for path in counts.paths("opendir")}
            return opened(counts) == dict.fromkeys(asked + ahead, 1) and directories == (
                dict.fromkeys(listed + listed_ahead, 1)
            )

        eventually(all_is_there, "what is mentioned was fetched, and nothing else")
        for path in ahead:
            assert (mount / path).read_bytes() == (source / path).read_bytes()
        for path in listed_ahead:
            assert sorted(os.listdir(mount / path)) == sorted(os.listdir(source / path))
        assert all_is_there(), "each once"
        if way == "front":
            # the front reports it a moment later
            eventually(lambda: mount.stats()["node"]["listed_ahead"] >= 4, "it is counted")
        mount.__exit__(None, None, None)  # while the source is there


def test_what_is_larger_than_all_credit_keeps_nothing_else_from_being_read(
    source: Path, mounted: Mounter
) -> None:
    package(source / "p", "from . import large, small")
    (source / "p" / "large.so").write_bytes(b"x" * (3 << 20))
    (source / "p" / "small.so").write_bytes(b"x" * 1000)
    with StandIn(source) as standing:
        # a quarter of it is credit, and half of it the largest file that is held whole
        mount = mounted("--memory", "8MiB", of=standing.mountpoint)
        file = "p/__pycache__/__init__.cpython-311.pyc"
        assert (mount / file).read_bytes() == (source / file).read_bytes()
        wanted = {file: 1, "p/small.so": 1}
        eventually(lambda: opened(standing.counts()) == wanted, "the small one is read")
        mount.__exit__(None, None, None)  # while the source is there


def test_a_mount_elsewhere_leaves_nothing_out_that_is_fetched_ahead(
    source: Path, mounted: Mounter, tmp_path: Path
) -> None:
    package(source / "p", "from . import sub")
    package(source / "p" / "sub")
    file = "p/__pycache__/__init__.cpython-311.pyc"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with StandIn(source) as standing:
        mount = mounted(of=standing.mountpoint)
        os.listdir(mount / "p" / "__pycache__")
        rule = standing.hang(file, ops=["open"])
        with ThreadPoolExecutor() as pool:
            read = pool.submit((mount / file).read_bytes)
            standing.wait_for_hanging()
            with StandIn(elsewhere):
                standing.release(rule)
                assert read.result() == (source / file).read_bytes()
                eventually(
                    lambda: "p/sub/__pycache__" in standing.counts().paths("opendir"),
                    "it was listed once it was known what is mounted where",
                )
        mount.__exit__(None, None, None)  # while the source is there


def read_two(mount: Mount, directory: str) -> None:
    for name in ("000.p", "001.p"):
        (mount / directory / name).read_bytes()


def test_what_was_read_ahead_is_counted_and_answers_without_python(
    source: Path, mounted: Mounter
) -> None:
    data = fill(source / "d", ".p", 20)
    mount = mounted()
    os.listdir(mount / "d")
    mount.reset()
    read_two(mount, "d")
    eventually(lambda: mount.stats()["node"]["read_ahead"] == 18, "it was read ahead")
    stats = mount.stats()
    assert stats["node"]["read_ahead_bytes"] == 18_000
    assert stats["node"]["read_ahead_used"] == 0
    assert stats["source"]["open"] == 20
    assert stats["node"]["fetched_on_credit"] == 20
    for name, content in data.items():
        assert (mount / "d" / name).read_bytes() == content
    assert mount.stats()["source"]["open"] == 20
    assert mount.stats()["handlers"]["requests"] == stats["handlers"]["requests"]
    eventually(lambda: mount.stats()["node"]["read_ahead_used"] == 18, "all was used")


def test_a_file_that_changes_before_it_is_read_ahead_is_read_as_it_is(
    source: Path, mounted: Mounter
) -> None:
    data = fill(source / "d", ".p", 6)
    mount = mounted()
    os.listdir(mount / "d")
    for name in ("004.p", "005.p"):
        new = source / "d" / "new"
        new.write_bytes(data[name] * 2)
        new.rename(source / "d" / name)
    read_two(mount, "d")
    eventually(lambda: mount.stats()["node"]["read_ahead"] == 2, "what is as it was came")
    assert mount.stats()["node"]["failures"] == 0
    assert (mount / "d" / "002.p").read_bytes() == data["002.p"]
    for name in ("004.p", "005.p"):
        # the reader gets the error, as if there had been no earlier try
        assert errno_of((mount / "d" / name).read_bytes) == errno.ESTALE
        assert (mount / "d" / name).read_bytes() == data[name] * 2


def test_a_budget_that_has_no_room_for_it_keeps_what_was_asked_for(
    source: Path, mounted: Mounter
) -> None:
    data = fill(source / "d", ".p", 30, 100_000)
    mount = mounted("--memory", "2MiB")
    for _ in range(2):
        for name, content in data.items():
            assert (mount / "d" / name).read_bytes() == content
    cache = mount.stats()["cache"]
    assert cache["held_bytes"] + cache["reserved_bytes"] <= cache["budget_bytes"]


def test_after_a_clear_it_begins_anew(source: Path, mounted: Mounter) -> None:
    data = fill(source / "d", ".p", 10)
    mount = mounted()
    read_two(mount, "d")
    eventually(lambda: mount.stats()["node"]["read_ahead"] == 8, "it was read ahead")
    mount.clear()
    mount.reset()
    for name in ("003.p", "002.p"):
        assert (mount / "d" / name).read_bytes() == data[name]
    eventually(lambda: mount.stats()["node"]["read_ahead"] == 8, "and again")


@pytest.mark.parametrize("way", list(WAYS))
def test_what_cannot_be_looked_at_is_not_fetched_ahead_and_shows_its_error(
    source: Path, mounted: Mounter, way: str
) -> None:
    package(source / "p", "from . import sub, lib\nimport p.deep.er", ("m",))
    package(source / "p" / "sub")
    package(source / "p" / "deep")
    (source / "p" / "lib.cpython-311.so").write_bytes(b"x" * 200_000)
    sick = [
        "p/sub",
        "p/lib.cpython-311.so",
        "p/deep/__pycache__",
        "p/__pycache__/m.cpython-311.pyc",
    ]
    with StandIn(source) as standing:
        for path in sick:
            standing.fail(path, errno.EIO, ops=["lookup", "getattr"])
        mount = mounted(*WAYS[way], of=standing.mountpoint)
        init = "p/__pycache__/__init__.cpython-311.pyc"
        assert (mount / init).read_bytes() == (source / init).read_bytes()
        if way != "off":
            eventually(lambda: standing.counts().total("opendir", "p/deep") == 1, "it is mentioned")
        for _ in range(2):
            assert [errno_of((mount / path).lstat) for path in sick] == [errno.EIO] * len(sick)
        counts = standing.counts()
        assert not counts.paths("opendir") & set(sick)
        assert not counts.paths("open") & set(sick)
        standing.heal()
        for path in sick:
            shown, there = (mount / path).lstat(), (source / path).lstat()
            assert (shown.st_mode, shown.st_size) == (there.st_mode, there.st_size)
        assert (mount / sick[1]).read_bytes() == (source / sick[1]).read_bytes()
        assert sorted(os.listdir(mount / sick[0])) == sorted(os.listdir(source / sick[0]))
        mount.__exit__(None, None, None)  # while the source is there
