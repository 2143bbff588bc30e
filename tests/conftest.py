"""Rules that hold for every test.

A warning in the log fails the test that caused it, unless the test announced it. A session leaves
nothing mounted and nothing running; it removes leftovers, and fails because of them. In CI a
skipped test fails. ``tests/unit/test_conftest.py`` breaks these rules, also with several workers of
pytest-xdist (``docs/decisions/0090``).
"""

import ctypes
import fcntl
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# Property tests are not about time, and a busy machine is slow.
hypothesis.settings.register_profile("copperfs", deadline=None, print_blob=True)
hypothesis.settings.load_profile("copperfs")

# ---- a logged warning fails the test -------------------------------------------------------------


@dataclass
class LogWatch:
    """Messages of level WARNING and above, and the patterns that the test expects."""

    messages: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def unexpected(self) -> str | None:
        found = [
            message
            for message in self.messages
            if not any(re.search(pattern, message) for pattern in self.expected)
        ]
        return "\n".join(["logged, and not expected:", *found]) if found else None

    def missing(self) -> str | None:
        patterns = [
            pattern
            for pattern in self.expected
            if not any(re.search(pattern, message) for message in self.messages)
        ]
        return "\n".join(["expected in the log, and not there:", *patterns]) if patterns else None


class _WatchHandler(logging.Handler):
    def __init__(self, watch: LogWatch) -> None:
        super().__init__(logging.WARNING)
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        self._watch.messages.append(f"{record.levelname} {record.name}: {record.getMessage()}")


_WATCH = pytest.StashKey[LogWatch]()


