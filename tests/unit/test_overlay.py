"""Overlay of several nodes: which nodes read the source, which messages travel, and what happens on
failures."""

import errno
import re
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copperfs.lab.sim.host import Host
from copperfs.lab.sim.payload_pieces import size_of
from copperfs.model.listing import Listing
from copperfs.model.types import ChunkKey, NodeId, Path, RequestId, Version
from copperfs.node.actions import AnswerEntry, AnswerError, AnswerListing, ListingKey, ObjectKey
from copperfs.node.events import (
    Clear,
    ListRequest,
    LookupRequest,
    PartSkipped,
    PeerDown,
    PeerUp,
    SourceListed,
)
from copperfs.node.fetch.machine import OUTDATED_MAX
from copperfs.node.membership.swim import PINGED_FOR_S
from copperfs.node.peer.flow_control import OUTSTANDING_MAX, SERVING_MAX, WINDOW_BYTES
from copperfs.node.peer.messages import (
    LISTING_MAX_BYTES,
    PART_BYTES,
    PATH_BYTES_MAX,
    Batch,
    Cancel,
    ContentKind,
    DataReply,
    Request,
)
from tests.unit.node_lab import DEADLINE_S, MIB
from tests.unit.simulated_job import AT_ONCE_S, SimulatedJob

ROOT, LEAF = 0, 7


def eight(seed: int = 0) -> SimulatedJob:
    job = SimulatedJob(8, seed=seed)
    job.add(b"lib/a.py", 100)
    job.add(b"lib/b.so", 3 * MIB + 5)
    return job


def epochs_begun(job: SimulatedJob, number: int) -> list[int]:
    lines = job.world.trace.lines(number)
    return [int(found[1]) for line in lines if (found := re.search(r"NewEpoch\(epoch=(\d+)", line))]


def read(job: SimulatedJob, number: int, path: bytes) -> bytes | object:
    request = job.read(number, path, job.version(path))
    job.run()
    return job.answer(number, request)


# --- one read of the source -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("fanout", [1, 2, 16])
def test_all_nodes_at_once_cost_the_source_what_one_costs(fanout: int, count: int) -> None:
    job = SimulatedJob(8, fanout=fanout, trees=count)
    for name in (b"lib/a.py", b"lib/b.py", b"lib/sub/c.so", b"bin/python"):
        job.add(name, 2 * MIB if name.endswith(b"so") else 100)
    asked = []
    paths = [*job.source.files(), Path(b"lib/missing")]
    for number in range(8):
        asked += [(number, path, job.ask(number, LookupRequest, path)) for path in paths]
    job.run()
    for number, path, request in asked:
        answer = job.answer(number, request)
        assert isinstance(answer, AnswerListing)
        found = answer.listing.find(path[len(answer.directory) :].lstrip(b"/"))
        assert found == job.source.entry(path)
    reads = [
        (number, path, job.read(number, path)) for number in range(8) for path in job.source.files()
    ]
    job.run()
    for number, path, request in reads:
        wanted = job.version(path)
        assert job.answer(number, request) == job.content(path, wanted)
    assert set(job.source.counts.values()) == {1}
    assert {path for kind, path in job.source.counts if kind == "scan"} == {
        b"lib", b"lib/sub", b"bin",
    }  # fmt: skip
    assert sum(kind == "read" for kind, _ in job.source.counts) == 4
    job.check_at_rest()


def test_a_warm_node_asks_nobody() -> None:
    job = eight()
    read(job, LEAF, b"lib/a.py")
    sent = Counter(job.sent)
    read(job, LEAF, b"lib/a.py")
    assert job.sent == sent


def test_what_one_child_had_fetched_the_next_gets_from_the_parent() -> None:
    job = eight()
    read(job, 7, b"lib/a.py")  # 7 asks 3, 3 asks 1, 1 asks 0
    assert job.sent["Request"] == 3
    read(job, 8 - 1, b"lib/a.py")
    assert job.sent["Request"] == 3
    read(job, 4, b"lib/a.py")  # 4 asks 1, which has it
    assert job.sent["Request"] == 4


class Published(list[ListingKey | ObjectKey]):
    """A front that only notes what it is given."""

    def publish(self, key: ListingKey | ObjectKey) -> None:
        self.append(key)

    def forget(self, key: ListingKey | ObjectKey | ChunkKey) -> None: ...


