"""``make demo`` works as documented, and leaves nothing behind, also when it is interrupted."""

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


def shape(printed: str) -> list[str]:
    """The lines, without what depends on numbers or their width."""
    return [
        re.sub(r"[ ━─]+", " ", re.sub(r"\d[\d,.]*", "N", line)).strip()
        for line in printed.splitlines()
    ]


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        DEMO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "80"},
    )


def test_the_source_is_read_once_and_a_second_import_reaches_no_daemon() -> None:
    before = set(what_is_left())
    with start() as demo:
        printed, complaint = demo.communicate(timeout=WITHIN_S)
    assert demo.returncode == 0, complaint
    assert max(map(len, printed.splitlines())) <= 80, printed
    rows = [
        tuple(re.split(r" {2,}", line.strip()))
        for line in printed.splitlines()
        if re.match(r" *(cold|warm) ", line)
    ]
    cold, warm = ([row[1:] for row in rows if row[0] == which] for which in ("cold", "warm"))
    assert [row[0] for row in cold] == ["node0", "node1", "node2", "node3"], printed
    assert [row[1] for row in cold] == ["-", "node0", "node0", "node1"], printed
    assert re.match(r"\d+, \d+ MB", cold[0][6]), printed
    for row in [*cold, *warm]:
        requests, hits, misses = (int(each.replace(",", "")) for each in row[2:5])
        assert requests == hits + misses, printed
    for node in cold[1:]:
        # a node that follows the others gets several files with one reply
        asked, read = (int(each.partition(",")[0]) for each in (node[5], cold[0][6]))
        assert 0 < asked <= read, printed
        assert node[6] == "0", printed
    for node in warm:
        # a page that the first import did not touch is requested, and is in memory
        assert node[2] == node[3], printed
        assert node[5] == ("-" if node[1] == "-" else "0"), printed
        assert node[6] == "0", printed
    once = re.search(
        r"source was read once: ([\d,]+) files, ([\d,]+) opens; ([\d,]+) dir\w+, ([\d,]+) lis",
        printed,
    )
    assert once is not None, printed
    readme = (ROOT / "README.md").read_text()
    shown = re.search(
        r"^\$ make demo\n(?:setup: [^\n]*\n)*(.*?)^```", readme, re.MULTILINE | re.DOTALL
    )
    assert shown is not None
    assert shape(printed) == shape(shown[1]), "the session in the README is one of today's"
    assert (once[1], once[3]) == (once[2], once[4])
    assert re.search(r"With it, warm: 0 operations", printed), printed
    assert set(what_is_left()) <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["lustre4", "cluster"])
def test_an_interrupted_demo_leaves_nothing_behind(number: signal.Signals, where: str) -> None:
    before = set(what_is_left())
    with start() as demo:
        deadline = time.monotonic() + WITHIN_S
        while not {each for each in mounts_below(BUILD) if where in each.parts} - before:
            assert demo.poll() is None, "it ended before it had mounted anything"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        demo.send_signal(number)
        _, complaint = demo.communicate(timeout=WITHIN_S)
    assert demo.returncode == 130, complaint
    assert set(what_is_left()) <= before
