"""Hostile uses of a filesystem."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.mount.conftest import Mounter
from tests.mount.helpers import (
    Mount,
    bind_mounted,
    errno_of,
    eventually,
    is_running,
    name_of,
    python,
)
from tests.standin import StandIn

OPEN_FILES = 10_000


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES + 2000
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(hard, wanted)))


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("tree_max", ["10MiB", "0"], ids=["whole", "large"])
def test_ten_thousand_files_are_opened_and_read_in_parallel(
    source: Path, mounted: Mounter, tree_max: str
) -> None:
    for directory in range(20):
        (source / f"{directory}").mkdir()
        for number in range(OPEN_FILES // 20):
            (source / f"{directory}" / f"{number}").write_bytes(b"%d.%d;" % (directory, number))
    mount = mounted("--tree-max", tree_max)
    names = [f"{d}/{n}" for n in range(OPEN_FILES // 20) for d in range(20)]
    with ThreadPoolExecutor(100) as pool:
        fds = list(pool.map(lambda name: os.open(mount / name, os.O_RDONLY), names))
        contents = list(pool.map(lambda fd: os.read(fd, 100), fds))
    for name, content in zip(names, contents, strict=True):
        assert content == name.replace("/", ".").encode() + b";"
    stats = mount.stats()
    assert stats["front"]["protocol_errors"] == 0
    assert stats["source"]["open"] <= OPEN_FILES * 1.05
    for fd in fds:
        os.close(fd)


def test_many_processes_at_once_read_the_same_tree(source: Path, mounted: Mounter) -> None:
    for number in range(200):
        (source / f"{number}").write_bytes(os.urandom(20_000))
    mount = mounted()
    script = """if True:
        import hashlib, os, sys
        digest = hashlib.sha256()
        for name in sorted(os.listdir(sys.argv[1])):
            digest.update(open(os.path.join(sys.argv[1], name), "rb").read())
        print(digest.hexdigest())
    """
    with ThreadPoolExecutor(24) as pool:
        said = list(pool.map(lambda _: python(script, mount.mountpoint).stdout, range(24)))
    assert set(said) == {python(script, source).stdout}
    assert mount.stats()["source"]["open"] == 200
    assert mount.stats()["source"]["scandir"] == 1


def test_a_budget_smaller_than_one_file_still_serves_it(source: Path, mounted: Mounter) -> None:
    for name in ("a", "b"):
        (source / name).write_bytes(os.urandom(9 << 20))
    for number in range(300):
        (source / f"small-{number}").write_bytes(os.urandom(30_000))
    mount = mounted("--memory", "4MiB")
    for _ in range(2):
        with ThreadPoolExecutor(8) as pool:
            for name, data in pool.map(
                lambda name: (name, (mount / name).read_bytes()), sorted(os.listdir(source)) * 2
            ):
                assert data == (source / name).read_bytes(), name
        mount.clear()
    cache = mount.stats()["cache"]
    assert cache["budget_bytes"] == 4 << 20
    assert cache["held_bytes"] <= 4 << 20
    assert cache["evictions"] > 0


@pytest.mark.parametrize("memory", ["0", "1", "64KiB"])
def test_no_budget_to_speak_of_still_serves_everything(
    source: Path, mounted: Mounter, memory: str
) -> None:
    (source / "directory").mkdir()
    for number in range(500):
        (source / "directory" / f"{number}").write_bytes(b"%d" % number)
    mount = mounted("--memory", memory)
    assert len(os.listdir(mount / "directory")) == 500
    for number in range(500):
        assert (mount / f"directory/{number}").read_bytes() == b"%d" % number
        assert name_of(errno_of((mount / f"directory/no-{number}").lstat)) == "ENOENT"


def test_hits_go_on_while_hundreds_of_misses_wait(source: Path, tmp_path: Path) -> None:
    """Hazard 4: front threads that blocked on the way to Python stalled the hits for seconds."""
    (source / "hot").mkdir()
    for number in range(50):
        (source / "hot" / f"{number}").write_bytes(bytes(4096))
    waiting = 700
    for number in range(waiting):
        (source / f"cold-{number:03}").write_bytes(b"cold")
    with (
        StandIn(source) as standin,
        Mount(standin.mountpoint, tmp_path / "mnt") as mount,
        ThreadPoolExecutor(waiting) as pool,
        ExitStack() as at_the_end,
    ):
        at_the_end.callback(standin.heal)  # before the readers are waited for
        os.listdir(mount.mountpoint)
        for number in range(50):
            (mount / f"hot/{number}").read_bytes()
        rule = standin.hang("**", ops=["open", "read"])
        cold = [pool.submit((mount / f"cold-{number:03}").read_bytes) for number in range(waiting)]
        standin.wait_for_hanging(16)
        eventually(lambda: mount.stats()["front"]["pending"] >= waiting * 0.9, "they all wait", 30)
        mount.reset()
        # O_DIRECT: each of these is a hit of the front
        for _ in range(20):
            for number in range(50):
                fd = os.open(mount / f"hot/{number}", os.O_RDONLY | os.O_DIRECT)
                with open(fd, "rb", buffering=0) as file:
                    assert len(file.read(4096)) == 4096
        stats = mount.stats()
        assert stats["operations"]["read"]["hit"]["count"] >= 1000
        assert stats["operations"]["read"]["hit"]["p99_us"] < 1_000_000
        assert not any(each.done() for each in cold)
        standin.release(rule)
        assert {each.result(60) for each in cold} == {b"cold"}


def test_a_reader_that_never_closes_holds_nobody_up(source: Path, mounted: Mounter) -> None:
    (source / "file").write_bytes(os.urandom(1 << 20))
    (source / "large").write_bytes(os.urandom(1 << 22))
    mount = mounted("--tree-max", "2MiB", "--memory", "8MiB")
    held = [os.open(mount / name, os.O_RDONLY) for name in ("file", "large") for _ in range(500)]
    for fd in held:
        os.pread(fd, 1, 0)
    for _ in range(5):
        mount.clear()
        assert (mount / "file").read_bytes() == (source / "file").read_bytes()
        assert (mount / "large").read_bytes() == (source / "large").read_bytes()
    assert mount.stats()["cache"]["held_bytes"] <= 8 << 20
    for fd in held:
        os.close(fd)


@pytest.mark.parametrize("flags", [(), ("--revalidate", "0.1")], ids=["snapshot", "revalidate"])
def test_listing_a_directory_that_keeps_changing_gives_each_lasting_name_once(
    source: Path, mounted: Mounter, flags: tuple[str, ...]
) -> None:
    lasting = {f"lasting-{number:04}" for number in range(2000)}
    for name in lasting:
        (source / name).touch()
    mount = mounted(*flags)
    stop = threading.Event()

    def keep_changing() -> None:
        number = 0
        while not stop.is_set():
            (source / f"passing-{number}").touch()
            if number >= 50:
                (source / f"passing-{number - 50}").unlink()
            number += 1

    writer = threading.Thread(target=keep_changing)
    writer.start()
    try:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            names = os.listdir(mount.mountpoint)
            assert lasting <= set(names)
            assert len(names) == len(set(names)), "a name came twice"
            if not flags:
                mount.clear()
    finally:
        stop.set()
        writer.join()


def test_clearing_without_end_disturbs_no_reader(source: Path, mounted: Mounter) -> None:
    contents = {f"{number}": os.urandom(50_000) for number in range(50)}
    for name, content in contents.items():
        (source / name).write_bytes(content)
    mount = mounted()
    stop = threading.Event()
    wrong: list[str] = []

    def keep_reading() -> None:
        while not stop.is_set():
            for name, content in contents.items():
                if (mount / name).read_bytes() != content:
                    wrong.append(name)

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(keep_reading) for _ in range(8)]
        try:
            for _ in range(15):
                mount.clear()
        finally:
            stop.set()
        for reader in readers:
            reader.result(30)
    assert not wrong


def test_more_names_than_the_tables_hold_are_forgotten_again(
    source: Path, mounted: Mounter
) -> None:
    """The kernel forgets no name while it has memory, unless a notification makes it."""
    for directory in range(12):
        (source / f"{directory}").mkdir()
        for number in range(1000):
            (source / f"{directory}" / f"{number}").touch()
    mount = mounted("--memory", "1MiB")  # 4,096 names, the least there is
    for directory in range(12):
        for number in range(1000):
            os.lstat(mount / f"{directory}/{number}")
    front = mount.stats()["front"]
    assert front["nodes_max"] < 12_000
    eventually(
        lambda: mount.stats()["front"]["nodes"] <= front["nodes_max"], "the excess is forgotten"
    )
    assert os.lstat(mount / "0/0").st_size == 0


def test_the_daemon_outlives_its_source(source: Path, tmp_path: Path) -> None:
    (source / "below").mkdir()
    (source / "below" / "file").write_bytes(b"content")
    with ExitStack() as stack:
        unbind = stack.enter_context(ExitStack())
        bound = unbind.enter_context(bind_mounted(source, tmp_path / "bound"))
        mount = stack.enter_context(Mount(bound, tmp_path / "mnt"))
        assert (mount / "below/file").read_bytes() == b"content"
        unbind.close()
        assert (mount / "below/file").read_bytes() == b"content"
        mount.clear()
        assert name_of(errno_of((mount / "below/file").read_bytes)) == "ENOENT"
        assert is_running(mount.pid)
