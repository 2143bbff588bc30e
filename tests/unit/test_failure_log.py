"""Failure log: the contents of ``--events``, and the behaviour when it cannot be written."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from copperfs.daemon import failure_log
from copperfs.daemon.failure_log import FailureLogWriter
from copperfs.model.errors import MountError
from copperfs.model.roster import Member, Roster
from copperfs.model.types import NodeId
from copperfs.node.actions import LogEvent


def roster() -> Roster:
    return Roster(
        "job", tuple(Member(f"node{number}", f"tcp://n{number}:1", "") for number in range(3))
    )


def test_a_line_for_each_thing_that_happened(tmp_path: Path) -> None:
    file = tmp_path / "events"
    file.write_text("")
    for seconds in (0.0021, None):
        events = FailureLogWriter(NodeId(2), roster(), str(file))
        events.open()
        events.note(LogEvent("gone", NodeId(0), "nobody listens", seconds))
        events.note(LogEvent("refutes its end"))
        events.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["what"], line["name"], line["took_ms"]) for line in lines] == [
        ("gone", "node0", 2),
        ("refutes its end", None, None),
        ("gone", "node0", None),
        ("refutes its end", None, None),
    ], "what was there before stays"
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    assert {line["node"] for line in lines} == {2}


def test_what_cannot_be_written_is_said_before_anything_else(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="missing/events cannot be written: No such file"):
        FailureLogWriter(NodeId(0), roster(), str(tmp_path / "missing" / "events")).open()


def test_a_job_that_is_very_unwell_does_not_fill_the_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected_warnings: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected_warnings("is full")
    monkeypatch.setattr(failure_log, "FILE_BYTES_MAX", 1000)
    events = FailureLogWriter(NodeId(0), roster(), str(tmp_path / "events"))
    events.open()
    for _ in range(100):
        events.note(LogEvent("silent", NodeId(1)))
    events.close()
    assert 1000 < (tmp_path / "events").stat().st_size < 1300
    assert "is full: what happens is only logged now" in caplog.text
