"""Collectives: every node runs its part once, and no node waits for one that is gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.model.types import CallId, NodeId, PeerRequest, RequestId
from copperfs.node.actions import EndCall, PerformCall
from copperfs.node.events import PeerMessage
from copperfs.node.peer.collectives import CALLS_MAX
from copperfs.node.peer.messages import CollectiveRequest
from tests.unit.overlay_lab import Job, Never


def everybody(count: int, but: set[int] = frozenset()) -> bytes:  # type: ignore[assignment]
    return b" ".join(sorted(b"op:x:%d" % number for number in range(count) if number not in but))


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 1000))
def test_a_call_from_any_node_reaches_each_once(nodes: int, fanout: int, seed: int) -> None:
    job = Job(nodes, fanout=fanout, seed=seed)
    caller = seed % nodes
    request = job.call(caller, "op")
    job.run()
    assert job.daemons[caller].called[request] == everybody(nodes)
    assert job.sent["CollectiveRequest"] == job.sent["CollectiveReply"] == nodes - 1


@pytest.mark.parametrize("moves", [*range(0, 19, 3), 19])
def test_nobody_waits_for_a_node_that_is_gone(moves: int) -> None:
    """Its reply is the nineteenth event; a cut before that loses it."""
    job = Job(7)
    request = job.call(0, "op")
    for _ in range(moves):
        job.move()
    job.cut(NodeId(2), NodeId(0))  # 5 and 6 are below it
    job.run()
    lost = {2, 5, 6} if moves < 19 else set[int]()
    assert job.daemons[0].called[request] == everybody(7, but=lost)


def test_who_answers_too_late_is_left_out_and_those_before_it_are_not() -> None:
    job = Job(7)
    job.queues[NodeId(2), NodeId(0)] = Never()
    request = job.call(0, "op", within_s=5)
    job.run()
    assert request not in job.daemons[0].called
    job.tick(5)
    assert job.daemons[0].called[request] == everybody(7, but={2, 5, 6})
    assert all(daemon.node._collectives.deadline() is None for daemon in job.daemons)


def test_each_hop_waits_less_than_the_one_before() -> None:
    job = Job(7, fanout=1)
    job.call(0, "op", within_s=10)
    job.run()
    waits = [10 * 0.9**hop for hop in range(1, 7)]
    assert job.within_s == pytest.approx(waits)


def test_calls_under_way_are_bounded() -> None:
    job = Job(2)
    node = job.daemons[0].node
    for number in range(CALLS_MAX):
        node.step(0, PeerMessage(NodeId(1), CollectiveRequest(number, "op", identity=number)))
    [refused] = node.step(
        0, PeerMessage(NodeId(1), CollectiveRequest(CALLS_MAX, "op", identity=CALLS_MAX))
    )
    assert isinstance(refused, EndCall)
    assert refused.results == ()


def test_a_node_alone_calls_itself() -> None:
    job = Job(1)
    request = job.call(0, "op")
    job.run()
    assert job.daemons[0].called == {RequestId(request): b"op:x:0"}


def test_a_call_that_comes_by_two_ways_is_done_once() -> None:
    """Nodes may differ in their views of each other."""
    node = Job(7).daemons[0].node
    first = node.step(0, PeerMessage(NodeId(1), CollectiveRequest(1, "op", identity=5)))
    assert sum(isinstance(each, PerformCall) for each in first) == 1
    again = node.step(0, PeerMessage(NodeId(2), CollectiveRequest(9, "op", identity=5)))
    assert again == [EndCall(CallId(0), PeerRequest(NodeId(2), 9), "op", ())]
