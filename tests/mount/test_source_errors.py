"""Errors of the source reach the caller, in time, and are forgotten once the source is well."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.mount.helpers import Mount, errno_of, eventually, is_running, name_of, start_python
from tests.patience import PATIENCE
from tests.standin import StandIn

DEADLINE_S = 1.0
# A busy machine checks a deadline a little later.
LATE_S = 3.0
ERRORS = [errno.EACCES, errno.EIO, errno.ENOENT, errno.ESTALE]


@pytest.fixture
def slow(source: Path) -> Iterator[StandIn]:
    (source / "directory").mkdir()
    (source / "directory" / "file").write_bytes(b"content")
    (source / "directory" / "link").symlink_to("file")
    (source / "large").write_bytes(os.urandom(4 << 20))
    for number in range(40):
        (source / f"file-{number:02}").write_bytes(b"%d" % number * 1000)
    (source / "wide").mkdir()
    for number in range(40):
        (source / "wide" / f"{number:02}").write_bytes(b"%d" % number)
    with StandIn(source) as standin:
        yield standin


@pytest.fixture
def mount(slow: StandIn, tmp_path: Path) -> Iterator[Mount]:
    deadline = ("--source-deadline", str(DEADLINE_S))
    with Mount(slow.mountpoint, tmp_path / "mnt", *deadline, "--tree-max", "1MiB") as mount:
        yield mount
        slow.heal()


def whole(path: Path) -> bytes:
    """Python's buffering would ask for the size first."""
    fd = os.open(path, os.O_RDONLY)
    try:
        data = b""
        while part := os.read(fd, 1 << 20):
            data += part
        return data
    finally:
        os.close(fd)


# ---- errors --------------------------------------------------------------------------------------

OPERATIONS: dict[str, tuple[str, list[str], str, Callable[[Path], object]]] = {
    # operation and path at the source; what the reader does with which path
    "list": ("directory", ["opendir", "readdir"], "directory", os.listdir),
    "look up": ("directory", ["opendir", "readdir", "lookup"], "directory/file", os.lstat),
    "open": ("directory/file", ["open"], "directory/file", whole),
    "read": ("directory/file", ["read"], "directory/file", whole),
    "open large": ("large", ["open"], "large", whole),
    "read large": ("large", ["read"], "large", whole),
}


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_error_of_the_source_reaches_the_caller_and_is_forgotten_when_it_heals(
    slow: StandIn, mount: Mount, operation: str, code: int
) -> None:
    failing, ops, path, act = OPERATIONS[operation]
    os.lstat(mount / path.split("/")[0])  # so that the intended operation fails
    slow.fail(failing, code, ops=ops)
    if operation == "look up":
        # every name in it has the same trouble
        slow.fail(f"{failing}/**", code, ops=["lookup", "getattr"])
    outcome = errno_of(lambda: act(mount / path))
    if operation == "list" and code == errno.ENOENT:
        # glibc would take ENOENT from reading a directory for its end
        assert outcome == errno.ESTALE
    else:
        assert name_of(outcome) == name_of(code)
    slow.heal()
    eventually(
        lambda: errno_of(lambda: act(mount / path)) is None, "it works as soon as it is healed", 2
    )
    if path == "directory/file":
        assert whole(mount / path) == b"content"


def test_reading_a_link_whose_directory_fails_says_so(slow: StandIn, mount: Mount) -> None:
    os.lstat(mount / "directory")
    slow.fail("directory/**", errno.EIO)
    assert name_of(errno_of(lambda: os.readlink(mount / "directory/link"))) == "EIO"
    slow.heal()
    assert os.readlink(mount / "directory/link") == "file"


BARE = ("--listing-max", "5")
WIDE = [f"{number:02}" for number in range(40)]


def look_beside_the_sick_one(mount: Mount) -> None:
    for name in WIDE:
        if name != "07":
            assert whole(mount / "wide" / name) == b"%d" % int(name)
            assert (mount / "wide" / name).stat().st_size == len(b"%d" % int(name))
    with os.scandir(mount / "wide") as found:
        types = {each.name: each.is_file(follow_symlinks=False) for each in found}
    assert types == dict.fromkeys(WIDE, True), "its name and type are shown as well"
    assert sorted(os.listdir(mount / "wide")) == WIDE
    assert name_of(errno_of((mount / "wide/absent").lstat)) == "ENOENT"


@pytest.mark.parametrize(
    "code", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ENOTCONN], ids=errno.errorcode.get
)
@pytest.mark.parametrize("flags", [(), BARE], ids=["usual", "bare"])
def test_an_error_of_one_entry_hides_neither_the_directory_nor_the_others(
    slow: StandIn, tmp_path: Path, flags: tuple[str, ...], code: int
) -> None:
    slow.fail("wide/07", code, ops=["lookup", "getattr"])
    with Mount(slow.mountpoint, tmp_path / "mnt", *flags) as mount:
        slow.reset_counts()
        for _ in range(2):
            look_beside_the_sick_one(mount)
            assert name_of(errno_of((mount / "wide/07").lstat)) == name_of(code)
        counts = slow.counts()
        assert counts.total("opendir", "wide") == 1
        assert all(counts.total("open", f"wide/{name}") == 1 for name in WIDE if name != "07")
        slow.heal()
        assert whole(mount / "wide/07") == b"7"
        assert (mount / "wide/07").stat().st_size == 1
        assert slow.counts().total("opendir", "wide") == 1


