"""Failure detection in three layers: each detects a failure that the other two miss or detect late.

Each test disables the other layers.
"""

from dataclasses import replace

from copperfs.lab.sim.checkers import gone_in_view_of
from copperfs.lab.sim.file_reader import Reading
from copperfs.lab.sim.world import Job, World
from copperfs.model.types import Path
from copperfs.node.membership.failure_detector import Timeouts

NEVER_S = 1000.0
USUAL = Timeouts()
NO_HEDGING = replace(USUAL, ping_after_s=NEVER_S, silent_s=NEVER_S)
NO_HEARTBEATS = replace(USUAL, dead_s=NEVER_S, heartbeat_s=NEVER_S / 2)
NEITHER = replace(NO_HEDGING, dead_s=3 * NEVER_S, heartbeat_s=NEVER_S)
FILES = [Path(b"lib/0.py"), Path(b"lib/1.py")]
PARENT, CHILD = 1, 3


def job(timeouts: Timeouts) -> World:
    world = World(1, Job(7, fanout=2, timeouts=timeouts))
    for path in FILES:
        world.source.add(path, 100)
    world.start()
    return world


def read(world: World, path: Path, within_s: float = 300.0) -> Reading:
    reading = world.read(CHILD, path)
    world.run_until(lambda: reading.is_over, within_s)
    return reading


def test_a_process_that_ends_is_noticed_by_its_connections_alone() -> None:
    world = job(NEITHER)
    assert read(world, FILES[0]).is_well
    world.crash(PARENT)
    reading = read(world, FILES[1])
    assert reading.is_well
    assert reading.stall_s < 0.05
    assert PARENT in gone_in_view_of(world, CHILD)


def test_a_loop_that_hangs_is_noticed_by_what_it_owes_alone() -> None:
    world = job(NO_HEARTBEATS)
    assert read(world, FILES[0]).is_well
    world.hang(PARENT)
    reading = read(world, FILES[1])
    assert reading.is_well
    assert reading.stall_s < 0.5
    assert not gone_in_view_of(world, CHILD)


def test_a_loop_that_hangs_is_not_noticed_by_its_connections() -> None:
    world = job(NEITHER)
    world.hang(PARENT)
    assert not read(world, FILES[0], 9.0).is_over


def test_a_machine_that_is_gone_is_noticed_by_heartbeats_though_nobody_asks_it_anything() -> None:
    """The others notice before any request, so no reader waits."""
    world = job(NO_HEDGING)
    world.power_off(PARENT)
    world.run(4.0)
    for node in world.alive():
        assert gone_in_view_of(world, node) == {PARENT}
    reading = read(world, FILES[0])
    assert reading.is_well
    assert reading.stall_s < 0.05


def test_a_machine_that_is_gone_is_not_noticed_by_the_others_in_that_time() -> None:
    world = job(NO_HEARTBEATS)
    world.power_off(PARENT)
    world.run(4.0)
    assert not any(gone_in_view_of(world, node) for node in world.alive())


def test_without_hedging_a_reader_waits_until_its_parent_counts_as_dead() -> None:
    world = job(NO_HEDGING)
    world.hang(PARENT)
    reading = read(world, FILES[0])
    assert reading.is_well
    assert reading.stall_s > USUAL.dead_s - USUAL.heartbeat_s
