"""The contract of the source where it is slow, so that scans are shared between threads: the suite
of ``test_source_contract.py``, over the stand-in."""

import errno
import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath

import pytest
import trio

from copperfs.model.listing import Listing, checked_listing
from copperfs.model.types import Attributes, Entry, Path
from copperfs.node.events import SourceListed
from tests.standin import StandIn
from tests.unit.test_source_contract import Source, look_at, make, scan_of, settled

pytestmark = pytest.mark.mount

NAMES = 60
HANDS_MAX = 8
STUCK_MAX, LEFT_MAX = 128, 4


@dataclass
class Slow:
    """A directory ``d`` of 60 names and a link, a millisecond each, and sources of it."""

    tree: FilePath
    standin: StandIn

    @asynccontextmanager
    async def source(self, **settings: object) -> AsyncIterator[Source]:
        async with make(self.standin.mountpoint, **settings) as source:  # type: ignore[arg-type]
            self.standin.set_latency(per_op_s=0.001)
            yield source

    def check(
        self,
        listing: Listing,
        without: frozenset[bytes] = frozenset(),
        unknown: frozenset[bytes] = frozenset(),
    ) -> None:
        """The scan equals the system's own, in its order; *unknown* names have only number and
        type."""
        order = [os.fsencode(name) for name in sorted(os.listdir(self.tree / "d"))]
        assert [name for name, _ in listing.rows()] == [n for n in order if n not in without]
        checked_listing(listing.packed, None)
        for name, entry in listing.rows():
            status = os.lstat(os.path.join(bytes(self.tree / "d"), name))
            assert entry.unknown is listing.has_to_be_looked_up(name) is (name in unknown)
            if entry.unknown:
                bare = Attributes.bare(entry.attributes.inode, stat.S_IFMT(status.st_mode))
                assert entry == Entry(bare, unknown=True)
                continue
            assert entry.attributes.version == Attributes.from_stat(status).version
            assert entry.target == (b"n7" if name == b"link" else b"")

    async def wait_for_hanging(self) -> None:
        await trio.to_thread.run_sync(self.standin.wait_for_hanging)


@pytest.fixture
def slow(tmp_path: FilePath) -> Iterator[Slow]:
    (tmp_path / "d").mkdir()
    for number in range(NAMES):
        settled(tmp_path / "d" / f"n{number}", b"%d" % number)
    (tmp_path / "d" / "link").symlink_to("n7")
    settled(tmp_path / "quick", b"quick")
    with StandIn(tmp_path) as standin:
        yield Slow(tmp_path, standin)


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
                assert isinstance(outcome, SourceListed)
                slow.check(outcome.listing)
            assert source.fetcher.statistics().threads <= 6
            assert source.fetcher.counts()["stat"] == 12 * (NAMES + 1)

    trio.run(main)


@pytest.mark.parametrize(
    "code", [errno.EIO, errno.ENOTCONN, errno.EACCES, errno.ESTALE], ids=errno.errorcode.get
)
@pytest.mark.parametrize("number", [0, 30, NAMES - 1])
def test_a_name_that_fails_is_known_by_its_name_alone(slow: Slow, number: int, code: int) -> None:
    name = f"n{number}"
    slow.standin.fail(f"d/{name}", code, ops=["lookup"])

    async def main() -> None:
        async with slow.source() as source:
            slow.check(await source.scan(b"d"), unknown=frozenset({name.encode()}))
            assert await source.error_of(look_at(b"d/" + name.encode())) == code
            slow.standin.heal()
            slow.check(await source.scan(b"d"))

    trio.run(main)


def test_a_directory_that_fails_itself_fails_whole(slow: Slow) -> None:
    slow.standin.fail("d/**", errno.EIO, ops=["lookup", "getattr"])

    async def main() -> None:
        async with slow.source() as source:
            assert await source.error_of(scan_of(b"d")) == errno.EIO
            slow.standin.heal()
            slow.standin.fail("d", errno.EIO, ops=["opendir"])
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


def test_a_name_that_hangs_is_left_behind_with_its_thread(slow: Slow) -> None:
    rule = slow.standin.hang("d/n30", ops=["lookup"])
    hung = frozenset({b"n30"})

    async def main() -> None:
        async with slow.source(concurrency=3) as source:
            slow.check(await source.scan(b"d"), unknown=hung)
            assert slow.standin.counts().hanging == 1
            assert source.fetcher.statistics().stuck == 1
            # no other thread hangs there while that one does
            slow.check(await source.scan(b"d"), unknown=hung)
            assert slow.standin.counts().total("lookup", "d/n30") == 1
            assert slow.standin.counts().hanging == 1
            slow.standin.release(rule)
            with trio.fail_after(20):
                while source.fetcher.statistics().stuck:  # noqa: ASYNC110 - a thread's
                    await trio.sleep(0.001)
            slow.check(await source.scan(b"d"))

    trio.run(main)


def test_a_name_that_hangs_is_skipped_however_often_its_thread_was_looked_at(slow: Slow) -> None:
    rules = [slow.standin.hang(name, ops=["lookup"]) for name in ("d/n30", "other/hung")]
    hung = frozenset({b"n30"})

    async def main() -> None:
        async with slow.source() as source:
            slow.check(await source.scan(b"d"), unknown=hung)
            # a scan with a name that hangs takes several checks of all threads
            listing = await source.scan(b"other")
            assert [name for name, entry in listing.rows() if entry.unknown] == [b"hung"]
            slow.check(await source.scan(b"d"), unknown=hung)
            assert slow.standin.counts().total("lookup", "d/n30") == 1
            assert source.fetcher.statistics().stuck == 2
            for rule in rules:
                slow.standin.release(rule)

    (slow.tree / "other").mkdir()
    for each in ("answers", "hung"):
        (slow.tree / "other" / each).touch()
    trio.run(main)


