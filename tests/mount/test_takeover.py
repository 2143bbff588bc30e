"""The daemon of a mount dies or hangs, and its applications do not notice (--takeover)."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import re
import resource
import signal
import subprocess
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from copperfs.fuse.ioctl import IoctlRequest
from tests.bootstrap.helpers import clean_environment
from tests.mount.conftest import Mounter
from tests.mount.helpers import (
    COMMAND_TIMEOUT_S,
    COPPERFS,
    WAIT_S,
    Mount,
    asked,
    copperfs,
    eventually,
    is_mounted,
    is_running,
    kernel_release,
    start_python,
)
from tests.mount.jobs import Job
from tests.mount.keepers import is_ready, keeper_of, standby_of
from tests.patience import PATIENCE
from tests.standin import StandIn

KILLS, MANY_KILLS = 20, 200
READERS = 20
FILES = 400
MEDIAN_WAIT_S = 0.3
ABOUT_S = 1.0
PAGES_KIB = 64
TAKEOVER = ("--takeover", "--takeovers-max", "1000")

RESENDS = kernel_release() >= (6, 9)
WAYS = [
    pytest.param(
        "resend", marks=pytest.mark.skipif(not RESENDS, reason="this kernel resends no requests")
    ),
    "memory",
]
"""How a successor gets the requests that were not answered."""


def content_of(number: int) -> bytes:
    return random.Random(number).randbytes(1 + number * 997 % 60_000)


@pytest.fixture
def files(source: Path) -> Path:
    for number in range(FILES):
        directory = source / f"d{number % 7}" / f"e{number % 3}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}").write_bytes(content_of(number))
    (source / "large").write_bytes(content_of(0) + bytes(9 << 20))
    return source


def successor(mount: Mount) -> int:
    """Waits for the daemon that goes on."""
    return int(mount.stats()["pid"])


@dataclass
class Reader(threading.Thread):
    """Reads what the kernel has cached and what it has not, and compares."""

    mount: Mount
    seed: int
    stop: threading.Event
    faults: list[str] = field(default_factory=list)
    begun: array[float] = field(default_factory=lambda: array("d"))
    ended: array[float] = field(default_factory=lambda: array("d"))

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        draw = random.Random(self.seed)
        while not self.stop.is_set():
            number = draw.randrange(FILES)
            path = self.mount / f"d{number % 7}/e{number % 3}/f{number}"
            begun = time.monotonic()
            try:
                with open(path, "rb", buffering=0) as file:
                    if draw.random() < 0.3:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    found = file.read()
                if draw.random() < 0.05:
                    names = os.listdir(path.parent)
                    if len(names) != len(set(names)) or path.name not in names:
                        self.faults.append(f"{path.parent}: {len(names)} names")
            except OSError as error:
                self.faults.append(f"{path}: {error}")
                continue
            self.begun.append(begun)
            self.ended.append(time.monotonic())
            if found != content_of(number):
                self.faults.append(f"{path}: wrong bytes")

    def longest_s(self, about: float) -> float:
        """Of the reads that went on then or began soon after."""
        first, end = bisect_left(self.ended, about), bisect_left(self.begun, about + ABOUT_S)
        reads = zip(self.begun[first:end], self.ended[first:end], strict=True)
        return max((ended - begun for begun, ended in reads), default=0.0)


@dataclass
class Readers:
    """They all read until the end, and see no fault."""

    mount: Mount
    count: int
    ends: list[float] = field(default_factory=list)
    """Of daemons."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _begun: list[Reader] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._begun = [Reader(self.mount, seed, self._stop) for seed in range(self.count)]
        for each in self._begun:
            each.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop.set()
        for each in self._begun:
            each.join()
        if kind is None:
            assert [fault for each in self._begun for fault in each.faults] == []
            assert all(each.ended for each in self._begun)

    def judge_waits(self) -> None:
        """Of each reader the longest one about each end."""
        waits = sorted(each.longest_s(about) for each in self._begun for about in self.ends)
        reads = sum(len(each.ended) for each in self._begun)
        median, p99 = (waits[int(share * len(waits))] for share in (0.5, 0.99))
        print(
            f"{len(self.ends)} ends, {reads} reads, waits: median {median:.3f} s, "
            f"p99 {p99:.3f} s, longest {waits[-1]:.3f} s"
        )
        assert median <= MEDIAN_WAIT_S
        assert waits[-1] <= WAIT_S