def test_an_entry_that_hangs_hides_neither_the_directory_nor_the_others(
    slow: StandIn, tmp_path: Path
) -> None:
    slow.hang("wide/07", ops=["lookup", "getattr"])
    with Mount(slow.mountpoint, tmp_path / "mnt", "--source-deadline", "6") as mount:
        slow.reset_counts()
        look_beside_the_sick_one(mount)
        assert slow.counts().total("opendir", "wide") == 1
        assert slow.counts().total("lookup", "wide/07") == 1, "it is hung in once, by the scan"
        assert name_of(errno_of((mount / "wide/07").lstat)) == "ETIMEDOUT"
        look_beside_the_sick_one(mount)
        slow.heal()
        assert whole(mount / "wide/07") == b"7"
        assert slow.counts().total("opendir", "wide") == 1


def test_what_is_cached_is_served_while_the_source_fails(slow: StandIn, mount: Mount) -> None:
    content = whole(mount / "directory/file")
    os.listdir(mount / "wide")
    slow.fail("**", errno.EIO)
    assert whole(mount / "directory/file") == content
    assert len(os.listdir(mount / "wide")) == 40
    assert name_of(errno_of((mount / "wide/absent").lstat)) == "ENOENT"


# ---- a source that hangs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    list(OPERATIONS),
)
def test_a_hung_source_gives_its_reader_an_error_within_the_deadline(
    slow: StandIn, mount: Mount, operation: str
) -> None:
    hanging, ops, path, act = OPERATIONS[operation]
    os.lstat(mount / path.split("/")[0])
    slow.hang(hanging, ops=ops)
    if operation == "look up":
        slow.hang(f"{hanging}/**", ops=["lookup", "getattr"])
    start = time.monotonic()
    outcome = errno_of(lambda: act(mount / path))
    took_s = time.monotonic() - start
    assert name_of(outcome) == "ETIMEDOUT"
    # a lookup may follow a scan, each with a deadline of its own
    assert took_s < 2 * DEADLINE_S + LATE_S
    # others are not affected
    assert whole(mount / "file-01") == b"1" * 1000
    slow.heal()
    eventually(
        lambda: errno_of(lambda: act(mount / path)) is None, "it works as soon as it is healed", 5
    )


def test_other_paths_work_while_many_readers_hang(slow: StandIn, mount: Mount) -> None:
    os.listdir(mount.mountpoint)
    # beyond --source-concurrency, misses wait for a thread until the deadline
    hung = [mount / f"file-{number:02}" for number in range(20)]
    for path in hung:
        slow.hang(path.name, ops=["read"])
    with ThreadPoolExecutor(len(hung)) as pool:
        outcomes = [pool.submit(errno_of, partial(whole, path)) for path in hung]
        slow.wait_for_hanging(len(hung))
        assert whole(mount / "directory/file") == b"content"
        assert whole(mount / "file-30") == b"30" * 1000
        assert len(os.listdir(mount / "wide")) == 40
        assert slow.counts().hanging == len(hung), "done before any of those gave up"
        assert {name_of(each.result(30)) for each in outcomes} == {"ETIMEDOUT"}
    slow.heal()
    for number, path in enumerate(hung):
        assert whole(path) == b"%d" % number * 1000


def test_hits_are_served_when_every_thread_of_the_source_hangs(slow: StandIn, mount: Mount) -> None:
    content = whole(mount / "directory/file")
    hung = [mount / f"file-{number:02}" for number in range(40)]
    slow.hang("**", ops=["read"])
    with ThreadPoolExecutor(len(hung)) as pool:
        outcomes = [pool.submit(errno_of, partial(whole, path)) for path in hung]
        slow.wait_for_hanging(20)
        assert whole(mount / "directory/file") == content
        assert slow.counts().hanging >= 20, "done before any of those gave up"
        assert {name_of(each.result(30)) for each in outcomes} == {"ETIMEDOUT"}
    slow.heal()
    for number, path in enumerate(hung):
        assert whole(path) == b"%d" % number * 1000


def test_a_stuck_reader_can_be_killed_at_once(slow: StandIn, tmp_path: Path) -> None:
    with Mount(slow.mountpoint, tmp_path / "mnt", "--source-deadline", "60") as mount:
        os.lstat(mount / "directory/file")
        slow.hang("directory/file")
        reader = start_python("import sys; open(sys.argv[1]).read()", mount / "directory/file")
        try:
            slow.wait_for_hanging(1)
            reader.send_signal(signal.SIGKILL)
            eventually(lambda: not is_running(reader.pid), "the reader is dead", 2 * PATIENCE)
            reader.wait(5)
            assert slow.counts().hanging >= 1, "it still hung when the reader died"
        finally:
            slow.heal()
            reader.kill()
            reader.wait(5)
            assert reader.stdin is not None
            assert reader.stdout is not None
            reader.stdin.close()
            reader.stdout.close()
        assert whole(mount / "directory/file") == b"content"


