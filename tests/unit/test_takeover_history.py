"""Takeover history, and the log in memory that successors share."""

from __future__ import annotations

import json
import subprocess
import sys

from copperfs.daemon.log_file import MEMORY_LOG_MAX
from copperfs.daemon.takeover_history import LATEST_MAX, TakeoverHistory


def test_a_history_is_bounded_and_outlives_its_daemon() -> None:
    history = TakeoverHistory()
    for number in range(1, 3 * LATEST_MAX):
        history = TakeoverHistory.of_json(json.loads(json.dumps(history.to_json())))
        history.add(number, "hang" if number % 2 else "upgrade", number / 8)
    assert history.count == 3 * LATEST_MAX - 1
    assert sum(history.by_cause.values()) == history.count
    assert len(history.latest) == LATEST_MAX
    assert history.last is not None
    assert (history.last.number, history.last.cause) == (history.count, "hang")
    assert history.to_json()["last_s"] == history.count / 8


def test_numbers_go_on_with_another_keeper() -> None:
    history = TakeoverHistory()
    for number in (1, 3, 1):  # the second successor has ended before it served
        history.add(number, "signal-9", 0.1)
    assert [each.number for each in history.latest] == [1, 3, 4]
    assert history.count == 4


SCRIPT = """
import logging, os, subprocess, sys
from copperfs.daemon.log_file import MemoryLog
logging.basicConfig(handlers=[MemoryLog()], force=True)
if sys.argv[1] == "first":
    for number in range(20_000):
        logging.warning("the message %d of a daemon", number)
        assert os.fstat(2).st_size <= int(sys.argv[2])
    os.write(2, b"another process\\n")
    subprocess.run([sys.executable, "-c", sys.argv[3], "second", *sys.argv[2:]], check=True)
    text = open("/proc/self/fd/2").read()
    assert "message 0 of" not in text
    assert text.startswith("WARNING:root:the message "), text[:100]
    assert text.endswith("19999 of a daemon\\nanother process\\nWARNING:root:took over\\n")
else:
    logging.warning("took over")
"""


def test_a_log_in_memory_is_bounded_and_shared_with_successors() -> None:
    words = [sys.executable, "-c", SCRIPT, "first", str(MEMORY_LOG_MAX), SCRIPT]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
