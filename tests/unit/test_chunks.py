"""Large files and datasets: each chunk has an owner, and is read from the source once."""

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copperfs.core import company
from copperfs.core.actions import AnswerChunk, AnswerError, AnswerHandle, Publish, StoreChunk
from copperfs.core.events import HaveRead, Heard, Loaded, Read, WantChunk
from copperfs.core.messages import Ask, Redirect
from copperfs.core.owners import GROUP_BYTES, TIMEOUTS_MAX, Owners
from copperfs.core.ring import Ring
from copperfs.core.state import NodeStats
from copperfs.core.suspicion import Patience
from copperfs.types import ChunkKey, NodeId, Path, RequestId, Version
from tests.unit.overlay_lab import Job, content

KIB, MIB = 1 << 10, 1 << 20
CHUNK = 4 * KIB
PATIENCE = Patience()
HEDGED_S = PATIENCE.probe_s + PATIENCE.silent_s + 0.1
DOUBTED_S = PATIENCE.doubt_s + 0.1
SLOW_S = PATIENCE.slow_s + 0.1

LARGE = Path(b"lib/large")
SIZE = 10 * CHUNK + 100


def tiered(nodes: int = 8, **more: object) -> Job:
    """Files above 8 KiB are read in chunks of 4 KiB."""
    job = Job(nodes, tree_max_bytes=2 * CHUNK, chunk_bytes=CHUNK, deadline_s=60.0, **more)  # type: ignore[arg-type]
    job.tree.add(LARGE, SIZE)
    return job


def version(job: Job, path: bytes = LARGE) -> Version:
    return job.tree.files[Path(path)].attributes.version


def begin(job: Job, number: int, index: int, path: bytes = LARGE) -> RequestId:
    return job.read(number, path, version(job, path), index * CHUNK)


def has(job: Job, number: int, request: RequestId, index: int, path: bytes = LARGE) -> bool:
    """Whether it was answered, and with the right bytes."""
    answers = job.daemons[number].answers
    if request not in answers:
        return False
    whole = content(Path(path), version(job, path))
    assert answers[request] == whole[index * CHUNK : (index + 1) * CHUNK]
    return True


def read(job: Job, number: int, index: int, path: bytes = LARGE) -> None:
    request = begin(job, number, index, path)
    job.run()
    assert has(job, number, request, index, path)


