"""What a review of the failure handling found; each of these fails until it is mended."""

import errno
from dataclasses import replace

import pytest

from copperfs.core.asking import Asking
from copperfs.core.events import Failed, Start
from copperfs.core.messages import Batch
from copperfs.core.node import Node
from copperfs.core.trees import Trees
from copperfs.types import NodeId
from copperfs.wire.payload import Payload, digest
from tests.unit.core_lab import version
from tests.unit.overlay_lab import Daemon, Job
from tests.unit.test_failing_nodes import begin, cut_off, eight, gone, has
from tests.unit.test_warmup import piece, receiver

LEAF = 7


def restart(job: Job, number: int) -> None:
    node = job.daemons[number].node
    job.crash(number)
    job.crashed.discard(NodeId(number))
    job.daemons[number] = Daemon(Node(node.policy, node.limits, node.trees))
    job.happen(NodeId(number), Start())


def test_what_falls_back_is_begun_once() -> None:
    """Twice, and NativeFetcher._arrived ends the daemon with a KeyError."""
    job = Job(8, deadline_s=60.0)
    for daemon in job.daemons:
        asking = daemon.node._fetches.asking
        asking.limits = replace(asking.limits, fallback_jitter_s=0.1)
    for number in range(20):
        job.tree.add(b"lib/%d" % number, 10)
    job.no_source |= {NodeId(0), NodeId(LEAF)}
    for number in range(20):
        begin(job, LEAF, b"lib/%d" % number)
    job.run()
    cut_off(job, LEAF)
    begun: list[int] = []
    at_source = []
    fetches = job.daemons[LEAF].fetches
    for _ in range(150):
        job.tick(0.02)
        job.run()
        at_source += [(job.now + 0.05, fetch) for fetch in fetches]
        begun += [fetch.fetch for fetch in fetches]
        fetches.clear()
        while at_source and at_source[0][0] <= job.now:
            job.happen(NodeId(LEAF), job._outcome(LEAF, at_source.pop(0)[1]))
    assert len(job.daemons[LEAF].answers) == 20
    assert len(begun) == len(set(begun))


def test_without_falling_back_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Asking.tick`` never returns once ``ask_deadline_s`` is over."""
    job = Job(40, fallbacks_max=0, deadline_s=60.0)
    job.tree.add(b"lib/a", 10)
    job.no_source |= {NodeId(number) for number in range(40)}
    begin(job, 39, b"lib/a")
    look, looks = Asking._look, 0

    def counted(self: Asking, now: float, fetch: object) -> object:
        nonlocal looks
        looks += 1
        assert looks < 10_000, "it looks at the same fetch without end"
        return look(self, now, fetch)  # type: ignore[arg-type]

    monkeypatch.setattr(Asking, "_look", counted)
    job.pass_time(45.0, step_s=0.25)


def test_who_was_never_asked_after_all_is_not_declared_dead() -> None:
    """A node that starts before the others wants up to four of them for a while; those that it
    drops before they are reached keep their clock."""
    job = Job(20, fanout=16)
    for other in set(range(20)) - {5}:
        job.severed.add(frozenset((NodeId(5), NodeId(other))))
    restart(job, 5)
    job.pass_time(1.5)
    job.severed.discard(frozenset((NodeId(5), NodeId(0))))
    job.run()
    job.severed.clear()
    job.pass_time(130.0, step_s=0.5)
    assert [daemon.node.stats.refutations for daemon in job.daemons] == [0] * 20


def test_who_is_cut_off_for_long_comes_back_though_its_parent_is_dead() -> None:
    job = eight()
    job.crash(3)
    job.pass_time(1.0)
    cut_off(job, LEAF)
    job.pass_time(400.0, step_s=0.25)
    job.severed.clear()
    job.pass_time(30.0, step_s=0.25)
    assert [gone(job, number) for number in range(8) if number != 3] == [{3}] * 7


@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_a_source_in_the_place_of_others_is_not_the_last_word(how: str) -> None:
    """A blip of 1 s: the parent is back, has the file, and is never asked again."""
    job = eight()
    begin(job, 0, b"lib/a")
    job.run()
    cut_off(job, LEAF)
    job.no_source.add(NodeId(LEAF))
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(1.0)
    job.severed.clear()
    job.run()
    if how == "fails":
        (fetch,) = job.daemons[LEAF].fetches
        job.daemons[LEAF].fetches.clear()
        job.happen(NodeId(LEAF), Failed(fetch.fetch, errno.EIO))
    job.pass_time(61.0, step_s=0.25)
    assert has(job, LEAF, request, b"lib/a")


def test_a_batch_of_who_pushes_now_is_taken_in() -> None:
    """The core passes batches to whom it believes to be its push children now, ``take_batch`` drops
    them, and the credit of the link never goes back: after 8 MiB it is dead for reads as well."""
    warmup = receiver()
    node = warmup.engine.node = Node(
        warmup.engine.node.policy, warmup.engine.node.limits, Trees(3, NodeId(2), 2, 2)
    )
    assert node.trees is not None
    assert node.membership is not None
    view = node.membership.view
    view.hear(view.end_of(NodeId(0)))
    instead = node.trees.push_parent(0, view.gone)
    assert instead == 1
    node.links.up(instead)
    data = b"x" * 10
    batch = Batch(1, 0, 1, 0, (piece(b"lib/a", version(10)),))
    warmup.take_batch(instead, batch, Payload(data, digest(data)))
    assert node.links[instead].owed_bytes == 10


@pytest.mark.parametrize(("dead", "me"), [(273, 300), (4150, 4150)])
def test_finding_ones_place_costs_little_when_many_are_gone(dead: int, me: int) -> None:
    """The first rack of 8,300 nodes fails: every change of the view costs each node this much."""
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
    """Nobody tries to reach a node that it believes to be gone, unless the roster has it above."""
    job = Job(3, fanout=2)
    job.crash(0)
    job.pass_time(1.0)
    job.cut(NodeId(1), NodeId(2))
    job.pass_time(10.0)
    job.severed.clear()
    job.pass_time(60.0, step_s=0.25)
    assert [gone(job, 1), gone(job, 2)] == [{0}, {0}]
