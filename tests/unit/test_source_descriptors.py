"""Source contract without free descriptors: no reader gets an error when the daemon has run out of
them."""

import errno
from collections.abc import Callable
from pathlib import Path as FilePath

import pytest
import trio

from copperfs.model.types import FetchId
from copperfs.node.actions import SourceAction
from copperfs.node.events import Failed
from tests.descriptors import no_descriptor_left
from tests.unit.test_source_contract import (
    Source,
    chunk_of,
    look_at,
    make,
    open_of,
    read_of,
    scan_of,
    settled,
)

LONG_ENOUGH_S = 0.3
"""Seconds that suffice for a failure to show."""

Want = Callable[[FetchId], SourceAction]


async def all_that_open(source: Source) -> list[Want]:
    version = await source.version(b"file")
    return [
        scan_of(b"directory"),
        look_at(b"file"),
        read_of(b"file", version),
        open_of(b"file", version),
        chunk_of(b"file", version),
    ]


@pytest.fixture(autouse=True)
def names(tmp_path: FilePath) -> None:
    settled(tmp_path / "file", b"hello")
    (tmp_path / "directory").mkdir()


def test_what_needs_a_descriptor_waits_until_there_is_one(tmp_path: FilePath) -> None:
    async def main() -> None:
        async with make(tmp_path, concurrency=8) as source:
            wanted = await all_that_open(source)
            with no_descriptor_left():
                started = [source.start(each) for each in wanted]
                with trio.move_on_after(LONG_ENOUGH_S):
                    outcome = await source.outcome(started[0])
                    pytest.fail(f"{outcome} while no descriptor was left")
                assert not source.arrived
            for each in started:
                assert not isinstance(await source.outcome(each), Failed)

    trio.run(main)


def test_who_waits_in_vain_is_late_and_not_told_of_descriptors(tmp_path: FilePath) -> None:
    async def main() -> None:
        # All wait at once, so that a deadline that a busy machine keeps costs the test no more.
        async with make(tmp_path, concurrency=8, deadline_s=1) as source:
            wanted = await all_that_open(source)
            with no_descriptor_left():
                for each in [source.start(each) for each in wanted]:
                    outcome = await source.outcome(each)
                    assert isinstance(outcome, Failed), outcome
                    assert outcome.error == errno.ETIMEDOUT

    trio.run(main)


def test_files_that_are_kept_open_are_given_up_for_others(tmp_path: FilePath) -> None:
    kept = (b"kept", b"kept too")  # an open needs one for the root, and one for the file
    for name in kept:
        settled(tmp_path / name.decode(), b"hello")

    async def main() -> None:
        async with make(tmp_path) as source:
            version = await source.version(b"file")
            for name in kept:
                assert await source.chunk(name, await source.version(name), 0, 5) == b"hello"
            with no_descriptor_left():
                assert await source.read(b"file", version) == b"hello"

    trio.run(main)
