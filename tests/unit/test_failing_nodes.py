"""Failing nodes: while nodes end, hang or are cut off, requests at the others succeed in time."""

import errno
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copperfs.model.types import NodeId, Path, RequestId
from copperfs.node.actions import AnswerError, Send
from copperfs.node.events import Leave, ListRequest, PeerMessage, Probed
from copperfs.node.membership.failure_detector import Timeouts
from copperfs.node.peer.messages import (
    PART_BYTES,
    CollectiveReply,
    EntryReply,
    ErrorReply,
    Heartbeat,
    MembershipUpdate,
    MemberStatus,
    Message,
)
from tests.unit.overlay_lab import ASK_DEADLINE_S, MIB, Job, content

ROOT, PARENT, LEAF = 0, 3, 7
TIMEOUTS = Timeouts()
HEDGED_S = TIMEOUTS.ping_after_s + TIMEOUTS.silent_s + 0.1
DOUBTED_S = TIMEOUTS.doubt_s + 0.1
DEAD_S = TIMEOUTS.dead_s + 0.2


def eight(count: int = 1, seed: int = 0) -> Job:
    """7 asks 3, 3 asks 1, 1 asks 0."""
    job = Job(8, count=count, seed=seed, deadline_s=60.0)
    for name in (b"lib/a", b"lib/b", b"lib/c", b"lib/d"):
        job.tree.add(name, 100)
    job.tree.add(b"lib/large", 5 * MIB)
    return job


def begin(job: Job, number: int, path: bytes) -> object:
    return job.read(number, path, job.tree.files[Path(path)].attributes.version)


def has(job: Job, number: int, request: object, path: bytes) -> bool:
    answers = job.daemons[number].answers
    if request not in answers:
        return False
    version = job.tree.files[Path(path)].attributes.version
    assert answers[request] == content(Path(path), version)  # type: ignore[index]
    return True


def read(job: Job, number: int, path: bytes) -> bool:
    request = begin(job, number, path)
    job.run()
    return has(job, number, request, path)


# --- silence --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "within_s"), [(PARENT, HEDGED_S), (1, HEDGED_S), (ROOT, DOUBTED_S)]
)
def test_a_node_that_hangs_is_asked_around(who: int, within_s: float) -> None:
    job = eight()
    job.frozen.add(NodeId(who))
    request = begin(job, LEAF, b"lib/a")
    job.run()
    assert not has(job, LEAF, request, b"lib/a")
    job.pass_time(within_s)
    assert has(job, LEAF, request, b"lib/a")
    assert not any(daemon.node.membership.members.gone for daemon in job.daemons)  # type: ignore[union-attr]
    assert read(job, LEAF, b"lib/b"), "it is asked nothing new"
    assert sum(job.source_reads().values()) == 2


def test_two_peers_that_hang_are_found_together() -> None:
    """The node pings the peer that it would ask next as soon as a reply is overdue."""
    job = eight()
    membership = job.daemons[LEAF].node.membership
    assert membership is not None
    job.frozen |= {NodeId(PARENT), NodeId(1)}
    begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S, step_s=0.01)
    assert membership.suspects() == [1, PARENT]


def test_one_that_is_doubted_is_told_of_as_such_until_it_is_found_to_be_gone() -> None:
    job = eight()
    membership = job.daemons[LEAF].node.membership
    assert membership is not None
    job.frozen.add(NodeId(PARENT))
    begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S)
    assert membership.suspects() == [PARENT]
    job.pass_time(10.0, step_s=0.25)
    assert (membership.suspects(), set(membership.members.gone)) == ([], {PARENT})


@pytest.mark.parametrize(
    ("message", "is_doubted"),
    [
        (EntryReply(999, 1, None, None), False),
        (ErrorReply(999, 1, errno.EIO), False),
        (CollectiveReply(999, b""), False),
        (Heartbeat(1, 0, wants_answer=False), False),
        (Heartbeat(1, 0, wants_answer=True), True),
        (MembershipUpdate(()), True),
    ],
)
def test_only_what_answers_is_a_sign_that_the_other_hears_this_node(
    message: Message, is_doubted: bool
) -> None:
    """A peer that no longer receives still sends its own messages."""
    job = eight()
    membership = job.daemons[LEAF].node.membership
    assert membership is not None
    job.frozen.add(NodeId(PARENT))
    begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S)
    assert membership.suspects() == [PARENT]
    job.happen(NodeId(LEAF), PeerMessage(NodeId(PARENT), message))
    assert membership.suspects() == ([PARENT] if is_doubted else [])


