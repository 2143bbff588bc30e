"""Failing nodes: while nodes end, hang or are cut off, requests at the others succeed in time."""

import errno
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copperfs.lab.sim.payload_pieces import size_of
from copperfs.model.types import NodeId, Path, RequestId
from copperfs.node.actions import AnswerError, Send
from copperfs.node.events import Leave, ListRequest, PeerMessage
from copperfs.node.membership.failure_detector import Timeouts
from copperfs.node.peer.messages import (
    PART_BYTES,
    CollectiveReply,
    ContentKind,
    EntryReply,
    ErrorReply,
    Heartbeat,
    MembershipUpdate,
    MemberStatus,
    Message,
)
from tests.unit.node_lab import MIB
from tests.unit.simulated_job import ASK_DEADLINE_S, SimulatedJob

ROOT, PARENT, LEAF = 0, 3, 7
TIMEOUTS = Timeouts()
HEDGED_S = TIMEOUTS.ping_after_s + TIMEOUTS.silent_s + 0.1
DOUBTED_S = TIMEOUTS.doubt_s + 0.1
DEAD_S = TIMEOUTS.dead_s + 0.2


def eight(count: int = 1, seed: int = 0) -> SimulatedJob:
    """7 asks 3, 3 asks 1, 1 asks 0."""
    job = SimulatedJob(8, trees=count, seed=seed, source_deadline_s=60.0)
    for name in (b"lib/a", b"lib/b", b"lib/c", b"lib/d"):
        job.add(name, 100)
    job.add(b"lib/large", 5 * MIB)
    return job


def begin(job: SimulatedJob, number: int, path: bytes) -> object:
    return job.read(number, path, job.version(path))


def has(job: SimulatedJob, number: int, request: object, path: bytes) -> bool:
    answers = job.answers[number]
    if request not in answers:
        return False
    version = job.version(path)
    assert answers[request] == job.content(path, version)  # type: ignore[index]
    return True


def read(job: SimulatedJob, number: int, path: bytes) -> bool:
    request = begin(job, number, path)
    job.run()
    return has(job, number, request, path)


# --- silence --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "within_s"), [(PARENT, HEDGED_S), (1, HEDGED_S), (ROOT, DOUBTED_S)]
)
def test_a_node_that_hangs_is_asked_around(who: int, within_s: float) -> None:
    job = eight()
    job.hang(who)
    request = begin(job, LEAF, b"lib/a")
    job.run()
    assert not has(job, LEAF, request, b"lib/a")
    job.pass_time(within_s)
    assert has(job, LEAF, request, b"lib/a")
    assert not any(host.node.membership.members.gone for host in job)  # type: ignore[union-attr]
    assert read(job, LEAF, b"lib/b"), "it is asked nothing new"
    assert sum(job.source.counts.values()) == 2


def test_two_peers_that_hang_are_found_together() -> None:
    """The node pings the peer that it would ask next as soon as a reply is overdue."""
    job = eight()
    membership = job[LEAF].node.membership
    assert membership is not None
    job.hang(PARENT, 1)
    begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S)
    assert membership.suspects() == [1, PARENT]


def test_one_that_is_doubted_is_told_of_as_such_until_it_is_found_to_be_gone() -> None:
    job = eight()
    membership = job[LEAF].node.membership
    assert membership is not None
    job.hang(PARENT)
    begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S)
    assert membership.suspects() == [PARENT]
    job.pass_time(10.0)
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
    membership = job[LEAF].node.membership
    assert membership is not None
    job.hang(PARENT)
    begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S)
    assert membership.suspects() == [PARENT]
    job.receive(LEAF, PARENT, message)
    assert membership.suspects() == ([PARENT] if is_doubted else [])
    while job.move():  # it drops a peer that it asked instead, which is no suspect
        assert membership.suspects() == ([PARENT] if is_doubted else [])