def test_a_name_that_hangs_alone_is_left_behind_before_the_deadline(slow: Slow) -> None:
    slow.standin.hang("alone/name", ops=["lookup"])

    async def main() -> None:
        async with slow.source(deadline_s=1.0) as source:
            listing = await source.scan(b"alone")
            assert [(name, entry.unknown) for name, entry in listing.rows()] == [(b"name", True)]
        slow.standin.heal()

    (slow.tree / "alone").mkdir()
    (slow.tree / "alone" / "name").touch()
    trio.run(main)


def test_where_many_names_hang_few_threads_do(slow: Slow) -> None:
    hung = [f"n{number}" for number in range(20, 40)]
    for name in hung:
        slow.standin.hang(f"d/{name}", ops=["lookup"])

    async def main() -> None:
        async with slow.source(deadline_s=4.0) as source:
            listing = await source.scan(b"d")
            assert listing.count == NAMES + 1
            unknown = {os.fsdecode(name) for name, entry in listing.rows() if entry.unknown}
            assert unknown >= set(hung)
            assert LEFT_MAX <= source.fetcher.statistics().stuck <= LEFT_MAX + HANDS_MAX
            assert await source.read(b"quick") == b"quick"
        slow.standin.heal()

    trio.run(main)


def test_only_so_many_threads_hang_in_scans(slow: Slow) -> None:
    concurrency, more = 4, 20
    names = [b"hangs%d" % number for number in range(STUCK_MAX + 2 * more)]
    for name in names:
        (slow.tree / os.fsdecode(name)).mkdir()
        for each in ("answers", "hung"):
            (slow.tree / os.fsdecode(name) / each).touch()
        slow.standin.hang(f"{os.fsdecode(name)}/hung", ops=["lookup"])

    async def main() -> None:
        async with slow.source(concurrency=concurrency, deadline_s=0.1) as source:

            def stuck() -> int:
                return source.fetcher.statistics().stuck

            async def scan_one_more() -> None:
                before, scan = stuck(), source.start(scan_of(names.pop()))
                while scan not in source.arrived and stuck() <= before:
                    source.fetcher.replace_stuck()
                    await trio.sleep(0.001)

            with trio.fail_after(60):
                while stuck() < STUCK_MAX:
                    await scan_one_more()
                for _ in range(more):
                    await scan_one_more()
            assert await source.error_of(look_at(b"quick")) == errno.EIO
            assert STUCK_MAX <= stuck() <= STUCK_MAX + concurrency
            assert slow.standin.counts().hanging <= STUCK_MAX + concurrency
            slow.standin.heal()
            with trio.fail_after(20):
                while stuck():  # noqa: ASYNC110 - threads'
                    await trio.sleep(0.001)
            assert await source.look(b"quick") is not None

    trio.run(main)


def test_what_opening_a_directory_takes_does_not_count_for_its_names(slow: Slow) -> None:
    """One of two names hangs and one is late: both are slow compared with the one that answers."""
    slow.standin.delay("late", 2.0, ops=["opendir"])
    slow.standin.delay("late/takes long", 6.0, ops=["lookup"])
    slow.standin.hang("late/hung", ops=["lookup"])

    async def main() -> None:
        async with slow.source() as source:
            listing = await source.scan(b"late")
            unknown = {name for name, entry in listing.rows() if entry.unknown}
            assert unknown == {b"hung", b"takes long"}
        slow.standin.heal()

    (slow.tree / "late").mkdir()
    for name in ("answers", "hung", "takes long"):
        (slow.tree / "late" / name).touch()
    trio.run(main)


def test_where_all_names_are_slow_none_is_left_behind(slow: Slow) -> None:
    """Longer than the scan waits for a name that hangs."""

    async def main() -> None:
        async with slow.source() as source:
            listing = await source.scan(b"few")
            assert [entry.unknown for _, entry in listing.rows()] == [False, False]

    (slow.tree / "few").mkdir()
    for name in ("one", "two"):
        (slow.tree / "few" / name).touch()
        slow.standin.delay(f"few/{name}", 1.6, ops=["lookup"])
    trio.run(main)


def test_threads_that_hang_in_a_scan_are_replaced(slow: Slow) -> None:
    rule = slow.standin.hang("d/n30", ops=["lookup"])

    async def main() -> None:
        # without a deadline an operation counts as hung if it is under way when another one begins
        async with slow.source(concurrency=1, deadline_s=0.0) as source:
            version = await source.version(b"quick")
            scan = source.start(scan_of(b"d"))
            await slow.wait_for_hanging()
            assert await source.read(b"quick", version) == b"quick"
            outcome = await source.outcome(scan)
            assert isinstance(outcome, SourceListed)
            assert source.fetcher.statistics().stuck >= 1
            slow.standin.release(rule)
            with trio.fail_after(20):
                while source.fetcher.statistics().stuck:  # noqa: ASYNC110 - a thread's
                    await trio.sleep(0.001)

    trio.run(main)


def test_a_fetcher_may_be_closed_in_the_midst_of_a_scan(slow: Slow) -> None:
    rule = slow.standin.hang("d/n30", ops=["lookup"])

    async def main() -> None:
        async with slow.source() as source:
            source.start(scan_of(b"d"))
            await slow.wait_for_hanging()
        slow.standin.release(rule)

    trio.run(main)
