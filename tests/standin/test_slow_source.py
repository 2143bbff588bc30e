"""The contract of the source where it is slow, so that scans are shared between threads.

The same suite in the same words as ``test_source_contract.py``, over the stand-in.
"""

import errno
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath

import pytest
import trio

from copperfs.core.events import Scanned
from copperfs.core.listing import Listing
from copperfs.types import Attributes, Path
from tests.standin import StandIn
from tests.unit.test_source_contract import FETCHERS, Make, Source, scan_of, settled

pytestmark = pytest.mark.mount

NAMES = 60


@dataclass
class Slow:
    """A directory ``d`` of 60 names and a link, a millisecond each, and sources of it."""

    tree: FilePath
    standin: StandIn
    make: Make

    @asynccontextmanager
    async def source(self, **settings: object) -> AsyncIterator[Source]:
        async with self.make(self.standin.mountpoint, **settings) as source:  # type: ignore[arg-type]
            self.standin.set_latency(per_op_s=0.001)
            yield source

    def check(self, listing: Listing, without: frozenset[bytes] = frozenset()) -> None:
        """It is what the system says, in the system's order."""
        order = [os.fsencode(name) for name in sorted(os.listdir(self.tree / "d"))]
        assert [name for name, _ in listing.rows()] == [n for n in order if n not in without]
        for name, entry in listing.rows():
            status = os.lstat(os.path.join(bytes(self.tree / "d"), name))
            assert entry.attributes.version == Attributes.from_stat(status).version
            assert entry.target == (b"n7" if name == b"link" else b"")

    async def wait_for_hanging(self) -> None:
        await trio.to_thread.run_sync(self.standin.wait_for_hanging)


@pytest.fixture(params=FETCHERS, ids=lambda kind: kind.__name__)
def slow(request: pytest.FixtureRequest, tmp_path: FilePath) -> Iterator[Slow]:
    (tmp_path / "d").mkdir()
    for number in range(NAMES):
        settled(tmp_path / "d" / f"n{number}", b"%d" % number)
    (tmp_path / "d" / "link").symlink_to("n7")
    settled(tmp_path / "quick", b"quick")
    with StandIn(tmp_path) as standin:
        yield Slow(tmp_path, standin, Make(request.param))


def test_a_slow_listing_is_the_listing(slow: Slow) -> None:
    async def main() -> None:
        async with slow.source() as source:
            slow.standin.reset_counts()
            slow.check(await source.scan(b"d"))
            counts = slow.standin.counts()
            assert source.fetcher.counts()["stat"] == NAMES + 1
            assert source.fetcher.counts()["scandir"] == 1
            for number in range(NAMES):  # each once
                assert counts.total("lookup", f"d/n{number}") == 1
            assert counts.total("opendir", "d") == 1

    trio.run(main)


def test_many_scans_at_once_are_each_the_listing(slow: Slow) -> None:
    async def main() -> None:
        async with slow.source(concurrency=6) as source:
            scans = [source.start(scan_of(b"d")) for _ in range(12)]
            for scan in scans:
                outcome = await source.outcome(scan)
                assert isinstance(outcome, Scanned)
                slow.check(outcome.listing)
            assert source.fetcher.statistics().threads <= 6
            assert source.fetcher.counts()["stat"] == 12 * (NAMES + 1)

    trio.run(main)


@pytest.mark.parametrize("number", [0, 30, NAMES - 1])
def test_a_name_that_fails_fails_the_listing(slow: Slow, number: int) -> None:
    slow.standin.fail(f"d/n{number}", errno.EIO, ops=["lookup"])

    async def main() -> None:
        async with slow.source() as source:
            assert await source.error_of(scan_of(b"d")) == errno.EIO
            slow.standin.heal()
            slow.check(await source.scan(b"d"))

    trio.run(main)


def test_a_name_that_vanished_is_left_out(slow: Slow) -> None:
    slow.standin.fail("d/n30", errno.ENOENT, ops=["lookup"])

    async def main() -> None:
        async with slow.source() as source:
            slow.check(await source.scan(b"d"), frozenset({b"n30"}))
            assert source.fetcher.counts()["stat"] == NAMES

    trio.run(main)


def test_names_that_must_not_be_touched_are_not(slow: Slow) -> None:
    async def main() -> None:
        async with slow.source(untouchable=frozenset({Path(b"d/n30")})) as source:
            listing = await source.scan(b"d")
            assert listing.count == NAMES + 1
            assert slow.standin.counts().total("lookup", "d/n30") == 0

    trio.run(main)


def test_a_name_that_hangs_takes_one_thread(slow: Slow) -> None:
    rule = slow.standin.hang("d/n30", ops=["lookup"])

    async def main() -> None:
        async with slow.source(concurrency=3) as source:
            version = await source.version(b"quick")
            scan = source.start(scan_of(b"d"))
            await slow.wait_for_hanging()
            assert await source.read(b"quick", version) == b"quick"
            with trio.fail_after(20):  # the others may be at their last names
                while source.fetcher.statistics().busy > 1:  # noqa: ASYNC110 - in C
                    await trio.sleep(0.001)
            assert scan not in source.arrived
            slow.standin.release(rule)
            outcome = await source.outcome(scan)
            assert isinstance(outcome, Scanned)
            slow.check(outcome.listing)

    trio.run(main)


def test_threads_that_hang_in_a_scan_are_replaced(slow: Slow) -> None:
    rule = slow.standin.hang("d/n30", ops=["lookup"])

    async def main() -> None:
        # no deadline at all: whatever is under way when something else begins, hangs
        async with slow.source(concurrency=1, deadline_s=0.0) as source:
            version = await source.version(b"quick")
            scan = source.start(scan_of(b"d"))
            await slow.wait_for_hanging()
            assert await source.read(b"quick", version) == b"quick"
            assert source.fetcher.statistics().stuck == 1
            slow.standin.release(rule)
            outcome = await source.outcome(scan)
            assert isinstance(outcome, Scanned)
            slow.check(outcome.listing)
            assert source.fetcher.statistics().stuck == 0

    trio.run(main)


def test_a_fetcher_may_be_closed_in_the_midst_of_a_scan(slow: Slow) -> None:
    rule = slow.standin.hang("d/n30", ops=["lookup"])

    async def main() -> None:
        async with slow.source() as source:
            source.start(scan_of(b"d"))
            await slow.wait_for_hanging()
        slow.standin.release(rule)

    trio.run(main)
