"""Write-back to a disk that is slower than the source: which reads wait for it, and which chunks it
receives later."""

from typing import Any

import pytest

from copperfs.lab.sim import sim_chunk_disk
from copperfs.model.types import ChunkKey, Path, RequestId
from copperfs.node.actions import AnswerError
from copperfs.node.cache import write_back as writeback
from copperfs.node.cache.write_back import PAYS_AT_ONCE
from copperfs.node.events import DiskRecovered, Stored
from copperfs.node.fetch import table as fetches
from tests.unit.simulated_job import SimulatedJob
from tests.unit.test_chunks import (
    CHUNK,
    LARGE,
    MIB,
    SIZE,
    begin,
    bytes_of,
    chunks,
    has,
    not_owner,
    owner,
    owner_of,
    read,
    reads,
    sleep,
    tiered,
    version,
)

HELD_UP_S = 30.0
FILES = [Path(b"data/%d" % n) for n in range(90)]


def hold_writes(job: SimulatedJob) -> SimulatedJob:
    for host in job:
        host.disk_port.holds = True
    return job


def next_written(job: SimulatedJob) -> ChunkKey:
    """The first of the chunks whose writes the disk has not reported."""
    return job[0].disk_port.held.popleft()


def slow_disk(nodes: int = 1, **more: Any) -> SimulatedJob:
    """Disks write nothing until the test allows it; two chunks may be unwritten."""
    return hold_writes(tiered(nodes, tier_has_disk=True, tier_backlog_bytes=2 * CHUNK, **more))


def is_read_from_source(job: SimulatedJob) -> int:
    return sum(job.source.chunk_counts.values())


def large_job(*, waits: bool) -> SimulatedJob:
    """A node alone has 90 chunks of 1 MiB to read; memory holds 32, and four may be unwritten."""
    job = SimulatedJob(
        1,
        tree_max_bytes=1,
        chunk_bytes=MIB,
        tier_memory_bytes=MIB,
        memory_bytes=8 * MIB,
        source_deadline_s=60.0,
        tier_has_disk=True,
        tier_waits=waits,
        tier_backlog_bytes=4 * MIB,
    )
    for path in FILES:
        job.add(path, MIB)
    return hold_writes(job)


def read_all(job: SimulatedJob) -> None:
    for path in FILES:
        request = job.read(0, path, version(job, path))
        job.run()
        assert job.answers[0][request] == bytes_of(job, path)


def all_stored(job: SimulatedJob) -> None:
    for host in job:
        host.disk_port.let_go()
    job.run()


# --- wait -----------------------------------------------------------------------------------------


def test_no_more_is_read_from_the_source_than_the_disk_takes() -> None:
    job = slow_disk()
    requests = [begin(job, 0, index) for index in chunks(job)]
    job.run()
    assert is_read_from_source(job) == 2
    for written in range(3, 6):
        stored = next_written(job)
        job.post(0, Stored(stored, written=True))
        job.run()
        assert is_read_from_source(job) == written, "one more for each that is written"
    all_stored(job)
    assert all(has(job, 0, request, index) for index, request in enumerate(requests))
    assert reads(job) == [1] * len(chunks(job))
    assert len(job[0].disk.chunks) == len(chunks(job))
    stats = job[0].node.statistics()
    assert (stats.tier_waited, stats.tier_waiting) == (len(chunks(job)) - 2, 0)
    assert (stats.tier_owed, stats.tier_read_again) == (0, 0)
    job.check_at_rest()


def test_what_memory_or_the_disk_has_waits_for_nothing() -> None:
    job = slow_disk()
    for index in (0, 4):
        read(job, 0, index)
    waits = begin(job, 0, 2)
    again = begin(job, 0, 0)
    assert has(job, 0, again, 0), "from memory"
    key = ChunkKey(LARGE, version(job), 8)
    job[0].disk.store(key, job.source.chunk(LARGE, version(job), 8 * CHUNK, CHUNK).alone)
    there = begin(job, 0, 8)
    job.run()
    assert has(job, 0, there, 8), "from the disk"
    assert waits not in job.answers[0]


def test_a_second_pass_with_less_memory_than_data_reads_nothing_from_the_source() -> None:
    job = large_job(waits=True)
    all_stored(job)
    for _ in range(3):
        read_all(job)
    assert reads(job) == [1] * len(FILES)


def test_what_waits_for_the_disk_keeps_no_memory_from_others() -> None:
    job = slow_disk()
    for index in chunks(job):
        begin(job, 0, index)
    job.run()
    assert job[0].node.statistics().tier_waiting == len(chunks(job)) - 2
    assert not any(job[0].node._fetches._on_its_way)


