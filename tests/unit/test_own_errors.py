"""Errors that the front end makes itself: the daemon logs those of some seconds in one line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest
import trio
import trio.testing

from copperfs.daemon.daemon_main import OWN_ERRORS_EVERY_S, log_own_errors

if TYPE_CHECKING:
    from copperfs.native import Front


class Counters:
    def __init__(self) -> None:
        self.counts = (0, 0, 0, 0)

    def own_errors(self) -> tuple[int, int, int, int]:
        return self.counts


def lines_of(caplog: pytest.LogCaptureFixture, *seen: tuple[int, int, int, int]) -> list[str]:
    counters = Counters()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log_own_errors, cast("Front", counters))
            await trio.testing.wait_all_tasks_blocked()
            for counts in seen:
                counters.counts = counts
                if counts is not seen[-1]:
                    await trio.sleep(2 * OWN_ERRORS_EVERY_S)
            nursery.cancel_scope.cancel()

    with caplog.at_level(logging.WARNING):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return [record.getMessage() for record in caplog.records]


def test_requests_that_failed_are_said_once(
    caplog: pytest.LogCaptureFixture, expected_warnings: Callable[[str], None]
) -> None:
    expected_warnings("failed with EIO")
    expected_warnings("failed with ENOMEM")
    lines = lines_of(caplog, (2, 0, 0, 0), (2, 0, 0, 0), (3, 0, 1, 0), (3, 0, 1, 0))
    assert [line[: line.index(",")] for line in lines] == [
        "2 requests failed with EIO",
        "1 requests failed with EIO",
        "1 requests failed with ENOMEM",
    ]


def test_what_failed_just_before_the_end_is_said_too(
    caplog: pytest.LogCaptureFixture, expected_warnings: Callable[[str], None]
) -> None:
    expected_warnings("failed with ETIMEDOUT")
    assert len(lines_of(caplog, (0, 0, 0, 1))) == 1


def test_counters_that_were_reset_count_from_zero(
    caplog: pytest.LogCaptureFixture, expected_warnings: Callable[[str], None]
) -> None:
    expected_warnings("failed with EIO")
    lines = lines_of(caplog, (5, 0, 0, 0), (0, 0, 0, 0), (5, 0, 0, 0), (1, 0, 0, 0))
    assert [line.split()[0] for line in lines] == ["5", "5", "1"]
