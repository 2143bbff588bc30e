"""Plugin of pytest: writes each failure down when it happens, for a guest that may be ended."""

from __future__ import annotations

import pytest

from tests.kernels.guest import RESULT


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        with (RESULT / "failures").open("a") as file:
            file.write(f"==== {report.nodeid} ({report.when})\n{report.longreprtext}\n")