def test_what_passes_through_a_node_is_published_there_and_what_it_asked_for_is_not() -> None:
    job = eight()
    fronts = {n: Published() for n in (0, 1, 3, LEAF)}
    for n, front in fronts.items():
        job[n].front = front
    job.ask(LEAF, ListRequest, b"lib")
    job.run()
    read(job, LEAF, b"lib/a.py")
    kinds = {n: [type(each) for each in front] for n, front in fronts.items()}
    stats = job[LEAF].node.stats
    assert (stats.asks, stats.answers) == (2, 2)
    passed = [ListingKey, ObjectKey]
    assert kinds == {0: passed, 1: passed, 3: passed, LEAF: []}


def test_several_trees_share_the_roots_work() -> None:
    job = SimulatedJob(8, trees=4)
    for number in range(200):
        job.add(b"d%d/f" % number)
        job.ask(number % 8, ListRequest, b"d%d" % number)
    job.run()
    roots = Counter(
        number
        for number, host in enumerate(job)
        for _ in range(host.node.stats.fetches - host.node.stats.asks)
    )
    assert set(roots) == {0, 2, 4, 6}
    assert set(job.source.counts.values()) == {1}


def test_a_question_that_comes_while_the_answer_arrives_joins_it() -> None:
    job = eight()
    path = b"lib/b.so"
    wanted = job.version(path)
    first = job.read(3, path, wanted)
    # until node 1 has a part of it
    job.move_until(lambda: job[1].node.stats.peer_questions and job[1].blobs.held)
    second = job.read(4, path, wanted)
    job.run()
    assert job.answer(3, first) == job.answer(4, second) == job.content(path, wanted)
    assert job.source.counts["read", Path(path)] == 1


def test_a_large_object_is_passed_on_before_it_is_whole() -> None:
    job = eight()
    path = Path(b"lib/b.so")
    job.read(3, path, job.version(path))
    job.move_until(lambda: job[1].blobs.held)
    assert size_of(next(iter(job[1].blobs.held.values()))) == PART_BYTES
    assert job.gave[1] == 1, "its child has the first part at once"


# --- messages -------------------------------------------------------------------------------------


def test_freshness_does_not_grow_on_the_way_down() -> None:
    job = SimulatedJob(3, revalidate_s=10)
    job.add(b"d/f")
    job.ask(0, ListRequest, b"d")
    job.run()
    job.pass_time(4)
    request = job.ask(2, ListRequest, b"d")
    job.run()
    answer = job.answer(2, request)
    assert isinstance(answer, AnswerListing)
    assert answer.fresh_until == pytest.approx(10, abs=AT_ONCE_S)


@pytest.mark.parametrize("is_listed", [True, False])
def test_the_last_moments_of_freshness_do_not_grow_either(is_listed: bool) -> None:
    job = SimulatedJob(2, revalidate_s=10.0)
    job.add(b"d/f")
    if not is_listed:
        job.source.failing[Path(b"d")] = errno.EACCES  # so the node looks its names up one by one
    job.ask(0, LookupRequest, b"d/f")
    job.run()
    job.pass_time(9.75)
    request = job.ask(1, LookupRequest, b"d/f")
    job.run()
    answer = job.answer(1, request)
    assert isinstance(answer, AnswerEntry | AnswerListing)
    assert answer.fresh_until == pytest.approx(10, abs=AT_ONCE_S)


def test_a_part_beyond_the_last_one_is_not_waited_for() -> None:
    """An object without the first requested part ends with its last."""
    job = eight()
    path = b"lib/b.so"
    read(job, ROOT, path)
    wanted = job.version(path)
    ask = Request(1, 1, ContentKind.OBJECT, Path(path), wanted, first=99)
    job.receive(ROOT, 1, ask)
    given = job.messages(DataReply, ROOT, 1)
    assert [(each.number, each.index) for each in given] == [(1, 3)]


def test_errors_of_the_source_reach_the_asker_and_are_not_kept() -> None:
    job = eight()
    job.source.failing[Path(b"lib")] = errno.EIO
    request = job.ask(LEAF, ListRequest, b"lib")
    job.run()
    assert job.answer(LEAF, request) == AnswerError(request, errno.EIO)
    job.source.failing.clear()
    request = job.ask(LEAF, ListRequest, b"lib")
    job.run()
    assert isinstance(job.answer(LEAF, request), AnswerListing)


