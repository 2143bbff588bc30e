"""The rules of tests/conftest.py can fail: each runs here on tests that break it."""

from pathlib import Path

import pytest

from tests.conftest import NO_SKIPS_VARIABLE, mounts_below

CONFTEST = Path(__file__).parent.parent / "conftest.py"


@pytest.fixture
def tests_of_its_own(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST.read_text())
    return pytester


def outcome_of(pytester: pytest.Pytester, test: str, **expected: int) -> pytest.RunResult:
    pytester.makepyfile("import logging, pytest\nlogger = logging.getLogger('copperfs.x')\n" + test)
    result = pytester.runpytest_subprocess()
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
