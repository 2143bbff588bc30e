"""Findings of a review of the failure handling; each test failed before the fix."""

import errno
import re

import pytest

from copperfs.model.types import NodeId, Path
from copperfs.node.actions import Action
from copperfs.node.events import Failed
from copperfs.node.fetch.fetch import Fetch
from copperfs.node.fetch.machine import FetchMachine
from copperfs.node.peer.messages import Batch
from copperfs.node.routing.trees import Trees
from copperfs.wire.payload import Payload, digest
from tests.unit.node_lab import version
from tests.unit.simulated_job import SimulatedJob
from tests.unit.test_failing_nodes import begin, eight, gone, has
from tests.unit.test_warmup import piece, receive, receiver

LEAF = 7


def restart(job: SimulatedJob, number: int) -> None:
    job.world.crash(number)
    job.world.restart(number)


def test_what_falls_back_is_begun_once() -> None:
    """Otherwise ``NativeFetcher`` ends the daemon with a KeyError."""
    job = SimulatedJob(8, source_deadline_s=60.0, fallback_jitter_s=0.1)
    for number in range(20):
        job.add(b"lib/%d" % number, 10)
        job.source.slow[Path(b"lib/%d" % number)] = 0.05
    job.hold_source(0)
    for number in range(20):
        begin(job, LEAF, b"lib/%d" % number)
    job.run()
    job.cut_off(LEAF)
    job.world.trace.keep(100_000)
    job.pass_time(3.0)
    lines = job.world.trace.lines(LEAF)
    begun = [found[1] for line in lines if (found := re.search(r"> ReadSource\(fetch=(\d+)", line))]
    assert len(job.answers[LEAF]) == 20
    assert len(begun) == len(set(begun)) == 20


def test_without_falling_back_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, ``FetchMachine.tick`` never returned once ``ask_deadline_s`` was over."""
    job = SimulatedJob(40, fallback_concurrency=0, source_deadline_s=60.0)
    job.add(b"lib/a", 10)
    job.hold_source(*range(40))
    begin(job, 39, b"lib/a")
    on_timer, timers = FetchMachine._on_timer, 0

    def counted(self: FetchMachine, now: float, fetch: Fetch) -> list[Action]:
        nonlocal timers
        timers += 1
        assert timers < 10_000, "it looks at the same fetch without end"
        return on_timer(self, now, fetch)

    monkeypatch.setattr(FetchMachine, "_on_timer", counted)
    job.pass_time(45.0)


def test_who_was_never_asked_after_all_is_not_declared_dead() -> None:
    """A node that starts first wants up to four others for a while, and drops some before it
    reaches them; these keep their clock."""
    job = SimulatedJob(20, fanout=16)
    for other in set(range(20)) - {5}:
        job.cut(5, other)
    restart(job, 5)
    job.pass_time(1.5)
    job.let_through(5, 0)
    job.let_through(0, 5)
    job.pass_time(0.1)
    job.heal()
    job.pass_time(130.0)
    assert [host.node.stats.refutations for host in job] == [0] * 20


def test_who_is_cut_off_for_long_comes_back_though_its_parent_is_dead() -> None:
    job = eight()
    job.world.crash(3)
    job.pass_time(1.0)
    job.cut_off(LEAF)
    job.pass_time(400.0)
    job.heal()
    job.pass_time(30.0)
    assert [gone(job, number) for number in range(8) if number != 3] == [{3}] * 7


@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_a_source_in_the_place_of_others_is_not_the_last_word(how: str) -> None:
    """The parent is back after 1 s and has the file. Before the fix, the node never asked it
    again."""
    job = eight()
    begin(job, 0, b"lib/a")
    job.run()
    job.cut_off(LEAF)
    job.hold_source(LEAF)
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(1.0)
    job.heal()
    job.run()
    if how == "fails":
        fetch, end = job[LEAF].hands.held.popleft()
        end(Failed(fetch.fetch, errno.EIO))
    job.pass_time(61.0)
    assert has(job, LEAF, request, b"lib/a")


def test_a_batch_of_who_pushes_now_is_taken_in() -> None:
    """The node passes batches on to the push children of its current view, and ``Pushes`` dropped
    them. Their credit never returned: after 8 MiB the connection was dead for reads as well."""
    warmup = receiver(number=2)
    node = warmup.engine.node
    assert node.trees is not None
    assert node.membership is not None
    view = node.membership.members
    view.hear(view.death_of(NodeId(0)))
    instead = node.trees.push_parent(0, view.gone)
    assert instead == 1
    node.flow.up(instead)
    data = b"x" * 10
    batch = Batch(1, 0, 1, 0, (piece(b"lib/a", version(10)),))
    receive(warmup, instead, batch, Payload(data, digest(data)))
    assert node.flow[instead].unreturned_credit_bytes == 10


@pytest.mark.parametrize(("dead", "me"), [(273, 300), (4150, 4150)])
def test_finding_ones_place_costs_little_when_many_are_gone(dead: int, me: int) -> None:
    """When the first rack of 8,300 nodes fails, every change of the view costs each node this
    much."""
    looked = 0

    class Counted(set[int]):
        def __contains__(self, node: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(node)

    trees = Trees(8300, NodeId(me))
    missing = Counted(range(dead))
    trees.parent(0, missing)  # type: ignore[arg-type]
    trees.children(0, missing)  # type: ignore[arg-type]
    assert looked < 10 * trees.nodes


def test_two_roots_become_one_when_the_one_above_both_is_dead() -> None:
    """No node connects to a node that it believes to be gone, unless the roster has that one above
    it."""
    job = SimulatedJob(3, fanout=2)
    job.world.crash(0)
    job.pass_time(1.0)
    job.cut(1, 2)
    job.pass_time(10.0)
    job.heal()
    job.pass_time(60.0)
    assert [gone(job, 1), gone(job, 2)] == [{0}, {0}]