def usage(mount: Mount) -> dict[str, int]:
    """What a mount takes whose files have all been read."""
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    mount.clear()
    for number in range(FILES):
        path = mount / f"d{number % 7}/e{number % 3}/f{number}"
        assert path.read_bytes() == content_of(number)
    keeper = keeper_of(mount.pid)
    found = {"files": sum(1 for _ in mount.mountpoint.parent.glob("*"))}
    for name, pid in (("daemon", mount.pid), ("keeper", keeper)):
        found[f"descriptors of the {name}"] = len(os.listdir(f"/proc/{pid}/fd"))
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        # Clean pages of files are private as long as no other process happens to map them.
        private = re.findall(r"^Private_Dirty: +(\d+) kB$", rollup, re.MULTILINE)
        found[f"KiB of the {name}"] = sum(map(int, private))
    return found


def check_no_growth(early: dict[str, int], late: dict[str, int]) -> None:
    print(f"early {early}", f"late {late}", sep="\n")
    for what, amount in late.items():
        spare = PAGES_KIB if "KiB" in what else 0
        assert amount <= 1.05 * early[what] + spare, what


@pytest.fixture
def way(request: pytest.FixtureRequest) -> str:
    """Of both where a test asks for it (``in_both_ways``)."""
    return str(getattr(request, "param", "auto"))


in_both_ways = pytest.mark.parametrize("way", WAYS, indirect=True)


@pytest.fixture
def taken(mounted: Mounter, files: Path, way: str) -> Iterator[Mount]:
    mount = mounted(*TAKEOVER, "--takeover-by", way)
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    yield mount
    if is_mounted(mount.mountpoint):
        with contextlib.suppress(AssertionError):
            mount.pid = successor(mount)
    keeper = keeper_of(mount.pid)
    mount.remove()
    eventually(lambda: not keeper or not is_running(keeper), "the keeper has ended")


def kill(mount: Mount, number: int = signal.SIGKILL) -> int:
    before = mount.pid
    os.kill(before, number)
    mount.pid = successor(mount)
    assert mount.pid != before
    return before


@in_both_ways
def test_readers_notice_no_death(taken: Mount) -> None:
    with Readers(taken, READERS) as readers:
        kill_often(taken, KILLS, readers)
    text = taken.log.read_text()
    assert text.count("took over") == KILLS
    assert "signal-9" in text


@pytest.mark.long
def test_readers_notice_none_of_many_deaths(taken: Mount) -> None:
    check_often(taken, kill_often, KILLS, MANY_KILLS, READERS)
    assert taken.stats()["takeovers"]["by_cause"] == {"signal-9": MANY_KILLS}


def check_often(
    mount: Mount,
    takeovers: Callable[[Mount, int, Readers], None],
    early: int,
    many: int,
    readers_count: int,
) -> None:
    """Readers notice none of *many*, and nothing grows after the *early* ones."""
    usages = []
    for count in (early, many - early):
        with Readers(mount, readers_count) as readers:
            takeovers(mount, count, readers)
        readers.judge_waits()
        usages.append(usage(mount))
    check_no_growth(*usages)


def kill_often(mount: Mount, count: int, readers: Readers) -> None:
    for _ in range(count):
        eventually(lambda: is_ready(mount.pid), "a standby is ready")
        time.sleep(0.05)
        readers.ends.append(time.monotonic())
        kill(mount)


@in_both_ways
def test_what_was_open_goes_on(taken: Mount) -> None:
    """A file, a mapping, a directory walk, a working directory."""
    path = taken / "large"
    expected = content_of(0) + bytes(9 << 20)
    fd = os.open(path, os.O_RDONLY)
    walk = os.scandir(taken / "d0/e0")
    first = next(walk).name
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[:100] == expected[:100]
        kill(taken)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert mapped[:] == expected
        assert os.pread(fd, 1 << 20, 8 << 20) == expected[8 << 20 : 9 << 20]
    rest = [each.name for each in walk]
    assert sorted([first, *rest]) == sorted(os.listdir(taken.source / "d0/e0"))
    assert os.fstat(fd).st_ino == os.stat(path).st_ino
    os.close(fd)


