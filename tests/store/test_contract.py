"""Store contract: the behaviour that ``chunkstore/store_interface.py`` specifies."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path as FilePath

import pytest
import trio
import trio.testing

from copperfs.chunkstore.store_interface import Store
from tests.net.world import trio_test
from tests.store.lab import (
    COST,
    SIZE,
    chunk,
    chunk_of,
    data_of,
    disk_store,
    fill,
    holds_bytes,
    key,
    limits,
)

MakeStore = Callable[[int], AbstractAsyncContextManager[Store]]


@pytest.fixture
def make_store(tmp_path: FilePath) -> MakeStore:
    return lambda chunks: disk_store(tmp_path / "store", limits(chunks))


@trio_test
async def test_what_was_put_is_read_at_once_and_later(make_store: MakeStore) -> None:
    async with make_store(100) as store:
        assert not store.holds(key(1))
        assert await store.read(key(1)) is None
        assert store.put_nowait(key(1), chunk(1))
        assert store.holds(key(1))
        assert await holds_bytes(store, 1)
        await store.wait_moved()
        assert store.holds(key(1))
        assert await holds_bytes(store, 1)
        stats = store.statistics()
        assert (stats.hits, stats.misses, stats.writes) == (2, 1, 1)
        assert (stats.held_chunks, stats.written_bytes, stats.backlog_bytes) == (1, SIZE, 0)
        assert stats.held_bytes % 4096 == 0
        assert SIZE < stats.held_bytes <= COST


@trio_test
async def test_path_version_and_index_all_tell_chunks_apart(make_store: MakeStore) -> None:
    async with make_store(100) as store:
        await fill(store, range(14))  # seven paths, two indexes each
        store.put_nowait(key(1, version=2), chunk(1, version=2))
        await store.wait_moved()
        for number in range(14):
            assert await holds_bytes(store, number)
        assert await holds_bytes(store, 1, version=2)
        assert not store.holds(key(2, version=2))


@trio_test
async def test_a_second_put_changes_nothing(make_store: MakeStore) -> None:
    async with make_store(100) as store:
        for _ in range(3):
            assert store.put_nowait(key(1), chunk(1))
            await store.wait_moved()
        assert store.statistics().writes == 1
        assert store.statistics().held_chunks == 1


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 300_000])
@trio_test
async def test_chunks_of_any_size(make_store: MakeStore, size: int) -> None:
    async with make_store(100) as store:
        store.put_nowait(key(1), chunk(1, size))
        assert await holds_bytes(store, 1, size)
        await store.wait_moved()
        assert await holds_bytes(store, 1, size)


@trio_test
async def test_the_budget_holds_and_what_was_used_longest_ago_goes_first(
    make_store: MakeStore,
) -> None:
    async with make_store(10) as store:
        await fill(store, range(11))
        assert not await holds_bytes(store, 0)
        assert await holds_bytes(store, 1)
        await fill(store, range(11, 12))
        assert await holds_bytes(store, 1), "it was used last"
        assert not store.holds(key(2))
        for number in range(100, 150):
            await fill(store, range(number, number + 1))
            assert store.statistics().held_bytes <= 10 * COST
        assert store.statistics().held_chunks == 10
        assert store.statistics().evictions == 12 + 50 - 10
        assert await holds_bytes(store, 149)


@trio_test
async def test_what_is_larger_than_the_budget_is_refused(make_store: MakeStore) -> None:
    over: list[bool] = []
    async with make_store(2) as store:
        assert not store.put_nowait(key(1), chunk(1, 3 * COST), over.append)
        assert not store.holds(key(1))
        assert store.statistics().refused == 1
    assert over == [], "whoever put it knows"


@trio_test
async def test_each_put_is_told_once_that_it_is_written(make_store: MakeStore) -> None:
    over: list[tuple[int, bool]] = []

    def tell(number: int, written: bool) -> None:
        over.append((number, written))

    async with make_store(100) as store:
        for number in range(5):
            store.put_nowait(key(number), chunk(number), partial(tell, number))
        assert over == [], "not yet"
        await store.wait_moved()
        assert over == [(number, True) for number in range(5)]
        store.put_nowait(key(2), chunk(2), partial(tell, 2))
        assert over[5:] == [(2, True)], "it is there already"


@trio_test
async def test_one_that_is_put_twice_before_it_is_written_is_told_of_twice(
    make_store: MakeStore,
) -> None:
    over: list[bool] = []
    async with make_store(100) as store:
        for _ in range(2):
            store.put_nowait(key(1), chunk(1), over.append)
        await store.wait_moved()
        assert over == [True, True]
        store.put_nowait(key(2), chunk(2), over.append)
        store.drop(key(2))
        assert len(over) == 3, "nobody waits for what was dropped"


@trio_test
async def test_a_store_is_outgrown_when_what_was_put_has_to_go_for_more(
    make_store: MakeStore,
) -> None:
    async with make_store(10) as store:
        await fill(store, range(10))
        assert not store.statistics().is_outgrown
        await fill(store, range(10, 11))
        assert store.statistics().is_outgrown
        store.reset_counts()
        assert store.statistics().is_outgrown
    async with make_store(10) as store:  # from an earlier mount: there is still room for this one
        await fill(store, range(20, 30))
        assert store.statistics().evictions == 10
        assert not store.statistics().is_outgrown
        await fill(store, range(30, 31))
        assert store.statistics().is_outgrown


@trio_test
async def test_what_is_dropped_is_gone_and_can_be_put_again(make_store: MakeStore) -> None:
    async with make_store(100) as store:
        assert not store.drop(key(1))
        for _ in range(2):
            store.put_nowait(key(1), chunk(1))  # dropped before the store can write it
            assert store.drop(key(1))
            assert not store.holds(key(1))
            await fill(store, range(1, 2))
            assert store.drop(key(1))
            assert await store.read(key(1)) is None
        await store.wait_moved()
        assert store.statistics().held_bytes == 0
        assert store.statistics().backlog_bytes == 0
        await fill(store, range(1, 2))
        assert await holds_bytes(store, 1)


@trio_test
async def test_scrub_drops_what_is_not_what_its_digest_says(make_store: MakeStore) -> None:
    async with make_store(100) as store:
        await fill(store, range(5))
        # However it came about, the digest does not match these bytes.
        wrong = chunk_of(data_of(9))
        good = chunk(8)
        store.put_nowait(key(8), type(good)(wrong.blob, good.digest))
        await store.wait_moved()
        report = await store.scrub()
        assert (report.chunks, report.erasures) == (6, 1)
        assert report.bytes >= 6 * SIZE
        assert not store.holds(key(8))
        assert store.statistics().erasures == 1
        assert (await store.scrub()).erasures == 0
        for number in range(5):
            assert await holds_bytes(store, number)


@trio_test
async def test_many_read_and_put_at_once(make_store: MakeStore) -> None:
    async with make_store(20) as store, trio.open_nursery() as nursery:
        served = []

        async def use(start: int) -> None:
            for number in range(start, start + 40):
                store.put_nowait(key(number), chunk(number))
                served.append(await holds_bytes(store, number - 3))
                assert store.statistics().held_bytes <= 20 * COST

        for start in (0, 10, 20, 30):
            nursery.start_soon(use, start)
    assert any(served)
