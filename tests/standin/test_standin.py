"""The stand-in meets what tests assume of it: same bytes, real latency, faults on command."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from copperfs.model.errors import ControlError
from tests.standin import StandIn

pytestmark = pytest.mark.mount

MIB = 1 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "dir" / "deeper").mkdir(parents=True)
    (root / "hello").write_bytes(b"hello\n")
    (root / "dir" / "big").write_bytes(os.urandom(3 * MIB + 17))
    (root / "dir" / "link").symlink_to("../hello")
    os.link(root / "hello", root / "dir" / "hard")
    for index in range(40):
        (root / "dir" / "deeper" / f"n{index:02}").write_bytes(b"%d" % index)
    return root


@pytest.fixture
def slow(source: Path) -> Iterator[StandIn]:
    with StandIn(source) as standin:
        yield standin


def errno_of(action: Callable[[], object]) -> int | None:
    try:
        action()
    except OSError as error:
        return error.errno
    return None


def is_mounted(path: Path) -> bool:
    return f" {path} " in Path("/proc/self/mountinfo").read_text()


def test_bytes_names_and_attributes_are_the_sources(slow: StandIn, source: Path) -> None:
    subprocess.run(["diff", "-r", str(source), str(slow.mountpoint)], check=True)
    for relative in ("hello", "dir", "dir/big", "dir/link", "dir/hard"):
        here, there = (source / relative).lstat(), (slow.mountpoint / relative).lstat()
        for name in ("mode", "ino", "nlink", "size", "blocks", "mtime_ns", "ctime_ns"):
            assert getattr(here, f"st_{name}") == getattr(there, f"st_{name}"), (relative, name)
    assert os.readlink(slow.mountpoint / "dir" / "link") == "../hello"
    assert errno_of((slow.mountpoint / "absent").stat) == errno.ENOENT
    assert errno_of(lambda: (slow.mountpoint / "new").write_bytes(b"")) == errno.EROFS


def test_a_file_can_be_mapped(slow: StandIn, source: Path) -> None:
    with (
        (slow.mountpoint / "dir" / "big").open("rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped,
    ):
        assert mapped[:] == (source / "dir" / "big").read_bytes()


def test_every_operation_is_seen_and_counted_by_path(slow: StandIn) -> None:
    for _ in range(3):
        (slow.mountpoint / "hello").read_bytes()
    os.listdir(slow.mountpoint / "dir" / "deeper")
    counts = slow.counts()
    assert counts.total("open", "hello") == 3
    assert counts.total("lookup", "hello") >= 3
    assert counts.total("readdir", "dir/deeper") == 1
    assert counts.read_bytes["hello"] == 18
    slow.reset_counts()
    assert slow.counts().total() == 0


def test_a_read_of_a_megabyte_is_one_read(slow: StandIn) -> None:
    with (slow.mountpoint / "dir" / "big").open("rb", buffering=0) as file:
        assert len(file.read(MIB)) == MIB
    assert slow.counts().total("read", "dir/big") == 1


def test_latency_is_paid_by_each_but_not_in_turn(slow: StandIn) -> None:
    slow.set_latency(per_op_s=0.2)
    names = [slow.mountpoint / "dir" / "deeper" / f"n{index:02}" for index in range(16)]
    os.stat(names[0].parent)
    start = time.monotonic()
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(os.lstat, names))
    # In turn, 16 paths would take 16 * 3 * 0.2 s = 10 s.
    assert 0.2 <= time.monotonic() - start < 3


def test_reads_have_a_latency_of_their_own(slow: StandIn) -> None:
    slow.set_latency(per_read_s=0.1)
    start = time.monotonic()
    with (slow.mountpoint / "dir" / "big").open("rb", buffering=0) as file:
        assert time.monotonic() - start < 0.1
        file.read(MIB)
    assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ENOENT])
def test_a_path_fails_as_told_and_heals(slow: StandIn, code: int) -> None:
    rule = slow.fail("hello", code, ops=["open"])
    path = slow.mountpoint / "hello"
    assert errno_of(path.read_bytes) == code
    assert errno_of((slow.mountpoint / "dir" / "big").read_bytes) is None
    slow.release(rule)
    assert path.read_bytes() == b"hello\n"


def test_a_subtree_and_single_times_can_be_named(slow: StandIn) -> None:
    slow.fail("dir/**", errno.EIO, ops=["read"], times=1)
    with (slow.mountpoint / "dir" / "big").open("rb", buffering=0) as file:
        assert errno_of(lambda: file.read(10)) == errno.EIO
        assert len(file.read(10)) == 10


def test_a_stale_handle_is_reported_as_such(slow: StandIn) -> None:
    with (slow.mountpoint / "hello").open("rb", buffering=0) as file:
        slow.fail("hello", errno.ESTALE, ops=["read"])
        assert errno_of(lambda: file.read(1)) == errno.ESTALE


def test_a_hang_holds_only_its_own_path_and_can_be_released(slow: StandIn) -> None:
    rule = slow.hang("hello", ops=["read"])
    results: list[bytes] = []
    reader = threading.Thread(
        target=lambda: results.append((slow.mountpoint / "hello").read_bytes())
    )
    reader.start()
    slow.wait_for_hanging(1)
    assert len((slow.mountpoint / "dir" / "big").read_bytes()) == 3 * MIB + 17
    assert not results
    slow.release(rule)
    reader.join(5)
    assert results == [b"hello\n"]


def test_a_file_replaced_while_open_stays_itself(slow: StandIn, source: Path) -> None:
    with (slow.mountpoint / "hello").open("rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        (source / "other").write_bytes(b"a longer text\n")
        os.replace(source / "other", source / "hello")
        assert os.fstat(file.fileno()).st_ino == before.st_ino
        assert file.read() == b"hello\n"
    assert (slow.mountpoint / "hello").read_bytes() == b"a longer text\n"


def test_a_wrong_request_is_refused_and_harmless(slow: StandIn) -> None:
    with pytest.raises(ControlError, match="unknown operations"):
        slow.hang("hello", ops=["chew"])
    with pytest.raises(ControlError, match="errno"):
        slow.fail("hello", 0)
    assert (slow.mountpoint / "hello").read_bytes() == b"hello\n"


def test_a_hung_standin_can_always_be_removed(source: Path) -> None:
    standin = StandIn(source)
    with standin:
        standin.hang("**", ops=["read"])
        codes: list[int | None] = []
        reader = threading.Thread(
            target=lambda: codes.append(errno_of((standin.mountpoint / "hello").read_bytes))
        )
        reader.start()
        standin.wait_for_hanging(1)
        standin.kill()
        reader.join(5)
        # The kernel decides whether it asks again for a page whose read was aborted.
        assert codes == [errno.ECONNABORTED] or codes == [errno.ENOTCONN]
        assert errno_of(lambda: os.listdir(standin.mountpoint)) == errno.ENOTCONN
    assert not is_mounted(standin.mountpoint)
    assert not standin.mountpoint.exists()


def test_it_goes_away_with_the_process_that_started_it(source: Path, tmp_path: Path) -> None:
    script = (
        "import os, sys; from tests.standin import StandIn\n"
        "s = StandIn(sys.argv[1], sys.argv[2]); s.start(); print(s.pid); sys.stdout.flush()\n"
        "os._exit(0)\n"
    )
    mountpoint = tmp_path / "mnt"
    project = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(source), str(mountpoint)],
        cwd=project,
        # Killed, it leaves its own small directory, which the test's end removes.
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=30,
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while is_mounted(mountpoint) or os.path.exists(f"/proc/{pid}/exe"):
        assert time.monotonic() < deadline, "still mounted or running"
        time.sleep(0.01)


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel lets only root raise it")
def test_a_megabyte_is_read_at_once(source: Path) -> None:
    with StandIn(source, page_cache=True, timeout_s=60) as standin:
        fd = os.open(standin.mountpoint / "dir" / "big", os.O_RDONLY)
        assert len(os.pread(fd, MIB, 0)) == MIB
        os.close(fd)
        # with the read-ahead
        assert standin.counts().total("read", "dir/big") <= 2