def test_a_directory_that_may_only_be_searched_is_searched_over_the_overlay() -> None:
    job = eight()
    job.source.failing[Path(b"lib")] = errno.EACCES
    for number in (6, 7):
        request = job.ask(number, LookupRequest, b"lib/a.py")
        job.run()
        answer = job.answer(number, request)
        assert isinstance(answer, AnswerEntry)
        assert answer.entry == job.source.entry(Path(b"lib/a.py"))
    assert job.source.counts["look", Path(b"lib/a.py")] == 1


def test_a_file_that_changed_is_stale_for_all_and_then_seen_anew() -> None:
    job = eight()
    read(job, LEAF, b"lib/a.py")
    old = job.version(b"lib/b.so")
    job.ask(LEAF, ListRequest, b"lib")
    job.run()
    new = job.add(b"lib/b.so", 50, changed_s=9)
    request = job.read(LEAF, b"lib/b.so", old)
    job.run()
    assert job.answer(LEAF, request) == AnswerError(request, errno.ESTALE)
    request = job.ask(LEAF, LookupRequest, b"lib/b.so")
    job.run()
    answer = job.answer(LEAF, request)
    assert isinstance(answer, AnswerListing)
    found = answer.listing.find(b"b.so")
    assert found is not None
    assert found.attributes.version == new


# --- clear ----------------------------------------------------------------------------------------


def test_whoever_hears_of_a_later_epoch_clears_as_well() -> None:
    job = eight()
    for number in range(8):
        job.ask(number, ListRequest, b"lib")
    job.run()
    job.add(b"lib/new.py")
    job.post(LEAF, Clear())
    request = job.ask(LEAF, LookupRequest, b"lib/new.py")
    job.run()
    answer = job.answer(LEAF, request)
    assert isinstance(answer, AnswerListing)
    assert answer.listing.find(b"new.py") is not None
    assert [epochs_begun(job, number) for number in range(2)] == [[2], [2]]


def test_a_child_that_has_not_heard_of_the_clear_learns_it_from_the_answer() -> None:
    job = eight()
    request = job.ask(LEAF, ListRequest, b"lib")
    job.post(ROOT, Clear())
    job.run()
    assert isinstance(job.answer(LEAF, request), AnswerListing)
    assert epochs_begun(job, LEAF) == [2]


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_no_answer_is_older_than_the_clear_before_its_question(seed: int) -> None:
    job = eight(seed=seed)
    for number in range(8):
        job.ask(number, ListRequest, b"lib")
    for _ in range(seed % 40):
        job.move()
    job.add(b"lib/new.py")
    job.post(LEAF, Clear())
    request = job.ask(LEAF, LookupRequest, b"lib/new.py")
    job.run()
    answer = job.answer(LEAF, request)
    assert isinstance(answer, AnswerListing)
    assert answer.listing.find(b"new.py") is not None


def test_who_asks_a_parent_that_is_well_asks_nobody_for_a_sign_of_life() -> None:
    job = eight()
    job.pass_time(PINGED_FOR_S)
    job.run()
    beats = job.sent["Heartbeat"]
    read(job, LEAF, b"lib/a.py")
    assert job.sent["Heartbeat"] == beats


def test_a_fetch_that_waits_does_not_keep_the_timers_of_those_that_are_over() -> None:
    job = SimulatedJob(2)
    job.hold_source(0)
    request = job.read(1, b"d/hangs", job.add(b"d/hangs"))
    job.run()
    job[0].hands.holds = False  # later reads of the source end
    for number in range(OUTDATED_MAX + 10):
        path = b"d/%d" % number
        job.add(path)
        read(job, 1, path)
    assert request not in job.answers[1]
    assert len(job[1].node._fetches.machine._timers) <= OUTDATED_MAX


def test_each_ask_that_is_put_again_over_a_renewed_connection_is_counted() -> None:
    job = SimulatedJob(2)
    path = Path(b"d/f")
    wanted = job.add(path)
    job.hold_source(0)
    request = job.read(1, path, wanted)
    for times in (1, 2, 3):
        job.run()
        job.renew(1, 0)
        job.run()
        assert job[1].node.stats.resent == times
        assert len(job.asked(1, ContentKind.OBJECT, 0)) == 1 + times
    job.let_source_go()
    job.run()
    assert job.answer(1, request) == job.content(path, wanted)
    assert job.source.counts["read", path] == 1