def test_a_reader_elsewhere_waits_with_the_owner_and_reads_nothing_in_its_place() -> None:
    job = slow_disk(4)
    of_owner = [i for i in chunks(job) if owner(job, index=i) == owner(job)]
    reader = not_owner(job)
    requests = [(i, begin(job, reader, i)) for i in of_owner]
    job.run()
    # Far longer than any request to an owner lasts.
    job.pass_time(HELD_UP_S - 2.0)
    assert is_read_from_source(job) == 2
    stats = [each.node.statistics() for each in job]
    assert not any(each.tier_timeouts or each.fallbacks or each.hedges for each in stats)
    all_stored(job)
    assert all(has(job, reader, request, index) for index, request in requests)
    assert reads(job) == [1] * len(of_owner)


def test_one_who_comes_later_is_told_as_well_and_so_are_those_who_wait_for_the_reader() -> None:
    job = slow_disk(4, fanout=1)
    of_owner = [i for i in chunks(job) if owner(job, index=i) == owner(job)]
    readers = [n for n in range(4) if n != owner(job)]
    for index in of_owner:
        begin(job, readers[0], index)
    job.run()
    last = of_owner[-1]
    later = [(n, begin(job, n, last)) for n in readers[1:]]  # redirected to the earlier reader
    job.run()
    job.pass_time(HELD_UP_S - 2.0)
    assert is_read_from_source(job) == 2
    assert not any(each.node.stats.fallbacks for each in job)
    all_stored(job)
    assert all(has(job, n, request, last) for n, request in later)
    assert reads(job) == [1] * len(of_owner)


def one_slow_owner() -> tuple[SimulatedJob, int, list[Path], list[Path]]:
    """A reader whose memory may hold 31 incoming chunks of others, and two lists of files: the
    owner of the first has a disk that writes nothing, the owner of the second has all of it on
    disk."""
    job = SimulatedJob(
        3,
        tree_max_bytes=1,
        chunk_bytes=MIB,
        tier_memory_bytes=MIB,
        memory_bytes=8 * MIB,
        source_deadline_s=60.0,
        tier_has_disk=True,
        tier_backlog_bytes=MIB,
    )
    hold_writes(job)
    files = [Path(b"data/%d" % n) for n in range(200)]
    of: list[list[Path]] = [[], [], []]
    for path in files:
        of[owner_of(job, path)].append(path)
    for path in of[2]:
        key = ChunkKey(Path(path), version(job, path), 0)
        job[2].disk.store(key, job.source.chunk(path, version(job, path), 0, MIB).alone)
    return job, 0, of[1], of[2]


def begin_files(job: SimulatedJob, reader: int, files: list[Path]) -> list[RequestId]:
    return [job.read(reader, path, version(job, path)) for path in files]


def test_a_slow_disk_of_one_owner_holds_up_nothing_that_others_give() -> None:
    job, reader, of_slow, of_healthy = one_slow_owner()
    slow = begin_files(job, reader, of_slow[:45])
    healthy = begin_files(job, reader, of_healthy[:45])
    job.run()
    answers = job.answers[reader]
    assert sum(request in answers for request in slow) == 1, "the disk has room for one"
    assert all(request in answers for request in healthy)
    all_stored(job)
    for path, request in zip(of_slow, slow, strict=False):
        assert answers[request] == bytes_of(job, path)
    assert reads(job) == [1] * len(slow)
    assert not any(each.node.stats.fallbacks for each in job)
    job.check_at_rest()


def test_no_more_than_so_many_wait_for_other_nodes_without_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetches, "OUTSIDE_MAX", 4)
    job, reader, of_slow, of_healthy = one_slow_owner()
    slow = begin_files(job, reader, of_slow[:40])
    job.run()
    node = job[reader].node
    assert len(node._fetches._outside) == 4
    healthy = begin_files(job, reader, of_healthy[:1])
    job.run()
    assert healthy[0] not in job.answers[reader]
    all_stored(job)
    assert all(each in job.answers[reader] for each in [*slow, *healthy])
    job.check_at_rest()


def test_who_waited_for_the_disk_of_an_owner_that_died_waits_for_its_own() -> None:
    job, reader, of_slow, _ = one_slow_owner()
    slow = begin_files(job, reader, of_slow[:12])
    job.run()
    assert job[reader].node._fetches._outside
    job.world.crash(1)
    job.pass_time(10.0)
    all_stored(job)
    for path, request in zip(of_slow, slow, strict=False):
        found = job.answers[reader][request]
        assert found == bytes_of(job, path)
    assert not job[reader].node._fetches._outside


