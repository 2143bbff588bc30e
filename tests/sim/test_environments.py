"""Environments of random runs, and their checkers.

The tests put back defects that a lab of one healthy host could not show; seeds that pass then fail.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from copperfs.lab.sim import checkers
from copperfs.lab.sim.checkers import Violation
from copperfs.lab.sim.machine_properties import Machine
from copperfs.lab.sim.random_environment import Environment, draw_environment
from copperfs.lab.sim.random_run import RandomRun
from copperfs.lab.sim.sim_source import FOREVER
from copperfs.lab.sim.world import Job, World
from copperfs.model.types import Path
from tests.sim import old_defects

WELL, SICK, DIRECTORY = Path(b"d/well"), Path(b"d/well.sick"), Path(b"d")


def world_of(nodes: int = 3, **machine: object) -> World:
    world = World(1, Job(nodes, fanout=2))
    world.machines = {node: Machine(**machine) for node in range(nodes)}  # type: ignore[arg-type]
    for path in (WELL, SICK):
        world.source.add(path, 100)
    return world


# ---- draws ---------------------------------------------------------------------------------------


def environments(count: int = 200) -> list[Environment]:
    return [draw_environment(seed, 10, [WELL], calm=seed % 2 == 0) for seed in range(count)]


def test_a_seed_has_one_environment() -> None:
    assert [str(each) for each in environments(50)] == [str(each) for each in environments(50)]


def test_all_is_drawn_by_some_seeds_and_nothing_by_all() -> None:
    drawn = [what.partition(":")[0] for each in environments() for what in each.drawn]
    assert len(set(drawn)) == 12
    assert all(5 <= drawn.count(what) <= 160 for what in set(drawn))


def test_clocks_are_off_by_up_to_two_seconds_each_way() -> None:
    off = [machine.ahead_s for each in environments() for machine in each.machines.values()]
    assert -2.0 <= min(off) < -1.9
    assert 1.9 < max(off) <= 2.0


def test_a_run_says_its_environment() -> None:
    run = RandomRun(2)
    assert str(run.environment)
    assert run.world.machines is run.environment.machines


# ---- defects that are put back -------------------------------------------------------------------

FOUND: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    old_defects.device_numbers_in_versions: 55,
    old_defects.one_sick_name_takes_its_directory_along: 2,
    old_defects.positions_as_offsets: 55,
    old_defects.keyless_connections_without_bound: 181,
    old_defects.settling_by_clocks_that_agree: 46,
}
"""A seed for each defect: it passes without the defect, and fails with it."""


@pytest.mark.parametrize("put_back", FOUND, ids=lambda each: each.__name__)
def test_a_seed_finds_the_defect(
    put_back: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = FOUND[put_back]
    RandomRun(seed).run()
    put_back(monkeypatch)
    with pytest.raises(AssertionError):
        RandomRun(seed).run()


# ---- sick names ----------------------------------------------------------------------------------


def read_both(world: World) -> None:
    for node in world.alive():
        world.read(node, SICK)
        world.read(node, WELL)
    assert world.run_until_read()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOTCONN])
def test_only_who_asks_for_a_sick_name_is_told(error: int) -> None:
    world = world_of()
    world.source.failing[SICK] = error
    world.start()
    read_both(world)
    checkers.check_errors(world, world.readings, sick={SICK: {error}})
    checkers.check_source_reads(world, 1, sick={SICK: {error}})
    with pytest.raises(Violation, match=errno.errorcode[error]):
        checkers.check_errors(world, world.readings, sick={SICK: {errno.EPERM}})


def test_a_name_that_hangs_is_left_behind_and_its_reader_is_told_at_its_deadline() -> None:
    """The time that the reader has waited for the scan counts."""
    world = world_of()
    world.source.hanging[SICK] = FOREVER
    world.start()
    read_both(world)
    checkers.check_errors(world, world.readings, sick={SICK: {errno.ETIMEDOUT}})
    assert world.source.counts["scan", DIRECTORY] == 1
    well = [each for each in world.readings if each.path == WELL]
    assert max(each.ended or FOREVER for each in well) < 5.0
    assert world[0].slowest_s <= world.job.source_deadline_s + 0.01


def test_a_name_that_hangs_for_a_while_is_told_to_nobody() -> None:
    world = world_of()
    world.source.hanging[SICK] = 10.0
    world.start()
    read_both(world)
    checkers.check_errors(world, world.readings)


def test_a_sick_server_keeps_only_its_own_files() -> None:
    world = world_of()
    world.source.file_servers = 3
    assert world.source.server_of(WELL) != world.source.server_of(SICK)
    world.start()
    world.sicken_server(world.source.server_of(SICK), 10.0)
    world.read(0, SICK)
    world.read(1, WELL)
    assert world.run_until_read()
    sick, well = world.readings
    checkers.check_errors(world, world.readings)
    assert (well.ended or FOREVER) < 5.0 < 10.0 <= (sick.ended or 0.0)


def test_looks_without_end_at_a_sick_name_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_again_and_again() -> World:
        world = world_of()
        world.source.failing[SICK] = errno.EIO
        world.start()
        for _ in range(50):
            world.read(0, SICK)
            assert world.run_until_read()
        return world

    sick = {SICK: {errno.EIO}}
    checkers.check_looks(ask_again_and_again(), sick)
    old_defects.errors_are_not_remembered(monkeypatch)
    with pytest.raises(Violation, match=r"look of d/well.sick: 5. times"):
        checkers.check_looks(ask_again_and_again(), sick)


# ---- descriptors ---------------------------------------------------------------------------------

LIMIT = 128


def besieged() -> World:
    """Strangers hold as many descriptors as they can get, while the node reads the source."""
    world = world_of(descriptors=LIMIT)
    world.start()
    world.strangers(0, 2 * LIMIT, 0.001)
    world.run(1.0)
    world.read(0, WELL)
    world.run(2.0)
    return world


def test_strangers_take_no_descriptors_from_the_source() -> None:
    world = besieged()
    checkers.check_descriptors(world)
    checkers.check_errors(world, world.readings)
    assert world[0].port.turned_away >= LIMIT
    assert world[0].node.is_in_touch()


def test_strangers_without_bound_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    old_defects.keyless_connections_without_bound(monkeypatch)
    with pytest.raises(Violation, match="node 0 had no descriptor for the source for"):
        checkers.check_descriptors(besieged())


def test_a_node_without_descriptors_turns_its_peers_away_and_they_come_again() -> None:
    world = world_of(descriptors=LIMIT)
    world.machines[0] = Machine(descriptors=LIMIT, starts_s=1.0)
    world.start(0.0)
    port, others = world[0].port, world[0].port.others
    port.others = lambda: LIMIT
    world.run(3.0)
    assert port.turned_away
    assert not world[1].node.is_in_touch()
    port.others = others
    world.run(5.0)
    assert world[1].node.is_in_touch()


# ---- walks ---------------------------------------------------------------------------------------


def walked_through() -> World:
    world = world_of()
    for number in range(40):
        world.source.add(Path(b"w/%d" % number), 1)
    world.start()
    world.walk(1, Path(b"w"), 5, 0.05)
    world.run(0.1)
    for number in range(0, 40, 4):
        world.remove(Path(b"w/%d" % number))
    world.clear(0)
    world.run(10.0)
    return world


KEPT = {b"%d" % number for number in range(40) if number % 4}


def test_a_walk_meets_all_that_stays_once() -> None:
    world = walked_through()
    checkers.check_walks(world, KEPT)
    [walk] = world.walks
    assert len(walk.names) < 40, "some were removed before it came to them"
    walk.names.append(walk.names[0])
    with pytest.raises(Violation, match="more than once"):
        checkers.check_walks(world, KEPT)


def test_a_walk_by_positions_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    old_defects.positions_as_offsets(monkeypatch)
    with pytest.raises(Violation, match="were there, and were not among them"):
        checkers.check_walks(walked_through(), KEPT)


# ---- starting ------------------------------------------------------------------------------------


def test_a_root_that_starts_last_is_waited_for() -> None:
    world = world_of()
    world.machines[0] = Machine(starts_s=3.0)
    world.start(1.0)
    assert (world.alive(), world.lives) == ([1, 2], 2)
    assert not world[1].node.is_in_touch()
    world.run(5.0)
    assert (world.alive(), world.lives) == ([0, 1, 2], 3)
    read_both(world)
    checkers.check_source_reads(world, 1)
    checkers.check_untroubled(world)


def test_a_slow_resolver_delays_only_connections() -> None:
    world = world_of()
    world.machines[1] = Machine(resolver_s=3.0)
    world.start(2.0)
    assert [host.node.is_in_touch() for host in world.hosts] == [True, False, True]
    world.run(5.0)
    assert all(host.node.is_in_touch() for host in world.hosts)


# ---- disks that hang -----------------------------------------------------------------------------


def test_a_disk_that_hangs_costs_time_and_no_error() -> None:
    chunk = 1 << 16
    world = World(1, Job(3, fanout=2, chunk_bytes=chunk, tree_max_bytes=chunk, tier_has_disk=True))
    world.source.add(WELL, 8 * chunk)
    world.start()
    for node in range(3):
        world.hang_disk(node, 15.0)
    for node in range(3):
        world.read(node, WELL)
    assert world.run_until_read()
    world.run(30.0)
    checkers.check_errors(world, world.readings)
    checkers.check_chunk_reads(world, 1)
    checkers.check_at_rest(world)
    assert not any(host.disk.takes_nothing for host in world.hosts)