def test_what_was_asked_for_before_a_clear_is_given_once() -> None:
    job = SimulatedJob(2)
    job.add(b"d/f")
    job.hold_source(0)
    request = job.ask(1, ListRequest, b"d")
    job.run()
    job[0].hands.holds = False  # only the first read is slow
    job.post(1, Clear())
    job.run()
    assert isinstance(job.answer(1, request), AnswerListing)
    job.let_source_go()
    job.run()
    assert job.sent["DataReply"] == 1


# --- bounds ---------------------------------------------------------------------------------------


def test_a_child_that_takes_nothing_in_holds_up_only_itself() -> None:
    job = SimulatedJob(3, memory_bytes=256 * MIB)
    versions = {}
    for number in range(12):
        versions[b"d/%d" % number] = job.add(b"d/%d" % number, 2 * MIB)
    for path, wanted in versions.items():
        job.read(1, path, wanted)
    job.hold(0, 1)
    for path, wanted in versions.items():
        job.read(2, path, wanted)
    job.run()
    assert len(job.answers[2]) == 12
    assert WINDOW_BYTES / 2 < job[0].peers.given_bytes[NodeId(1)] <= WINDOW_BYTES + PART_BYTES


def test_what_is_evicted_while_a_child_is_given_it_is_let_go_when_the_child_has_it() -> None:
    job = SimulatedJob(2, memory_bytes=24 * MIB)
    paths = [Path(b"d/%d" % number) for number in range(3)]
    versions = [job.add(path, 10 * MIB) for path in paths]
    job.hold(0, 1)
    given = job.read(1, paths[0], versions[0])
    job.run()  # as far as the child's credit goes
    for path, wanted in zip(paths[1:], versions[1:], strict=True):
        job.read(0, path, wanted)
        job.run()
    parent = job[0]
    assert not parent.node.holds(paths[0], versions[0])
    assert len(parent.blobs.held) == len(parent.node.held()) + 1
    job.let_through(0, 1)
    job.run()
    assert job.answer(1, given) == job.content(paths[0], versions[0])
    job.check_at_rest()


def test_asks_under_way_at_one_parent_are_bounded() -> None:
    job = SimulatedJob(2)
    for number in range(2 * OUTSTANDING_MAX):
        job.ask(1, ListRequest, b"d%d" % number)
    assert job.sent["Request"] == OUTSTANDING_MAX
    job.run()
    assert len(job.answers[1]) == 2 * OUTSTANDING_MAX


def test_requests_that_were_queued_when_the_connection_was_lost_are_sent_once() -> None:
    job = SimulatedJob(2)
    for number in range(2 * OUTSTANDING_MAX):
        job.ask(1, ListRequest, b"d%d" % number)
    job.world.break_connections(1, 0)  # they connect again at once
    job.run()
    assert len(job.answers[1]) == 2 * OUTSTANDING_MAX
    assert job[0].node.stats.peer_questions == 2 * OUTSTANDING_MAX
    job.check_at_rest()


def test_a_peer_that_asks_for_too_much_is_refused() -> None:
    job = SimulatedJob(2)
    job.add(b"d/f")
    for number in range(SERVING_MAX + 10):
        job.receive(0, 1, Request(number, 1, ContentKind.LISTING, Path(b"d")))
    assert job[0].node.stats.peers_refused == 10