def test_nothing_is_read_ahead_of_an_owner_that_waits_for_its_disk() -> None:
    job = hold_writes(tiered(4, tier_has_disk=True, tier_backlog_bytes=CHUNK))
    reader = not_owner(job)
    for index in (0, 1):
        begin(job, reader, index)
        job.run()
    stats = job[reader].node.statistics()
    ahead = stats.tier_ahead
    for index in (2, 3, 4):
        begin(job, reader, index)
        job.run()
    assert job[reader].node.statistics().tier_ahead == ahead
    all_stored(job)
    assert reads(job) == [1] * job.source.chunk_counts.total()


def test_after_half_of_its_deadline_a_reader_waits_no_longer_and_is_told_no_error() -> None:
    job = slow_disk(4)
    of_owner = [i for i in chunks(job) if owner(job, index=i) == owner(job)]
    reader = not_owner(job)
    requests = [(i, begin(job, reader, i)) for i in of_owner]
    job.run()
    job.pass_time(HELD_UP_S + 1.0)
    assert all(has(job, reader, request, index) for index, request in requests)
    assert reads(job) == [1] * len(of_owner)
    owned = job[owner(job)]
    assert owned.node.statistics().tier_owed == len(of_owner) - 2
    all_stored(job)
    assert owned.node.statistics().tier_owed == 0
    assert len(owned.disk.chunks) == len(of_owner), "from memory"


def test_an_owner_that_says_delayed_without_end_is_passed_over_in_time() -> None:
    job = slow_disk(4)
    of_owner = [i for i in chunks(job) if owner(job, index=i) == owner(job)]
    reader = not_owner(job)
    # A faulty or hostile owner: it never stops waiting.
    object.__setattr__(job[owner(job)].node.limits, "fetch_deadline_s", 1e6)
    requests = [(i, begin(job, reader, i)) for i in of_owner]
    job.run()
    job.pass_time(HELD_UP_S + 5.0)
    assert is_read_from_source(job) == 2
    job.pass_time(59.0 - job.now)
    assert all(has(job, reader, request, index) for index, request in requests)


def test_what_a_reader_waited_for_before_counts_in_half_of_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sim_chunk_disk, "READ_WITHIN_S", 30.0)
    job = slow_disk()
    for index in (0, 1):
        begin(job, 0, 2 * index)
        job.run()
    # the node asks its disk first, which takes 20 s to report that it lacks the chunk
    job[0].disk.hang(20.0)
    request = begin(job, 0, 6)
    job.pass_time(39.0 - job.now)
    assert request not in job.answers[0]
    job.pass_time(3.0)
    assert has(job, 0, request, 6), "after 20 of the 40 s that were left"


def test_a_node_that_slept_has_not_waited_for_its_disk() -> None:
    job = slow_disk()
    requests = [begin(job, 0, index) for index in chunks(job)]
    job.run()
    sleep(job, 25.0)
    job.pass_time(HELD_UP_S + 5.0 - job.now)
    assert is_read_from_source(job) == 2
    job.pass_time(HELD_UP_S)
    assert all(has(job, 0, request, index) for index, request in enumerate(requests))


def begun_row() -> SimulatedJob:
    """A reader has two chunks of a stream; one that is ahead waits, since another is unwritten."""
    job = hold_writes(tiered(1, tier_has_disk=True, tier_backlog_bytes=CHUNK))
    job.add(b"other", SIZE)
    for index in (0, 1):
        request = begin(job, 0, index)
        job.run()
        write_one(job)
        assert has(job, 0, request, index)
    assert (reads_of_source(job), is_waiting(job)) == ([0, 1, 2], 1)
    return job


