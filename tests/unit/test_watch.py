"""Threads in Python that look at names, where they hang or the daemon itself is in trouble."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path as FilePath

import pytest
import trio

from copperfs.source import scan as scanning
from copperfs.source.filesystems import Filesystems
from copperfs.source.threads import ThreadFetcher
from copperfs.source.watch import Watch
from copperfs.types import Attributes, Entry, Path
from tests.mount.helpers import eventually
from tests.unit.test_source_contract import Make

ENTRY = Entry(Attributes.bare(1, 0))


@pytest.fixture
def directory(tmp_path: FilePath) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_name_is_skipped_until_the_last_thread_that_hangs_in_it_is_back(directory: int) -> None:
    watch, path, names = Watch(deadline_s=0.05), Path(b"d"), [b"answers", b"hung"]
    came, ends = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    both = threading.Barrier(2)

    def scan(number: int) -> None:
        def look(_: int, name: bytes) -> Entry:
            if name == b"hung":
                both.wait()  # neither has seen that the other hangs
                came[number].set()
                ends[number].wait()
            return ENTRY

        assert watch.look_at(path, directory, names, look)[b"hung"] is None

    scans = [threading.Thread(target=scan, args=(number,)) for number in range(2)]
    for each in scans:
        each.start()
    for each in scans:
        each.join()
    for event in came:
        event.wait()
    assert watch.hanging() == 2
    ends[0].set()
    eventually(lambda: watch.hanging() == 1, "a thread is back")
    asked: list[bytes] = []

    def note(_: int, name: bytes) -> Entry:
        asked.append(name)
        return ENTRY

    assert watch.look_at(path, directory, names, note)[b"hung"] is None
    assert asked == [b"answers"]
    ends[1].set()
    eventually(lambda: watch.hanging() == 0, "both threads are back")
    assert watch.look_at(path, directory, names, note)[b"hung"] is ENTRY


def test_a_scan_waits_while_no_thread_can_be_started(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "name").touch()
    refused: list[threading.Thread] = []
    start = threading.Thread.start

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name == "copperfs-look" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    async def main() -> None:
        async with Make(ThreadFetcher)(tmp_path) as source:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", start_or_fail)
                assert [entry.unknown for _, entry in (await source.scan()).rows()] == [False]

    trio.run(main)
    assert refused


def test_a_scan_waits_for_memory(tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "name").touch()
    refused: list[bytes] = []
    entry_at = scanning.entry_at

    def fail_once(directory: int, name: bytes, filesystems: Filesystems) -> Entry:
        if not refused:
            refused.append(name)
            raise MemoryError
        return entry_at(directory, name, filesystems)

    async def main() -> None:
        async with Make(ThreadFetcher)(tmp_path, deadline_s=2.0) as source:
            monkeypatch.setattr(scanning, "entry_at", fail_once)
            assert [entry.unknown for _, entry in (await source.scan()).rows()] == [False]

    trio.run(main)
    assert refused
