"""Chunks of large files and datasets: each has an owner, and the source is read once for it."""

import errno
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copperfs.model.types import ChunkKey, NodeId, Path, RequestId, Version
from copperfs.node.actions import (
    AnswerChunk,
    AnswerError,
    AnswerHandle,
    LoadChunk,
    Publish,
    StoreChunk,
)
from copperfs.node.events import ChunkRequest, DiskLoaded, ReadRequest, SourceRead
from copperfs.node.limits_and_counters import NodeStats
from copperfs.node.membership import connection_plan
from copperfs.node.membership.failure_detector import Timeouts
from copperfs.node.peer.messages import (
    ChunkAskMode,
    ContentKind,
    ErrorReply,
    Heartbeat,
    MembershipUpdate,
    MemberStatus,
    Redirect,
    Request,
)
from copperfs.node.requests.chunk_layout import GROUP_BYTES
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing import hot_files as crowds
from copperfs.node.routing import redirects as takers
from copperfs.node.routing.chunk_owners import TIMEOUTS_MAX, Owners
from copperfs.node.routing.hash_ring import Ring
from tests.unit.simulated_job import SimulatedJob

KIB, MIB = 1 << 10, 1 << 20
CHUNK = 4 * KIB
TIMEOUTS = Timeouts()
HEDGED_S = TIMEOUTS.ping_after_s + TIMEOUTS.silent_s + 0.1
DOUBTED_S = TIMEOUTS.doubt_s + 0.1
SLOW_S = TIMEOUTS.slow_s + 0.1

LARGE = Path(b"lib/large")
SIZE = 10 * CHUNK + 100


def tiered(nodes: int = 8, fanout: int = 2, seed: int = 0, **more: Any) -> SimulatedJob:
    """Files above 8 KiB, in chunks of 4 KiB."""
    job = SimulatedJob(
        nodes, fanout, seed, tree_max_bytes=2 * CHUNK, chunk_bytes=CHUNK, source_deadline_s=60.0,
        **more,
    )  # fmt: skip
    job.add(LARGE, SIZE)
    return job


def version(job: SimulatedJob, path: bytes = LARGE) -> Version:
    return job.version(path)


def begin(job: SimulatedJob, number: int, index: int, path: bytes = LARGE) -> RequestId:
    return job.read(number, path, version(job, path), index * CHUNK)


def has(
    job: SimulatedJob, number: int, request: RequestId, index: int, path: bytes = LARGE
) -> bool:
    answers = job.answers[number]
    if request not in answers:
        return False
    assert answers[request] == bytes_of(job, path, index)
    return True


def bytes_of(job: SimulatedJob, path: bytes, index: int = 0) -> bytes:
    wanted, node = job.version(path), job[0].node
    if not node.is_chunked(Path(path), wanted):
        return job.content(path)
    chunk_bytes = node.limits.chunk_bytes
    offset = index * chunk_bytes
    length = min(chunk_bytes, wanted.size - offset)
    return job.source.chunk(Path(path), wanted, offset, length).data or b""


def read(job: SimulatedJob, number: int, index: int, path: bytes = LARGE) -> None:
    request = begin(job, number, index, path)
    job.run()
    assert has(job, number, request, index, path)


