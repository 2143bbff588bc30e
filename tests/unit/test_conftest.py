"""The rules of tests/conftest.py can fail: each test here runs other tests that break one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import NO_SKIPS_VARIABLE, mounts_below

CONFTEST = Path(__file__).parent.parent / "conftest.py"


@pytest.fixture
def tests_of_its_own(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST.read_text())
    return pytester


def outcome_of(
    pytester: pytest.Pytester, test: str, *options: str, **expected: int
) -> pytest.RunResult:
    pytester.makepyfile("import logging, pytest\nlogger = logging.getLogger('copperfs.x')\n" + test)
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(**expected)
    return result


def test_a_logged_warning_fails_the_test_that_caused_it(tests_of_its_own: pytest.Pytester) -> None:
    test = """
def test_quiet(): logger.info("fine")
def test_loud(): logger.warning("the disk is %s", "odd")
def test_quiet_again(): pass
"""
    result = outcome_of(tests_of_its_own, test, passed=2, failed=1)
    result.stdout.fnmatch_lines(["*WARNING copperfs.x: the disk is odd*"])
    result.stdout.fnmatch_lines(["FAILED *::test_loud*"])


def test_a_warning_during_teardown_counts_too(tests_of_its_own: pytest.Pytester) -> None:
    test = """
@pytest.fixture
def loud():
    yield
    logger.error("late")
def test_it(loud): pass
"""
    outcome_of(tests_of_its_own, test, passed=1, errors=1)


def test_an_expected_warning_does_not_fail_the_test(tests_of_its_own: pytest.Pytester) -> None:
    test = """
def test_it(expected_warnings):
    expected_warnings("the disk is .*")
    logger.warning("the disk is odd")
"""
    outcome_of(tests_of_its_own, test, passed=1)


def test_an_expected_warning_that_does_not_come_fails_the_test(
    tests_of_its_own: pytest.Pytester,
) -> None:
    test = """
def test_it(expected_warnings):
    expected_warnings("the disk is .*")
"""
    result = outcome_of(tests_of_its_own, test, failed=1)
    result.stdout.fnmatch_lines(["*expected in the log, and not there:*"])


def test_loggers_of_others_are_not_watched(tests_of_its_own: pytest.Pytester) -> None:
    outcome_of(tests_of_its_own, "def test_it(): logging.getLogger('y').error('x')\n", passed=1)


@pytest.mark.mount
def test_a_mount_left_behind_fails_the_session_and_is_unmounted(
    tests_of_its_own: pytest.Pytester,
) -> None:
    test = """
import subprocess
def test_it(tmp_path):
    (tmp_path / "from").mkdir()
    (tmp_path / "a b").mkdir()
    subprocess.run(["bindfs", "-r", tmp_path / "from", tmp_path / "a b"], check=True)
"""
    result = outcome_of(tests_of_its_own, test, passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["LEFT BEHIND by the tests, now cleaned up: mount *a b"])
    assert mounts_below(tests_of_its_own.path) == []


def test_a_daemon_left_running_fails_the_session_and_is_ended(
    tests_of_its_own: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    conftest = tests_of_its_own.path / "conftest.py"
    conftest.write_text(conftest.read_text().replace("EXIT_GRACE_S = 5.0", "EXIT_GRACE_S = 0.2"))
    test = """
import subprocess, sys
def test_it():
    code = "import time; time.sleep(60) # copperfs"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    print("pid", child.pid)
    child.returncode = 0  # so that Popen does not warn about it
    assert child.pid
"""
    result = outcome_of(tests_of_its_own, test, passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["LEFT BEHIND by the tests, now cleaned up: process *copperfs*"])


SKIPS = """
def test_fine(): pass
def test_left_out(): pytest.skip("no browser")
@pytest.mark.skipif(True, reason="no root")
def test_marked(): pass
@pytest.mark.xfail
def test_known(): assert False
"""


def test_what_is_skipped_fails_where_nothing_may_be(
    tests_of_its_own: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NO_SKIPS_VARIABLE, raising=False)
    outcome_of(tests_of_its_own, SKIPS, passed=1, skipped=2, xfailed=1)
    monkeypatch.setenv(NO_SKIPS_VARIABLE, "1")
    result = outcome_of(tests_of_its_own, SKIPS, passed=1, failed=1, errors=1, xfailed=1)
    result.stdout.fnmatch_lines(["*and this was skipped:*no browser*"])


def test_a_module_that_is_skipped_fails_there_too(
    tests_of_its_own: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NO_SKIPS_VARIABLE, "1")
    outcome_of(tests_of_its_own, "pytest.importorskip('no_such_module')", errors=1)


# ---- the same where workers share the tests ------------------------------------------------------

IN_TWO = ("-n", "2")


def test_what_a_worker_leaves_fails_the_session_and_is_told(
    tests_of_its_own: pytest.Pytester,
) -> None:
    conftest = tests_of_its_own.path / "conftest.py"
    conftest.write_text(conftest.read_text().replace("EXIT_GRACE_S = 5.0", "EXIT_GRACE_S = 0.2"))
    test = """
import subprocess, sys
def test_it():
    code = "import time; time.sleep(60) # copperfs"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    child.returncode = 0  # so that Popen does not warn about it
def test_other(): pass
"""
    result = outcome_of(tests_of_its_own, test, *IN_TWO, passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["LEFT BEHIND by the tests, now cleaned up: process *copperfs*"])


def test_a_worker_that_was_killed_leaves_nothing_running(tests_of_its_own: pytest.Pytester) -> None:
    test = """
