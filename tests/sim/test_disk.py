"""The simulated disk of the chunk store."""

import pytest

from copperfs.lab.sim.payload_pieces import Piece, piece_of
from copperfs.lab.sim.sim_disk import Disk, DiskCosts
from copperfs.lab.sim.virtual_clock import VirtualClock
from copperfs.model.types import ChunkKey, Path, Version

COSTS = DiskCosts(latency_s=1e-3, read_bytes_per_s=1e6, write_bytes_per_s=5e5)


def key(index: int) -> ChunkKey:
    return ChunkKey(Path(b"f"), Version(10_000, 0, 0, 1), index)


def chunk(size: int = 1000) -> tuple[Piece, ...]:
    return (piece_of(bytes(size)),)


@pytest.fixture
def disk() -> Disk:
    return Disk(VirtualClock(), COSTS, budget_bytes=2500)


def test_reads_and_writes_wait_for_each_other(disk: Disk) -> None:
    disk.store(key(0), chunk())
    assert disk.loaded_at(key(0)) == pytest.approx(2e-3 + 1e-3 + 1e-3)
    assert disk.loaded_at(key(0)) == pytest.approx(2e-3 + 2 * 2e-3)
    assert disk.loaded_at(key(7)) == 0.0, "that it is not there is known at once"


def test_what_was_used_longest_ago_goes_first(disk: Disk) -> None:
    for index in (0, 1):
        disk.store(key(index), chunk())
    assert disk.load(key(0)) is not None
    disk.store(key(2), chunk())
    assert list(disk.chunks) == [key(0), key(2)]
    assert disk.held_bytes == 2000
    disk.store(key(3), chunk(3000))
    assert disk.refused == 1


def test_a_full_disk_takes_nothing_and_is_still_read(disk: Disk) -> None:
    disk.store(key(0), chunk())
    disk.is_full = True
    disk.store(key(1), chunk())
    assert disk.load(key(1)) is None
    assert disk.load(key(0)) is not None


def test_damage_is_found_once_and_dropped(disk: Disk) -> None:
    disk.store(key(0), chunk())
    disk.damage(key(0))
    assert disk.load(key(0)) is None
    assert (disk.damaged, disk.held_bytes, len(disk.chunks)) == (1, 0, 0)


def test_what_is_held_is_not_written_again(disk: Disk) -> None:
    assert disk.store(key(0), chunk()) == pytest.approx(2e-3)
    assert disk.store(key(0), chunk()) == pytest.approx(2e-3), "when it is written"
    disk.clock.run(1.0)
    disk.is_full = True
    assert disk.store(key(0), chunk()) == 1.0, "at once, also if nothing else is taken"
    assert disk.loaded_at(key(0)) == pytest.approx(1.0 + 2e-3)


def test_a_killed_process_loses_what_was_not_written(disk: Disk) -> None:
    for index in (0, 1):
        disk.store(key(index), chunk())
    disk.clock.run(3e-3)
    disk.process_ended()
    assert list(disk.chunks) == [key(0)]
    assert disk.held_bytes == 1000
    disk.store(key(1), chunk())
    disk.process_ended(within_s=1.0)
    assert list(disk.chunks) == [key(0), key(1)]


def test_it_is_outgrown_when_it_evicts_what_this_process_has_stored(disk: Disk) -> None:
    for index in (0, 1):
        disk.store(key(index), chunk())
    disk.clock.run(1.0)
    disk.process_ended()
    for index in (2, 3):
        disk.store(key(index), chunk())
        assert not disk.is_outgrown, "those of another process went"
    disk.clock.run(2.0)
    disk.store(key(4), chunk())
    assert disk.is_outgrown
    disk.process_ended()
    assert not disk.is_outgrown


def test_a_disk_that_hangs_takes_as_much_longer(disk: Disk) -> None:
    assert disk.store(key(0), chunk()) == pytest.approx(2e-3)
    disk.hang(5.0)
    assert disk.written_at(key(0)) == pytest.approx(5.0 + 2e-3)
    assert disk.store(key(1), chunk()) == pytest.approx(5.0 + 4e-3)
    disk.hang(4.0)
    assert disk.written_at(key(1)) == pytest.approx(5.0 + 4e-3), "it hangs already"
    disk.clock.run(5.1)
    assert not disk.hangs
    assert disk.load(key(0)) is not None


def test_a_disk_that_hangs_for_too_long_takes_nothing_and_loses_what_waits(disk: Disk) -> None:
    disk.store(key(0), chunk())
    disk.clock.run(1.0)
    disk.hang(20.0)
    disk.store(key(1), chunk())
    disk.clock.run(11.0)
    assert disk.degrade()
    assert list(disk.chunks) == [key(0)], "what is written stays"
    assert disk.store(key(2), chunk()) is None
    assert disk.takes_nothing
    disk.process_ended()
    assert not disk.takes_nothing, "another process tries it"


def test_a_disk_that_hangs_and_has_nothing_to_write_is_not_given_up(disk: Disk) -> None:
    disk.hang(20.0)
    assert not disk.degrade()
    assert not disk.takes_nothing
