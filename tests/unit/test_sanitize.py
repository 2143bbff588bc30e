"""``make sanitize`` fails if one of its steps fails, and prints that step's report."""

import pytest

from tests import sanitize


def find_nothing() -> str:
    return "Done 5 runs"


def find_race() -> str:
    raise AssertionError("WARNING: ThreadSanitizer: data race")


def outcome_of(*tasks: sanitize.Task, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sanitize, "tasks_for", lambda _, only: [t for t in tasks if only in t[0]])
    return sanitize.main([])


def test_step_that_reports_something_fails_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = ("quiet", find_nothing), ("racy", find_race), ("last", find_nothing)
    assert outcome_of(*tasks, monkeypatch=monkeypatch) == 1
    said = capsys.readouterr().out
    assert said.count("Done 5 runs") == 2
    assert "--- racy\nWARNING: ThreadSanitizer: data race" in said


def test_steps_that_report_nothing_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome_of(("quiet", find_nothing), monkeypatch=monkeypatch) == 0


def test_name_that_no_step_has_is_refused() -> None:
    with pytest.raises(SystemExit):
        sanitize.main(["--only", "no such step"])


def test_each_step_has_a_planted_defect() -> None:
    from tests.front.steps import STEPS
    from tests.front.test_planted import DEFECTS

    assert [step.name for step in STEPS if step.name not in DEFECTS] == []