def test_a_node_that_was_only_suspected_has_nothing_to_refute() -> None:
    job = eight()
    job.frozen.add(NodeId(PARENT))
    begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S + 0.5, step_s=0.25)
    job.frozen.clear()
    job.run()
    assert not any(daemon.node.membership.suspects() for daemon in job.daemons)  # type: ignore[union-attr]
    assert job.sent["MembershipUpdate"] == 0
    assert job.daemons[PARENT].node.stats.refutations == 0


def test_the_log_says_how_long_a_peer_was_silent() -> None:
    job = eight()
    job.frozen.add(NodeId(PARENT))
    begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S, step_s=0.01)
    job.pass_time(1.0)
    job.frozen.clear()
    job.run()
    (told,) = (each for each in job.daemons[LEAF].happened if each.what == "answers again")
    assert told.seconds == pytest.approx(1.1, abs=0.05)


def test_those_that_are_gone_are_tried_however_often_something_happens_to_others() -> None:
    membership = eight().daemons[LEAF].node.membership
    assert membership is not None
    plan, first, wait_s = membership.plan, 1.0, TIMEOUTS.try_gone_s
    for part in (0.0, 0.3, 0.6, 0.9):
        plan.members_changed(first + part * wait_s)
        assert plan.try_gone_at == first + wait_s


def test_one_that_believes_otherwise_is_told_all_again_after_two_heartbeats() -> None:
    job = eight()
    job.crash(4)
    job.pass_time(10.0, step_s=0.25)
    node, began = job.daemons[LEAF].node, job.now + 10.0
    assert node.gone() == {4}
    beat = PeerMessage(NodeId(PARENT), Heartbeat(1, 12345, wants_answer=False))

    def is_told(now: float) -> bool:
        sent = [each.message for each in node.step(now, beat) if isinstance(each, Send)]
        return any(isinstance(each, MembershipUpdate) for each in sent)

    assert is_told(began)
    assert not is_told(began + 1.5 * TIMEOUTS.heartbeat_s)
    assert is_told(began + 2.0 * TIMEOUTS.heartbeat_s)


def test_one_that_is_said_to_be_back_and_is_not_is_found_to_be_gone_again() -> None:
    job = Job(3, fanout=1)
    job.crash(1)
    job.pass_time(10.0, step_s=0.25)
    membership = job.daemons[2].node.membership
    assert membership is not None
    assert membership.members.gone == {1}
    job.happen(
        NodeId(2),
        PeerMessage(NodeId(0), MembershipUpdate((MemberStatus(NodeId(1), 1, is_gone=False),))),
    )
    assert membership.members.gone == set()
    job.crash(0)  # no other node could tell
    job.pass_time(20.0, step_s=0.25)
    assert NodeId(1) in membership.members.gone


def test_a_node_that_is_said_to_be_back_is_given_time_to_be_connected_to() -> None:
    """Its port refused connections before it was started again."""
    job = Job(3, fanout=1)
    job.crash(1)
    job.pass_time(10.0, step_s=0.25)
    back = MembershipUpdate((MemberStatus(NodeId(1), 1, is_gone=False),))
    job.happen(NodeId(2), PeerMessage(NodeId(0), back))
    job.tick(0.1)  # no port was probed meanwhile
    assert gone(job, 2) == set()
    assert job.daemons[2].node.membership.suspects() == [1]  # type: ignore[union-attr]


def test_the_log_names_the_node_that_is_gone_and_then_back() -> None:
    job = Job(3, fanout=1)
    job.crash(1)
    job.pass_time(1.0)
    back = MembershipUpdate((MemberStatus(NodeId(1), 1, is_gone=False),))
    job.happen(NodeId(2), PeerMessage(NodeId(0), back))
    told = [(each.what, each.peer, each.detail) for each in job.daemons[2].happened]
    assert ("gone", 1, "nobody listens") in told
    assert ("is back", 1, "was told") in told


def test_a_standby_parent_is_pinged_every_fourth_heartbeat() -> None:
    job = eight()
    standby = NodeId(1)
    pings = {NodeId(PARENT): 0, standby: 0}
    for _ in range(400):
        job.tick(0.05)
        for peer in pings:
            sent = (message for message, _ in job.queues[NodeId(LEAF), peer])
            pings[peer] += sum(isinstance(each, Heartbeat) and each.wants_answer for each in sent)
        job.run()
    beats = 20.0 / TIMEOUTS.heartbeat_s
    assert 0.8 * beats <= pings[NodeId(PARENT)] <= beats
    assert 0.8 * beats <= 4 * pings[standby] <= beats