import os, signal, subprocess, sys
def test_it():
    code = "import time; time.sleep(60) # copperfs"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    conftest = tests_of_its_own.path / "conftest.py"
    conftest.write_text(conftest.read_text().replace("EXIT_GRACE_S = 5.0", "EXIT_GRACE_S = 0.2"))
    result = outcome_of(tests_of_its_own, test, *IN_TWO, failed=1)
    result.stdout.fnmatch_lines(["LEFT BEHIND by the tests, now cleaned up: process *copperfs*"])


@pytest.mark.mount
def test_workers_do_not_see_each_others_mounts(tests_of_its_own: pytest.Pytester) -> None:
    test = """
import subprocess, time
from pathlib import Path
WHERE = Path(__file__).parent
def one(own, other, tmp_path):
    (tmp_path / own).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / own], check=True)
    (WHERE / own).touch()
    deadline = time.monotonic() + 60
    while not (WHERE / other).exists():
        assert time.monotonic() < deadline
    seen = Path("/proc/self/mountinfo").read_text()
    assert f"/{own} " in seen and f"/{other} " not in seen
"""
    tests_of_its_own.makepyfile(
        test_a=f"{test}\ndef test_it(tmp_path): one('mine', 'yours', tmp_path)",
        test_b=f"{test}\ndef test_it(tmp_path): one('yours', 'mine', tmp_path)",
    )
    result = tests_of_its_own.runpytest_subprocess(*IN_TWO, "--dist", "loadfile")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(
        [f"LEFT BEHIND by the tests, now cleaned up: mount */{own}" for own in ("mine", "yours")]
    )
    assert mounts_below(tests_of_its_own.path) == []


@pytest.mark.parametrize("options", [(), IN_TWO])
def test_what_tests_start_can_be_interrupted_and_has_no_terminal(
    tests_of_its_own: pytest.Pytester, options: tuple[str, ...]
) -> None:
    """A shell makes background processes ignore SIGINT."""
    test = """
import os, signal, subprocess
def test_it():
    child = subprocess.Popen(["sleep", "60"])
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == -signal.SIGINT
    assert not {"COLUMNS", "LINES"} & set(os.environ)
"""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome_of(tests_of_its_own, test, *options, passed=1)
    finally:
        signal.signal(signal.SIGINT, before)


def test_warnings_and_skips_fail_in_workers_too(
    tests_of_its_own: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NO_SKIPS_VARIABLE, "1")
    loud = "def test_loud(): logger.warning('odd')\n"
    result = outcome_of(
        tests_of_its_own, SKIPS + loud, *IN_TWO, passed=1, failed=2, errors=1, xfailed=1
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*and this was skipped:*no browser*"])


def test_who_is_alone_runs_when_no_other_does(tests_of_its_own: pytest.Pytester) -> None:
    test = """
import os, pytest, time
from pathlib import Path
NOTES = Path(__file__).parent / "notes"
def note(what):
    fd = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, what.encode() + b"\\n")
    os.close(fd)
@pytest.mark.parametrize("number", range(20))
def test_it(number):
    note("in")
    os.sched_yield()
    note("out")
"""
    alone = test.replace("@pytest", "@pytest.mark.alone\n@pytest").replace('note("', 'note("alone ')
    tests_of_its_own.makeini("[pytest]\nmarkers = alone: so\n")
    tests_of_its_own.makepyfile(test_a=test, test_b=test, test_c=alone)
    result = tests_of_its_own.runpytest_subprocess("-n", "3", "--dist", "loadfile")
    result.assert_outcomes(passed=60)
    notes = (tests_of_its_own.path / "notes").read_text().splitlines()
    assert len(notes) == 120
    running = 0
    for before, note in zip(["", *notes], notes, strict=False):
        if note.startswith("alone"):
            assert running == 0
            assert (note == "alone out") == (before == "alone in")
        else:
            running += 1 if note == "in" else -1


@pytest.mark.parametrize(
    ("options", "workers"),
    [((), True), (("-x",), True), (("-k", "it"), False), (("test_a.py",), False), (("-s",), False)],
)
def test_who_runs_a_few_tests_has_no_workers(
    tests_of_its_own: pytest.Pytester, options: tuple[str, ...], workers: bool
) -> None:
    tests_of_its_own.makepyfile(test_a="def test_it(): pass\n")
    result = tests_of_its_own.runpytest_subprocess("-v", "-n", "auto", *options)
    result.assert_outcomes(passed=1)
    assert (" workers [1 item]" in result.stdout.str()) == workers


@pytest.mark.mount
def test_others_may_enter_also_when_another_session_begins(
    tests_of_its_own: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest closes its directory to other users at the beginning of each session."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    test = """
import os, subprocess, sys
from pathlib import Path
INNER = "import os\\nprint(os.environ['COPPER_TEST_SESSION'])\\ndef test_inner(tmp_path): pass\\n"
def test_it(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "file").write_text("it")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (inner / "test_inner.py").write_text(INNER)
    subprocess.run([sys.executable, "-m", "pytest", "-q", inner], check=True, timeout=60)
    show = ["setpriv", "--reuid=65534", "--clear-groups", "cat", tmp_path / "file"]
    assert subprocess.run(show, check=True, capture_output=True, timeout=60).stdout == b"it"
"""
    home = tests_of_its_own.path / "home"
    home.mkdir()
    for each in (home, *home.parents):
        if each.stat().st_uid == os.geteuid() and each.stat().st_mode & 0o005 != 0o005:
            each.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(home))
    tests_of_its_own.makepyfile(test_it=test)
    # pytester passes a --basetemp, which this test is about.
    for options in ((), IN_TWO):
        command = [sys.executable, "-m", "pytest", "-q", *options, tests_of_its_own.path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout
    assert len(list((home / f"copper-{os.geteuid()}").iterdir())) == 3
