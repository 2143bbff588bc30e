"""Disks slower than the source: the source still gives each chunk only once.

Memory is small, and few chunks may be unwritten, so a node reads again any chunk that its disk did
not keep.
"""

from random import Random

import pytest

from copperfs.lab.sim.sim_disk import DiskCosts
from copperfs.lab.sim.world import Job, World
from copperfs.model.types import Path
from tests.sim.test_lost_chunks import FILES, MIB, NODES, read_epoch

SLOW = DiskCosts(write_bytes_per_s=10e6)


def dataset(seed: int, *, waits: bool) -> World:
    job = Job(
        NODES,
        chunk_bytes=MIB,
        tier_memory_bytes=MIB,
        tier_has_disk=True,
        tier_waits=waits,
        tier_backlog_bytes=2 * MIB,
        ring=(Path(b"data"),),
    )
    world = World(seed, job, exact=False, disk_costs=SLOW)
    for number in range(FILES):
        world.source.add(Path(b"data/%d" % number), (1 + number % 4) * MIB)
    world.start()
    return world


def sum_of(world: World, count: str) -> int:
    return sum(getattr(host.node.statistics(), count) for host in world.hosts)


def all_hold(world: World) -> set[Path]:
    return {key.path for host in world.hosts for key in host.disk.chunks}


@pytest.mark.parametrize("seed", range(4))
def test_the_source_gives_each_chunk_once_however_slow_the_disks_are(seed: int) -> None:
    world, random = dataset(seed, waits=True), Random(seed)
    began = world.clock.now
    for _ in range(3):
        read_epoch(world, random)
    assert set(world.source.chunk_counts.values()) == {1}
    assert sum_of(world, "tier_waited") > 0
    assert sum_of(world, "tier_read_again") == 0
    assert sum_of(world, "fallbacks") == sum_of(world, "tier_timeouts") == 0
    chunks = len(world.source.chunk_counts)
    least_s = (chunks - 2 * NODES) * MIB / SLOW.write_bytes_per_s / NODES
    assert world.clock.now - began > least_s, "at the pace of the disks"


@pytest.mark.parametrize("seed", range(4))
def test_with_later_nobody_waits_and_the_disks_have_all_of_it_in_the_end(seed: int) -> None:
    world, random = dataset(seed, waits=False), Random(seed)
    read_epoch(world, random)
    assert set(world.source.chunk_counts.values()) == {1}
    assert sum_of(world, "tier_waited") == 0
    assert sum_of(world, "tier_owed") > 0
    world.run(60.0)
    assert sum_of(world, "tier_owed") == 0
    again = sum(count - 1 for count in world.source.chunk_counts.values())
    assert 0 < again == sum_of(world, "tier_read_again")
    assert max(world.source.chunk_counts.values()) == 2
    before = dict(world.source.chunk_counts)
    for _ in range(2):
        read_epoch(world, random)
    assert world.source.chunk_counts == before


@pytest.mark.parametrize("seed", range(4))
def test_a_disk_that_fills_up_in_the_middle_holds_up_nobody(seed: int) -> None:
    world, random = dataset(seed, waits=True), Random(seed)
    files = world.source.files()
    random.shuffle(files)
    for number, path in enumerate(files):
        world.read(number % NODES, path)
    assert not world.run_until(lambda: False, within_s=0.3)
    for node in world.alive():
        world.fill_disk(node, is_full=True)
    assert world.run_until(lambda: all(each.is_well for each in world.readings), within_s=3.0), (
        "no faster than what was under way"
    )
    assert sum_of(world, "tier_owed") > 0
    assert set(world.source.chunk_counts.values()) == {1}
