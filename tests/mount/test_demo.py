"""``make demo`` does what it says, and leaves nothing behind, also when it is interrupted."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import mounts_below
from tests.unit.test_layers import ROOT

DEMO = [sys.executable, str(ROOT / "examples" / "demo.py")]
WITHIN_S = 300.0
BUILD = ROOT / "build"

pytestmark = pytest.mark.mount


def what_is_left() -> list[Path]:
    return [*mounts_below(BUILD), *BUILD.glob("demo-*")]


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        DEMO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "100"},
    )


def test_the_second_import_reaches_neither_python_nor_the_source() -> None:
    before = set(what_is_left())
    with start() as demo:
        printed, complaint = demo.communicate(timeout=WITHIN_S)
    assert demo.returncode == 0, complaint
    rows = dict(re.findall(r"│ (.+?) +│ +[\d.,]+ │ +([\d.,]+) │", printed))
    for row in ("requests to Python", "source: files opened", "source: bytes read"):
        assert rows[row] == "0", printed
    assert set(what_is_left()) <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(number: signal.Signals) -> None:
    before = set(what_is_left())
    with start() as demo:
        deadline = time.monotonic() + WITHIN_S
        while not set(mounts_below(BUILD)) - before:
            assert demo.poll() is None, "it ended before it had mounted anything"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        demo.send_signal(number)
        _, complaint = demo.communicate(timeout=WITHIN_S)
    assert demo.returncode == 130, complaint
    assert set(what_is_left()) <= before
