"""Parts of the store, tested alone: the rate limit, the disk threads and the headers of chunks."""

import threading

import pytest
import trio
import trio.testing

from copperfs.chunkstore.disk_format import (
    ChunkPlace,
    Erasure,
    encoded,
    header,
    header_bytes,
    name_of,
    parsed,
    read_header,
    scope_of,
    unpacked,
)
from copperfs.chunkstore.disk_threads import DiskThreads
from copperfs.chunkstore.rate_limit import RateLimit
from copperfs.model.types import ChunkKey, Path, Version
from tests.net.world import trio_test
from tests.store.lab import key


def test_a_pace_keeps_its_rate_and_saves_nothing_up() -> None:
    pace = RateLimit(100)
    assert pace.delay_s(0.0) == 0
    pace.spend(0.0, 50)
    assert pace.delay_s(0.0) == 0.5
    assert pace.delay_s(0.4) == pytest.approx(0.1)
    pace.spend(0.5, 100)
    assert pace.delay_s(0.5) == 1.0
    assert pace.delay_s(1000.0) == 0
    pace.spend(1000.0, 100)
    assert pace.delay_s(1000.0) == 1.0
    free = RateLimit(0)
    free.spend(0.0, 1 << 40)
    assert free.delay_s(0.0) == 0


def test_a_header_is_read_back_and_any_changed_bit_of_it_is_found() -> None:
    raw = header(encoded(b"s" * 16, key(5)), 1234, b"d" * 16)
    found = read_header(raw)
    assert (found.encoded_key, found.size) == (encoded(b"s" * 16, key(5)), 1234)
    assert found.digest == b"d" * 16
    used = len(raw.rstrip(b"\0"))
    for bit in range(8 * used):
        hurt = bytearray(raw)
        hurt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Erasure):
            read_header(hurt)
    for length in range(0, used, 7):
        with pytest.raises(Erasure):
            read_header(raw[:length])


def test_the_header_of_a_very_long_path_has_more_pages() -> None:
    long = ChunkKey(Path(b"x/" * 4000), Version(1 << 100, -(1 << 90), 0, 1), 7)
    code = encoded(scope_of(b"/", 1), long)
    assert header_bytes(code) == 8192 == len(header(code, 1, bytes(16)))
    assert read_header(header(code, 1, bytes(16))).encoded_key == code


def test_names_say_all_that_a_restart_needs() -> None:
    place = ChunkPlace(name_of(b"some key"), 12345, 1 << 20)
    assert parsed(place.file) == (place.name, place.packed)
    assert unpacked(place.name, place.packed) == place
    assert place.path == f"{place.file[:2]}/{place.file}"
    for strange in ("", "lock", "..", f"{place.file}x", place.file.upper(), "0" * 32):
        assert parsed(strange) is None


@pytest.mark.parametrize("other", [(b"/other", 1 << 20), (b"/source", 1 << 18)])
def test_another_source_or_size_of_chunks_means_other_keys(other: tuple[bytes, int]) -> None:
    assert encoded(scope_of(b"/source", 1 << 20), key(1)) != encoded(scope_of(*other), key(1))


@trio_test
async def test_hands_give_what_work_returns_or_raises() -> None:
    hands = DiskThreads(2, "test")
    assert await hands.run(lambda: 5, 10) == 5
    with pytest.raises(ZeroDivisionError):
        await hands.run(lambda: 1 // 0, 10)
    hands.close()
    await hands.wait_idle()


async def held(
    hands: DiskThreads, gate: threading.Event, nursery: trio.Nursery
) -> trio.CancelScope:
    """A job that may take 1 s ends with the gate; returns the scope that cancels it."""
    begun = threading.Event()
    scope = trio.CancelScope()

    def work() -> None:
        begun.set()
        gate.wait(60.0)

    async def run() -> None:
        with scope, pytest.raises(TimeoutError):
            await hands.run(work, 1.0)

    nursery.start_soon(run)
    # The clock stands still however long the thread takes to begin.
    await trio.to_thread.run_sync(begun.wait, 60.0)
    assert begun.is_set()
    return scope


def test_hung_hands_refuse_at_once_and_serve_again_when_they_come_back() -> None:
    gate = threading.Event()
    clock = trio.testing.MockClock()

    async def main() -> None:
        hands = DiskThreads(2, "test")
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                await held(hands, gate, nursery)
            assert hands.late == 0
            clock.jump(1.0)
        assert hands.late == 2
        over: list[int] = []
        with pytest.raises(TimeoutError):
            await hands.run(lambda: 5, 1000, lambda: over.append(9))
        assert over == [9], "never begun, and the clock stood still"
        gate.set()
        await hands.wait_idle()
        assert hands.late == 0
        assert await hands.run(lambda: 5, 10, lambda: over.append(5)) == 5
        assert over == [9, 5]
        hands.close()

    trio.run(main, clock=clock)


def test_whoever_waits_in_vain_for_a_thread_has_the_others_refused_at_once() -> None:
    """Cancelled readers are not late, and hold their threads all the same."""
    gate = threading.Event()
    clock = trio.testing.MockClock()

    async def main() -> None:
        hands = DiskThreads(1, "test")
        async with trio.open_nursery() as nursery:
            (await held(hands, gate, nursery)).cancel()
        assert hands.late == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hands.run, lambda: 5, 1000)

            async def in_vain() -> None:
                with pytest.raises(TimeoutError):
                    await hands.run(lambda: 5, 1.0)
                nursery.cancel_scope.cancel()  # no thread has come back by then

            nursery.start_soon(in_vain)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(1.0)
        with pytest.raises(TimeoutError):
            await hands.run(lambda: 5, 1000)
        gate.set()
        await hands.wait_idle()
        assert await hands.run(lambda: 5, 10) == 5
        hands.close()

    trio.run(main, clock=clock)


def test_whoever_waits_in_a_queue_that_moves_is_not_given_up() -> None:
    """Five jobs of 0.6 s share one thread, so the last one waits for twice the time that a job may
    take. A further job then hangs, and times out."""
    gate = threading.Event()

    async def main() -> None:
        hands = DiskThreads(1, "test")
        steps = [threading.Event() for _ in range(5)]
        given: list[int] = []

        async def run(number: int) -> None:
            await hands.run(steps[number].wait, 1.0)
            given.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(run, number)
                await trio.testing.wait_all_tasks_blocked()
            for step in steps:
                await trio.sleep(0.6)
                step.set()
                while steps.index(step) not in given:
                    await trio.lowlevel.checkpoint()
        assert given == list(range(5))
        assert trio.current_time() == pytest.approx(before + 3.0)
        with pytest.raises(TimeoutError):
            await hands.run(gate.wait, 1.0)
        assert trio.current_time() == pytest.approx(before + 4.0)
        gate.set()
        await hands.wait_idle()
        hands.close()

    clock = trio.testing.MockClock(autojump_threshold=0.01)
    before = clock.current_time()
    trio.run(main, clock=clock)
