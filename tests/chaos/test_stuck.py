"""A process whose main thread is stuck while its others go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.stuck import Stuck
from tests.mount.helpers import eventually, is_running

GROWING = """if True:
    import sys, threading, time
    def grow(path):
        with open(path, "wb", buffering=0) as file:
            while True:
                file.write(b"x")
                time.sleep(0.001)
    threading.Thread(target=grow, args=[sys.argv[2]], daemon=True).start()
    grow(sys.argv[1])
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", GROWING, str(tmp_path / "main"), str(tmp_path / "other")]
    with subprocess.Popen(command) as process:
        try:
            eventually(lambda: grown(tmp_path / "main") and grown(tmp_path / "other"), "it runs")
            yield process
        finally:
            process.kill()


def grown(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def grows(path: Path) -> None:
    before = grown(path)
    eventually(lambda: grown(path) > before + 20, f"{path.name} grows")


def test_the_main_thread_stands_still_while_the_others_go_on(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    main, other = tmp_path / "main", tmp_path / "other"
    stuck = Stuck(process.pid)
    before = grown(main)
    grows(other)
    assert grown(main) == before
    stuck.release()
    grows(main)


def test_a_process_that_is_killed_while_it_is_stuck_can_be_let_go_of(
    process: subprocess.Popen[bytes],
) -> None:
    stuck = Stuck(process.pid)
    process.kill()
    stuck.release()
    eventually(lambda: not is_running(process.pid), "it has ended")


def test_a_process_that_is_not_there_is_an_error(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    with pytest.raises(ProcessLookupError):
        Stuck(process.pid)