def test_the_kernel_serves_what_it_has_while_nobody_answers(taken: Mount) -> None:
    found: dict[str, bytes] = {}

    def read(name: str) -> None:
        # open() asks whether it is a terminal, which only a daemon answers
        fd = os.open(taken / name, os.O_RDONLY)
        found[name] = os.read(fd, 1 << 20)
        os.close(fd)

    def reader(name: str) -> threading.Thread:
        thread = threading.Thread(target=read, args=[name], daemon=True)
        thread.start()
        thread.join(0.5)
        return thread

    read("d0/e0/f0")
    keeper = keeper_of(taken.pid)
    os.kill(keeper, signal.SIGSTOP)  # so that nothing goes on for now
    try:
        os.kill(taken.pid, signal.SIGKILL)
        found.clear()
        assert not reader("d0/e0/f0").is_alive()
        assert found == {"d0/e0/f0": content_of(0)}
        waits = reader("d1/e1/f1")
        assert waits.is_alive()
    finally:
        os.kill(keeper, signal.SIGCONT)
    waits.join(WAIT_S)
    assert found["d1/e1/f1"] == content_of(1)
    taken.pid = successor(taken)


@in_both_ways
def test_a_clear_of_a_successor_shows_what_has_changed(taken: Mount) -> None:
    path, denied = taken / "d0/e0/f0", taken / "later"
    assert path.read_bytes() == content_of(0)
    assert not denied.exists()
    kill(taken)
    (taken.source / "d0/e0/f0").write_bytes(b"new")
    (taken.source / "later").write_bytes(b"there")
    assert path.read_bytes() == content_of(0)
    assert not denied.exists()
    taken.clear()
    assert path.read_bytes() == b"new"
    assert denied.read_bytes() == b"there"
    eventually(lambda: is_ready(taken.pid), "a standby is ready")
    kill(taken)
    assert path.read_bytes() == b"new"
    assert taken.stats()["epoch"] == 2


def test_a_successor_begins_while_the_source_fails(taken: Mount) -> None:
    away = taken.source.with_name("away")
    path = taken / "d0/e0/f0"
    assert path.read_bytes() == content_of(0)
    taken.source.rename(away)
    try:
        kill(taken)
        # a name that was not asked for
        with pytest.raises(OSError, match=r"No such file|Stale|Input/output"):
            (taken / "d1/e1/f1").read_bytes()
    finally:
        away.rename(taken.source)
    assert (taken / "large").read_bytes() == content_of(0) + bytes(9 << 20)
    assert taken.log.read_text().count("took over") == 1


@in_both_ways
def test_a_daemon_that_hangs_is_passed_over(mounted: Mounter, files: Path, way: str) -> None:
    mount = mounted(*TAKEOVER, "--takeover-by", way, "--hang-after", "1")
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    hung = mount.pid
    os.kill(hung, signal.SIGSTOP)
    assert (mount / "d2/e2/f2").read_bytes() == content_of(2)
    mount.pid = successor(mount)
    assert mount.pid != hung
    assert "hang" in mount.log.read_text()
    eventually(lambda: not is_running(hung), "the hung daemon was ended")


HANGS = """if True:
    import signal, time

    def hang(number, frame):
        time.sleep(1000)

    signal.signal(signal.SIGUSR1, hang)
"""