def test_two_that_have_nothing_to_do_ask_each_other_for_a_sign_of_life_each_heartbeat() -> None:
    job = Job(2)
    membership = job.daemons[0].node.membership
    assert membership is not None
    job.pass_time(5.0)
    beats = 5.0 / membership.timeouts.heartbeat_s
    assert beats / 2 <= job.sent["Heartbeat"] <= 4 * beats, "a question and an answer of each"


def test_a_node_that_is_late_again_and_again_gives_the_others_as_much_more_time() -> None:
    """One late wakeup is a standstill of this node, and its time was taken off. Two are a load."""
    membership = eight().daemons[LEAF].node.membership
    assert membership is not None
    late_s = 0.5
    assert membership.timeouts.silent_s < late_s < membership.timeouts.nap_s
    untils = []
    for now in (1.0, 2.0):
        membership.on_late_wakeup(now, late_s)
        untils.append(membership.doubted_until(NodeId(PARENT)))
    assert untils[1] - untils[0] == late_s + late_s - membership.timeouts.silent_s


def test_the_next_root_waits_for_two_above_it_no_longer_than_for_one() -> None:
    """The node loses its connection to one while it waits for the other."""
    job = Job(3, fanout=1)
    job.tree.add(b"lib/a", 100)
    root, parent, leaf = map(NodeId, range(3))
    membership = job.daemons[leaf].node.membership
    assert membership is not None
    job.frozen.add(parent)
    request = begin(job, leaf, b"lib/a")
    job.pass_time(0.3)
    assert membership.suspects() == []
    job.cut(leaf, root)
    job.pass_time(0.2)
    assert membership.suspects() == [root, parent]
    assert not has(job, leaf, request, b"lib/a"), "they may yet answer"
    job.pass_time(DOUBTED_S - 0.5)
    assert has(job, leaf, request, b"lib/a")
    assert job.daemons[leaf].node.stats.fallbacks == 1


def test_a_node_that_answers_again_is_asked_again() -> None:
    job = eight()
    job.frozen.add(NodeId(PARENT))
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S)
    assert has(job, LEAF, request, b"lib/a")
    job.frozen.clear()
    job.run()
    asked = job.daemons[PARENT].node.stats.peer_questions
    assert read(job, LEAF, b"lib/b")
    assert job.daemons[PARENT].node.stats.peer_questions > asked
    job.pass_time(1.0)
    job.check_at_rest()


def test_a_source_that_takes_half_a_minute_makes_nobody_suspect_anybody() -> None:
    job = eight()
    job.no_source.add(NodeId(ROOT))
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(TIMEOUTS.slow_s - 1)
    hedges = [daemon.node.stats.hedges for daemon in job.daemons]
    assert hedges == [0] * 8
    assert not any(daemon.node.membership.suspects() for daemon in job.daemons)  # type: ignore[union-attr]
    assert sum(job.source_reads().values()) == 0, "the root alone is at it"
    job.pass_time(2)
    assert has(job, LEAF, request, b"lib/a"), "the source of another node is not stuck"
    job.no_source.clear()
    job.run()
    assert sum(job.source_reads().values()) == 2
    assert not any(daemon.node.membership.members.gone for daemon in job.daemons)  # type: ignore[union-attr]
    job.check_at_rest()


def test_who_was_asleep_suspects_nobody() -> None:
    job = eight()
    job.pass_time(1.0)
    job.frozen.add(NodeId(LEAF))
    job.pass_time(TIMEOUTS.dead_s - 1)
    job.frozen.clear()
    job.tick(0.0)
    membership = job.daemons[LEAF].node.membership
    assert membership is not None
    assert membership.suspects() == []
    assert not membership.members.gone
    job.pass_time(1.0)
    assert not any(daemon.node.membership.members.gone for daemon in job.daemons)  # type: ignore[union-attr]


def test_a_node_that_was_asleep_still_waits_for_the_reply_it_is_owed() -> None:
    job = eight()
    job.frozen |= {NodeId(LEAF), NodeId(PARENT)}
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(TIMEOUTS.dead_s - 1)
    job.frozen.remove(NodeId(LEAF))
    job.tick(0.0)
    assert job.daemons[LEAF].node.membership.suspects() == []  # type: ignore[union-attr]
    job.pass_time(HEDGED_S, step_s=0.01)
    assert has(job, LEAF, request, b"lib/a")


