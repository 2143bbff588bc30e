"""The checkers can fail: each promise is broken here once, by hand."""

import pytest

from copperfs.core.actions import ObjectKey
from copperfs.sim import checkers
from copperfs.sim.checkers import Violation
from copperfs.sim.pieces import piece_of
from copperfs.sim.world import Job, World
from copperfs.types import NodeId, Path

FILE, OTHER = Path(b"lib/a.py"), Path(b"lib/b.py")


@pytest.fixture
def world() -> World:
    """Three nodes, of which the root has read a file."""
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
    checkers.check_errors(world)
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
    world[0].blobs.keep(())
    with pytest.raises(Violation, match=r"seed 1, at .*: node 0 has 2 blobs for 1 objects"):
        judge(world)


def test_a_second_read_of_the_source_is_seen(world: World) -> None:
    world.crash(0)
    world.restart(0)
    world.run(1.0)
    world.read(0, FILE)
    assert world.run_until_read()
    with pytest.raises(Violation, match=r"scan of /: 2 times|read of lib/a.py: 2 times"):
        judge(world)


def test_a_wrong_view_is_seen(world: World) -> None:
    membership = world[1].node.membership
    assert membership is not None
    membership.view.gone.add(NodeId(2))
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