def test_a_node_that_was_only_suspected_has_nothing_to_refute() -> None:
    job = eight()
    job.hang(PARENT)
    begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S + 0.5)
    job.go_on()
    job.run()
    assert not any(host.node.membership.suspects() for host in job)  # type: ignore[union-attr]
    assert job.sent["MembershipUpdate"] == 0
    assert job[PARENT].node.stats.refutations == 0


def test_the_log_says_how_long_a_peer_was_silent() -> None:
    job = eight()
    job.hang(PARENT)
    begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S)
    job.pass_time(1.0)
    job.go_on()
    job.run()
    (told,) = (each for _, each in job[LEAF].happened if each.what == "answers again")
    assert told.seconds == pytest.approx(1.1, abs=0.05)


def test_those_that_are_gone_are_tried_however_often_something_happens_to_others() -> None:
    membership = eight()[LEAF].node.membership
    assert membership is not None
    plan, first, wait_s = membership.plan, 1.0, TIMEOUTS.try_gone_s
    for part in (0.0, 0.3, 0.6, 0.9):
        plan.members_changed(first + part * wait_s)
        assert plan.try_gone_at == first + wait_s


def test_one_that_believes_otherwise_is_told_all_again_after_two_heartbeats() -> None:
    job = eight()
    job.world.crash(4)
    job.pass_time(10.0)
    node, began = job[LEAF].node, job.now + 10.0
    assert node.gone() == {4}
    beat = PeerMessage(NodeId(PARENT), Heartbeat(1, 12345, wants_answer=False))

    def is_told(now: float) -> bool:
        sent = [each.message for each in node.step(now, beat) if isinstance(each, Send)]
        return any(isinstance(each, MembershipUpdate) for each in sent)

    assert is_told(began)
    assert not is_told(began + 1.5 * TIMEOUTS.heartbeat_s)
    assert is_told(began + 2.0 * TIMEOUTS.heartbeat_s)


def test_one_that_is_said_to_be_back_and_is_not_is_found_to_be_gone_again() -> None:
    job = SimulatedJob(3, fanout=1)
    job.world.crash(1)
    job.pass_time(10.0)
    membership = job[2].node.membership
    assert membership is not None
    assert membership.members.gone == {1}
    job.receive(2, 0, MembershipUpdate((MemberStatus(NodeId(1), 1, is_gone=False),)))
    assert membership.members.gone == set()
    job.world.crash(0)  # no other node could tell
    job.pass_time(20.0)
    assert NodeId(1) in membership.members.gone


def test_a_node_that_is_said_to_be_back_is_given_time_to_be_connected_to() -> None:
    """Its port refused connections before it was started again."""
    job = SimulatedJob(3, fanout=1)
    job.world.crash(1)
    job.pass_time(10.0)
    job.world.network.timeouts = replace(job.world.network.timeouts, probe_s=1.0)
    job.cut(2, 1)
    back = MembershipUpdate((MemberStatus(NodeId(1), 1, is_gone=False),))
    job.receive(2, 0, back)
    job.pass_time(0.1)  # no port answered meanwhile
    assert gone(job, 2) == set()
    assert job[2].node.membership.suspects() == [1]  # type: ignore[union-attr]


def test_the_log_names_the_node_that_is_gone_and_then_back() -> None:
    job = SimulatedJob(3, fanout=1)
    job.world.crash(1)
    job.pass_time(1.0)
    back = MembershipUpdate((MemberStatus(NodeId(1), 1, is_gone=False),))
    job.receive(2, 0, back)
    told = [(each.what, each.peer, each.detail) for _, each in job[2].happened]
    assert ("gone", 1, "nobody listens") in told
    assert ("is back", 1, "was told") in told


def pings(job: SimulatedJob, peer: int) -> int:
    return sum(each.wants_answer for each in job.messages(Heartbeat, LEAF, peer))


def test_a_standby_parent_is_pinged_every_fourth_heartbeat() -> None:
    job = eight()
    standby = 1
    job.pass_time(20.0)
    beats = 20.0 / TIMEOUTS.heartbeat_s
    assert 0.8 * beats <= pings(job, PARENT) <= beats
    assert 0.8 * beats <= 4 * pings(job, standby) <= beats