def chunks(job: SimulatedJob, path: bytes = LARGE) -> range:
    return range(-(-version(job, path).size // CHUNK))


def owner(
    job: SimulatedJob, path: bytes = LARGE, index: int = 0, gone: tuple[int, ...] = ()
) -> int:
    owners = Owners(Ring([f"n{n}" for n in range(job.nodes)]), NodeId(0), CHUNK, NodeStats())
    found = owners.owner(ChunkKey(Path(path), version(job, path), index), set(map(NodeId, gone)))
    assert found is not None
    return found


def reads(job: SimulatedJob) -> list[int]:
    return sorted(job.source.chunk_counts.values())


def sleep(job: SimulatedJob, seconds: float) -> None:
    """All nodes stand still meanwhile."""
    job.hang(*range(job.nodes))
    job.pass_time(seconds)
    job.go_on()
    job.run()


def not_owner(job: SimulatedJob, *others: int) -> int:
    return next(n for n in range(job.nodes) if n != owner(job) and n not in others)


# --- readers of chunks ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_each_chunk_is_read_once_for_all_nodes(seed: int) -> None:
    job = tiered(seed=seed)
    requests = [(n, i, begin(job, n, i)) for n in range(job.nodes) for i in chunks(job)]
    job.run()
    assert all(has(job, n, request, i) for n, i, request in requests)
    assert reads(job) == [1] * len(chunks(job))
    job.pass_time(1.0)
    job.check_at_rest()


def test_a_chunk_is_read_by_its_owner_and_by_nobody_else() -> None:
    job = tiered()
    read(job, not_owner(job), 0)
    stats = [each.node.statistics() for each in job]
    assert [n for n, each in enumerate(stats) if each.tier_from_source] == [owner(job)]
    assert [n for n, each in enumerate(stats) if each.tier_from_peers] == [not_owner(job)]
    assert not any(each.fallbacks for each in stats)


def test_chunks_side_by_side_have_one_owner_and_far_ones_another() -> None:
    owners = Owners(Ring([f"n{n}" for n in range(64)]), NodeId(0), MIB, NodeStats())
    of = [
        owners.owner(ChunkKey(LARGE, Version(1 << 40, 0, 0, 0), index), ()) for index in range(512)
    ]
    group = GROUP_BYTES // MIB
    assert all(len(set(of[at : at + group])) == 1 for at in range(0, 512, group))
    assert len(set(of)) > 30


def test_small_files_of_a_dataset_go_to_their_owners_and_others_up_the_tree() -> None:
    job = tiered(ring=(b"data",))
    for n in range(20):
        job.add(b"data/%d" % n, 100)
        job.add(b"lib/%d" % n, 100)
    for n in range(20):
        for path in (b"data/%d" % n, b"lib/%d" % n):
            for node in range(job.nodes):
                read(job, node, 0, path)
    assert reads(job) == [1] * 20
    readers = {n for n, each in enumerate(job) if each.node.stats.tier_from_source}
    assert readers == {owner(job, b"data/%d" % n) for n in range(20)}
    assert {path for kind, path in job.source.counts if kind == "read"} == {
        Path(b"lib/%d" % n) for n in range(20)
    }


def test_a_node_says_what_it_reads_in_chunks() -> None:
    job = tiered()
    small = job.add(b"lib/small", 10)
    for node in (each.node for each in job):
        assert node.is_chunked(LARGE, version(job))
        assert node.is_chunked(LARGE, version(job)) is not node.is_chunked(
            Path(b"lib/small"), small
        )
    assert not SimulatedJob(2)[0].node.is_chunked(LARGE, version(job))


def test_a_node_that_ignores_inode_numbers_gives_a_chunk_of_a_version_that_has_one() -> None:
    """A node that has just returned opens a file before it hears that inode numbers do not
    count."""
    job = tiered()
    numbered = version(job)
    assert numbered.inode
    for index in chunks(job):
        key = ChunkKey(LARGE, numbered, index)
        owners = Owners(Ring([f"n{n}" for n in range(8)]), NodeId(0), CHUNK, NodeStats())
        returned = next(n for n in range(job.nodes) if n != owners.owner(key, ()))
        for each in job:
            each.node.ignore_inodes()
            each.hands.client.ignore_numbers()
        request = job.read(returned, LARGE, numbered, index * CHUNK)
        job.run()
        assert has(job, returned, request, index), "and no ESTALE"
    assert reads(job) == [1] * len(chunks(job))


def test_what_is_above_the_bypass_is_opened_by_each_reader() -> None:
    job = tiered(2)
    limits = job[1].node.limits
    object.__setattr__(limits, "bypass_above_bytes", SIZE - 1)
    request = begin(job, 1, 0)
    job.run()
    assert isinstance(job.answers[1][request], AnswerHandle)


def test_what_is_read_in_chunks_is_not_pushed() -> None:
    job = tiered(2, ring=(b"data",))
    node = job[0].node
    small, large = Version(100, 1, 1, 1), Version(SIZE, 1, 1, 1)
    assert node.is_whole(Path(b"lib/x"), small)
    assert not node.is_whole(Path(b"lib/x"), large)
    assert not node.is_whole(Path(b"data/x"), small)
    without = SimulatedJob(2, ring=(b"data",))[0].node
    assert without.is_whole(Path(b"data/x"), small), "there is no data tier"


def test_an_empty_file_of_a_dataset_is_whole() -> None:
    job = tiered(ring=(b"data",))
    job.add(b"data/empty", 0)
    request = begin(job, 3, 0, b"data/empty")
    job.run()
    assert job.answers[3][request] == b""


def test_a_file_that_changed_is_looked_up_again() -> None:
    job = tiered()
    old = version(job)
    read(job, 1, 0)
    job.add(LARGE, SIZE, changed_s=5)
    request = job.read(2, LARGE, old, 3 * CHUNK)
    job.run()
    assert job.answers[2][request] == AnswerError(request, errno.ESTALE)
    assert job[2].node.stats.version_changes == 1
    read(job, 2, 3)


def test_a_peer_that_asks_for_a_large_file_as_one_object_is_given_no_chunk() -> None:
    job = tiered(2)
    ask = Request(1, 1, ContentKind.OBJECT, LARGE, version(job))
    job.hold_source(0)
    job.receive(0, 1, ask)
    (refusal,) = job.messages(ErrorReply, 0, 1)
    assert refusal.error == errno.EFBIG
    assert not job.held_reads(0)


def test_a_chunk_beyond_the_end_is_refused() -> None:
    job = tiered()
    request = job.read(2, LARGE, version(job), 1 << 40)
    job.run()
    assert has(job, 2, request, len(chunks(job)) - 1)  # the last chunk answers it


# --- prefetch -------------------------------------------------------------------------------------


def keep(job: SimulatedJob, number: int, index: int, path: bytes = LARGE) -> RequestId:
    key = ChunkKey(Path(path), version(job, path), index)
    return job.request(number, lambda request: ChunkRequest(request, key, keeps=True))


def test_a_node_says_how_much_memory_it_has_for_chunks_of_its_own() -> None:
    """More prefetch would evict chunks that were read before."""
    job = tiered(2, tier_memory_bytes=256 * MIB)
    room = job[0].node.chunks_budget_bytes()
    assert 128 * MIB <= room < 256 * MIB, "some is left for chunks of others"
    assert SimulatedJob(2)[0].node.chunks_budget_bytes() == 0


def test_only_a_node_with_a_data_tier_owns_chunks() -> None:
    job, without = tiered(), SimulatedJob(2)
    key = ChunkKey(LARGE, version(job), 0)
    owners = [n for n, each in enumerate(job) if each.node.owns_chunk(key)]
    assert owners == [owner(job)]
    assert not any(each.node.owns_chunk(key) for each in without)


def test_an_owner_that_is_told_to_has_a_chunk_and_its_readers_cost_nothing() -> None:
    job = tiered(tier_has_disk=True)
    request = keep(job, owner(job), 0)
    job.run()
    assert has(job, owner(job), request, 0)
    node = job[owner(job)].node
    assert [key.index for key, _ in node.held_chunks()] == [0]
    assert len(job[owner(job)].disk.chunks) == 1
    for n in range(job.nodes):
        read(job, n, 0)
    assert reads(job) == [1]
    job.check_at_rest()


def test_nothing_behind_the_last_chunk_is_had_in_advance() -> None:
    job = tiered()
    path = b"data/whole"
    job.add(path, 3 * CHUNK)
    node = owner(job, path, 3)
    request = keep(job, node, 3, path)
    assert job.answers[node][request] == AnswerError(request, errno.EXDEV)


def test_whoever_does_not_own_a_chunk_does_not_get_it_in_advance() -> None:
    job = tiered()
    node = not_owner(job)
    request = keep(job, node, 0)
    job.run()
    assert job.answers[node][request] == AnswerError(request, errno.EXDEV)
    beyond = keep(job, owner(job), len(chunks(job)))
    job.run()
    assert job.answers[owner(job)][beyond] == AnswerError(beyond, errno.EXDEV)
    assert reads(job) == []


def test_a_guest_stays_when_its_owner_is_gone_and_goes_to_the_disk() -> None:
    job = tiered(tier_has_disk=True)
    dead = owner(job)
    heir = owner(job, gone=(dead,))
    read(job, heir, 0)
    key = ChunkKey(LARGE, version(job), 0)
    assert not job[heir].node.keeps_chunk(key)
    assert not job[heir].disk.chunks
    job.world.crash(dead)
    job.pass_time(4.0)
    assert job[heir].node.owns_chunk(key)
    request = keep(job, heir, 0)
    job.run()
    assert has(job, heir, request, 0)
    assert job[heir].node.keeps_chunk(key)
    assert len(job[heir].disk.chunks) == 1
    assert reads(job) == [1], "it was there"
    job[heir].node.check_invariants()


# --- memory and disk ------------------------------------------------------------------------------


def disk_job() -> SimulatedJob:
    return SimulatedJob(
        2,
        tree_max_bytes=1,
        chunk_bytes=MIB,
        tier_memory_bytes=MIB,
        tier_has_disk=True,
        memory_bytes=8 * MIB,
        source_deadline_s=60.0,
    )


def test_what_was_evicted_from_memory_comes_from_the_disk() -> None:
    job = disk_job()
    files = [b"data/%d" % n for n in range(90)]
    for path in files:
        job.add(path, MIB)
    for _ in range(2):
        for path in files:
            request = job.read(0, path, version(job, path))
            job.run()
            assert job.answers[0][request] == bytes_of(job, path)
    assert reads(job) == [1] * 90, "the source is read once, whatever the memory"
    stats = [each.node.statistics() for each in job]
    assert all(each.tier_from_disk for each in stats)
    assert all(each.tier_memory_held_bytes <= each.tier_memory_budget_bytes for each in stats)
    assert sum(len(each.disk.chunks) for each in job) == 90, "each chunk is on one disk"
    job.check_at_rest()


def test_a_chunk_is_given_before_it_is_stored() -> None:
    job = tiered(1, tier_has_disk=True)
    node = job[0].node
    request = ReadRequest(RequestId(1), LARGE, version(job))
    (load,) = [each for each in node.step(0.0, request) if isinstance(each, LoadChunk)]
    node.step(0.0, DiskLoaded(load.fetch, None))
    blob = job[0].blobs.keep_blob(job.source.chunk(LARGE, version(job), 0, CHUNK).alone)
    actions = node.step(0.0, SourceRead(load.fetch, blob))
    kinds = [type(each) for each in actions]
    assert kinds.index(AnswerChunk) < kinds.index(StoreChunk)


def test_guests_do_not_wash_out_what_is_owned() -> None:
    job = disk_job()
    mine = next(p for n in range(100) if owner_of(job, p := b"data/mine%d" % n) == 0)
    job.add(mine, MIB)
    request = job.read(0, mine, version(job, mine))
    job.run()
    others = [p for n in range(300) if owner_of(job, p := b"data/%d" % n) == 1][:90]
    for path in others:
        job.add(path, MIB)
        job.read(0, path, version(job, path))
        job.run()
    before = job[0].node.stats.tier_from_memory
    request = job.read(0, mine, version(job, mine))
    assert request in job.answers[0]
    assert job[0].node.stats.tier_from_memory == before + 1


def owner_of(job: SimulatedJob, path: bytes) -> int:
    job.add(path, MIB)
    owners = Owners(Ring([f"n{n}" for n in range(job.nodes)]), NodeId(0), MIB, NodeStats())
    found = owners.owner(ChunkKey(Path(path), version(job, path), 0), ())
    assert found is not None
    return found


# --- everybody at once ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_an_owner_gives_a_chunk_fan_out_times_however_many_want_it(seed: int) -> None:
    job = tiered(32, fanout=3, seed=seed)
    requests = [begin(job, n, 0) for n in range(32)]
    job.run()
    assert all(has(job, n, request, 0) for n, request in enumerate(requests))
    assert reads(job) == [1]
    assert job.gave[owner(job)] == 3
    assert max(job.gave.values()) == 3, "nor does anybody else more often"
    assert sum(job.gave.values()) == 31


def test_who_comes_later_is_sent_to_one_that_has_it() -> None:
    job = tiered(8, fanout=1)
    others = [n for n in range(8) if n != owner(job)]
    for n in others:
        read(job, n, 0)
    assert job.gave[owner(job)] == 1
    assert job[owner(job)].node.stats.redirects == 6
    assert sum(each.node.stats.redirected for each in job) == 6


def test_who_is_sent_to_another_is_not_waited_for_by_one_that_leaves() -> None:
    job = tiered(4, fanout=1)
    for n in range(4):
        if n != owner(job):
            read(job, n, 0)
    assert job[owner(job)].node.stats.redirects
    assert not job[owner(job)].node.flow.is_serving_any()


def test_who_was_sent_in_vain_is_given_it_by_the_owner() -> None:
    job = tiered(4, fanout=1)
    one, other = not_owner(job), not_owner(job, not_owner(job))
    read(job, one, 0)
    tier = job[one].node._chunk_cache
    assert tier is not None
    for key, _ in list(tier.held()):
        for action in tier._gone(tier._guests.drop(key), None):
            job[one].driver.perform(action)
    read(job, other, 0)
    assert job.gave[owner(job)] == 2
    assert reads(job) == [1]


def test_nobody_is_sent_to_one_that_had_it_long_ago() -> None:
    job = tiered(4, fanout=1)
    one, other = not_owner(job), not_owner(job, not_owner(job))
    read(job, one, 0)
    job.pass_time(11.0)
    read(job, other, 0)
    assert job[owner(job)].node.stats.redirects == 0


def test_the_one_that_others_were_sent_to_may_end() -> None:
    job = tiered(8, fanout=1)
    one, *others = [n for n in range(8) if n != owner(job)]
    job.hold_source(owner(job))
    requests = [begin(job, n, 0) for n in (one, *others)]
    job.run()
    job.world.crash(one)
    job.let_source_go()
    job.pass_time(1.0)
    assert all(has(job, n, r, 0) for n, r in zip(others, requests[1:], strict=True))
    assert reads(job) == [1]


def test_one_that_is_sent_to_a_node_that_is_gone_asks_the_owner() -> None:
    job = tiered(8)
    node, gone = not_owner(job), not_owner(job, not_owner(job))
    read(job, node, 0)
    job.world.crash(gone)
    job.pass_time(4.0)
    assert NodeId(gone) in job[node].node.gone()
    job.hang(owner(job))
    request = begin(job, node, 5)
    asked = job.messages(Request, node, owner(job))[-1]
    job.receive(node, owner(job), Redirect(asked.number, 1, NodeId(gone)))
    job.go_on()
    job.run()
    assert has(job, node, request, 5)


def test_one_that_is_sent_to_an_owner_that_it_has_passed_over_has_it_given_instead() -> None:
    job = tiered(8)
    slow = owner(job)
    second, reader = owner(job, gone=(slow,)), not_owner(job, owner(job, gone=(slow,)))
    job.hold_source(slow)
    request = begin(job, reader, 0)
    job.run()
    job.pass_time_until(lambda: job.messages(Request, reader, second))
    (asked,) = job.messages(Request, reader, second)
    redirect = Redirect(asked.number, 1, NodeId(slow))
    job.receive(reader, second, redirect)
    assert [each.how for each in job.messages(Request, reader, second)] == [
        ChunkAskMode.ANY,
        ChunkAskMode.DIRECT,
    ]
    assert job[reader].node.stats.redirected == 0
    job.run()
    assert has(job, reader, request, 0)


def test_one_that_was_named_and_is_the_next_owner_is_asked_once() -> None:
    """A fetch withdraws one request to each node: a second one would outlast the fetch."""
    job = tiered(8, fanout=1)
    first = owner(job)
    second = owner(job, gone=(first,))
    third = owner(job, gone=(first, second))
    reader = not_owner(job, second, third)
    job.hold_source(first)
    begin(job, third, 0)
    job.run()
    request = begin(job, reader, 0)
    job.run()  # redirected to the earlier reader
    fetch = job[reader].node._fetches.running()[0]
    job.pass_time(fetch.timers.slow_at - 0.1 - job.now)
    job.hang(third)
    before = len(job.messages(Request, reader, third))
    job.pass_time_until(lambda: fetch.plan.redirected_to is None)
    for other in (first, second):  # they are overloaded
        number = fetch.attempts[NodeId(other)].number
        job.receive(reader, other, ErrorReply(number, 1, errno.EBUSY))
    job.source.failing[LARGE] = errno.EIO
    job.let_source_go()
    job.run()
    asked = job.messages(Request, reader, third)[before:]
    assert [each.how for each in asked] == [ChunkAskMode.DIRECT]
    job.go_on()
    job.pass_time(1.0)
    assert isinstance(job.answer(reader, request), AnswerError)
    job.cut(reader, third)


def test_who_reads_as_the_next_owner_goes_on_when_the_one_that_was_named_refuses() -> None:
    job = tiered(8, fanout=1)
    first = owner(job)
    reader = owner(job, gone=(first,))
    named = not_owner(job, reader)
    job.hold_source(first, reader)
    begin(job, named, 0)
    job.run()
    request = begin(job, reader, 0)
    job.run()  # redirected to the earlier reader
    fetch = job[reader].node._fetches.running()[0]
    job.pass_time(fetch.timers.slow_at - 0.1 - job.now)
    leaves = MembershipUpdate((MemberStatus(NodeId(first), 0, True),))
    job.hang(*{*range(8)} - {reader})  # the others have not received it yet
    job.receive(reader, first, leaves)
    job.pass_time_until(lambda: fetch.phase.is_reading)
    assert not fetch.phase.is_fallback
    number = fetch.attempts[NodeId(named)].number
    job.receive(reader, named, ErrorReply(number, 1, errno.EIO))
    assert not fetch.attempts
    job.go_on()
    job.let_source_go()
    job.run()
    assert has(job, reader, request, 0)


# --- crowds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_crowd_gets_a_large_file_up_the_tree(seed: int) -> None:
    job = tiered(32, fanout=3, seed=seed, hot_files_above_nodes=16)
    for index in chunks(job):
        requests = [begin(job, n, index) for n in range(32)]
        job.run()
        assert all(has(job, n, request, index) for n, request in enumerate(requests))
    assert reads(job) == [1] * len(chunks(job))
    others = len(chunks(job)) * 31
    assert sum(job.gave.values()) == others
    assert max(job.gave.values()) <= len(chunks(job)) * 4, "to its children, and to the root"
    assert job.sent["Redirect"] == 0
    job.pass_time(1.0)
    job.check_at_rest()


def test_who_reads_what_nobody_else_does_soon_asks_the_owner() -> None:
    job = tiered(32, fanout=3, hot_files_above_nodes=16)
    far = [n for n in range(20, 32) if n != owner(job)]
    sizes = {n: b"lib/data%d" % n for n in far}
    for path in sizes.values():
        job.add(path, 100 * CHUNK)
    for n, path in sizes.items():
        for index in range(0, 100, 2):
            read(job, n, index, path)
    assert reads(job) == [1] * len(far) * 50
    # 16 chunks of each file come through up to three others, the rest directly from the owner
    assert sum(job.gave.values()) < len(far) * (50 + 3 * 17)


def test_a_dataset_never_goes_up() -> None:
    job = tiered(32, fanout=3, hot_files_above_nodes=16, ring=(b"lib",))
    read(job, 31, 0)
    assert sum(job.gave.values()) == 1


def test_who_waits_for_a_parent_that_hangs_asks_another() -> None:
    job = tiered(13, fanout=3, hot_files_above_nodes=4)
    leaf = next(n for n in (12, 11, 10) if n != owner(job))
    job.hang(3)
    request = begin(job, leaf, 0)
    job.pass_time(2 * HEDGED_S)  # the next peer asks the owner as well
    assert owner(job) != 3
    assert has(job, leaf, request, 0)


def test_what_is_known_of_the_readers_of_one_file_outlasts_a_read_of_another() -> None:
    known = crowds.HotFileDetector(Policy(source=b"/s", mountpoint=b"/m"), is_large=True)
    alone, other = Path(b"alone"), Path(b"other")
    for _ in range(crowds.JUDGED_AFTER - 1):
        assert known.count_request(0.0, alone, shared=False), "that is too early to tell"
    known.count_request(0.0, other, shared=True)
    assert not known.count_request(0.0, alone, shared=False)
    assert known.count_request(crowds.FORGOTTEN_AFTER_S, alone, shared=False)


def test_a_file_stays_hot_while_one_request_in_four_is_shared() -> None:
    known = crowds.HotFileDetector(Policy(source=b"/s", mountpoint=b"/m"), is_large=True)
    file = Path(b"lib")
    for _ in range(10):
        assert known.count_request(0.0, file, shared=True)
        assert all(known.count_request(0.0, file, shared=False) for _ in range(3))
    assert not known.count_request(0.0, file, shared=False)


def test_who_waits_for_a_parent_that_lives_and_gives_nothing_asks_the_owner() -> None:
    """Also if the reader has to connect to the owner first; that once doubled the wait."""
    job = tiered(13, fanout=3, hot_files_above_nodes=4)
    node = next(n for n in range(12, 0, -1) if n != owner(job))
    others = [n for n in range(13) if n != node]
    for other in others:
        job.hold(node, other)
    request = begin(job, node, 0)
    assert [each.how for each in job.asked(node, ContentKind.CHUNK)] == [ChunkAskMode.TREE]
    job.run()
    for other in others:
        job.world.network.lose_held(NodeId(node), NodeId(other))  # its parent never receives it
        job.let_through(node, other)
    job.pass_time(TIMEOUTS.slow_s - 1.0)
    assert not has(job, node, request, 0)
    job.pass_time(1.0 + DOUBTED_S)
    assert has(job, node, request, 0)
    assert job[node].node.stats.fallbacks == 0


def test_the_root_of_a_crowd_ends() -> None:
    job = tiered(13, fanout=3, hot_files_above_nodes=4)
    job.hold_source(owner(job))
    requests = {n: begin(job, n, 0) for n in range(1, 13)}
    job.run()
    job.world.crash(0)
    job.let_source_go()
    job.pass_time(2.0)
    assert all(has(job, n, request, 0) for n, request in requests.items())
    assert max(reads(job)) <= 2


# --- rows -----------------------------------------------------------------------------------------


def test_who_reads_in_a_row_is_read_ahead_for() -> None:
    job = tiered()
    node = not_owner(job)
    waited = 0
    for index in chunks(job):
        request = begin(job, node, index)
        waited += request not in job.answers[node]
        job.run()
        assert has(job, node, request, index)
    assert waited < 5
    assert reads(job) == [1] * len(chunks(job))
    assert job[node].node.stats.tier_ahead > 5


def test_what_is_held_and_read_ahead_is_counted_as_found_in_memory() -> None:
    """The reader never requests a chunk published ahead of it; each counts all the same."""
    job = tiered()
    for index in chunks(job):
        read(job, owner(job), index)
    node = job[owner(job)].node
    node.reset_statistics()
    published: set[int] = set()
    for index in chunks(job):
        if index in published:
            continue
        request = ReadRequest(RequestId(1000 + index), LARGE, version(job), offset=index * CHUNK)
        actions = node.step(0.0, request)
        published |= {
            each.key.index
            for each in actions
            if isinstance(each, Publish) and isinstance(each.key, ChunkKey)
        }
    assert len(published) > 2
    assert node.stats.tier_from_memory >= len(chunks(job))


def test_one_read_of_the_whole_first_chunk_brings_the_next_ones() -> None:
    """Most files of a dataset have few chunks, so their reader sends one request."""
    for offset, size, brought in ((0, CHUNK, 3), (0, CHUNK - 1, 1), (CHUNK, CHUNK, 1)):
        job = tiered()
        make = partial(ReadRequest, path=LARGE, version=version(job), offset=offset, size=size)
        job.request(not_owner(job), make)
        job.run()
        assert len(job.source.chunk_counts) == brought


def test_less_is_read_ahead_when_memory_does_not_hold_it() -> None:
    """Eight files at once, with 32 MiB for chunks that others own."""
    job = disk_job()
    files = [p for n in range(300) if owner_of(job, p := b"data/%d" % n) == 1][:16]
    for path in files:
        job.add(path, 8 * MIB)
    files = [path for path in files if owner(job, path) == 1]
    for index in range(8):
        for path in files:
            request = job.read(0, path, version(job, path), index * MIB)
            job.run()
            assert request in job.answers[0]
    assert len(files) == 8
    assert job[0].node.stats.tier_from_peers < 1.5 * 8 * len(files)
    job.check_at_rest()


def test_who_jumps_about_gets_what_it_asks_for_and_nothing_else() -> None:
    job = tiered()
    for index in (5, 0, 9, 3, 7):
        read(job, not_owner(job), index)
    assert reads(job) == [1] * 5


# --- owners that end, hang, or are slow -----------------------------------------------------------


def test_what_a_dead_owner_had_is_read_once_more_and_no_oftener() -> None:
    job = tiered()
    for index in chunks(job):
        read(job, not_owner(job), index)
    dead = owner(job)
    job.world.crash(dead)
    living = [n for n in range(job.nodes) if n != dead]
    requests = [(n, i, begin(job, n, i)) for n in living for i in chunks(job)]
    job.pass_time(1.0)
    assert all(has(job, n, request, i) for n, i, request in requests)
    assert max(reads(job)) <= 2
    again = sum(reads(job)) - len(chunks(job))
    assert job[owner(job, gone=(dead,))].node.stats.tier_from_source == again > 0
    assert sum(each.node.stats.took_over for each in job) == again
    assert not any(each.node.stats.fallbacks for each in job)


def test_an_owner_that_ends_while_it_is_asked() -> None:
    job = tiered()
    dead = owner(job)
    job.hold_source(dead)
    living = [n for n in range(job.nodes) if n != dead]
    requests = [begin(job, n, 0) for n in living]
    job.run()
    job.world.crash(dead)
    job.pass_time(0.5)
    assert all(has(job, n, request, 0) for n, request in zip(living, requests, strict=True))
    assert reads(job) == [1]


def test_an_owner_that_hangs_costs_a_moment() -> None:
    job = tiered()
    node = not_owner(job)
    read(job, node, 0)  # they are in touch
    job.hang(owner(job))
    request = begin(job, node, 5)
    job.pass_time(DOUBTED_S + HEDGED_S)  # the next owner detects the hang on its own
    assert has(job, node, request, 5)


@pytest.mark.parametrize("how", ["hangs", "lives"])
def test_who_reads_in_the_place_of_an_owner_keeps_what_it_read(how: str) -> None:
    """Before all nodes believe that the owner is gone, or while none does."""
    job = tiered(tier_has_disk=True)
    absent = owner(job)
    heir = owner(job, gone=(absent,))
    node = not_owner(job, heir)
    read(job, node, 9)  # they are in touch
    (job.hang if how == "hangs" else job.hold_source)(absent)
    request = begin(job, node, 0)
    job.pass_time(DOUBTED_S + HEDGED_S if how == "hangs" else SLOW_S)
    assert has(job, node, request, 0)
    assert not job[heir].node.membership.members.gone  # type: ignore[union-attr]
    assert job[heir].node.keeps_chunk(ChunkKey(LARGE, version(job), 0))
    assert len(job[heir].disk.chunks) == 1
    assert not job[node].disk.chunks
    job[heir].node.check_invariants()


def test_the_next_owner_that_is_asked_for_what_it_waits_for_does_not_doubt_for_long() -> None:
    job = tiered()
    hung = owner(job)
    heir = owner(job, gone=(hung,))
    node = not_owner(job, heir)
    for each in (heir, node):
        read(job, each, 9)  # they are in touch
    job.hang(hung)
    request = begin(job, node, 0)
    job.pass_time(TIMEOUTS.ping_after_s + TIMEOUTS.silent_s - 0.05)
    begin(job, heir, 0)
    job.pass_time(HEDGED_S)  # less than it doubts an owner that only it finds silent
    assert has(job, node, request, 0)


def test_an_owner_that_is_asked_for_a_chunk_may_be_redirected_by_the_owner_before_it() -> None:
    job = tiered()
    slow = owner(job)
    second = owner(job, gone=(slow,))
    third = owner(job, gone=(slow, second))
    asker = not_owner(job, second, third)
    read(job, third, 0, files_of(job, second, slow, 1)[0])  # they are in touch
    job.hold_source(slow)
    begin(job, third, 0)
    job.run()
    ask = Request(
        1, 1, ContentKind.CHUNK, LARGE, version(job), 0, ChunkAskMode.ANY, (NodeId(slow),)
    )
    before = len(job.messages(Request, third, second))
    job.receive(third, asker, ask)
    sent = job.messages(Request, third, second)[before:]
    assert [each.how for each in sent] == [ChunkAskMode.ANY]


def test_two_owners_that_end_one_after_the_other() -> None:
    job = tiered()
    first = owner(job)
    second = owner(job, gone=(first,))
    node = not_owner(job, second)
    read(job, node, 0)
    job.world.crash(first)
    job.world.crash(second)
    request = begin(job, node, 1)
    job.pass_time(2.0)
    assert has(job, node, request, 1)


def test_an_owner_that_lives_and_does_not_answer_is_done_without() -> None:
    job = tiered()
    stuck = owner(job)
    job.hold_source(stuck)
    node = not_owner(job, owner(job, gone=(stuck,)))
    requests = [begin(job, node, index) for index in (0, 2, 4)]
    job.pass_time(SLOW_S)
    assert all(has(job, node, r, i) for r, i in zip(requests, (0, 2, 4), strict=True))
    stats = job[node].node.stats
    assert stats.tier_timeouts == TIMEOUTS_MAX
    assert stats.tier_exclusions == 1
    read(job, node, 7)  # at once, from the next owner
    assert stats.deaths == 0, "nobody takes it for gone"
    other = not_owner(job, node, owner(job, gone=(stuck,)))
    assert job[owner(job, gone=(stuck,))].node.stats.fallbacks > 0
    request = begin(job, other, 8)
    job.pass_time(SLOW_S)
    assert has(job, other, request, 8)


def test_an_owner_that_hangs_is_done_without_also_by_who_reads_one_after_the_other() -> None:
    job = tiered()
    stuck = owner(job)
    job.hold_source(stuck)
    node = not_owner(job, owner(job, gone=(stuck,)))
    for index in range(0, 2 * TIMEOUTS_MAX, 2):
        request = begin(job, node, index)
        job.pass_time(SLOW_S)
        assert has(job, node, request, index)
    assert job[node].node.stats.tier_exclusions == 1
    read(job, node, 9)  # at once


def files_of(job: SimulatedJob, first: int, second: int, count: int) -> list[Path]:
    found = []
    for n in range(10_000):
        path = Path(b"lib/file%d" % n)
        job.add(path, SIZE)
        if owner(job, path) == first and owner(job, path, gone=(first,)) == second:
            found.append(path)
            if len(found) == count:
                return found
    raise AssertionError("there are not so many")


def test_a_reader_that_slept_has_not_waited_for_its_owner() -> None:
    job = tiered(8)
    reader = not_owner(job)
    job.hold_source(owner(job))
    begin(job, reader, 0)
    job.pass_time(TIMEOUTS.slow_s - 2.0)
    sleep(job, 20.0)
    job.pass_time(1.0)
    stats = job[reader].node.stats
    assert stats.tier_timeouts == 0
    job.pass_time(2.0)
    assert stats.tier_timeouts == 1


def test_the_next_owner_is_asked_for_a_sign_of_life_once_however_often_the_first_is() -> None:
    job = tiered()
    reader, slow, following = NodeId(3), NodeId(5), NodeId(6)
    (path,) = files_of(job, slow, following, 1)
    connected = job[reader].peers.session.connected
    assert not {slow, following} & connected, "they are strangers"
    for each in (slow, following):
        read(job, reader, 1, files_of(job, each, 7, 1)[0])  # they are in touch
    job.pass_time(1.0)
    job.hold_source(slow)
    begin(job, reader, 0, path)
    peers = (slow, following)
    before = [len(job.messages(Heartbeat, reader, peer)) for peer in peers]
    job.pass_time(1.0)
    beats = [len(job.messages(Heartbeat, reader, peer)) for peer in peers]
    assert beats[0] - before[0] > 3, "it gives one each time, and goes on to owe an answer"
    assert beats[1] - before[1] == 1


def test_who_does_without_an_owner_says_so_to_the_next_whichever_it_is() -> None:
    job = tiered()
    stuck, node, *others = range(8)
    job.hold_source(stuck)
    for path in files_of(job, stuck, others[0], 3):
        begin(job, node, 0, path)
    job.pass_time(SLOW_S)
    assert job[node].node.stats.tier_exclusions == 1
    for other in others:
        read(job, node, 0, files_of(job, stuck, other, 1)[0])  # at once
    asked = job[stuck].node.stats.peer_questions
    assert asked == 3


def test_nobody_does_without_an_owner_because_others_say_so_for_longer_than_they_do() -> None:
    job = tiered()
    stuck, one, other = range(3)
    job.hold_source(stuck)
    for path in files_of(job, stuck, other, 3):
        begin(job, one, 0, path)
    job.pass_time(SLOW_S)
    job.let_source_go()
    for n in range(3, 16):  # they ask each other for chunks of the stuck owner
        job.pass_time(10.0)
        read(job, one, n % 10, files_of(job, stuck, other, 1)[0])
        read(job, other, n % 10, files_of(job, stuck, one, 1)[0])
    before = job[stuck].node.stats.peer_questions
    read(job, one, 9, files_of(job, stuck, other, 2)[1])
    read(job, other, 9, files_of(job, stuck, one, 2)[1])
    assert job[stuck].node.stats.peer_questions == before + 2


def test_one_that_waits_for_a_slow_owner_is_not_taken_for_another() -> None:
    job = tiered(8, fanout=1)
    slow = owner(job)
    taker, node = not_owner(job), not_owner(job, not_owner(job))
    job.hold_source(slow)
    for index in range(0, 8, 2):
        begin(job, taker, index)
    job.run()
    for index in range(0, 8, 2):
        begin(job, node, index)  # the owner redirects it to the taker
    job.pass_time(SLOW_S)
    owners = job[node].node._routing.owners
    assert owners is not None
    assert NodeId(taker) not in owners.excluded(job.now)
    owners = job[slow].node._routing.owners
    assert owners is not None
    assert NodeId(taker) not in owners.excluded(job.now)


@pytest.mark.parametrize("to_itself", [False, True])
def test_one_that_sends_others_round_and_round_is_passed_over(to_itself: bool) -> None:
    job = tiered()
    node, sick = not_owner(job), owner(job)
    named = node if to_itself else not_owner(job, node)
    read(job, node, 0)
    job.hang(sick)
    before = len(job.messages(Request, node, sick))
    request = begin(job, node, 5)
    asks = 0
    while asks < len(asked := job.messages(Request, node, sick)[before:]) and asks < 100:
        job.receive(node, sick, Redirect(asked[asks].number, 1, NodeId(named)))
        job.run()
        asks += 1
    assert 1 <= asks <= 2
    job.pass_time(DOUBTED_S)
    assert has(job, node, request, 5)


def test_a_reader_waits_for_all_suspected_owners_together_while_it_connects_to_another() -> None:
    """The second was lost just now, and the third cannot be connected to."""
    job = tiered()
    reader, first, second = NodeId(3), NodeId(5), NodeId(6)
    path = next(
        each
        for each in files_of(job, first, second, 20)
        if owner(job, each, gone=(first, second)) == 2
    )
    for each in (first, second):
        read(job, reader, 1, files_of(job, each, 7, 1)[0])  # they are in touch
    job.cut(reader, 2)
    job.hang(first)
    begin(job, reader, 2, files_of(job, first, 7, 1)[0])
    job.pass_time(1.0)
    job.cut(reader, second)
    job.run()
    request = begin(job, reader, 0, path)
    wait_s = TIMEOUTS.ping_after_s + TIMEOUTS.silent_s
    job.pass_time(wait_s - 0.05)
    assert not has(job, reader, request, 0, path), "a connection may be made"
    job.pass_time(wait_s + 0.1)  # the fourth detects on its own that the first hangs
    assert has(job, reader, request, 0, path)


def test_the_next_owner_has_its_time_from_when_it_is_asked() -> None:
    job = tiered()
    first = owner(job)
    second = owner(job, gone=(first,))
    node = not_owner(job, second, owner(job, gone=(first, second)))
    read(job, node, 0)
    job.hold_source(first, second)
    request = begin(job, node, 5)
    job.pass_time(SLOW_S - 1)
    job.world.crash(first)
    job.pass_time(2.0)
    job.let_source_go()
    job.run()
    assert has(job, node, request, 5)
    assert max(reads(job)) == 1


@pytest.mark.parametrize("seed", range(3))
def test_nobody_waits_longer_because_many_owners_are_asked(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_plan, "REACHED_MAX", 1)
    job, readers = tiered(12, fanout=12, seed=seed), range(6)
    paths = [b"lib/many%d" % n for n in range(40)]
    for path in paths:
        job.add(path, SIZE)
    paths = [path for path in paths if owner(job, path) not in readers]
    assert len({owner(job, path) for path in paths}) == 6
    requests = [(n, path, begin(job, n, 0, path)) for n in readers for path in paths]
    job.run()  # without any time passing
    assert all(has(job, n, request, 0, path) for n, path, request in requests)
    assert reads(job) == [1] * len(paths)


@pytest.mark.parametrize("seed", range(3))
def test_owners_that_ask_each_other_all_get_their_chunks(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that closes its connection to an owner may close the one over which that owner waits
    for it. The owner then asks the next one, which may wait for it in turn by redirects."""
    monkeypatch.setattr(connection_plan, "REACHED_MAX", 1)
    job = tiered(12, seed=seed)
    paths = [b"lib/many%d" % n for n in range(20)]
    for path in paths:
        job.add(path, SIZE)
    requests = [(n, path, begin(job, n, 0, path)) for n in range(12) for path in paths]
    job.pass_time(3.0)  # not SLOW_S, after which a node no longer waits for the other
    assert all(has(job, n, request, 0, path) for n, path, request in requests)
    assert sum(reads(job)) < 1.5 * len(paths)


def test_one_that_is_back_has_its_own_chunks_again() -> None:
    job = tiered()
    dead = owner(job)
    node = not_owner(job)
    read(job, node, 0)
    job.cut_off(dead)
    job.pass_time(5.0)
    read(job, node, 5)
    assert job[dead].node.stats.tier_from_source == 1
    job.heal()
    job.pass_time(12.0)
    read(job, node, 9)
    assert job[dead].node.stats.tier_from_source == 2


def test_for_comparison_each_reads_by_itself_what_was_lost() -> None:
    job = tiered(lost_from_source=True)
    dead = owner(job)
    for n in range(job.nodes):
        if n != dead:
            read(job, n, 0)
    job.world.crash(dead)
    job.pass_time(4.0)
    living = [n for n in range(job.nodes) if n != dead]
    for n in living:
        read(job, n, 1)
    assert job.source.chunk_counts[LARGE, CHUNK] == len(living)
    assert all(job[n].node.stats.fallbacks for n in living), "it is in another's place"


# --- holders of a chunk ---------------------------------------------------------------------------


def test_of_whom_nobody_was_sent_anything_lately_is_the_first_that_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(takers, "CHUNKS_MAX", 2)
    kept = takers.RedirectTree(takers_max=1)
    old, new, other = (ChunkKey(Path(b"f"), Version(9, 0, 0, 0), index) for index in range(3))
    later = takers.HAVE_IT_S + 1.0
    kept.other_for(0.0, old, NodeId(1))
    kept.other_for(1.0, new, NodeId(1))
    kept.other_for(later, old, NodeId(2))  # the first one has had it for too long
    kept.other_for(later, other, NodeId(1))
    assert kept.other_for(later, old, NodeId(3)) == 2
    assert kept.other_for(later, new, NodeId(3)) is None


def test_without_a_disk_nothing_is_stored() -> None:
    job = tiered(2)
    for index in chunks(job):
        read(job, 0, index)
    assert not any(each.disk.chunks for each in job)
    assert not any(each.node.statistics().tier_owed for each in job)


# --- alone ----------------------------------------------------------------------------------------


def test_a_node_alone_reads_in_chunks_as_well() -> None:
    job = tiered(1, tier_has_disk=True)
    for index in chunks(job):
        read(job, 0, index)
    assert reads(job) == [1] * len(chunks(job))
    assert len(job[0].disk.chunks) == len(chunks(job))


def test_without_a_tier_a_large_file_is_opened_by_each_reader() -> None:
    job = SimulatedJob(2, tree_max_bytes=2 * CHUNK)
    job.add(LARGE, SIZE)
    request = begin(job, 1, 0)
    job.run()
    assert isinstance(job.answers[1][request], AnswerHandle)


# --- whatever happens -----------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data())
def test_readers_get_the_right_bytes_whatever_happens(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 1 << 16))
    nodes = data.draw(st.integers(2, 7))
    job = tiered(
        nodes,
        seed=seed,
        fanout=data.draw(st.integers(1, 3)),
        tier_has_disk=data.draw(st.booleans()),
        hot_files_above_nodes=data.draw(st.sampled_from((2, 256))),
        tier_waits=data.draw(st.booleans()),
        tier_backlog_bytes=data.draw(st.sampled_from((CHUNK, 3 * CHUNK, 64 * MIB))),
    )
    job.add(b"lib/other", 30 * CHUNK)
    asked = []
    for _ in range(data.draw(st.integers(1, 25))):
        living = [n for n in range(nodes) if job[n].process.runs]
        what = data.draw(st.sampled_from(("read", "read", "read", "crash", "freeze", "time")))
        node = data.draw(st.sampled_from(living))
        if what == "read":
            path = data.draw(st.sampled_from((LARGE, Path(b"lib/other"))))
            index = data.draw(st.sampled_from(list(chunks(job, path))))
            asked.append((node, begin(job, node, index, path), index, path))
        elif what == "crash" and len(living) > 1:
            job.world.crash(node)
        elif what == "freeze" and len(living) > 1:
            job.hang(node)
        else:
            job.pass_time(data.draw(st.sampled_from((0.05, 0.5))))
    job.pass_time(4.0)
    for node, request, index, path in asked:
        if job[node].process.runs:
            assert has(job, node, request, index, path)
