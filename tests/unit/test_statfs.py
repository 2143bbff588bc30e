"""``df``: its numbers are refreshed now and then, and no caller waits for them."""

import os
import threading

import pytest
import trio

from copperfs.fuse import statfs
from copperfs.fuse.statfs import Statfs
from tests.mount.helpers import eventually


def found(free: int) -> os.statvfs_result:
    return os.statvfs_result((512, 512, 1000, free, free, 100, 100, 100, 0, 255))


class Source:
    def __init__(self) -> None:
        self.asked = 0
        self.error: OSError | None = None
        self.goes_on = threading.Event()
        self.goes_on.set()

    def ask(self) -> os.statvfs_result:
        self.asked += 1
        number = self.asked
        self.goes_on.wait(60)
        if self.error is not None:
            raise self.error
        return found(number)


def free_blocks(shown: Statfs, times: int = 1) -> list[int]:
    async def main() -> list[int]:
        return [(await shown.current()).f_bfree for _ in range(times)]

    return trio.run(main)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def always_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statfs, "FRESH_S", 0.0)
    monkeypatch.setattr(statfs, "WITHIN_S", 60.0)  # a busy machine starts a thread late


@pytest.fixture
def impatient(always_old: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statfs, "WITHIN_S", 0.1)


def test_what_is_fresh_is_not_asked_for(source: Source) -> None:
    assert free_blocks(Statfs(source.ask), times=3) == [1, 1, 1]
    assert source.asked == 1


@pytest.mark.usefixtures("always_old")
def test_what_is_old_is_asked_for_when_somebody_wants_it(source: Source) -> None:
    shown = Statfs(source.ask)
    assert source.asked == 1
    assert free_blocks(shown, times=2) == [2, 3]


@pytest.mark.usefixtures("impatient")
def test_a_source_that_hangs_is_not_waited_for_and_holds_one_thread(source: Source) -> None:
    shown = Statfs(source.ask)
    source.goes_on.clear()
    try:
        assert free_blocks(shown, times=3) == [1, 1, 1]
        eventually(lambda: source.asked == 2, "one thread asks")
        assert free_blocks(shown, times=3) == [1, 1, 1]
        assert source.asked == 2
    finally:
        source.goes_on.set()


@pytest.mark.usefixtures("always_old")
def test_a_source_that_says_nothing_leaves_what_was_known(source: Source) -> None:
    shown = Statfs(source.ask)
    source.error = OSError(5, "Input/output error")
    assert free_blocks(shown) == [1]
    source.error = None
    assert free_blocks(shown) == [3]