@pytest.mark.parametrize("what", [ContentKind.LISTING, ContentKind.OBJECT])
@pytest.mark.parametrize("room", [MIB, 20 * MIB])
def test_what_a_peer_asks_and_withdraws_in_turn_does_not_wait(what: ContentKind, room: int) -> None:
    job = SimulatedJob(2, memory_bytes=room)
    versions = {b"d/%d" % n: job.add(b"d/%d" % n, room // 3) for n in range(2)}
    for path, wanted in versions.items():  # the second finds no room beside the first
        job.read(0, path, wanted)
    job.ask(0, ListRequest, b"d")
    path, wanted = versions.popitem()
    for number in range(2 * SERVING_MAX):
        version = wanted if what is ContentKind.OBJECT else None
        ask = Request(number, 1, what, Path(path if version else b"d"), version)
        job.receive(0, 1, ask)
        job.receive(0, 1, Cancel(number))
    fetches = job[0].node._fetches
    waiting = [*fetches._running.values()]
    assert sum(len(fetch.waiters) for fetch in waiting) + len(fetches._no_room[0]) <= 3
    assert job[0].node.stats.peers_refused == 0
    job.run()
    assert len(job.answers[0]) == 3
    job.check_at_rest()


def test_what_is_withdrawn_while_it_is_passed_on_is_not_passed_on_any_more() -> None:
    job = SimulatedJob(3, fanout=1, memory_bytes=64 * MIB)
    wanted = job.add(b"d/f", 3 * MIB)
    job.read(1, b"d/f", wanted)
    node = job[1].node
    while not (fetch := next(iter(node._fetches.running()), None)) or not fetch.received.parts:
        assert job.move()
    for number in range(5):
        ask = Request(number, 1, ContentKind.OBJECT, Path(b"d/f"), wanted)
        job.receive(1, 2, ask)
        job.receive(1, 2, Cancel(number))
    assert not fetch.streams
    job.run()
    job.check_at_rest()


def test_what_the_source_gives_after_the_parent_is_lost_does_not_go_to_a_lost_child() -> None:
    """Otherwise the stream to the child would unpin its blob twice."""
    job = SimulatedJob(3, fanout=1)
    wanted = job.add(b"d/f", 3 * MIB)
    request = job.read(1, b"d/f", wanted)
    job.read(2, b"d/f", wanted)
    job.move_until(lambda: job.gave[1])
    (fetch,) = job[1].node._fetches.running()
    assert fetch.streams
    job.cut(1, 2)
    job.cut(1, 0)
    job.pass_time(5.0)
    assert job.answer(1, request) == job.content(b"d/f", wanted)
    assert job[1].node.stats.fallbacks == 1
    job.check_at_rest()


def test_the_same_number_twice_is_refused_the_second_time() -> None:
    job = SimulatedJob(2)
    for _ in range(2):
        job.receive(0, 1, Request(1, 1, ContentKind.LISTING, Path(b"d")))
    assert job[0].node.stats.peers_refused == 1


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 4]))
@settings(max_examples=40, deadline=None)
def test_small_memories_never_wait_for_each_other_for_ever(seed: int, count: int) -> None:
    job = SimulatedJob(6, trees=count, memory_bytes=12 * MIB, seed=seed)
    versions = {}
    for number in range(16):
        path = b"d%d/f" % number
        versions[path] = job.add(path, MIB + 7)
    asked = [
        (number, path, job.read(number, path, wanted))
        for number in range(6)
        for path, wanted in versions.items()
    ]
    job.run()
    for number, path, request in asked:
        assert job.answer(number, request) == job.content(path, versions[path])
    job.check_at_rest()


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [b"lib/a.py", b"lib/b.so"])
def test_a_spoiled_part_is_asked_for_again(path: bytes) -> None:
    job = eight()
    job.world.spoil_next(1, 3)
    assert read(job, LEAF, path) == job.content(path, job.version(path))
    assert job[3].node.stats.spoiled == 1
    assert job.source.counts["read", Path(path)] == 1
    job.check_at_rest()


def test_who_gives_spoiled_parts_again_and_again_is_not_asked_any_more() -> None:
    job = eight()
    for _ in range(3):
        job.world.spoil_next(1, 3)
    assert read(job, LEAF, b"lib/a.py") == job.content(b"lib/a.py", job.version(b"lib/a.py"))
    assert job[3].node.stats.fallbacks == 1
    assert job.sent["Cancel"] == 3
    job.check_at_rest()


def test_a_node_that_is_given_nothing_but_spoiled_parts_reads_the_source_in_turns() -> None:
    job = SimulatedJob(2, fallback_concurrency=1)
    paths = [b"d/%d" % number for number in range(3)]
    requests = [job.read(1, path, job.add(path)) for path in paths]
    for _ in range(100):
        job.world.spoil_next(0, 1)
    job.hold_source(1)
    job.run()
    assert job[1].node.stats.spoiled == 9, "each was given three times"
    assert len(job.held_reads(1)) == 1
    job.let_source_go()
    job.run()
    for path, request in zip(paths, requests, strict=True):
        assert job.answer(1, request) == job.content(path, job.version(path))
    job.check_at_rest()