def reads_of_source(job: SimulatedJob) -> list[int]:
    return sorted(offset // CHUNK for _, offset in job.source.chunk_counts)


def write_one(job: SimulatedJob) -> None:
    job.post(0, Stored(next_written(job), written=True))
    job.run()


def is_waiting(job: SimulatedJob) -> int:
    return job[0].node.statistics().tier_waiting


def test_what_somebody_waits_for_goes_before_what_is_read_ahead() -> None:
    job = begun_row()
    request = begin(job, 0, 5, b"other")
    job.run()
    write_one(job)
    assert has(job, 0, request, 5, b"other")
    assert is_read_from_source(job) == 4


def test_nothing_is_read_ahead_while_reads_wait_for_the_disk() -> None:
    job = begun_row()
    requests = [(index, begin(job, 0, index)) for index in (3, 4, 5)]
    job.run()
    assert is_waiting(job) == 3, "what is asked for, and no more"
    all_stored(job)
    assert all(has(job, 0, request, index) for index, request in requests)


def test_what_is_read_ahead_and_waits_too_long_is_not_read_in_vain() -> None:
    job = begun_row()
    job.pass_time(HELD_UP_S + 1.0)
    assert (is_read_from_source(job), is_waiting(job)) == (3, 0)
    request = begin(job, 0, 3)
    all_stored(job)
    assert has(job, 0, request, 3)
    job.check_at_rest()


def test_a_disk_that_takes_nothing_holds_up_nobody() -> None:
    job = slow_disk()
    requests = [begin(job, 0, index) for index in chunks(job)]
    job.run()
    assert is_read_from_source(job) == 2
    job.post(0, Stored(next_written(job), written=False, is_degraded=True))
    job.run()
    assert all(has(job, 0, request, index) for index, request in enumerate(requests))
    assert reads(job) == [1] * len(chunks(job))


def test_a_disk_that_recovers_is_given_what_memory_still_has() -> None:
    job = slow_disk()
    host = job[0]
    for index in chunks(job):
        begin(job, 0, index)
    job.run()
    while host.disk_port.held:  # like a degraded store, which refuses every chunk
        key = next_written(job)
        host.disk.drop(key)
        job.post(0, Stored(key, written=False, is_degraded=True))
        job.run()
    assert not host.disk.chunks
    assert host.node.statistics().tier_owed == len(chunks(job))
    assert host.node.statistics().tier_owed_bytes == version(job).size
    job.post(0, DiskRecovered())
    assert len(host.disk.chunks) == 2, "no more at once than may be unwritten"
    all_stored(job)
    assert len(host.disk.chunks) == len(chunks(job))
    assert host.node.statistics().tier_owed == 0
    assert reads(job) == [1] * len(chunks(job))


def test_a_chunk_that_a_disk_refuses_which_takes_others_lets_readers_wait_on() -> None:
    job = slow_disk()
    host = job[0]
    for index in chunks(job):
        begin(job, 0, index)
    job.run()
    refused = next_written(job)
    host.disk.drop(refused)  # like a store whose chunks are all being read
    job.post(0, Stored(refused, written=False))
    job.run()
    assert is_read_from_source(job) == 3, "one more, in its place"
    assert refused not in host.disk.chunks, "it would refuse that again and again"
    assert host.node.statistics().tier_owed == 1
    all_stored(job)
    assert len(host.disk.chunks) == len(chunks(job))
    assert reads(job) == [1] * len(chunks(job))


def test_a_disk_that_has_a_chunk_and_takes_no_other_holds_up_nobody() -> None:
    job = slow_disk()
    requests = [begin(job, 0, index) for index in chunks(job)]
    job.run()
    there = Stored(next_written(job), written=True, is_degraded=True)
    job.post(0, there)
    job.run()
    assert all(has(job, 0, request, index) for index, request in enumerate(requests))
    assert reads(job) == [1] * len(chunks(job))


def test_with_wait_nothing_is_read_from_the_source_for_the_disk_alone() -> None:
    job = large_job(waits=True)
    host = job[0]
    begin_all = [job.read(0, path, version(job, path)) for path in FILES[:5]]
    job.run()
    # broken from now on
    job.post(0, Stored(next_written(job), written=False, is_degraded=True))
    job.run()
    assert all(each in job.answers[0] for each in begin_all)
    read_all(job)
    all_stored(job)
    owed = host.node.statistics().tier_owed
    assert owed > 0
    job.post(0, DiskRecovered())
    job.run()
    assert reads(job) == [1] * len(FILES)


def test_a_disk_that_is_outgrown_holds_up_nobody_and_is_owed_nothing() -> None:
    job = slow_disk()
    requests = [begin(job, 0, index) for index in chunks(job)]
    job.run()
    first = Stored(next_written(job), written=True, is_outgrown=True)
    job.post(0, first)
    job.run()
    assert all(has(job, 0, request, index) for index, request in enumerate(requests))
    assert job[0].node.statistics().tier_owed == 0


def test_a_chunk_larger_than_what_may_be_unwritten_is_let_through_alone() -> None:
    job = hold_writes(tiered(1, tier_has_disk=True, tier_backlog_bytes=CHUNK // 2))
    requests = [begin(job, 0, index) for index in range(3)]
    job.run()
    assert is_read_from_source(job) == 1
    all_stored(job)
    assert all(has(job, 0, request, index) for index, request in enumerate(requests))


def test_an_error_of_the_source_makes_room_for_the_next() -> None:
    job = slow_disk()
    requests = [begin(job, 0, index) for index in chunks(job)]
    job.add(LARGE, version(job).size, changed_s=5)  # all are stale now
    job.run()
    assert all(request in job.answers[0] for request in requests)
    assert not job[0].disk_port.held


def test_what_found_no_room_until_its_deadline_waits_no_more() -> None:
    """It waited for the disk until that limit, and then for memory."""
    job = large_job(waits=True)
    job.hold_source(0)
    requests = begin_files(job, 0, FILES)
    job.pass_time(HELD_UP_S + 1.0)
    host = job[0]
    assert host.node.statistics().tier_waiting > 0
    job.pass_time(HELD_UP_S)
    assert all(isinstance(job.answers[0][each], AnswerError) for each in requests)
    assert host.node.statistics().tier_waiting == 0


# --- later ----------------------------------------------------------------------------------------


def test_with_later_nobody_waits_and_the_disk_is_given_the_rest_from_memory() -> None:
    job = slow_disk(tier_waits=False)
    requests = [begin(job, 0, index) for index in chunks(job)]
    job.run()
    assert all(has(job, 0, request, index) for index, request in enumerate(requests))
    host = job[0]
    assert len(host.disk.chunks) == 2
    assert host.node.statistics().tier_owed == len(chunks(job)) - 2
    all_stored(job)
    assert len(host.disk.chunks) == len(chunks(job))
    assert reads(job) == [1] * len(chunks(job)), "memory had all of it"
    stats = host.node.statistics()
    assert (stats.tier_owed, stats.tier_owed_bytes, stats.tier_read_again) == (0, 0, 0)


def test_what_memory_has_lost_is_read_again_when_the_disk_keeps_up_and_that_is_counted() -> None:
    job = large_job(waits=False)
    host = job[0]
    read_all(job)
    assert reads(job) == [1] * len(FILES)
    assert len(host.disk.chunks) == 4
    owed = host.node.statistics().tier_owed
    assert owed == len(FILES) - 4
    all_stored(job)
    assert len(host.disk.chunks) == len(FILES), "all of it in the end"
    stats = host.node.statistics()
    again = sum(reads(job)) - len(FILES)
    assert 0 < again < owed, "what memory had is not read again"
    assert (stats.tier_read_again, stats.tier_read_for_disk) == (again, again)
    assert stats.tier_owed == 0
    before = sum(reads(job))
    read_all(job)
    assert sum(reads(job)) == before
    job.check_at_rest()


def test_a_reader_who_comes_first_pays_as_well() -> None:
    job = large_job(waits=False)
    read_all(job)
    path = FILES[10]
    assert ChunkKey(Path(path), version(job, path), 0) not in job[0].disk.chunks
    job.read(0, path, version(job, path))
    job.run()
    stats = job[0].node.statistics()
    assert (stats.tier_read_again, stats.tier_read_for_disk) == (1, 0)


def test_few_are_read_again_at_once() -> None:
    job = large_job(waits=False)
    read_all(job)
    job.hold_source(0)
    all_stored(job)
    assert len(job.held_reads(0)) == PAYS_AT_ONCE


def test_nothing_is_read_again_while_readers_take_half_of_the_memory() -> None:
    job = large_job(waits=False)
    read_all(job)
    job.hold_source(0)
    new = [b"data/new%d" % n for n in range(17)]
    for path in new:
        job.read(0, path, job.add(path, MIB))
    job.run()
    assert len(job.held_reads(0)) == len(new)
    all_stored(job)
    assert len(job.held_reads(0)) == len(new), "these would take room that a reader waits for"
    job.let_source_go()
    job.run()
    assert job[0].node.statistics().tier_owed == 0


def test_what_has_changed_since_is_owed_no_more() -> None:
    job = large_job(waits=False)
    read_all(job)
    for path in FILES:
        job.add(path, MIB, changed_s=5)
    all_stored(job)
    stats = job[0].node.statistics()
    assert stats.tier_owed == 0
    assert stats.tier_read_again == 0
    assert stats.failures == 0, "nobody had asked"


def test_debts_are_bounded_and_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "DEBTS_MAX", 10)
    job = large_job(waits=False)
    read_all(job)
    stats = job[0].node.statistics()
    assert stats.tier_owed == 10
    assert stats.tier_forgotten == len(FILES) - 4 - 10