def chunks(job: Job, path: bytes = LARGE) -> range:
    return range(-(-version(job, path).size // CHUNK))


def owner(job: Job, path: bytes = LARGE, index: int = 0, gone: tuple[int, ...] = ()) -> int:
    owners = Owners(Ring([f"n{n}" for n in range(job.nodes)]), NodeId(0), CHUNK, NodeStats())
    found = owners.owner(ChunkKey(Path(path), version(job, path), index), set(map(NodeId, gone)))
    assert found is not None
    return found


def reads(job: Job) -> list[int]:
    """How often each chunk that was read from the source was."""
    return sorted(job.tree.chunk_reads.values())


def not_owner(job: Job, *others: int) -> int:
    return next(n for n in range(job.nodes) if n != owner(job) and n not in others)


# --- who reads what -------------------------------------------------------------------------------


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
    stats = [each.node.statistics() for each in job.daemons]
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
        job.tree.add(b"data/%d" % n, 100)
        job.tree.add(b"lib/%d" % n, 100)
    for n in range(20):
        for path in (b"data/%d" % n, b"lib/%d" % n):
            for node in range(job.nodes):
                read(job, node, 0, path)
    assert reads(job) == [1] * 20
    readers = {n for n, each in enumerate(job.daemons) if each.node.stats.tier_from_source}
    assert readers == {owner(job, b"data/%d" % n) for n in range(20)}
    assert {path for kind, path in job.source_reads() if kind == "read"} == {
        Path(b"lib/%d" % n) for n in range(20)
    }


def test_what_is_above_the_bypass_is_opened_by_each_reader() -> None:
    job = tiered(2)
    limits = job.daemons[1].node.limits
    object.__setattr__(limits, "bypass_above_bytes", SIZE - 1)
    request = begin(job, 1, 0)
    job.run()
    assert isinstance(job.daemons[1].answers[request], AnswerHandle)


def test_what_is_read_in_chunks_is_not_pushed() -> None:
    job = tiered(2, ring=(b"data",))
    node = job.daemons[0].node
    small, large = Version(100, 1, 1, 1), Version(SIZE, 1, 1, 1)
    assert node.is_whole(Path(b"lib/x"), small)
    assert not node.is_whole(Path(b"lib/x"), large)
    assert not node.is_whole(Path(b"data/x"), small)
    without = Job(2, ring=(b"data",)).daemons[0].node
    assert without.is_whole(Path(b"data/x"), small), "there is no data tier"


def test_an_empty_file_of_a_dataset_is_whole() -> None:
    job = tiered(ring=(b"data",))
    job.tree.add(b"data/empty", 0)
    request = begin(job, 3, 0, b"data/empty")
    job.run()
    assert job.daemons[3].answers[request] == b""


def test_a_file_that_changed_is_looked_up_again() -> None:
    job = tiered()
    old = version(job)
    read(job, 1, 0)
    job.tree.add(LARGE, SIZE, changed_s=5)
    request = job.read(2, LARGE, old, 3 * CHUNK)
    job.run()
    assert job.daemons[2].answers[request] == AnswerError(request, errno.ESTALE)
    assert job.daemons[2].node.stats.version_changes == 1
    read(job, 2, 3)


def test_a_chunk_beyond_the_end_is_refused() -> None:
    job = tiered()
    request = job.read(2, LARGE, version(job), 1 << 40)
    job.run()
    assert has(job, 2, request, len(chunks(job)) - 1)  # the last one is what there is


# --- what is had in advance -----------------------------------------------------------------------


def keep(job: Job, number: int, index: int, path: bytes = LARGE) -> RequestId:
    """The node is told to have a chunk before somebody wants it."""
    request = job._request(number)
    key = ChunkKey(Path(path), version(job, path), index)
    job.happen(NodeId(number), WantChunk(request, key, keeps=True))
    return request


def test_an_owner_that_is_told_to_has_a_chunk_and_its_readers_cost_nothing() -> None:
    job = tiered(disks=True)
    request = keep(job, owner(job), 0)
    job.run()
    assert has(job, owner(job), request, 0)
    node = job.daemons[owner(job)].node
    assert [key.index for key, _ in node.held_chunks()] == [0]
    assert len(job.daemons[owner(job)].disk) == 1
    for n in range(job.nodes):
        read(job, n, 0)
    assert reads(job) == [1]
    job.check_at_rest()


def test_whoever_does_not_own_a_chunk_does_not_get_it_in_advance() -> None:
    job = tiered()
    node = not_owner(job)
    request = keep(job, node, 0)
    job.run()
    assert job.daemons[node].answers[request] == AnswerError(request, errno.EXDEV)
    beyond = keep(job, owner(job), len(chunks(job)))
    job.run()
    assert job.daemons[owner(job)].answers[beyond] == AnswerError(beyond, errno.EXDEV)
    assert reads(job) == []


def test_a_guest_stays_when_its_owner_is_gone_and_goes_to_the_disk() -> None:
    job = tiered(disks=True)
    dead = owner(job)
    heir = owner(job, gone=(dead,))
    read(job, heir, 0)
    key = ChunkKey(LARGE, version(job), 0)
    assert not job.daemons[heir].node.keeps_chunk(key)
    assert not job.daemons[heir].disk
    job.crash(dead)
    job.pass_time(4.0, step_s=0.25)
    assert job.daemons[heir].node.owns_chunk(key)
    request = keep(job, heir, 0)
    job.run()
    assert has(job, heir, request, 0)
    assert job.daemons[heir].node.keeps_chunk(key)
    assert len(job.daemons[heir].disk) == 1
    assert reads(job) == [1], "it was there"
    job.daemons[heir].node.check_invariants()


# --- memory and disk ------------------------------------------------------------------------------


def disk_job() -> Job:
    """Chunks of 1 MiB, of which memory has room for some 60."""
    return Job(
        2,
        tree_max_bytes=1,
        chunk_bytes=MIB,
        tier_memory_bytes=MIB,
        disks=True,
        memory_bytes=8 * MIB,
        deadline_s=60.0,
    )


def test_what_was_evicted_from_memory_comes_from_the_disk() -> None:
    job = disk_job()
    files = [b"data/%d" % n for n in range(90)]
    for path in files:
        job.tree.add(path, MIB)
    for _ in range(2):
        for path in files:
            request = job.read(0, path, version(job, path))
            job.run()
            assert job.daemons[0].answers[request] == content(Path(path), version(job, path))
    assert reads(job) == [1] * 90, "the source is read once, whatever the memory"
    stats = [each.node.statistics() for each in job.daemons]
    assert all(each.tier_from_disk for each in stats)
    assert all(each.tier_memory_held_bytes <= each.tier_memory_budget_bytes for each in stats)
    assert sum(len(each.disk) for each in job.daemons) == 90, "each chunk is on one disk"
    job.check_at_rest()


def test_a_chunk_is_given_before_it_is_stored() -> None:
    job = tiered(1, disks=True)
    node = job.daemons[0].node
    job.read(0, LARGE, version(job))
    load = job.daemons[0].loads.pop()
    node.step(0.0, Loaded(load.fetch, None))
    blob = job._keep(0, content(LARGE, version(job))[:CHUNK])
    actions = node.step(0.0, HaveRead(load.fetch, blob))
    kinds = [type(each) for each in actions]
    assert kinds.index(AnswerChunk) < kinds.index(StoreChunk)


def test_guests_do_not_wash_out_what_is_owned() -> None:
    job = disk_job()
    mine = next(p for n in range(100) if owner_of(job, p := b"data/mine%d" % n) == 0)
    job.tree.add(mine, MIB)
    request = job.read(0, mine, version(job, mine))
    job.run()
    others = [p for n in range(300) if owner_of(job, p := b"data/%d" % n) == 1][:90]
    for path in others:
        job.tree.add(path, MIB)
        job.read(0, path, version(job, path))
        job.run()
    before = job.daemons[0].node.stats.tier_from_memory
    request = job.read(0, mine, version(job, mine))
    assert request in job.daemons[0].answers
    assert job.daemons[0].node.stats.tier_from_memory == before + 1


def owner_of(job: Job, path: bytes) -> int:
    job.tree.add(path, MIB)
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
    assert job.gave[NodeId(owner(job))] == 3
    assert max(job.gave.values()) == 3, "nor does anybody else more often"
    assert sum(job.gave.values()) == 31


def test_who_comes_later_is_sent_to_one_that_has_it() -> None:
    job = tiered(8, fanout=1)
    others = [n for n in range(8) if n != owner(job)]
    for n in others:
        read(job, n, 0)
    assert job.gave[NodeId(owner(job))] == 1
    assert job.daemons[owner(job)].node.stats.redirects == 6
    assert sum(each.node.stats.redirected for each in job.daemons) == 6


def test_who_was_sent_in_vain_is_given_it_by_the_owner() -> None:
    job = tiered(4, fanout=1)
    one, other = not_owner(job), not_owner(job, not_owner(job))
    read(job, one, 0)
    tier = job.daemons[one].node._tier
    assert tier is not None
    for key, _ in list(tier.held()):
        for action in tier._gone(tier._guests.drop(key), None):
            job._perform(NodeId(one), action)
    read(job, other, 0)
    assert job.gave[NodeId(owner(job))] == 2
    assert reads(job) == [1]


def test_nobody_is_sent_to_one_that_had_it_long_ago() -> None:
    job = tiered(4, fanout=1)
    one, other = not_owner(job), not_owner(job, not_owner(job))
    read(job, one, 0)
    job.pass_time(11.0, step_s=0.5)
    read(job, other, 0)
    assert job.daemons[owner(job)].node.stats.redirects == 0


def test_the_one_that_others_were_sent_to_may_end() -> None:
    job = tiered(8, fanout=1)
    one, *others = [n for n in range(8) if n != owner(job)]
    job.no_source.add(NodeId(owner(job)))
    requests = [begin(job, n, 0) for n in (one, *others)]
    job.run()
    job.crash(one)
    job.no_source.clear()
    job.pass_time(1.0)
    assert all(has(job, n, r, 0) for n, r in zip(others, requests[1:], strict=True))
    assert reads(job) == [1]


def test_one_that_is_sent_to_a_node_that_is_gone_asks_the_owner() -> None:
    job = tiered(8)
    node, gone = not_owner(job), not_owner(job, not_owner(job))
    read(job, node, 0)
    job.crash(gone)
    job.pass_time(4.0, step_s=0.25)
    assert NodeId(gone) in job.daemons[node].node.gone()
    job.frozen.add(NodeId(owner(job)))
    request = begin(job, node, 5)
    asked = job.queues[NodeId(node), NodeId(owner(job))][-1][0]
    assert isinstance(asked, Ask)
    job.happen(NodeId(node), Heard(NodeId(owner(job)), Redirect(asked.number, 1, NodeId(gone))))
    job.frozen.clear()
    job.run()
    assert has(job, node, request, 5)


# --- crowds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_crowd_gets_a_large_file_up_the_tree(seed: int) -> None:
    job = tiered(32, fanout=3, seed=seed, crowds_above=16)
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
    job = tiered(32, fanout=3, crowds_above=16)
    far = [n for n in range(20, 32) if n != owner(job)]
    sizes = {n: b"lib/data%d" % n for n in far}
    for path in sizes.values():
        job.tree.add(path, 100 * CHUNK)
    for n, path in sizes.items():
        for index in range(0, 100, 2):
            read(job, n, index, path)
    assert reads(job) == [1] * len(far) * 50
    # 16 chunks of each file come through up to three others; the rest straight from the owner
    assert sum(job.gave.values()) < len(far) * (50 + 3 * 17)


def test_a_dataset_never_goes_up() -> None:
    job = tiered(32, fanout=3, crowds_above=16, ring=(b"lib",))
    read(job, 31, 0)
    assert sum(job.gave.values()) == 1


def test_who_waits_for_a_parent_that_hangs_asks_another() -> None:
    job = tiered(13, fanout=3, crowds_above=4)
    leaf = next(n for n in (12, 11, 10) if n != owner(job))
    job.frozen.add(NodeId(3))
    request = begin(job, leaf, 0)
    job.pass_time(2 * HEDGED_S)  # the next one asks it as well
    assert owner(job) != 3
    assert has(job, leaf, request, 0)


def test_the_root_of_a_crowd_ends() -> None:
    job = tiered(13, fanout=3, crowds_above=4)
    job.no_source.add(NodeId(owner(job)))
    requests = {n: begin(job, n, 0) for n in range(1, 13)}
    job.run()
    job.crash(0)
    job.no_source.clear()
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
        waited += request not in job.daemons[node].answers
        job.run()
        assert has(job, node, request, index)
    assert waited < 5
    assert reads(job) == [1] * len(chunks(job))
    assert job.daemons[node].node.stats.tier_ahead > 5


def test_what_is_held_and_read_ahead_is_counted_as_found_in_memory() -> None:
    """Published ahead of its reader, it is not asked for; each chunk counts all the same."""
    job = tiered()
    for index in chunks(job):
        read(job, owner(job), index)
    node = job.daemons[owner(job)].node
    node.reset_statistics()
    published: set[int] = set()
    for index in chunks(job):
        if index in published:
            continue
        question = Read(RequestId(1000 + index), LARGE, version(job), offset=index * CHUNK)
        actions = node.step(0.0, question)
        published |= {
            each.key.index
            for each in actions
            if isinstance(each, Publish) and isinstance(each.key, ChunkKey)
        }
    assert len(published) > 2
    assert node.stats.tier_from_memory >= len(chunks(job))


def test_one_read_of_the_whole_first_chunk_brings_the_next_ones() -> None:
    """Most files of a dataset have few chunks: the reader of one asks once."""
    for offset, size, brought in ((0, CHUNK, 3), (0, CHUNK - 1, 1), (CHUNK, CHUNK, 1)):
        job = tiered()
        question = Read(RequestId(1), LARGE, version(job), offset=offset, size=size)
        job.happen(NodeId(not_owner(job)), question)
        job.run()
        assert len(job.tree.chunk_reads) == brought


def test_less_is_read_ahead_when_memory_does_not_hold_it() -> None:
    """Eight files at the same time, with 32 MiB for what others own."""
    job = disk_job()
    files = [p for n in range(300) if owner_of(job, p := b"data/%d" % n) == 1][:16]
    for path in files:
        job.tree.add(path, 8 * MIB)
    files = [path for path in files if owner(job, path) == 1]
    for index in range(8):
        for path in files:
            request = job.read(0, path, version(job, path), index * MIB)
            job.run()
            assert request in job.daemons[0].answers
    assert len(files) == 8
    assert job.daemons[0].node.stats.tier_from_peers < 1.5 * 8 * len(files)
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
    job.crash(dead)
    living = [n for n in range(job.nodes) if n != dead]
    requests = [(n, i, begin(job, n, i)) for n in living for i in chunks(job)]
    job.pass_time(1.0)
    assert all(has(job, n, request, i) for n, i, request in requests)
    assert max(reads(job)) <= 2
    assert job.daemons[owner(job, gone=(dead,))].node.stats.tier_from_source > 0


def test_an_owner_that_ends_while_it_is_asked() -> None:
    job = tiered()
    dead = owner(job)
    job.no_source.add(NodeId(dead))
    living = [n for n in range(job.nodes) if n != dead]
    requests = [begin(job, n, 0) for n in living]
    job.run()
    job.crash(dead)
    job.pass_time(0.5)
    assert all(has(job, n, request, 0) for n, request in zip(living, requests, strict=True))
    assert reads(job) == [1]


def test_an_owner_that_hangs_costs_a_moment() -> None:
    job = tiered()
    node = not_owner(job)
    read(job, node, 0)  # they are in touch
    job.frozen.add(NodeId(owner(job)))
    request = begin(job, node, 5)
    job.pass_time(DOUBTED_S + HEDGED_S)  # the next one finds out by itself
    assert has(job, node, request, 5)


@pytest.mark.parametrize("how", ["hangs", "lives"])
def test_who_reads_in_the_place_of_an_owner_keeps_what_it_read(how: str) -> None:
    """Before all believe that the owner is gone, or while nobody does."""
    job = tiered(disks=True)
    absent = owner(job)
    heir = owner(job, gone=(absent,))
    node = not_owner(job, heir)
    read(job, node, 9)  # they are in touch
    (job.frozen if how == "hangs" else job.no_source).add(NodeId(absent))
    request = begin(job, node, 0)
    job.pass_time(DOUBTED_S + HEDGED_S if how == "hangs" else SLOW_S, step_s=0.25)
    assert has(job, node, request, 0)
    assert not job.daemons[heir].node.membership.view.gone  # type: ignore[union-attr]
    assert job.daemons[heir].node.keeps_chunk(ChunkKey(LARGE, version(job), 0))
    assert len(job.daemons[heir].disk) == 1
    assert not job.daemons[node].disk
    job.daemons[heir].node.check_invariants()


def test_two_owners_that_end_one_after_the_other() -> None:
    job = tiered()
    first = owner(job)
    second = owner(job, gone=(first,))
    node = not_owner(job, second)
    read(job, node, 0)
    job.crash(first)
    job.crash(second)
    request = begin(job, node, 1)
    job.pass_time(2.0)
    assert has(job, node, request, 1)


def test_an_owner_that_lives_and_does_not_answer_is_done_without() -> None:
    job = tiered()
    stuck = owner(job)
    job.no_source.add(NodeId(stuck))
    node = not_owner(job, owner(job, gone=(stuck,)))
    requests = [begin(job, node, index) for index in (0, 2, 4)]
    job.pass_time(SLOW_S, step_s=0.25)
    assert all(has(job, node, r, i) for r, i in zip(requests, (0, 2, 4), strict=True))
    stats = job.daemons[node].node.stats
    assert stats.tier_timeouts == TIMEOUTS_MAX
    assert stats.tier_exclusions == 1
    read(job, node, 7)  # at once, by the next one
    assert stats.deaths == 0, "nobody takes it for gone"
    other = not_owner(job, node, owner(job, gone=(stuck,)))
    assert job.daemons[owner(job, gone=(stuck,))].node.stats.fallbacks > 0
    request = begin(job, other, 8)
    job.pass_time(SLOW_S, step_s=0.25)
    assert has(job, other, request, 8)


def test_an_owner_that_hangs_is_done_without_also_by_who_reads_one_after_the_other() -> None:
    job = tiered()
    stuck = owner(job)
    job.no_source.add(NodeId(stuck))
    node = not_owner(job, owner(job, gone=(stuck,)))
    for index in range(0, 2 * TIMEOUTS_MAX, 2):
        request = begin(job, node, index)
        job.pass_time(SLOW_S, step_s=0.25)
        assert has(job, node, request, index)
    assert job.daemons[node].node.stats.tier_exclusions == 1
    read(job, node, 9)  # at once


def files_of(job: Job, first: int, second: int, count: int) -> list[Path]:
    """Files that *first* owns, and *second* if that one is gone."""
    found = []
    for n in range(10_000):
        path = Path(b"lib/file%d" % n)
        job.tree.add(path, SIZE)
        if owner(job, path) == first and owner(job, path, gone=(first,)) == second:
            found.append(path)
            if len(found) == count:
                return found
    raise AssertionError("there are not so many")


def test_who_does_without_an_owner_says_so_to_the_next_whichever_it_is() -> None:
    job = tiered()
    stuck, node, *others = range(8)
    job.no_source.add(NodeId(stuck))
    for path in files_of(job, stuck, others[0], 3):
        begin(job, node, 0, path)
    job.pass_time(SLOW_S, step_s=0.25)
    assert job.daemons[node].node.stats.tier_exclusions == 1
    for other in others:
        read(job, node, 0, files_of(job, stuck, other, 1)[0])  # at once
    asked = job.daemons[stuck].node.stats.peer_questions
    assert asked == 3


def test_nobody_does_without_an_owner_because_others_say_so_for_longer_than_they_do() -> None:
    job = tiered()
    stuck, one, other = range(3)
    job.no_source.add(NodeId(stuck))
    for path in files_of(job, stuck, other, 3):
        begin(job, one, 0, path)
    job.pass_time(SLOW_S, step_s=0.25)
    job.no_source.clear()
    for n in range(3, 16):  # they ask each other what is of the one that was stuck
        job.pass_time(10.0, step_s=1.0)
        read(job, one, n % 10, files_of(job, stuck, other, 1)[0])
        read(job, other, n % 10, files_of(job, stuck, one, 1)[0])
    before = job.daemons[stuck].node.stats.peer_questions
    read(job, one, 9, files_of(job, stuck, other, 2)[1])
    read(job, other, 9, files_of(job, stuck, one, 2)[1])
    assert job.daemons[stuck].node.stats.peer_questions == before + 2


def test_one_that_waits_for_a_slow_owner_is_not_taken_for_another() -> None:
    job = tiered(8, fanout=1)
    slow = owner(job)
    taker, node = not_owner(job), not_owner(job, not_owner(job))
    job.no_source.add(NodeId(slow))
    for index in range(0, 8, 2):
        begin(job, taker, index)
    job.run()
    for index in range(0, 8, 2):
        begin(job, node, index)  # and is sent to the taker
    job.pass_time(SLOW_S, step_s=0.25)
    owners = job.daemons[node].node._routing.owners
    assert owners is not None
    assert NodeId(taker) not in owners.without(job.now)
    owners = job.daemons[slow].node._routing.owners
    assert owners is not None
    assert NodeId(taker) not in owners.without(job.now)


@pytest.mark.parametrize("to_itself", [False, True])
def test_one_that_sends_others_round_and_round_is_passed_over(to_itself: bool) -> None:
    job = tiered()
    node, sick = not_owner(job), owner(job)
    named = node if to_itself else not_owner(job, node)
    read(job, node, 0)
    job.frozen.add(NodeId(sick))
    request = begin(job, node, 5)
    queue = job.queues[NodeId(node), NodeId(sick)]
    asks = 0
    while queue and asks < 100:
        message, _ = queue.popleft()
        if isinstance(message, Ask):
            asks += 1
            job.happen(
                NodeId(node), Heard(NodeId(sick), Redirect(message.number, 1, NodeId(named)))
            )
            job.run()
    assert asks <= 2
    job.pass_time(DOUBTED_S)
    assert has(job, node, request, 5)


def test_the_next_owner_has_its_time_from_when_it_is_asked() -> None:
    job = tiered()
    first = owner(job)
    second = owner(job, gone=(first,))
    node = not_owner(job, second, owner(job, gone=(first, second)))
    read(job, node, 0)
    job.no_source |= {NodeId(first), NodeId(second)}
    request = begin(job, node, 5)
    job.pass_time(SLOW_S - 1, step_s=0.25)
    job.crash(first)
    job.pass_time(2.0, step_s=0.25)
    job.no_source.clear()
    job.run()
    assert has(job, node, request, 5)
    assert max(reads(job)) == 1


@pytest.mark.parametrize("seed", range(3))
def test_nobody_waits_longer_because_many_owners_are_asked(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(company, "REACHED_MAX", 1)
    job = tiered(12, seed=seed)
    paths = [b"lib/many%d" % n for n in range(20)]
    for path in paths:
        job.tree.add(path, SIZE)
    requests = [(n, path, begin(job, n, 0, path)) for n in range(12) for path in paths]
    job.run()  # without any time
    assert all(has(job, n, request, 0, path) for n, path, request in requests)
    assert reads(job) == [1] * len(paths)


def test_one_that_is_back_has_its_own_chunks_again() -> None:
    job = tiered()
    dead = owner(job)
    node = not_owner(job)
    read(job, node, 0)
    for peer in range(job.nodes):
        if peer != dead and (NodeId(peer), NodeId(dead)) in job.queues:
            job.cut(NodeId(dead), NodeId(peer))
    job.pass_time(5.0, step_s=0.25)
    read(job, node, 5)
    assert job.daemons[dead].node.stats.tier_from_source == 1
    job.severed.clear()
    job.pass_time(12.0, step_s=0.25)
    read(job, node, 9)
    assert job.daemons[dead].node.stats.tier_from_source == 2


def test_for_comparison_each_reads_by_itself_what_was_lost() -> None:
    job = tiered(lost_from_source=True)
    dead = owner(job)
    for n in range(job.nodes):
        if n != dead:
            read(job, n, 0)
    job.crash(dead)
    job.pass_time(4.0, step_s=0.25)
    living = [n for n in range(job.nodes) if n != dead]
    for n in living:
        read(job, n, 1)
    assert job.tree.chunk_reads[LARGE, CHUNK] == len(living)


# --- alone ----------------------------------------------------------------------------------------


def test_a_node_alone_reads_in_chunks_as_well() -> None:
    job = tiered(1, disks=True)
    for index in chunks(job):
        read(job, 0, index)
    assert reads(job) == [1] * len(chunks(job))
    assert len(job.daemons[0].disk) == len(chunks(job))


def test_without_a_tier_a_large_file_is_opened_by_each_reader() -> None:
    job = tiered(2)
    for daemon in job.daemons:
        daemon.node._questions.chunks = None
    request = begin(job, 1, 0)
    job.run()
    assert isinstance(job.daemons[1].answers[request], AnswerHandle)


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
        disks=data.draw(st.booleans()),
        crowds_above=data.draw(st.sampled_from((2, 256))),
        tier_waits=data.draw(st.booleans()),
        tier_backlog_bytes=data.draw(st.sampled_from((CHUNK, 3 * CHUNK, 64 * MIB))),
    )
    job.tree.add(b"lib/other", 30 * CHUNK)
    asked = []
    for _ in range(data.draw(st.integers(1, 25))):
        living = [n for n in range(nodes) if NodeId(n) not in job.crashed | job.frozen]
        what = data.draw(st.sampled_from(("read", "read", "read", "crash", "freeze", "time")))
        node = data.draw(st.sampled_from(living))
        if what == "read":
            path = data.draw(st.sampled_from((LARGE, Path(b"lib/other"))))
            index = data.draw(st.sampled_from(list(chunks(job, path))))
            asked.append((node, begin(job, node, index, path), index, path))
        elif what == "crash" and len(living) > 1:
            job.crash(node)
        elif what == "freeze" and len(living) > 1:
            job.frozen.add(NodeId(node))
        else:
            job.pass_time(data.draw(st.sampled_from((0.05, 0.5))))
    job.pass_time(4.0, step_s=0.1)
    for node, request, index, path in asked:
        if NodeId(node) not in job.crashed | job.frozen:
            assert has(job, node, request, index, path)
