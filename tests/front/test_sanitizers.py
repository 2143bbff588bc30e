"""The steps of ``make sanitize`` at length: the front and the source's pool with all their threads
at once, and fuzzed, under clang's sanitizers.

``COPPERFS_SANITIZE_S`` makes each step longer than a minute. Add a failing input to ``corpus/``,
named after its fuzzer: ``test_front_quick.py`` then runs it.
"""

import os
from pathlib import Path

import pytest

from tests.front.steps import STEPS, Step

pytestmark = pytest.mark.long

STEP_S = float(os.environ.get("COPPERFS_SANITIZE_S", "60"))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_sanitizers_have_nothing_to_report(step: Step, tmp_path: Path) -> None:
    step.play(step.program(tmp_path), tmp_path, STEP_S)