@pytest.fixture(autouse=True)
def log_watch(request: pytest.FixtureRequest) -> Iterator[LogWatch]:
    watch = request.node.stash[_WATCH] = LogWatch()
    handler = _WatchHandler(watch)
    logger = logging.getLogger("copperfs")
    logger.addHandler(handler)
    try:
        yield watch
    finally:
        logger.removeHandler(handler)
    if complaint := watch.unexpected():
        pytest.fail(complaint, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Complains in the test itself, so that it counts as failed. ``log_watch`` judges at its end
    what the teardown of other fixtures logs."""
    result = yield
    watch = item.stash.get(_WATCH, None)
    if watch is not None and (complaint := watch.unexpected() or watch.missing()):
        watch.messages.clear()  # reported here, so not again at the end
        pytest.fail(complaint, pytrace=False)
    return result


@pytest.fixture
def expected_warnings(log_watch: LogWatch) -> Callable[[str], None]:
    """Call it with a pattern for each warning that the test provokes; each has to come."""
    return log_watch.expected.append


# ---- skipped tests -------------------------------------------------------------------------------

# .ci/run sets this: a test that is skipped there would run nowhere.
NO_SKIPS_VARIABLE = "COPPER_TEST_NO_SKIPS"


def _unless_skipped(report: Report) -> Report:
    if report.skipped and os.environ.get(NO_SKIPS_VARIABLE) and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{NO_SKIPS_VARIABLE} is set, and this was skipped: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _unless_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _unless_skipped((yield))


# ---- nothing is left behind ----------------------------------------------------------------------

# Every process that a test starts inherits this, also a daemon that left its parent.
TOKEN_VARIABLE = "COPPER_TEST_SESSION"
EXIT_GRACE_S = 5.0

_TOKEN = pytest.StashKey[str]()
_LEFTOVERS = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.basetemp is None:
        config.option.basetemp = _own_directory(config) / "t"
    token = uuid.uuid4().hex
    if _is_worker(config):  # the end of the whole session finds the processes of all workers
        token = f"{os.environ[TOKEN_VARIABLE]}-{os.environ['PYTEST_XDIST_WORKER']}"
        _own_mounts()
    # readline sets them, and output would be folded to that width
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # "sh -c 'pytest &'" ignores SIGINT, and processes of tests would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_TOKEN] = os.environ[TOKEN_VARIABLE] = token


def mounts_below(directory: Path) -> list[Path]:
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        path = Path(os.fsdecode(_unescaped(line.split()[4])))
        if path.is_relative_to(directory):
            found.append(path)
    return found[::-1]


def _unescaped(word: bytes) -> bytes:
    """Whitespace and backslash are written as three octal digits (proc(5))."""
    return re.sub(rb"\\(\d{3})", lambda match: bytes([int(match[1], 8)]), word)


def daemons_with(token: str, variable: str = TOKEN_VARIABLE) -> dict[int, str]:
    """Processes of copperfs with the token, or a worker's token, except this one: pid and command
    line."""
    needle = re.compile(rf"^{variable}={token}(-\w+)?$".encode())
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        # A process may end during the scan, or belong to another user.
        with suppress(OSError):
            command = os.fsdecode((process / "cmdline").read_bytes().replace(b"\0", b" ")).strip()
            environ = (process / "environ").read_bytes().split(b"\0")
            if "copperfs" in command and any(map(needle.search, environ)):
                found[int(process.name)] = command
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    # Another session may run on the same machine.
    base = config._tmp_path_factory.getbasetemp().resolve()  # type: ignore[attr-defined]
    token = config.stash[_TOKEN]
    deadline = time.monotonic() + EXIT_GRACE_S
    while daemons_with(token) and time.monotonic() < deadline:
        time.sleep(0.05)  # a daemon exits a little after its mount is gone
    leftovers = config.stash.setdefault(_LEFTOVERS, [])
    for pid, command in daemons_with(token).items():
        leftovers.append(f"process {pid}: {command}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for mount in mounts_below(base):
        leftovers.append(f"mount {mount}")
        unmount = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
        subprocess.run([*unmount, mount], check=False, timeout=30)
    if _is_worker(config):
        config.workeroutput["leftovers"] = leftovers  # type: ignore[attr-defined]
    if leftovers:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    found = getattr(node, "workeroutput", {}).get("leftovers", [])
    node.config.stash.setdefault(_LEFTOVERS, []).extend(found)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for leftover in config.stash.get(_LEFTOVERS, []):
        terminalreporter.write_line(
            f"LEFT BEHIND by the tests, now cleaned up: {leftover}", red=True
        )


# ---- where several workers share the tests -------------------------------------------------------

# make test says "-n auto". Tests mostly wait, so there are more workers than cores.
WORKERS_PER_CORE = 2
# Long tests come first, so that at the end no worker waits for another.
_ORDER = ("chaos", "bootstrap", "examples", "cluster", "mount", "standin", "sim", "front", "store")

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_MNT_DETACH = 2


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """No workers for a run of a few tests, which begins sooner and prints."""
    option = config.option
    few = bool(option.keyword or option.lf or option.failedfirst) or option.capture == "no"
    few = few or not any(Path(each).is_dir() for each in config.args)
    return 0 if few else WORKERS_PER_CORE * len(os.sched_getaffinity(0))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks every test in mount and cluster with ``mount``; in a worker, sorts tests by
    ``_ORDER``."""
    here = Path(__file__).parent
    for item in items:
        if {here / "mount", here / "cluster"} & set(item.path.parents):
            item.add_marker(pytest.mark.mount)
    if _is_worker(config):
        rank = {here / name: index for index, name in enumerate(_ORDER)}
        items.sort(key=lambda item: rank.get(item.path.parent, len(_ORDER)))


def _own_mounts() -> None:
    """A mount namespace for this worker, so that a poll of the mount table wakes only for its own
    mounts. It drops the mounts of others, or it would keep them alive. Without the right to
    unshare, workers share one."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        return
    if libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "the mounts of this worker cannot be made private")
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines()[::-1]:
        before, _, after = line.partition(b" - ")
        if after.startswith(b"fuse."):
            libc.umount2(_unescaped(before.split()[4]), _MNT_DETACH)


def _own_directory(config: pytest.Config) -> Path:
    """A directory for this session, locked while it lasts; two earlier ones stay. Each new session
    closes pytest's own to other users, and tests become other users. A socket's path has at most
    107 bytes."""
    top = Path(tempfile.gettempdir()) / f"copper-{os.geteuid()}"
    top.mkdir(mode=0o755, exist_ok=True)
    if top.is_symlink() or top.stat().st_uid != os.geteuid():
        raise pytest.UsageError(f"{top} is somebody else's; remove it, or give --basetemp")
    for old in sorted(top.iterdir(), key=lambda each: each.lstat().st_mtime)[:-2]:
        with suppress(OSError):  # in use, or another session removes it
            lock = os.open(old, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not mounts_below(old):
                    shutil.rmtree(old, ignore_errors=True)
            finally:
                os.close(lock)
    new = Path(tempfile.mkdtemp(prefix="", dir=top))
    lock = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    config.add_cleanup(lambda: os.close(lock))
    new.chmod(0o755)
    return new


@pytest.fixture(scope="session", autouse=True)
def _others_may_enter(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Tests become other users, and pytest closes its directories to those."""
    base = tmp_path_factory.getbasetemp()
    for each in (base, base.parent) if _is_worker(request.config) else (base,):
        each.chmod(0o755)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """A test that is ``alone`` waits for the tests of other workers, and they wait for it."""
    if not _is_worker(item.config):
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    base = item.config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]
    with (base / "turnstile").open("a") as turnstile, (base / "tests").open("a") as tests:
        # A test that wants to be alone holds the turnstile, so that no other starts.
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(tests, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        return (yield)