# --- death ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dead", [*combinations((0, 1, 3), 1), *combinations((0, 1, 3), 2), (0, 1, 3)]
)
def test_nodes_that_end_are_missed_by_nobody(dead: tuple[int, ...]) -> None:
    job = eight()
    for number in dead:
        job.crash(number)
    assert read(job, LEAF, b"lib/a"), "without any time passing"
    job.pass_time(0.1)
    for number in range(8):
        if number not in dead:
            assert read(job, number, b"lib/b")
            membership = job.daemons[number].node.membership
            assert membership is not None
            assert membership.members.gone == set(dead)
    assert all(count == 1 for (kind, _), count in job.source_reads().items() if kind == "read")


@given(st.integers(0, 300), st.sampled_from([ROOT, 1, PARENT]), st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_a_stream_that_breaks_off_goes_on_elsewhere(seed: int, who: int, moves: int) -> None:
    job = eight(seed=seed)
    requests = {number: begin(job, number, b"lib/large") for number in (LEAF, 5, 6)}
    for _ in range(moves):
        job.move()
    job.crash(who)
    job.run()
    job.pass_time(0.1)
    assert all(has(job, number, request, b"lib/large") for number, request in requests.items())
    assert job.source_reads()["read", Path(b"lib/large")] <= 2


def test_what_came_before_a_stream_broke_off_does_not_come_again() -> None:
    job = eight()
    request = begin(job, LEAF, b"lib/large")
    while job.daemons[LEAF].node.statistics().reserved_bytes == 0 or not any(
        len(blob) >= 2 * PART_BYTES for blob in job.daemons[LEAF].blobs.values()
    ):
        assert job.move()
    firsts: list[int] = []
    job.crash(PARENT)
    for (_, peer), queue in job.queues.items():
        firsts += [m.first for m, _ in queue if peer == 1 and hasattr(m, "first")]
    assert firsts == [2]
    job.run()
    assert has(job, LEAF, request, b"lib/large")


@given(st.integers(0, 1000), st.data())
@settings(max_examples=60, deadline=None)
def test_as_long_as_one_is_left_it_gets_everything(seed: int, data: st.DataObject) -> None:
    job = eight(count=data.draw(st.sampled_from([1, 3])), seed=seed)
    survivor = data.draw(st.integers(0, 7))
    requests = {path: begin(job, survivor, path) for path in (b"lib/a", b"lib/b", b"lib/large")}
    others = [number for number in range(8) if number != survivor]
    for number in data.draw(st.permutations(others)):
        for _ in range(data.draw(st.integers(0, 20))):
            job.move()
        job.crash(number)
    job.run()
    job.pass_time(1.5)
    assert all(has(job, survivor, request, path) for path, request in requests.items())
    listed = job.ask(survivor, ListRequest, b"lib")
    job.run()
    assert job.answer(survivor, listed) is not None


# --- the view -------------------------------------------------------------------------------------


def gone(job: Job, number: int) -> set[int]:
    membership = job.daemons[number].node.membership
    assert membership is not None
    membership.check_invariants()
    return set(membership.members.gone)


def test_who_was_stopped_for_long_is_taken_back() -> None:
    job = eight()
    job.frozen.add(NodeId(PARENT))
    job.pass_time(DEAD_S + 1)
    assert [gone(job, number) for number in range(8) if number != PARENT] == [{PARENT}] * 7
    job.frozen.clear()
    job.pass_time(1.0)
    assert [gone(job, number) for number in range(8)] == [set()] * 8
    assert job.daemons[PARENT].node.stats.refutations >= 1
    assert [each.node.is_back() for each in job.daemons] == [n == PARENT for n in range(8)]
    assert read(job, LEAF, b"lib/a")
    assert job.daemons[PARENT].node.stats.peer_questions == 1
    job.check_at_rest()


def test_a_network_that_falls_apart_becomes_whole_again() -> None:
    job = eight()
    side = {1, 3, 4, 7}
    for one in range(8):
        for other in range(one):
            if (one in side) != (other in side):
                pair = NodeId(one), NodeId(other)
                if pair in job.queues:
                    job.cut(*pair)
                else:
                    job.severed.add(frozenset(pair))
    job.pass_time(3 * DEAD_S)  # nodes miss one level after the other
    for number in range(8):
        assert gone(job, number) == (set(range(8)) - side if number in side else side)
    assert read(job, LEAF, b"lib/a")
    assert read(job, 6, b"lib/a")
    assert job.source_reads()["read", Path(b"lib/a")] == 2, "each side has a root"
    job.severed.clear()
    job.pass_time(2.0)
    assert [gone(job, number) for number in range(8)] == [set()] * 8
    assert read(job, LEAF, b"lib/b")
    assert read(job, 6, b"lib/b")
    assert job.source_reads()["read", Path(b"lib/b")] == 1
    job.check_at_rest()


def test_who_leaves_has_told_before_and_nobody_waits() -> None:
    job = eight()
    requests = {number: begin(job, number, b"lib/large") for number in (LEAF, 5)}
    for _ in range(8):
        job.move()
    job.happen(NodeId(1), Leave())
    job.run()
    assert all(has(job, number, request, b"lib/large") for number, request in requests.items())
    assert job.daemons[1].node.is_drained()
    job.pass_time(0.1)
    assert [gone(job, number) for number in range(8)] == [{1}] * 8
    assert job.daemons[3].node.membership.parents == [0]  # type: ignore[union-attr]
    assert sum(daemon.node.stats.deaths for daemon in job.daemons) == 0


def test_a_node_that_leaves_does_not_wait_for_a_peer_it_is_not_connected_to() -> None:
    job = eight()
    job.cut(NodeId(1), NodeId(0))
    job.happen(NodeId(1), Leave())
    job.run()
    assert job.daemons[1].node.is_drained()


def test_a_connection_that_ends_because_a_node_leaves_is_no_loss() -> None:
    job = eight()
    job.happen(NodeId(1), Leave())
    job.run()
    job.cut(NodeId(PARENT), NodeId(1))
    for number in (1, PARENT):
        daemon = job.daemons[number]
        assert daemon.probes == []
        assert "lost" not in [each.what for each in daemon.happened]


def test_a_stranger_that_was_lost_and_still_listens_is_forgotten_as_soon_as_that_is_seen() -> None:
    job = eight()
    node, stranger = NodeId(5), NodeId(LEAF)
    membership = job.daemons[node].node.membership
    assert membership is not None
    assert (node, stranger) not in job.queues, "neither is above the other"
    job.connect(stranger, node)
    job.run()
    job.cut(stranger, node)
    assert membership.suspects() == [stranger], "its process may have ended"
    job.happen(node, Probed(job.daemons[node].probes.pop(), refused=False))
    assert membership.suspects() == []


# --- the last resort ------------------------------------------------------------------------------


def cut_off(job: Job, number: int) -> None:
    for other in range(job.nodes):
        if other != number:
            pair = NodeId(number), NodeId(other)
            if pair in job.queues:
                job.cut(*pair)
            job.severed.add(frozenset(pair))


def test_who_is_cut_off_reads_the_source_in_turns() -> None:
    job = Job(8, fallbacks_max=2)
    for number in range(20):
        job.tree.add(b"lib/%d" % number, 10)
    cut_off(job, LEAF)
    requests = [begin(job, LEAF, b"lib/%d" % number) for number in range(20)]
    job.pass_time(0.5)
    daemon = job.daemons[LEAF]
    assert daemon.answers == {}, "those that it asks may yet answer"
    job.no_source.add(NodeId(LEAF))
    job.pass_time(0.3)
    assert len(daemon.fetches) == 2
    job.no_source.clear()
    job.run()
    assert all(request in daemon.answers for request in requests)
    assert daemon.node.stats.fallbacks == 20
    daemon.node.check_invariants()


def test_without_falling_back_the_source_is_left_alone() -> None:
    job = Job(20, fanout=2, fallbacks_max=0)
    job.tree.add(b"lib/a", 10)
    cut_off(job, 19)
    request = begin(job, 19, b"lib/a")
    job.pass_time(2.0)
    assert job.source_reads() == {}
    assert request not in job.daemons[19].answers


def test_who_is_not_answered_for_too_long_reads_the_source() -> None:
    job = eight()
    job.no_source |= {NodeId(number) for number in range(8) if number != LEAF}
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(ASK_DEADLINE_S - 1, step_s=0.25)
    assert not has(job, LEAF, request, b"lib/a")
    job.pass_time(1.5, step_s=0.25)
    assert has(job, LEAF, request, b"lib/a")
    assert job.daemons[LEAF].node.stats.fallbacks == 1


def test_an_error_of_ones_own_source_lets_the_next_have_its_turn() -> None:
    """A fallback that fails for good makes room for the fetches that wait."""
    job = Job(8, fallbacks_max=1, deadline_s=60.0)
    for number in range(3):
        job.tree.add(b"lib/%d" % number, 10)
    job.tree.failing[Path(b"lib/0")] = errno.EIO
    cut_off(job, LEAF)
    requests = [begin(job, LEAF, b"lib/%d" % number) for number in range(3)]
    job.pass_time(1.5)
    answers = job.daemons[LEAF].answers
    assert answers[requests[0]] == AnswerError(requests[0], errno.EIO)  # type: ignore[index,arg-type]
    assert all(has(job, LEAF, requests[n], b"lib/%d" % n) for n in (1, 2))


def test_an_error_of_ones_own_source_is_not_believed_while_another_may_answer() -> None:
    job = eight()
    job.tree.failing[Path(b"lib/a")] = errno.EIO
    job.frozen |= {NodeId(number) for number in range(LEAF)}
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(2.0)
    assert job.daemons[LEAF].node.stats.fallbacks > 0
    assert request not in job.daemons[LEAF].answers
    job.tree.failing.clear()
    job.frozen.clear()
    job.pass_time(1.0)
    assert has(job, LEAF, request, b"lib/a")


def test_a_process_that_still_listens_while_it_ends_is_found_out_soon() -> None:
    """A killed process closes one descriptor after the other."""
    job = eight()
    job.severed |= {frozenset((NodeId(0), NodeId(other))) for other in range(1, 8)}
    for one, other in [each for each in job.queues if each[0] == 0]:
        job._sever(one, other)
    request = begin(job, LEAF, b"lib/a")
    job.run()  # no connection is refused yet
    assert not has(job, LEAF, request, b"lib/a")
    job.crash(0)
    job.pass_time(0.1, step_s=0.02)
    assert has(job, LEAF, request, b"lib/a")


# --- cost of suspicions to the source -------------------------------------------------------------


def doubted_at_random(seed: int) -> tuple[int, int]:
    """A job whose nodes hang repeatedly, for a moment or until they are declared dead, while files
    and chunks are read. Returns the reads of the source beyond the first of each content, and the
    nodes' fallbacks."""
    draw = Random(seed)
    job = Job(
        8, count=draw.choice((1, 3)), seed=seed, deadline_s=60.0, tree_max_bytes=8192,
        chunk_bytes=4096,
    )  # fmt: skip
    paths = [b"d%d/%d.p" % (each % 4, each) for each in range(24)]
    for path in paths:
        job.tree.add(path, 100)
    job.tree.add(b"lib/large", 40_000)
    version = job.tree.files[Path(b"lib/large")].attributes.version
    asked: list[tuple[NodeId, RequestId]] = []
    for _ in range(80):
        node = NodeId(draw.randrange(8))
        match draw.randrange(8):
            case 0 | 1 if len(job.frozen) < 3:
                job.frozen.add(node)
            case 2:
                job.frozen.clear()
            case 3:
                job.pass_time(draw.choice((0.2, 0.5, 4.0)))
            case _ if node in job.frozen:
                continue
            case 4 | 5:
                at = draw.randrange(10) * 4096
                asked.append((node, job.read(node, b"lib/large", version, at)))
            case _:
                path = draw.choice(paths)
                wanted = job.tree.files[Path(path)].attributes.version
                asked.append((node, job.read(node, path, wanted)))
        job.run()
    job.frozen.clear()
    job.pass_time(60.0, step_s=0.2)
    stats = [daemon.node.statistics() for daemon in job.daemons]
    for node, request in asked:
        assert not isinstance(job.daemons[node].answers[request], AnswerError)
    assert not any(each.evictions + each.tier_evictions for each in stats)
    counts = [n for (kind, _), n in job.source_reads().items() if kind != "readchunk"]
    counts += job.tree.chunk_reads.values()
    again = sum(counts) - len(counts)
    return again, sum(each.fallbacks + each.took_over for each in stats)


def test_each_read_of_the_source_that_is_not_the_first_is_counted() -> None:
    found = [doubted_at_random(seed) for seed in range(24)]
    assert all(again <= counted for again, counted in found), found
    assert sum(again for again, _ in found) > 20, "or it would show nothing"
