"""Checkers can fail: each test breaks one promise by hand."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from copperfs.lab.sim import checkers
from copperfs.lab.sim.checkers import Violation
from copperfs.lab.sim.payload_pieces import piece_of
from copperfs.lab.sim.world import Job, World
from copperfs.model.types import HandleId, NodeId, Path, RequestId
from copperfs.node.actions import ObjectKey
from copperfs.node.peer.flow_control import WINDOW_BYTES

FILE, OTHER = Path(b"lib/a.py"), Path(b"lib/b.py")


@pytest.fixture
def world() -> World:
    world = World(1, Job(3, fanout=2))
    world.source.add(FILE, 100)
    world.source.add(OTHER, 1)
    world.start()
    world.read(0, FILE)
    assert world.run_until_read()
    judge(world)
    return world


def judge(world: World) -> None:
    checkers.check_answered(world)
    checkers.check_errors(world, world.readings)
    checkers.check_source_reads(world, 1)
    checkers.check_at_rest(world)
    checkers.check_views(world)


def test_wrong_bytes_are_seen_where_they_are_read(world: World) -> None:
    [key] = [key for key, _ in world[0].node.held() if isinstance(key, ObjectKey)]
    [blob] = world[0].blobs.held
    assert key.path == FILE
    world[0].blobs.held[blob] = (piece_of(bytes(100)),)
    world.read(1, FILE)
    with pytest.raises(AssertionError, match="wrong bytes"):
        world.run_until_read()


def test_a_blob_that_nobody_knows_is_a_leak(world: World) -> None:
    world[0].blobs.keep_blob(())
    with pytest.raises(Violation, match=r"seed 1, at .*: node 0 has 2 blobs for 1 objects"):
        judge(world)


def test_a_second_read_of_the_source_is_seen(world: World) -> None:
    world.crash(0)
    world.restart(0)
    world.run(1.0)
    world.read(0, FILE)
    assert world.run_until_read()
    with pytest.raises(Violation, match="scan of /: 2 times"):
        judge(world)


def test_a_wrong_view_is_seen(world: World) -> None:
    membership = world[1].node.membership
    assert membership is not None
    membership.members.gone.add(NodeId(2))
    with pytest.raises(Violation, match=r"node 1 believes \[2\] gone; \[\] are"):
        judge(world)


def test_an_answer_that_does_not_come_is_seen(world: World) -> None:
    world.source.slow[OTHER] = 5.0
    world.read(1, OTHER)
    world.run(1.0)
    with pytest.raises(Violation, match=r"the reading of lib/b.py on node 1 waits"):
        judge(world)


def test_a_late_answer_is_seen(world: World) -> None:
    host = world[0]
    world.source.slow[OTHER] = 3.0
    world.read(0, OTHER)
    world.run(1.0)
    assert host.waits == 1
    object.__setattr__(host.node.limits, "fetch_deadline_s", 0.5)
    with pytest.raises(Violation, match="node 0 has not answered"):
        checkers.check_answered(world)
    with pytest.raises(AssertionError, match=r"was answered after 3\.\d+ s"):
        world.run(5.0)


def test_a_circle_is_no_overlay(world: World) -> None:
    checkers.check_overlay(world)
    for node, parent in ((1, 2), (2, 1)):
        membership = world[node].node.membership
        assert membership is not None
        membership.parents[0] = NodeId(parent)
    with pytest.raises(Violation, match="in a circle"):
        checkers.check_overlay(world)


def test_whoever_asks_the_dead_is_seen(world: World) -> None:
    world.crash(0)
    with pytest.raises(Violation, match="asks 0, which is gone"):
        checkers.check_overlay(world)


def test_two_roots_are_seen(world: World) -> None:
    membership = world[2].node.membership
    assert membership is not None
    membership.parents[0] = None
    with pytest.raises(Violation, match=r"has the roots \[0, 2\]"):
        checkers.check_overlay(world)


def test_a_disk_beyond_its_budget_is_seen(world: World) -> None:
    checkers.check_limits(world)
    world[1].disk.held_bytes = world[1].disk.budget_bytes + 1
    with pytest.raises(Violation, match="node 1 has too much on its disk"):
        checkers.check_limits(world)


def test_reads_without_bound_are_seen(world: World) -> None:
    checkers.check_reads_bounded(world, world.lives)
    world.source.counts["read", FILE] = 2 * world.lives + 1
    with pytest.raises(Violation, match="7 times"):
        checkers.check_reads_bounded(world, world.lives)
    checkers.check_reads_bounded(world, world.lives, {(FILE, None)})


def test_an_error_is_excused_only_where_the_source_gave_one(world: World) -> None:
    world.fail_source(OTHER, errno.EIO)
    world.read(1, OTHER)
    assert world.run_until_read()
    checkers.check_errors(world, world.readings, {(OTHER, None)})
    with pytest.raises(Violation, match="EIO"):
        checkers.check_errors(world, world.readings, {(FILE, None), (None, 2)})


def test_a_sick_client_of_the_source_is_passed_over(world: World) -> None:
    world.sicken(0, is_sick=True)
    world.read(1, OTHER)
    assert world.run_until_read()
    checkers.check_errors(world, world.readings)
    assert world.source.counts["read", OTHER] == 2


def test_an_old_version_after_a_clear_is_seen(world: World) -> None:
    world.change(FILE)
    reading = world.read(1, FILE)
    assert world.run_until_read()
    with pytest.raises(Violation, match=r"lib/a.py on node 1 is well, in an old version"):
        checkers.check_newest(world, [reading])
    world.clear(0)
    world.run(1.0)
    reading = world.read(1, FILE)
    assert world.run_until_read()
    checkers.check_newest(world, [reading])


def test_who_did_not_clear_is_seen(world: World) -> None:
    world[2].node.stats.epoch += 1
    with pytest.raises(Violation, match=r"the epochs are \{0: 1, 1: 1, 2: 2\}"):
        checkers.check_epochs(world)


def test_a_call_without_an_end_is_seen(world: World) -> None:
    world.clear(0)
    with pytest.raises(Violation, match=r"node 0 still waits for 1 calls"):
        judge(world)


def test_a_stale_file_is_excused_only_if_it_changed(world: World) -> None:
    reading = world.read(1, FILE)
    assert world.run_until_read()
    reading.error = errno.ESTALE
    checkers.check_errors(world, [reading], changed={FILE})
    with pytest.raises(Violation, match=r"lib/a.py on node 1 ESTALE"):
        checkers.check_errors(world, [reading], changed={OTHER})


def test_a_chunk_that_is_read_twice_is_seen(world: World) -> None:
    world.source.chunk_counts[FILE, 0] = 1
    checkers.check_chunk_reads(world, 1)
    world.source.chunk_counts[FILE, 4096] = 2
    with pytest.raises(Violation, match=r"lib/a.py at 4096: 2 times"):
        checkers.check_chunk_reads(world, 1)


def test_who_believes_in_trouble_that_was_not_is_seen(world: World) -> None:
    checkers.check_untroubled(world)
    world.stop(2)
    world.run(10.0)
    world.go_on(2)
    with pytest.raises(Violation, match="node 0 counts 1 deaths, and all was calm"):
        checkers.check_untroubled(world)


@pytest.mark.parametrize("trouble", checkers.TROUBLES)
def test_each_trouble_that_was_not_is_seen(world: World, trouble: str) -> None:
    setattr(world[1].node.stats, trouble, 1)
    with pytest.raises(Violation, match=f"node 1 counts 1 {trouble}, and all was calm"):
        checkers.check_untroubled(world)


def test_a_fetch_without_an_end_is_seen(world: World) -> None:
    world.source.slow[OTHER] = 5.0
    world.read(1, OTHER)
    world.run(1.0)
    with pytest.raises(Violation, match="node 0 still fetches 1 things"):
        checkers.check_at_rest(world)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda host: host.node._cache._lru.reserve(1), "node 0 keeps 1 reserved"),
        (lambda host: setattr(host.hands, "busy", 1), "node 0 is still at the source"),
        (lambda host: host._waiting.update({RequestId(9): None}), "node 0 still waits for 1 answ"),
        (lambda host: host.handles.add(HandleId(1)), "node 0 keeps 1 handles open"),
        (lambda host: host.blobs.lend(()), "node 0 keeps parts of"),
    ],
    ids=["reserved", "source", "answer", "handle", "listing"],
)
def test_what_is_kept_at_rest_is_seen(
    world: World, harm: Callable[[Any], object], said: str
) -> None:
    harm(world[0])
    with pytest.raises(Violation, match=said):
        checkers.check_at_rest(world)


def test_a_memory_beyond_its_budget_is_seen(world: World) -> None:
    checkers.check_limits(world)
    object.__setattr__(world[0].node.limits, "memory_bytes", 1)
    with pytest.raises(Violation, match=r"node 0 holds \d+ bytes"):
        checkers.check_limits(world)


def test_who_gives_more_than_its_credit_is_seen(world: World) -> None:
    world[0].peers.given_bytes[NodeId(1)] += 2 * WINDOW_BYTES
    world.read(1, FILE)
    with pytest.raises(AssertionError):
        world.run_until_read()