def test_a_stuck_reader_in_very_many_groups_can_be_killed_at_once(
    slow: StandIn, tmp_path: Path
) -> None:
    """Its groups come before its signals in /proc/PID/status: here some 60 KiB."""
    script = "import os, sys; os.setgroups(range(10**9, 10**9 + 6000)); os.lstat(sys.argv[1])"
    with Mount(slow.mountpoint, tmp_path / "mnt", "--source-deadline", "60") as mount:
        os.lstat(mount / "directory")
        slow.hang("directory", ops=["opendir", "readdir"])
        with start_python(script, mount / "directory/file") as reader:
            slow.wait_for_hanging(1)
            reader.kill()
            eventually(lambda: not is_running(reader.pid), "the reader is dead", 10)
            assert slow.counts().hanging >= 1, "it still hung when the reader died"
        slow.heal()


def test_a_killed_reader_does_not_take_the_answer_from_another(
    slow: StandIn, tmp_path: Path
) -> None:
    with Mount(slow.mountpoint, tmp_path / "mnt", "--source-deadline", "60") as mount:
        os.lstat(mount / "directory/file")
        rule = slow.hang("directory/file", ops=["read"])
        script = "import sys; print(open(sys.argv[1]).read())"
        dies, lives = (start_python(script, mount / "directory/file") for _ in range(2))
        slow.wait_for_hanging(1)
        dies.kill()
        dies.communicate(timeout=10 * PATIENCE)
        slow.release(rule)
        assert lives.communicate(timeout=20 * PATIENCE)[0] == "content\n"


def test_a_mount_whose_source_hangs_can_be_unmounted(slow: StandIn, tmp_path: Path) -> None:
    with Mount(slow.mountpoint, tmp_path / "mnt", "--source-deadline", "60") as mount:
        os.lstat(mount / "directory/file")
        slow.hang("**", ops=["open", "read"])
        outcome: list[int | None] = []
        reader = threading.Thread(
            target=lambda: outcome.append(errno_of(lambda: whole(mount / "directory/file")))
        )
        reader.start()
        slow.wait_for_hanging(1)
        try:
            os.kill(mount.pid, signal.SIGTERM)
            reader.join(15)
            assert not reader.is_alive(), "the reader still waits after the daemon was told to end"
        finally:
            slow.heal()
            reader.join(70)
        assert outcome[0] is not None


# ---- one operation at the source -----------------------------------------------------------------


def test_many_readers_of_one_slow_file_cause_one_open_and_one_pass_over_it(
    slow: StandIn, mount: Mount
) -> None:
    os.lstat(mount / "directory/file")
    rule = slow.hang("directory/file", ops=["open"])
    slow.reset_counts()
    with ThreadPoolExecutor(30) as pool:
        readers = [pool.submit(whole, mount / "directory/file") for _ in range(30)]
        slow.wait_for_hanging(1)
        slow.release(rule)
        assert {each.result(30) for each in readers} == {b"content"}
    assert slow.counts().total("open", "directory/file") == 1
    assert slow.counts().read_bytes["directory/file"] == len(b"content")


def test_many_lookups_in_one_slow_directory_cause_one_scan(slow: StandIn, mount: Mount) -> None:
    os.lstat(mount / "wide")
    slow.reset_counts()
    slow.delay("wide", 0.3, ops=["readdir"])
    with ThreadPoolExecutor(30) as pool:
        list(pool.map(os.lstat, [mount / f"wide/{number:02}" for number in range(30)]))
    assert slow.counts().total("readdir", "wide") <= 2  # the second finds its end
    assert slow.counts().total("opendir", "wide") == 1
    assert mount.stats()["source"]["scandir"] <= 2


def test_slow_lookups_in_one_directory_do_not_wait_for_each_other(
    slow: StandIn, tmp_path: Path
) -> None:
    """Without PARALLEL_DIROPS the kernel holds the directory locked over each lookup."""
    with Mount(slow.mountpoint, tmp_path / "mnt", "--listing-max", "5") as mount:
        os.listdir(mount / "wide")  # bare: each name is looked up by itself
        names = [f"wide/{number:02}" for number in range(8)]
        for name in names:
            slow.hang(name, ops=["lookup", "getattr"])
        with ThreadPoolExecutor(len(names)) as pool:
            looks = [pool.submit(os.lstat, mount / name) for name in names]
            slow.wait_for_hanging(len(names))  # all in parallel; in turn there would be one
            slow.heal()
            assert all(each.result(30).st_size for each in looks)
