"""Differing clients and clocks: metadata from other nodes is true on each node."""

from __future__ import annotations

import pytest

from copperfs.lab.sim import checkers, version_settling
from copperfs.lab.sim.checkers import Violation
from copperfs.lab.sim.file_reader import Reading
from copperfs.lab.sim.machine_properties import Machine
from copperfs.lab.sim.world import Job, World
from copperfs.model.types import Path
from tests.sim import old_defects

SMALL, LARGE = Path(b"lib/small"), Path(b"lib/large")
CHUNK = 1 << 16
JOB = Job(4, fanout=2, chunk_bytes=CHUNK, tree_max_bytes=CHUNK, inodes="auto")


def world_of(job: Job = JOB, **machine: object) -> World:
    world = World(1, job)
    world.machines = {node: Machine(**machine) for node in range(job.nodes)}  # type: ignore[arg-type]
    world.source.filesystems[Path(b"lib")] = 7
    world.source.add(SMALL, 100)
    world.source.add(LARGE, 3 * CHUNK)
    world.start(2.0)
    return world


def read_all(world: World) -> list[Reading]:
    readings = [world.read(node, path) for node in world.alive() for path in (LARGE, SMALL)]
    assert world.run_until_read()
    checkers.check_errors(world, readings)
    return readings


def test_each_node_has_its_own_client_and_all_have_one_version() -> None:
    world = world_of()
    assert len({host.hands.client.device for host in world.hosts}) == 4
    read_all(world)
    checkers.check_source_reads(world, 1)
    checkers.check_chunk_reads(world, 1)
    checkers.check_numbers(world)


def test_a_device_number_in_versions_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    old_defects.device_numbers_in_versions(monkeypatch)
    with pytest.raises(Violation, match=r"lib/large on node . ESTALE"):
        read_all(world_of())


@pytest.mark.parametrize("odd", [range(4), [0], [2]], ids=["all", "the root", "another"])
def test_numbers_that_differ_are_left_out_by_all(odd: list[int]) -> None:
    world = World(1, JOB)
    world.machines = {node: Machine(own_numbers=True) for node in odd}
    world.source.add(LARGE, 3 * CHUNK)
    world.start(2.0)
    assert all(host.hands.client.ignores_numbers for host in world.hosts)
    [first, *_] = [world.read(node, LARGE) for node in world.alive()]
    assert world.run_until_read()
    checkers.check_errors(world, world.readings)
    checkers.check_numbers(world)
    checkers.check_chunk_reads(world, 1)
    assert first.version is not None
    assert not first.version.inode


def test_a_node_that_returns_hears_that_numbers_are_left_out() -> None:
    world = world_of(own_numbers=True)
    world.crash(0)
    world.restart(0)
    world.crash(1)
    world.run(1.0)
    checkers.check_numbers(world)
    read_all(world)


def test_numbers_that_are_not_compared_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    old_defects.inode_numbers_are_not_compared(monkeypatch)
    world = world_of(own_numbers=True)
    with pytest.raises(Violation, match="compares inode numbers, and clients differ"):
        checkers.check_numbers(world)
    for reading in [world.read(node, LARGE) for node in world.alive()]:
        reading.left_numbers_out = True
    assert world.run_until_read()
    assert {reading.error for reading in world.readings} != {0}


def test_who_leaves_numbers_out_though_all_agree_is_seen() -> None:
    world = world_of()
    world[2].hands.client.ignore_numbers()
    with pytest.raises(Violation, match="node 2 leaves out inode numbers, and all clients agree"):
        checkers.check_numbers(world)


# ---- clocks --------------------------------------------------------------------------------------


def written_twice(ahead_s: float) -> World:
    """A file is written twice within a tick of the server's clock. Node 0, whose own clock is
    ahead, reads it in between."""
    world = world_of(Job(2, inodes="auto"), ahead_s=ahead_s)
    world.source.tick_s = 0.01
    world.run(3.0 - world.clock.now)  # where a tick begins
    world.write(SMALL)
    world.read(0, SMALL)
    world.run(0.009)
    world.write(SMALL)
    assert max(world.source.times_written.values()) == 1, "one version, two contents"
    assert world.run_until_read()
    world.read(1, SMALL)
    assert world.run_until_read()
    return world


@pytest.mark.parametrize("ahead_s", [-2.0, 0.0, 2.0])
def test_whatever_the_clocks_say_a_file_that_was_just_written_is_left_to_settle(
    ahead_s: float,
) -> None:
    checkers.check_errors(written_twice(ahead_s), [])


def test_bytes_of_a_version_that_had_not_settled_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_settling, "BEHIND_NS", 0)
    with pytest.raises(AssertionError, match="wrong bytes"):
        written_twice(2.0)


def test_a_node_by_its_own_clock_is_never_woken_too_early() -> None:
    world = World(1, Job(3, fanout=2, revalidate_s=1.0))
    for node, (boot_s, rate) in enumerate(((12345.678, 1 + 5e-5), (1e5, 1 - 5e-5), (0.1, 1.0))):
        world.machines[node] = Machine(boot_s=boot_s, rate=rate)
    world.source.add(SMALL, 100)
    world.start()
    for _ in range(20):
        for node in range(3):
            world.read(node, SMALL)
        world.run(1.0)
    checkers.check_errors(world, world.readings)
    checkers.check_untroubled(world)