@pytest.mark.parametrize(
    ("hurt", "reads"),
    [
        pytest.param(SimulatedJob.cut, 2, id="the child reads the source itself"),
        pytest.param(SimulatedJob.renew, 1, id="of a renewed connection it is asked again"),
    ],
)
@given(seed=st.integers(0, 10_000), moves=st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_what_was_under_way_when_a_connection_was_lost_or_renewed_comes(
    hurt: Callable[[SimulatedJob, int, int], None], reads: int, seed: int, moves: int
) -> None:
    job = eight(seed=seed)
    path = b"lib/b.so"
    wanted = job.version(path)
    asked = [(number, job.read(number, path, wanted)) for number in (3, 4, 7)]
    for _ in range(moves):
        job.move()
    hurt(job, 3, 1)
    job.run()
    for number, request in asked:
        assert job.answer(number, request) == job.content(path, wanted)
    assert 1 <= job.source.counts["read", Path(path)] <= reads
    job.check_at_rest()


def test_a_peer_that_was_started_anew_gets_nothing_of_what_it_asked_before() -> None:
    job = SimulatedJob(2)
    node = job[0].node
    job.add(b"d/f")
    job.receive(0, 1, Request(1, 1, ContentKind.LISTING, Path(b"d")))
    for event in (PeerDown(NodeId(1)), PeerUp(NodeId(1))):
        job.post(0, event)
    job.receive(0, 1, Request(1, 1, ContentKind.LISTING, Path(b"other")))
    sent = Counter(job.sent)
    job.run()
    assert job.sent - sent == Counter(ErrorReply=1)  # ENOENT for the other, and nothing for d
    assert node.stats.peer_questions == 2


@pytest.mark.parametrize("what", [ContentKind.ENTRY, ContentKind.LISTING, ContentKind.OBJECT])
def test_an_answer_for_a_peer_that_was_lost_meanwhile_is_given_to_nobody(what: ContentKind) -> None:
    job = SimulatedJob(2)
    wanted = job.add(b"d/f")
    path = Path(b"d" if what is ContentKind.LISTING else b"d/f")
    ask = Request(1, 1, what, path, wanted if what is ContentKind.OBJECT else None)
    job.receive(0, 1, ask)
    job.cut(0, 1)
    sent = Counter(job.sent)
    job.run()
    assert sum(job.source.counts.values()) == 1
    assert job.sent == sent


def test_a_peer_that_was_started_anew_waits_for_no_room_that_it_asked_for_before() -> None:
    job = SimulatedJob(2, memory_bytes=20 * MIB)
    versions = [job.add(b"d/%d" % n, 9 * MIB) for n in range(3)]
    node = job[0].node
    for number in range(2):
        job.read(0, b"d/%d" % number, versions[number])
    ask = Request(1, 1, ContentKind.OBJECT, Path(b"d/2"), versions[2])
    job.receive(0, 1, ask)
    assert node.stats.waited_for_room == 1
    for event in (PeerDown(NodeId(1)), PeerUp(NodeId(1))):
        job.post(0, event)
    job.receive(0, 1, Request(1, 1, ContentKind.LISTING, Path(b"other")))
    sent = Counter(job.sent)
    job.run()
    assert job.sent - sent == Counter(ErrorReply=1)  # ENOENT for the other, and nothing for d/2
    assert job.source.counts["read", Path(b"d/2")] == 0


@pytest.mark.parametrize("total", [0, 10, PART_BYTES + 1])
def test_bytes_that_come_for_a_name_are_not_kept(total: int) -> None:
    """The peer sends it parts of an object instead of attributes."""
    job = SimulatedJob(2, chunk_bytes=MIB)
    job.add(b"d/f")
    job.source.failing[Path(b"d")] = errno.EACCES  # so the node looks the name up separately
    request = job.ask(1, LookupRequest, b"d/f")
    job.move_until(lambda: job.asked(1, ContentKind.ENTRY))
    (asked,) = job.asked(1, ContentKind.ENTRY)
    part = DataReply(asked.number, 1, 0, total)
    node = job[1].node
    assert node.wanted(NodeId(0), part) is None
    job.post(1, PartSkipped(NodeId(0), part))
    assert node.stats.spoiled == 1
    job.run()
    found = job.answer(1, request)
    assert isinstance(found, AnswerEntry)
    assert found.entry == job.source.entry(Path(b"d/f"))


def test_a_part_of_another_size_than_was_asked_for_is_spoiled() -> None:
    job = eight()
    path, wanted = b"lib/a.py", job.version(b"lib/a.py")
    request = job.read(LEAF, path, wanted)
    (asked,) = job.asked(LEAF, ContentKind.OBJECT)
    part = DataReply(asked.number, 1, 0, wanted.size + 1)
    node = job[LEAF].node
    assert node.wanted(NodeId(3), part) is None
    job.post(LEAF, PartSkipped(NodeId(3), part))
    assert (node.stats.spoiled, job.sent["Cancel"]) == (1, 1)
    assert len(job.asked(LEAF, ContentKind.OBJECT)) == 2, "it is asked for again"
    job.run()
    assert job.answer(LEAF, request) == job.content(path, wanted)


def test_an_overdue_ask_is_withdrawn() -> None:
    job = eight()
    request = job.ask(LEAF, ListRequest, b"lib")
    job.hold_source(*range(8))
    job.pass_time(DEADLINE_S + 0.1)
    assert job.answer(LEAF, request) == AnswerError(request, errno.ETIMEDOUT)
    job.let_source_go()
    job.run()
    job.check_at_rest()


def test_a_file_that_is_too_large_for_the_tree_is_read_by_each_node() -> None:
    job = SimulatedJob(2, tree_max_bytes=MIB)
    job.hold_source(1)
    job.read(1, b"d/f", job.add(b"d/f", 2 * MIB))
    assert job.sent["Request"] == 0
    assert len(job.held_reads(1)) == 1


def test_a_node_that_reads_what_no_peer_gives_has_taken_over_from_no_other() -> None:
    """The file is too large for the tree, and no message can name the directory."""
    job = SimulatedJob(2, tree_max_bytes=MIB)
    long = b"d/" * (PATH_BYTES_MAX // 2) + b"dd"
    large = job.add(b"d/f", 2 * MIB)
    job.add(long + b"/f")
    job.read(1, b"d/f", large)
    job.ask(1, ListRequest, long)
    job.run()
    assert job.sent["Request"] == 0
    assert len(job.answers[1]) == 2
    assert job[1].node.stats.took_over == 0


def test_a_parent_without_room_for_a_file_has_its_child_read_it() -> None:
    job = SimulatedJob(2, memory_bytes_of={0: MIB})
    wanted = job.add(b"d/f", 2 * MIB)
    request = job.read(1, b"d/f", wanted)
    job.run()
    assert job.answer(1, request) == job.content(b"d/f", wanted)
    assert job[1].node.stats.fallbacks == 1


def test_a_listing_that_is_too_large_to_travel_is_read_by_each_node() -> None:
    job = SimulatedJob(2)
    job.hold_source(0, 1)
    job.ask(1, ListRequest, b"d")
    job.run()
    ((scan, end),) = job[0].hands.held
    end(SourceListed(scan.fetch, Listing(bytes(LISTING_MAX_BYTES + 1))))
    assert job.sent["DataReply"] == 0
    job.run()
    assert len(job.held_reads(1)) == 1
    assert job[1].node.stats.fallbacks == 1


def test_who_gives_a_listing_that_is_too_large_all_the_same_is_passed_over() -> None:
    job = SimulatedJob(2)
    job.hold_source(1)
    job.ask(1, ListRequest, b"d")
    for number in (1, 2, 3):
        part = DataReply(number, 1, 0, LISTING_MAX_BYTES + 1)
        assert job[1].node.wanted(NodeId(0), part) is None
        job.post(1, PartSkipped(NodeId(0), part))
    assert len(job.held_reads(1)) == 1


# --- working sets ---------------------------------------------------------------------------------


def pushed_files(job: SimulatedJob, count: int, size: int) -> dict[Path, Version]:
    return {Path(b"d/%d" % n): job.add(b"d/%d" % n, size) for n in range(count)}


def push(job: SimulatedJob, root: int, files: dict[Path, Version], tree: int = 0) -> None:
    job[root].push(1, tree, list(files.items()))


def batches(job: SimulatedJob, number: int) -> list[int]:
    """The sequence numbers, in order of arrival."""
    return [each.sequence for each in job.taken(Batch, number)]


def most_given_bytes(host: Host) -> int:
    return max(host.peers.given_bytes.values(), default=0)


@pytest.mark.parametrize("count", [1, 4])
def test_what_is_pushed_is_held_by_all_and_asked_of_nobody(count: int) -> None:
    job = SimulatedJob(8, trees=count)
    wanted = pushed_files(job, 5, 1000)
    tree = count - 1
    root = job[0].node.trees.root(tree)  # type: ignore[union-attr]
    push(job, root, wanted, tree)
    job.run()
    sent = Counter(job.sent)
    assert sent["Batch"] == 7
    for number in set(range(8)) - {root}:
        assert job[number].node.stats.pushed == 5
        for path in wanted:
            assert read(job, number, path) == job.content(path, wanted[path])
    assert job.sent == sent
    assert not job.source.counts


def test_batches_come_in_order_and_never_more_than_the_credit_at_once() -> None:
    job = SimulatedJob(7, memory_bytes=256 * MIB)
    push(job, 0, pushed_files(job, 60, MIB))
    assert job[0].node.flow.backlog_bytes > 0
    in_flight_bytes = 0
    while job.move():
        in_flight_bytes = max(in_flight_bytes, *(most_given_bytes(each) for each in job))
    assert all(batches(job, number) == list(range(60)) for number in range(1, 7))
    assert WINDOW_BYTES / 2 < in_flight_bytes <= WINDOW_BYTES + PART_BYTES
    assert job[0].node.flow.backlog_bytes == 0


def test_a_slow_leaf_holds_up_the_push_and_nothing_else() -> None:
    job = SimulatedJob(7, memory_bytes=256 * MIB)
    job.hold(2, 6)
    push(job, 0, pushed_files(job, 40, MIB))
    job.run()
    assert batches(job, 1) == list(range(40))
    window = WINDOW_BYTES // MIB
    # on their way to the leaf, and waiting for it at its parent and at the root
    assert len(batches(job, 2)) <= 2 * window + 2
    job.cut(2, 6)
    job.run()
    assert batches(job, 2) == list(range(40))
    job.check_at_rest()


def test_a_renewed_connection_is_not_credited_with_what_came_over_the_one_before() -> None:
    job = SimulatedJob(7, memory_bytes=256 * MIB)
    job.hold(2, 6)
    push(job, 0, pushed_files(job, 40, MIB))
    job.run()
    job.renew(0, 2)
    job.run()
    job.cut(2, 6)  # the batches that waited for it at 2 have been sent on
    job.run()
    assert job.sent["Credit"], "and SimulatedPeers checks each"
    job.check_at_rest()


@given(st.integers(0, 10_000), st.integers(0, 200))
@settings(max_examples=40, deadline=None)
def test_nodes_that_are_lost_during_a_push_leave_nothing_behind(seed: int, moves: int) -> None:
    job = SimulatedJob(8, seed=seed)
    push(job, 0, pushed_files(job, 12, 2 * MIB))
    for _ in range(moves):
        job.move()
    job.cut(3, 1)
    job.run()
    job.check_at_rest()


def test_a_local_clear_is_no_new_epoch() -> None:
    job = eight()
    read(job, LEAF, b"lib/a.py")
    job.post(LEAF, Clear(epoch=1))
    assert epochs_begun(job, LEAF) == [1]
    assert not job[LEAF].node.held()
    read(job, LEAF, b"lib/a.py")
    assert job.source.counts["read", Path(b"lib/a.py")] == 1


# --- everything at once ---------------------------------------------------------------------------


@given(st.integers(0, 100_000), st.sampled_from([1, 3]))
@settings(max_examples=80, deadline=None)
def test_whatever_happens_nobody_gets_a_wrong_byte_and_everybody_an_answer(
    seed: int, count: int
) -> None:
    job = SimulatedJob(7, trees=count, memory_bytes=20 * MIB, seed=seed)
    draw = job.random
    paths = [b"d%d/%d" % (where, number) for where in range(4) for number in range(3)]
    for path in paths:
        job.add(path, draw.choice([1, 100, PART_BYTES, PART_BYTES + 1, 3 * MIB]))
    asked: list[tuple[int, bytes, Version, RequestId]] = []
    for _ in range(120):
        number, path = draw.randrange(7), draw.choice(paths)
        match draw.randrange(12):
            case 0:
                job.post(number, Clear())
            case 1:
                job.add(path, draw.choice([5, 2 * MIB]), changed_s=draw.randrange(1, 1000))
            case 2:
                if peers := sorted(job[number].peers.session.connected):
                    job.world.spoil_next(draw.choice(peers), number)
            case 3:
                if peers := sorted(job[number].peers.session.connected):
                    job.renew(number, draw.choice(peers))
            case 4 | 5:
                job.ask(number, LookupRequest, path)
            case 6 | 7 | 8:
                wanted = job.version(path)
                asked.append((number, path, wanted, job.read(number, path, wanted)))
            case _:
                for _ in range(draw.randrange(30)):
                    job.move()
    job.run()
    for number, path, wanted, request in asked:
        answer = job.answer(number, request)
        if isinstance(answer, AnswerError):
            assert answer.error == errno.ESTALE
        else:
            assert answer == job.content(path, wanted)
    job.check_at_rest()