def test_two_that_have_nothing_to_do_ask_each_other_for_a_sign_of_life_each_heartbeat() -> None:
    job = SimulatedJob(2)
    membership = job[0].node.membership
    assert membership is not None
    job.pass_time(5.0)
    beats = 5.0 / membership.timeouts.heartbeat_s
    assert beats / 2 <= job.sent["Heartbeat"] <= 4 * beats, "a question and an answer of each"


def test_a_node_that_is_late_again_and_again_gives_the_others_as_much_more_time() -> None:
    """One late wakeup is a standstill of this node, and its time was taken off. Two are a load."""
    membership = eight()[LEAF].node.membership
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
    job = SimulatedJob(3, fanout=1)
    job.add(b"lib/a", 100)
    root, parent, leaf = map(NodeId, range(3))
    membership = job[leaf].node.membership
    assert membership is not None
    job.hang(parent)
    request = begin(job, leaf, b"lib/a")
    job.pass_time(0.3)
    assert membership.suspects() == []
    job.cut(leaf, root)
    job.pass_time(0.2)
    assert membership.suspects() == [root, parent]
    assert not has(job, leaf, request, b"lib/a"), "they may yet answer"
    job.pass_time(DOUBTED_S - 0.5)
    assert has(job, leaf, request, b"lib/a")
    assert job[leaf].node.stats.fallbacks == 1


def test_a_node_that_answers_again_is_asked_again() -> None:
    job = eight()
    job.hang(PARENT)
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(HEDGED_S)
    assert has(job, LEAF, request, b"lib/a")
    job.go_on()
    job.run()
    asked = job[PARENT].node.stats.peer_questions
    assert read(job, LEAF, b"lib/b")
    assert job[PARENT].node.stats.peer_questions > asked
    job.pass_time(1.0)
    job.check_at_rest()


def test_a_source_that_takes_half_a_minute_makes_nobody_suspect_anybody() -> None:
    job = eight()
    job.hold_source(ROOT)
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(TIMEOUTS.slow_s - 1)
    hedges = [host.node.stats.hedges for host in job]
    assert hedges == [0] * 8
    assert not any(host.node.membership.suspects() for host in job)  # type: ignore[union-attr]
    assert sum(job.source.counts.values()) == 0, "the root alone is at it"
    job.pass_time(2)
    assert has(job, LEAF, request, b"lib/a"), "the source of another node is not stuck"
    job.let_source_go()
    job.run()
    assert sum(job.source.counts.values()) == 2
    assert not any(host.node.membership.members.gone for host in job)  # type: ignore[union-attr]
    job.check_at_rest()


def test_who_was_asleep_suspects_nobody() -> None:
    job = eight()
    job.pass_time(1.0)
    job.hang(LEAF)
    job.pass_time(TIMEOUTS.dead_s - 1)
    job.go_on()
    job.pass_time(0.0)
    membership = job[LEAF].node.membership
    assert membership is not None
    assert membership.suspects() == []
    assert not membership.members.gone
    job.pass_time(1.0)
    assert not any(host.node.membership.members.gone for host in job)  # type: ignore[union-attr]


def test_a_node_that_was_asleep_still_waits_for_the_reply_it_is_owed() -> None:
    job = eight()
    job.hang(LEAF, PARENT)
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(TIMEOUTS.dead_s - 1)
    job.go_on(LEAF)
    job.pass_time(0.0)
    assert job[LEAF].node.membership.suspects() == []  # type: ignore[union-attr]
    job.pass_time(HEDGED_S)
    assert has(job, LEAF, request, b"lib/a")