def test_the_log_says_where_a_hung_daemon_stood(
    mounted: Mounter, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event loop is stuck, while the front's threads serve what they have."""
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    mount = mounted(*TAKEOVER, "--hang-after", "1")
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    os.kill(mount.pid, signal.SIGUSR1)
    assert (mount / "d2/e2/f2").read_bytes() == content_of(2)
    mount.pid = successor(mount)
    assert "in hang" in mount.log.read_text()


# ---- requests in hand ----------------------------------------------------------------------------


@dataclass
class Asking:
    """Threads that each make a request and wait for its answer."""

    threads: list[threading.Thread] = field(default_factory=list)
    answers: dict[str, object] = field(default_factory=dict)

    def __call__(self, name: str, ask: Callable[[], object]) -> None:
        def run() -> None:
            try:
                self.answers[name] = ask()
            except OSError as error:
                self.answers[name] = error

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def wait(self) -> dict[str, object]:
        until = time.monotonic() + WAIT_S
        for each in self.threads:
            each.join(max(0.0, until - time.monotonic()))
        assert not any(each.is_alive() for each in self.threads), sorted(self.answers)
        return self.answers


def bytes_of(path: Path) -> Callable[[], bytes]:
    return path.read_bytes


@in_both_ways
def test_a_successor_answers_all_that_its_predecessor_had_in_hand(
    mounted: Mounter, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Its event loop is stuck, and its front passes on all that it cannot answer; lookups of short
    and long names, a listing, reads, an ioctl."""
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (files / ("n" * 255)).write_bytes(b"long")
    mount = mounted(*TAKEOVER, "--takeover-by", way, "--hang-after", "none")
    known = mount / "d0/e0/f0"
    assert known.stat().st_size == len(content_of(0))
    for times in range(2):
        eventually(lambda: is_ready(mount.pid), "a standby is ready")
        os.kill(mount.pid, signal.SIGUSR1)
        ask = Asking()
        ask("read", bytes_of(known))
        for number in range(times + 1, FILES, 40):
            path = mount / f"d{number % 7}/e{number % 3}/f{number}"
            ask(str(number), bytes_of(path))
        ask("long", bytes_of(mount / ("n" * 255)))
        ask("missing", (mount / f"missing-{times}").exists)
        ask("names", lambda: sorted(os.listdir(mount / f"d{times}")))  # noqa: B023
        # a process, because Python 3.11 does not release its lock for a large ioctl
        ask("statistics", lambda: copperfs("stats", "--json", mount.mountpoint).stdout)
        time.sleep(2)
        assert "statistics" not in ask.answers
        before = mount.pid
        os.kill(before, signal.SIGKILL)
        answers = ask.wait()
        mount.pid = successor(mount)
        assert answers.pop("read") == content_of(0)
        assert answers.pop("long") == b"long"
        assert answers.pop("missing") is False
        assert answers.pop("names") == ["e0", "e1", "e2"]
        assert json.loads(str(answers.pop("statistics")))["pid"] == mount.pid != before
        assert answers == {number: content_of(int(number)) for number in answers}
    assert mount.log.read_text().count("took over") == 2


@pytest.fixture
def slow(files: Path) -> Iterator[StandIn]:
    with StandIn(files) as standin:
        yield standin
        standin.heal()


@in_both_ways
def test_what_waits_for_the_source_is_asked_for_again(
    slow: StandIn, mounted: Mounter, way: str
) -> None:
    """By each successor of several; their threads hang in the kernel, and are passed over."""
    options = ("--takeover-by", way, "--hang-after", "1", "--source-deadline", "60")
    mount = mounted(*TAKEOVER, *options, of=slow.mountpoint)
    names = [f"d{number % 7}/e{number % 3}/f{number}" for number in range(6)]
    for each in names:
        os.lstat(mount / each)
        slow.hang(each, ops=["read"])
    slow.hang("d6", ops=["opendir", "readdir"])
    ask = Asking()
    for each in names:
        ask(each, bytes_of(mount / each))
    ask("names", lambda: sorted(os.listdir(mount / "d6")))
    for _ in range(3):
        slow.wait_for_hanging(len(names) + 1)
        assert ask.answers == {}
        eventually(lambda: is_ready(mount.pid), "a standby is ready")
        kill(mount)
    slow.heal()
    answers = ask.wait()
    assert answers.pop("names") == ["e0", "e1", "e2"]
    assert answers == {each: content_of(number) for number, each in enumerate(names)}


def test_a_successor_begins_while_what_is_shared_hangs(slow: StandIn, mounted: Mounter) -> None:
    mount = mounted(*TAKEOVER, "--shared", str(slow.mountpoint / "d6"), of=slow.mountpoint)
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    slow.hang("d6")
    try:
        kill(mount)
        assert (mount / "d0/e0/f0").read_bytes() == content_of(0)
    finally:
        slow.heal()
    assert (mount / "d6/e0/f6").read_bytes() == content_of(6)


INTERRUPTED = """if True:
    import os, signal, sys
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    print("up", flush=True)
    os.lstat(sys.argv[1])
"""


@in_both_ways
def test_a_reader_that_was_interrupted_before_can_be_killed_after(
    slow: StandIn, mounted: Mounter, way: str
) -> None:
    """The kernel tells of the first signal, and of none after it."""
    options = ("--takeover-by", way, "--hang-after", "1", "--source-deadline", "120")
    mount = mounted(*TAKEOVER, *options, of=slow.mountpoint)
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    os.lstat(mount / "d0/e0")
    slow.hang("d0/e0", ops=["opendir", "readdir"])
    reader = start_python(INTERRUPTED, mount / "d0/e0/f0")
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "up\n"
        slow.wait_for_hanging(1)
        before = mount.stats()["front"]["interrupts"]
        reader.send_signal(signal.SIGUSR1)
        eventually(lambda: mount.stats()["front"]["interrupts"] > before, "the front has heard it")
        kill(mount)
        slow.wait_for_hanging(1)
        assert is_running(reader.pid)
        reader.kill()
        eventually(lambda: not is_running(reader.pid), "the reader is dead", 10 * PATIENCE)
        assert slow.counts().hanging >= 1, "it still hung when the reader died"
    finally:
        slow.heal()
        reader.kill()
        reader.communicate()


def test_a_daemon_that_a_debugger_has_stopped_is_left_alone(mounted: Mounter, files: Path) -> None:
    mount = mounted(*TAKEOVER, "--hang-after", "1")
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    script = f"""if True:
        import ctypes, os, time
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long] * 4
        assert libc.ptrace(16, {mount.pid}, 0, 0) == 0, ctypes.get_errno()  # PTRACE_ATTACH
        os.waitpid({mount.pid}, 0x40000000)
        print("stopped", flush=True)
        input()
        assert libc.ptrace(17, {mount.pid}, 0, 0) == 0  # PTRACE_DETACH
    """
    debugger = start_python(script)
    try:
        assert debugger.stdout is not None
        assert debugger.stdout.readline() == "stopped\n"
        time.sleep(3)
        assert is_running(mount.pid)
        debugger.communicate("go on\n", timeout=COMMAND_TIMEOUT_S)
    finally:
        debugger.kill()
        debugger.wait()
    assert successor(mount) == mount.pid


@in_both_ways
def test_a_keeper_that_dies_is_replaced(taken: Mount) -> None:
    for _ in range(2):
        before = keeper_of(taken.pid)
        os.kill(before, signal.SIGKILL)
        eventually(lambda: keeper_of(taken.pid) not in (0, before), "another keeper")  # noqa: B023
        eventually(lambda: is_ready(taken.pid), "a standby is ready")
        kill(taken)
        assert (taken / "d3/e1/f31").read_bytes() == content_of(31)
        eventually(lambda: is_ready(taken.pid), "a standby is ready")


def test_without_both_the_mount_ends_as_without_takeover(taken: Mount) -> None:
    keeper = keeper_of(taken.pid)
    standby = standby_of(keeper, taken.pid)
    os.kill(taken.pid, signal.SIGSTOP)  # it would start another keeper
    for each in (keeper, standby, taken.pid):
        os.kill(each, signal.SIGKILL)
    eventually(lambda: not is_running(standby), "the standby has ended")
    # One of its threads may end after it, and with it a request that is under way.
    with pytest.raises(OSError, match=r"not connected|connection abort"):
        os.listdir(taken.mountpoint)
    with pytest.raises(OSError, match="Transport endpoint is not connected"):
        os.listdir(taken.mountpoint)
    done = copperfs("umount", taken.mountpoint)
    assert done.returncode == 0, done.stderr
    assert not is_mounted(taken.mountpoint)


def test_an_unmount_ends_all_three(taken: Mount) -> None:
    keeper = keeper_of(taken.pid)
    standby = standby_of(keeper, taken.pid)
    assert taken.umount().returncode == 0
    for each in (keeper, standby, taken.pid):
        eventually(lambda: not is_running(each), "it has ended")  # noqa: B023


def test_a_mount_whose_daemons_all_die_ends(mounted: Mounter, files: Path) -> None:
    taken = mounted("--takeover", "--takeovers-max", "2")
    eventually(lambda: is_ready(taken.pid), "a standby is ready")
    keeper = keeper_of(taken.pid)
    for _ in range(2):
        eventually(lambda: is_ready(taken.pid), "a standby is ready")
        kill(taken)
    eventually(lambda: is_ready(taken.pid), "a standby is ready")
    os.kill(taken.pid, signal.SIGKILL)
    eventually(lambda: not is_running(keeper), "the keeper has given up")
    with pytest.raises(OSError, match="Transport endpoint is not connected"):
        os.listdir(taken.mountpoint)
    assert "no further successor" in taken.log.read_text()


# ---- of a run ------------------------------------------------------------------------------------


Running = subprocess.Popen[str]


def daemon_of(mountpoint: Path) -> int:
    return int(asked(mountpoint, IoctlRequest.STATISTICS)["pid"])


def test_the_users_of_a_run_go_on_with_a_successor(tmp_path: Path, files: Path) -> None:
    """Those that were there, by Python and by the join socket, and one that comes later; the last
    one ends the mount."""
    mountpoint = tmp_path / "mnt"
    words = [*COPPERFS, "run", "--source", files, "--mountpoint", mountpoint, *TAKEOVER]
    words += ["--in-place", "never", "--", "sh", "-c"]
    waits = f"echo up; read go; cat {mountpoint}/d0/e0/f0 | wc -c"
    begun: list[subprocess.Popen[str]] = []
    keeper = 0

    def start(script: str) -> None:
        begun.append(
            subprocess.Popen(
                list(map(str, [*words, script])), env=clean_environment(), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        assert begun[-1].stdout is not None
        assert begun[-1].stdout.readline() == "up\n"

    try:
        for _ in range(3):
            start(waits)
        for _ in range(2):
            daemon = daemon_of(mountpoint)
            eventually(lambda: is_ready(daemon), "a standby is ready")  # noqa: B023
            keeper = keeper_of(daemon)
            os.kill(daemon, signal.SIGKILL)
            assert daemon_of(mountpoint) != daemon
        start(waits)
        assert len(begun) == 4
        daemon = daemon_of(mountpoint)
        for each in begun:
            assert is_mounted(mountpoint)
            output, errors = each.communicate("go\n", timeout=COMMAND_TIMEOUT_S)
            assert (each.returncode, errors) == (0, "")
            assert output.strip() == str(len(content_of(0)))
        assert not is_mounted(mountpoint)
        for each_pid in (daemon, keeper):
            eventually(lambda: not is_running(each_pid), "it has ended")  # noqa: B023
    finally:
        for each in begun:
            each.kill()
            each.communicate()


def limit_descriptors(pid: int, most: int) -> None:
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))


def test_a_keeper_without_descriptors_keeps_what_it_has_and_asks_again(
    tmp_path: Path, files: Path
) -> None:
    mountpoint, log = tmp_path / "mnt", tmp_path / "log"
    never = ("--in-place", "never")
    with running(mountpoint, files, log, *never) as first:
        daemon = daemon_of(mountpoint)
        eventually(lambda: is_ready(daemon), "a standby is ready")
        keeper = keeper_of(daemon)
        before = resource.prlimit(keeper, resource.RLIMIT_NOFILE)[0]
        count = len(os.listdir(f"/proc/{keeper}/fd"))
        limit_descriptors(keeper, count + 2)
        with running(mountpoint, files, log, *never) as second:
            eventually(lambda: "too few free descriptors" in log.read_text(), "it says so")
            limit_descriptors(keeper, before)
            eventually(
                lambda: len(os.listdir(f"/proc/{keeper}/fd")) > count, "it has got them after all"
            )
            os.kill(daemon, signal.SIGKILL)
            daemon = daemon_of(mountpoint)
            for each in (first, second):
                assert each.communicate("go\n", timeout=COMMAND_TIMEOUT_S)[1] == ""
    eventually(lambda: not is_running(daemon), "it has ended")
    text = log.read_text()
    assert (text.count("too few free descriptors"), text.count("took over")) == (1, 1)


def test_a_standby_without_descriptors_is_replaced(taken: Mount) -> None:
    spare = standby_of(keeper_of(taken.pid), taken.pid)
    limit_descriptors(spare, 5)
    kill(taken)
    assert (taken / "d0/e0/f0").read_bytes() == content_of(0)
    text = taken.log.read_text()
    assert "too few free descriptors" in text
    assert text.count("took over") == 1


@contextlib.contextmanager
def running(mountpoint: Path, source: Path, log: Path, *options: str) -> Iterator[Running]:
    words = [*COPPERFS, "run", "--source", source, "--mountpoint", mountpoint, *TAKEOVER]
    words += ["--log-file", log, *options, "--", "sh", "-c", "echo up; read go"]
    run = subprocess.Popen(
        list(map(str, words)), env=clean_environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        yield run
    finally:
        run.kill()
        run.communicate()


def test_a_run_that_ends_while_its_keeper_is_late_has_no_successor(
    tmp_path: Path, files: Path
) -> None:
    """The keeper reads all that the daemon has said before it looks at its death."""
    mountpoint, log = tmp_path / "mnt", tmp_path / "log"
    with running(mountpoint, files, log, "--in-place", "never") as run:
        daemon = daemon_of(mountpoint)
        eventually(lambda: is_ready(daemon), "a standby is ready")
        keeper = keeper_of(daemon)
        os.kill(keeper, signal.SIGSTOP)
        try:
            assert run.stdin is not None
            run.stdin.write("go\n")
            run.stdin.flush()
            eventually(lambda: not is_running(daemon), "the daemon has ended")
        finally:
            os.kill(keeper, signal.SIGCONT)
        eventually(lambda: not is_running(keeper), "the keeper has ended")
    assert "took over" not in log.read_text()


def test_a_mount_that_was_unmounted_after_its_daemons_death_has_one_successor(
    mounted: Mounter, files: Path, tmp_path: Path
) -> None:
    tier = ("--tier-dir", str(tmp_path / "tier"), "--tier-size", "64M")  # it takes long to begin
    mount = mounted(*TAKEOVER, *tier)
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    keeper = keeper_of(mount.pid)
    os.kill(keeper, signal.SIGSTOP)
    try:
        os.kill(mount.pid, signal.SIGKILL)
        subprocess.run(["umount", "--lazy", mount.mountpoint], check=True)
    finally:
        os.kill(keeper, signal.SIGCONT)
    eventually(lambda: not is_running(keeper), "the keeper has ended")
    assert mount.log.read_text().count("took over") <= 1


def test_the_keeper_writes_to_the_log_that_has_the_name(taken: Mount) -> None:
    """After a rotation, also by the daemons that come after it."""
    for number in range(2):
        rotated = taken.log.with_name(f"rotated{number}")
        taken.log.rename(rotated)
        os.kill(taken.pid, signal.SIGHUP)
        eventually(taken.log.exists, "the log is opened anew")
        eventually(lambda: is_ready(taken.pid), "a standby is ready")
        for _ in range(2):
            eventually(lambda: is_ready(taken.pid), "a standby is ready")
            kill(taken)
        assert taken.log.read_text().count("copperfs-keeper: the daemon has ended") == 2
        log = os.stat(taken.log)
        for each in (taken.pid, keeper_of(taken.pid)):
            assert os.path.samestat(os.stat(f"/proc/{each}/fd/2"), log)


def test_a_log_that_cannot_be_opened_ends_no_mount(mounted: Mounter, files: Path) -> None:
    """Its successors write where their predecessors did, and to the file once it can be had."""
    logs = files.with_name("logs")
    logs.mkdir()
    log = logs / "log"
    mount = mounted(*TAKEOVER, "--log-file", str(log))
    away = logs.rename(logs.with_name("away"))
    for number in range(2):
        eventually(lambda: is_ready(mount.pid), "a standby is ready")
        kill(mount)
        assert (mount / f"d{number}/e{number}/f{number}").read_bytes() == content_of(number)
    assert (away / "log").read_text().count("took over") == 2
    logs.mkdir()
    eventually(log.exists, "the log is opened anew")
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    kill(mount)
    assert log.read_text().count("took over") == 1
    for each in (mount.pid, keeper_of(mount.pid)):
        eventually(
            lambda: os.path.samestat(os.stat(f"/proc/{each}/fd/2"), os.stat(log)),  # noqa: B023
            "standard error is the log that has the name",
        )


def test_a_tier_that_is_gone_ends_no_mount(mounted: Mounter, files: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = mounted(*TAKEOVER, "--tier-dir", str(disk / "tier"))
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    disk.rename(tmp_path / "away")
    for number in range(2):
        eventually(lambda: is_ready(mount.pid), "a standby is ready")
        kill(mount)
        assert mount.stats()["tier"]["disk"]["degraded"] == 1
        assert (mount / f"d{number}/e{number}/f{number}").read_bytes() == content_of(number)
    disk.mkdir()
    eventually(lambda: not mount.stats()["tier"]["disk"]["degraded"], "the disk is used again")


def test_failure_domains_stay_what_the_nodes_have_agreed_to(tmp_path: Path, files: Path) -> None:
    domains = tmp_path / "domains"
    domains.write_text("n0 rack0\nn1 rack1\n")
    with Job(files, tmp_path / "job", 2, *TAKEOVER, "--domains", str(domains)) as job:
        eventually(lambda: all(is_ready(each.pid) for each in job.nodes), "standbys are ready")
        domains.unlink()
        for number, mount in enumerate(job.nodes):
            kill(mount)
            path = mount / f"d{number}/e{number}/f{number}"
            assert path.read_bytes() == content_of(number)


def test_takeover_and_foreground_are_refused_together(tmp_path: Path, files: Path) -> None:
    done = copperfs("mount", tmp_path, "--source", files, "--takeover", "--foreground")
    assert done.returncode == 2
    assert "leave out --takeover or --foreground" in done.stderr
    assert not is_mounted(tmp_path)


def test_a_daemon_may_hang_for_ever_where_that_is_wanted(mounted: Mounter, files: Path) -> None:
    mount = mounted(*TAKEOVER, "--hang-after", "none")
    assert asked(mount.mountpoint, IoctlRequest.CONFIGURATION)["hang_after_s"] is None


# ---- for want of memory --------------------------------------------------------------------------

LIMIT_BYTES = 288 << 20
LARGE_FILES = 400  # of a MiB


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Of version 1 or 2, with a limit that a large cache exceeds."""
    top = next(
        (each for each in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")) if _limits(each)),
        None,
    )
    if top is None or not os.access(top, os.W_OK):
        pytest.xfail("no memory cgroup can be made here")
    group = top / f"copperfs-test-{os.getpid()}"
    group.mkdir()
    limit = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
    (group / limit).write_text(str(LIMIT_BYTES))
    yield group
    eventually(lambda: not (group / "cgroup.procs").read_text(), "all in the cgroup has ended")
    group.rmdir()


def _limits(top: Path) -> bool:
    return (top / "memory.limit_in_bytes").exists() or (
        (top / "cgroup.subtree_control").exists()
        and "memory" in (top / "cgroup.subtree_control").read_text().split()
    )


def test_a_daemon_that_is_killed_for_want_of_memory_comes_back_smaller(
    cgroup: Path, mounted: Mounter, source: Path
) -> None:
    """The keeper and the standby are in the same cgroup, and live on."""
    for number in range(LARGE_FILES):
        (source / f"f{number}").write_bytes(random.Random(number).randbytes(1 << 20))
    mount = mounted(*TAKEOVER, "--memory", "2GiB", "--log-level", "info")
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    keeper = keeper_of(mount.pid)
    scores = [Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in (mount.pid, keeper)]
    assert scores == ["800\n", Path("/proc/self/oom_score_adj").read_text()]
    for pid in (keeper, standby_of(keeper, mount.pid), mount.pid):
        (cgroup / "cgroup.procs").write_text(str(pid))
    for number in range(LARGE_FILES):
        found = (mount / f"f{number}").read_bytes()
        assert found == random.Random(number).randbytes(1 << 20)
    mount.pid = successor(mount)
    assert mount.stats()["takeovers"]["count"] >= 1
    assert is_running(keeper)
    assert "for want of memory" in mount.log.read_text()
    assert asked(mount.mountpoint, IoctlRequest.CONFIGURATION)["memory_bytes"] <= 1 << 30
