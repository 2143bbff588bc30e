"""Rules that hold for every test.

A warning in the log fails the test that caused it, unless the test said that it would come. A
session leaves nothing mounted and nothing running; what is left is reported, cleaned up, and fails
the session. In CI a skipped test fails. ``tests/unit/test_conftest.py`` shows that these rules can
fail.
"""

import logging
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# Time is not what property tests are about, and a busy machine is slow.
hypothesis.settings.register_profile("copperfs", deadline=None, print_blob=True)
hypothesis.settings.load_profile("copperfs")

# ---- a logged warning fails the test -------------------------------------------------------------


@dataclass
class LogWatch:
    """Keeps the messages that are bad enough, and what the test expects of them."""

    messages: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def unexpected(self) -> str | None:
        """What nobody expected, or None."""
        found = [
            message
            for message in self.messages
            if not any(re.search(pattern, message) for pattern in self.expected)
        ]
        return "\n".join(["logged, and not expected:", *found]) if found else None

    def missing(self) -> str | None:
        """What the test expected in vain, or None."""
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
    """Watches the ``copperfs`` loggers from before the other fixtures until after them."""
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
    """Complain in the test itself, so that it counts as failed and not as an error after it.

    What the teardown of other fixtures logs is left for the end of ``log_watch``.
    """
    result = yield
    watch = item.stash.get(_WATCH, None)
    if watch is not None and (complaint := watch.unexpected() or watch.missing()):
        watch.messages.clear()  # told here, so not again at the end
        pytest.fail(complaint, pytrace=False)
    return result


@pytest.fixture
def expected_warnings(log_watch: LogWatch) -> Callable[[str], None]:
    """Call it with a pattern for each warning that the test provokes; each has to come."""
    return log_watch.expected.append


# ---- where everything can be tested, nothing is left out -----------------------------------------

# Set by .ci/run: what is skipped there would be tested nowhere, and nobody would know.
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

# Inherited by everything that a test starts, also when it has left its parent, as daemons do.
TOKEN_VARIABLE = "COPPER_TEST_SESSION"
EXIT_GRACE_S = 5.0

_TOKEN = pytest.StashKey[str]()
_LEFTOVERS = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in these mounts, whether it says so or not."""
    here = Path(__file__).parent
    for item in items:
        if {here / "mount", here / "cluster"} & set(item.path.parents):
            item.add_marker(pytest.mark.mount)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TOKEN] = os.environ[TOKEN_VARIABLE] = uuid.uuid4().hex


def mounts_below(directory: Path) -> list[Path]:
    """Mount points in ``directory``, innermost first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        # Space, tab, newline and backslash are written as three octal digits (proc(5)).
        raw = re.sub(rb"\\(\d{3})", lambda match: bytes([int(match[1], 8)]), line.split()[4])
        path = Path(os.fsdecode(raw))
        if path.is_relative_to(directory):
            found.append(path)
    return found[::-1]


def daemons_with(token: str, variable: str = TOKEN_VARIABLE) -> dict[int, str]:
    """Processes of copperfs that carry the token, other than this one: pid and command line."""
    needle = f"{variable}={token}".encode()
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        # A process may end while it is looked at, or belong to someone else.
        with suppress(OSError):
            command = os.fsdecode((process / "cmdline").read_bytes().replace(b"\0", b" ")).strip()
            if "copperfs" in command and needle in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = command
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    # Only this session's own directory: another session may run on the same machine.
    base = config._tmp_path_factory.getbasetemp().resolve()  # type: ignore[attr-defined]
    token = config.stash[_TOKEN]
    deadline = time.monotonic() + EXIT_GRACE_S
    while daemons_with(token) and time.monotonic() < deadline:
        time.sleep(0.05)  # a daemon exits a little after its mount is gone
    leftovers = config.stash[_LEFTOVERS] = []
    for pid, command in daemons_with(token).items():
        leftovers.append(f"process {pid}: {command}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for mount in mounts_below(base):
        leftovers.append(f"mount {mount}")
        unmount = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
        subprocess.run([*unmount, mount], check=False, timeout=30)
    if leftovers:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for leftover in config.stash.get(_LEFTOVERS, []):
        terminalreporter.write_line(
            f"LEFT BEHIND by the tests, now cleaned up: {leftover}", red=True
        )