# --- death ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dead", [*combinations((0, 1, 3), 1), *combinations((0, 1, 3), 2), (0, 1, 3)]
)
def test_nodes_that_end_are_missed_by_nobody(dead: tuple[int, ...]) -> None:
    job = eight()
    for number in dead:
        job.world.crash(number)
    assert read(job, LEAF, b"lib/a"), "without any time passing"
    job.pass_time(0.1)
    for number in range(8):
        if number not in dead:
            assert read(job, number, b"lib/b")
            membership = job[number].node.membership
            assert membership is not None
            assert membership.members.gone == set(dead)
    assert all(count == 1 for (kind, _), count in job.source.counts.items() if kind == "read")


@given(st.integers(0, 300), st.sampled_from([ROOT, 1, PARENT]), st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_a_stream_that_breaks_off_goes_on_elsewhere(seed: int, who: int, moves: int) -> None:
    job = eight(seed=seed)
    requests = {number: begin(job, number, b"lib/large") for number in (LEAF, 5, 6)}
    for _ in range(moves):
        job.move()
    job.world.crash(who)
    job.run()
    job.pass_time(0.1)
    assert all(has(job, number, request, b"lib/large") for number, request in requests.items())
    assert job.source.counts["read", Path(b"lib/large")] <= 2


def test_what_came_before_a_stream_broke_off_does_not_come_again() -> None:
    job = eight()
    request = begin(job, LEAF, b"lib/large")
    job.move_until(
        lambda: any(size_of(each) >= 2 * PART_BYTES for each in job[LEAF].blobs.held.values())
    )
    assert job[LEAF].node.statistics().reserved_bytes
    job.world.crash(PARENT)
    job.run()
    assert [each.first for each in job.asked(LEAF, ContentKind.OBJECT, 1)] == [2]
    assert has(job, LEAF, request, b"lib/large")


@given(st.integers(0, 1000), st.data())
@settings(max_examples=60, deadline=None)
def test_as_long_as_one_is_left_it_gets_everything(seed: int, data: st.DataObject) -> None:
    job = eight(data.draw(st.sampled_from([1, 3])), seed=seed)
    survivor = data.draw(st.integers(0, 7))
    requests = {path: begin(job, survivor, path) for path in (b"lib/a", b"lib/b", b"lib/large")}
    others = [number for number in range(8) if number != survivor]
    for number in data.draw(st.permutations(others)):
        for _ in range(data.draw(st.integers(0, 20))):
            job.move()
        job.world.crash(number)
    job.run()
    job.pass_time(1.5)
    assert all(has(job, survivor, request, path) for path, request in requests.items())
    listed = job.ask(survivor, ListRequest, b"lib")
    job.run()
    assert job.answer(survivor, listed) is not None


# --- the view -------------------------------------------------------------------------------------


def gone(job: SimulatedJob, number: int) -> set[int]:
    membership = job[number].node.membership
    assert membership is not None
    membership.check_invariants()
    return set(membership.members.gone)


def test_who_was_stopped_for_long_is_taken_back() -> None:
    job = eight()
    job.hang(PARENT)
    job.pass_time(DEAD_S + 1)
    assert [gone(job, number) for number in range(8) if number != PARENT] == [{PARENT}] * 7
    job.go_on()
    job.pass_time(1.0)
    assert [gone(job, number) for number in range(8)] == [set()] * 8
    assert job[PARENT].node.stats.refutations >= 1
    assert [each.node.is_back() for each in job] == [n == PARENT for n in range(8)]
    assert read(job, LEAF, b"lib/a")
    assert job[PARENT].node.stats.peer_questions == 1
    job.check_at_rest()


def test_a_network_that_falls_apart_becomes_whole_again() -> None:
    job = eight()
    side = {1, 3, 4, 7}
    for one in range(8):
        for other in range(one):
            if (one in side) != (other in side):
                job.cut(one, other)
    job.pass_time(3 * DEAD_S)  # nodes miss one level after the other
    for number in range(8):
        assert gone(job, number) == (set(range(8)) - side if number in side else side)
    assert read(job, LEAF, b"lib/a")
    assert read(job, 6, b"lib/a")
    assert job.source.counts["read", Path(b"lib/a")] == 2, "each side has a root"
    job.heal()
    job.pass_time(2.0)
    assert [gone(job, number) for number in range(8)] == [set()] * 8
    assert read(job, LEAF, b"lib/b")
    assert read(job, 6, b"lib/b")
    assert job.source.counts["read", Path(b"lib/b")] == 1
    job.check_at_rest()


def test_who_leaves_has_told_before_and_nobody_waits() -> None:
    job = eight()
    requests = {number: begin(job, number, b"lib/large") for number in (LEAF, 5)}
    for _ in range(8):
        job.move()
    job.post(1, Leave())
    job.run()
    assert all(has(job, number, request, b"lib/large") for number, request in requests.items())
    assert job[1].node.is_drained()
    job.pass_time(0.1)
    assert [gone(job, number) for number in range(8)] == [{1}] * 8
    assert job[3].node.membership.parents == [0]  # type: ignore[union-attr]
    assert sum(host.node.stats.deaths for host in job) == 0


def test_a_node_that_leaves_does_not_wait_for_a_peer_it_is_not_connected_to() -> None:
    job = eight()
    job.cut(1, 0)
    job.post(1, Leave())
    job.run()
    assert job[1].node.is_drained()


def test_a_connection_that_ends_because_a_node_leaves_is_no_loss() -> None:
    job = eight()
    job.post(1, Leave())
    job.run()
    job.cut(PARENT, 1)
    for number in (1, PARENT):
        assert not [line for line in job.world.trace.lines(number) if "> Probe(" in line]
        assert "lost" not in [each.what for _, each in job[number].happened]


def test_a_stranger_that_was_lost_and_still_listens_is_forgotten_as_soon_as_that_is_seen() -> None:
    job = eight()
    node, stranger = NodeId(5), NodeId(LEAF)
    membership = job[node].node.membership
    assert membership is not None
    assert stranger not in job[node].peers.session.connected, "neither is above the other"
    job[stranger].peers.connect(node)
    job.run()
    assert stranger in job[node].peers.session.connected
    job.cut(stranger, node)
    assert membership.suspects() == [stranger], "its process may have ended"
    job.run()
    assert [line for line in job.world.trace.lines(node) if "Probed(peer=7, refused=False)" in line]
    assert membership.suspects() == []


# --- the last resort ------------------------------------------------------------------------------


def test_who_is_cut_off_reads_the_source_in_turns() -> None:
    job = SimulatedJob(8, fallback_concurrency=2)
    for number in range(20):
        job.add(b"lib/%d" % number, 10)
    job.cut_off(LEAF)
    requests = [begin(job, LEAF, b"lib/%d" % number) for number in range(20)]
    job.pass_time(0.5)
    assert job.answers[LEAF] == {}, "those that it asks may yet answer"
    job.hold_source(LEAF)
    job.pass_time(0.3)
    assert len(job.held_reads(LEAF)) == 2
    job.let_source_go()
    job.run()
    assert all(request in job.answers[LEAF] for request in requests)
    assert job[LEAF].node.stats.fallbacks == 20
    job[LEAF].node.check_invariants()


def test_without_falling_back_the_source_is_left_alone() -> None:
    job = SimulatedJob(20, fanout=2, fallback_concurrency=0)
    job.add(b"lib/a", 10)
    job.cut_off(19)
    request = begin(job, 19, b"lib/a")
    job.pass_time(2.0)
    assert job.source.counts == {}
    assert request not in job.answers[19]


def test_who_is_not_answered_for_too_long_reads_the_source() -> None:
    job = eight()
    job.hold_source(*range(LEAF))
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(ASK_DEADLINE_S - 1)
    assert not has(job, LEAF, request, b"lib/a")
    job.pass_time(1.5)
    assert has(job, LEAF, request, b"lib/a")
    assert job[LEAF].node.stats.fallbacks == 1


def test_an_error_of_ones_own_source_lets_the_next_have_its_turn() -> None:
    """A fallback that fails for good makes room for the fetches that wait."""
    job = SimulatedJob(8, fallback_concurrency=1, source_deadline_s=60.0)
    for number in range(3):
        job.add(b"lib/%d" % number, 10)
    job.source.failing[Path(b"lib/0")] = errno.EIO
    job.cut_off(LEAF)
    requests = [begin(job, LEAF, b"lib/%d" % number) for number in range(3)]
    job.pass_time(1.5)
    answers = job.answers[LEAF]
    assert answers[requests[0]] == AnswerError(requests[0], errno.EIO)  # type: ignore[index,arg-type]
    assert all(has(job, LEAF, requests[n], b"lib/%d" % n) for n in (1, 2))


def test_an_error_of_ones_own_source_is_not_believed_while_another_may_answer() -> None:
    job = eight()
    job.source.failing[Path(b"lib/a")] = errno.EIO
    job.hang(*range(LEAF))
    request = begin(job, LEAF, b"lib/a")
    job.pass_time(2.0)
    assert job[LEAF].node.stats.fallbacks > 0
    assert request not in job.answers[LEAF]
    job.source.failing.clear()
    job.go_on()
    job.pass_time(1.0)
    assert has(job, LEAF, request, b"lib/a")


def test_a_process_that_still_listens_while_it_ends_is_found_out_soon() -> None:
    """A killed process closes one descriptor after the other."""
    job = eight()
    job.hang(0)
    for other in range(1, 8):
        job.world.break_connections(0, other)
    request = begin(job, LEAF, b"lib/a")
    job.run()  # no connection is refused yet
    assert not has(job, LEAF, request, b"lib/a")
    job.world.crash(0)
    job.pass_time(0.1)
    assert has(job, LEAF, request, b"lib/a")


# --- cost of suspicions to the source -------------------------------------------------------------


def doubted_at_random(seed: int) -> tuple[int, int]:
    """A job whose nodes hang repeatedly, for a moment or until they are declared dead, while files
    and chunks are read. Returns the reads of the source beyond the first of each content, and the
    nodes' fallbacks."""
    draw = Random(seed)
    job = SimulatedJob(
        8, trees=draw.choice((1, 3)), seed=seed, source_deadline_s=60.0, tree_max_bytes=8192,
        chunk_bytes=4096,
    )  # fmt: skip
    paths = [b"d%d/%d.p" % (each % 4, each) for each in range(24)]
    for path in paths:
        job.add(path, 100)
    job.add(b"lib/large", 40_000)
    version = job.version(b"lib/large")
    asked: list[tuple[int, RequestId]] = []
    hung: set[int] = set()
    for _ in range(80):
        node = draw.randrange(8)
        match draw.randrange(8):
            case 0 | 1 if len(hung) < 3 and node not in hung:
                job.hang(node)
                hung.add(node)
            case 2:
                job.go_on()
                hung.clear()
            case 3:
                job.pass_time(draw.choice((0.2, 0.5, 4.0)))
            case _ if node in hung:
                continue
            case 4 | 5:
                at = draw.randrange(10) * 4096
                asked.append((node, job.read(node, b"lib/large", version, at)))
            case _:
                path = draw.choice(paths)
                wanted = job.version(path)
                asked.append((node, job.read(node, path, wanted)))
        job.run()
    job.go_on()
    job.pass_time(60.0)
    stats = [host.node.statistics() for host in job]
    for node, request in asked:
        assert not isinstance(job.answers[node][request], AnswerError)
    assert not any(each.evictions + each.tier_evictions for each in stats)
    counts = [n for (kind, _), n in job.source.counts.items() if kind != "chunk"]
    counts += job.source.chunk_counts.values()
    again = sum(counts) - len(counts)
    return again, sum(each.fallbacks + each.took_over for each in stats)


def test_each_read_of_the_source_that_is_not_the_first_is_counted() -> None:
    found = [doubted_at_random(seed) for seed in range(24)]
    assert all(again <= counted for again, counted in found), found
    assert sum(again for again, _ in found) > 20, "or it would show nothing"
