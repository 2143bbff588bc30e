"""Collectives: every node runs its part once, and no node waits for one that is gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.model.types import CallId, NodeId, PeerRequest
from copperfs.node.actions import EndCall, PerformCall
from copperfs.node.events import PeerMessage
from copperfs.node.peer.collectives import CALLS_MAX
from copperfs.node.peer.messages import CollectiveReply, CollectiveRequest
from tests.unit.simulated_job import SimulatedJob


def everybody(count: int, but: set[int] = frozenset()) -> bytes:  # type: ignore[assignment]
    return b" ".join(b"%d" % number for number in range(count) if number not in but)


def call(job: SimulatedJob, caller: int, operation: str, within_s: float = 10.0) -> list[bytes]:
    """Returns a list that gets the result."""
    results: list[bytes] = []
    job[caller].call(operation, b"x", within_s, results.append)
    return results


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 1000))
def test_a_call_from_any_node_reaches_each_once(nodes: int, fanout: int, seed: int) -> None:
    job = SimulatedJob(nodes, fanout=fanout, seed=seed)
    results = call(job, seed % nodes, "op")
    job.run()
    assert results == [everybody(nodes)]
    assert job.sent["CollectiveRequest"] == job.sent["CollectiveReply"] == nodes - 1


@pytest.mark.parametrize("moves", [*range(0, 19, 3), 19])
def test_nobody_waits_for_a_node_that_is_gone(moves: int) -> None:
    """Its reply is the nineteenth event; a cut before that loses it."""
    job = SimulatedJob(7)
    results = call(job, 0, "op")
    for _ in range(moves):
        job.move()
    assert bool(job.taken(CollectiveReply, 0, 2)) == (moves == 19)
    job.cut(2, 0)  # 5 and 6 are below it
    job.run()
    lost = {2, 5, 6} if moves < 19 else set[int]()
    assert results == [everybody(7, but=lost)]


def test_who_answers_too_late_is_left_out_and_those_before_it_are_not() -> None:
    job = SimulatedJob(7)
    job.hold(2, 0)
    results = call(job, 0, "op", within_s=5)
    job.run()
    assert not results
    job.pass_time(5)
    assert results == [everybody(7, but={2, 5, 6})]
    assert all(each.node._collectives.deadline() is None for each in job)


def test_each_hop_waits_less_than_the_one_before() -> None:
    job = SimulatedJob(7, fanout=1)
    call(job, 0, "op", within_s=10)
    job.run()
    waits = [10 * 0.9**hop for hop in range(1, 7)]
    sent = [each for number in range(7) for each in job.messages(CollectiveRequest, number)]
    assert [each.within_s for each in sent] == pytest.approx(waits)


def test_calls_under_way_are_bounded() -> None:
    node = SimulatedJob(2)[0].node
    for number in range(CALLS_MAX):
        node.step(0, PeerMessage(NodeId(1), CollectiveRequest(number, "op", identity=number)))
    [refused] = node.step(
        0, PeerMessage(NodeId(1), CollectiveRequest(CALLS_MAX, "op", identity=CALLS_MAX))
    )
    assert isinstance(refused, EndCall)
    assert refused.results == ()


def test_a_node_alone_calls_itself() -> None:
    job = SimulatedJob(1)
    results = call(job, 0, "op")
    job.run()
    assert results == [b"0"]


def test_a_call_that_comes_by_two_ways_is_done_once() -> None:
    """Nodes may differ in their views of each other."""
    node = SimulatedJob(7)[0].node
    first = node.step(0, PeerMessage(NodeId(1), CollectiveRequest(1, "op", identity=5)))
    assert sum(isinstance(each, PerformCall) for each in first) == 1
    again = node.step(0, PeerMessage(NodeId(2), CollectiveRequest(9, "op", identity=5)))
    assert again == [EndCall(CallId(0), PeerRequest(NodeId(2), 9), "op", ())]
