"""Copies of chunks: made after the first read, asked before the source, and made again after a
loss.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from copperfs.lab.sim.sim_disk import DiskCosts
from copperfs.model.protection import protection_of
from copperfs.model.types import ChunkKey, NodeId, Path
from copperfs.node.actions import Action
from copperfs.node.peer.messages import (
    Cancel,
    ChunkAskMode,
    ContentKind,
    CopyOffer,
    CopyReport,
    DataReply,
    ErrorReply,
    Request,
)
from copperfs.node.requests import copies as copies_module
from copperfs.node.requests.copies import CopyKeeper
from tests.unit.simulated_job import SimulatedJob
from tests.unit.test_chunks import (
    CHUNK,
    DOUBTED_S,
    HEDGED_S,
    LARGE,
    MIB,
    TIMEOUTS,
    begin,
    chunks,
    has,
    read,
    reads,
    tiered,
)


def protected(nodes: int = 8, copies: int = 2, seed: int = 0, **more: Any) -> SimulatedJob:
    return tiered(nodes, seed=seed, protection=protection_of({Path(b"lib"): copies}), **more)


def keeper(job: SimulatedJob, number: int) -> CopyKeeper:
    found = job[number].node._copies
    assert found is not None
    return found


def key_of(job: SimulatedJob, index: int = 0, path: bytes = LARGE) -> ChunkKey:
    return ChunkKey(Path(path), job.version(path), index)


def holders(job: SimulatedJob, index: int = 0, at: int | None = None) -> list[int]:
    number = job.world.alive()[0] if at is None else at
    return list(keeper(job, number).routing.holders(key_of(job, index)))


def keeping(job: SimulatedJob, index: int = 0) -> set[int]:
    key = key_of(job, index)
    return {n for n in job.world.alive() if job[n].node.keeps_chunk(key)}


def total(job: SimulatedJob, name: str) -> int:
    return sum(getattr(job[n].node.statistics(), name) for n in job.world.alive())


def read_all(job: SimulatedJob, node: int) -> None:
    requests = [(index, begin(job, node, index)) for index in chunks(job)]
    job.run()
    job.pass_time_until(lambda: all(each in job.answers[node] for _, each in requests))
    assert all(has(job, node, request, index) for index, request in requests)


def settle(job: SimulatedJob, within_s: float = 60.0) -> None:
    """Until all is protected."""
    job.pass_time(0.5)
    job.pass_time_until(lambda: not total(job, "copies_due"), within_s)
    job.run()


def lose(job: SimulatedJob, node: int) -> None:
    """All others have found it gone."""
    job.world.crash(node)
    job.pass_time_until(lambda: all(node in job[n].node.gone() for n in job.world.alive()))
    job.run()


def check(job: SimulatedJob) -> None:
    for node in job.world.alive():
        job[node].node.check_invariants()


# --- classes --------------------------------------------------------------------------------------


def test_without_a_class_no_node_keeps_account_of_copies() -> None:
    job = tiered()
    assert all(each.node._copies is None for each in job)
    read_all(job, 3)
    job.pass_time(5.0)
    assert not job.sent["CopyOffer"]
    assert not {each.how for n in range(8) for each in job.messages(Request, n)} & {
        ChunkAskMode.COPY
    }


def test_only_chunks_below_a_protected_path_have_copies() -> None:
    job = protected()
    job.add(b"other/large", 10 * CHUNK)
    for index in range(10):
        read(job, 3, index, b"other/large")
    job.pass_time(5.0)
    assert not job.sent["CopyOffer"]


# --- copies are made ------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [2, 3, 4])
@pytest.mark.parametrize("has_disk", [False, True])
def test_a_chunk_that_was_read_is_kept_by_as_many_nodes_as_its_class_says(
    copies: int, has_disk: bool
) -> None:
    job = protected(copies=copies, tier_has_disk=has_disk)
    reader = next(n for n in range(8) if n not in holders(job))
    read_all(job, reader)
    settle(job)
    for index in chunks(job):
        assert keeping(job, index) == set(holders(job, index))
    assert total(job, "copies_made") == (copies - 1) * len(chunks(job))
    sizes = sum(job[0].node.limits.chunk_layout(job.version(LARGE).size).size_of(i)
                for i in chunks(job))  # fmt: skip
    assert total(job, "copied_bytes") == (copies - 1) * sizes
    assert reads(job) == [1] * len(chunks(job))
    if has_disk:
        assert sum(len(each.disk.chunks) for each in job) == copies * len(chunks(job))
    check(job)
    job.check_at_rest()


def test_copies_are_in_different_racks() -> None:
    job = protected(16, copies=3, has_domains=True, rack=4)
    read_all(job, 3)
    settle(job)
    for index in chunks(job):
        assert len({node // 4 for node in keeping(job, index)}) == 3


def test_a_node_that_hangs_delays_the_first_read_until_it_is_found_silent() -> None:
    job = protected()
    first, second = holders(job)
    job.hang(second)
    request = begin(job, first, 0)
    job.pass_time(HEDGED_S)
    assert has(job, first, request, 0)
    assert keeping(job) == {first}
    read(job, first, 1)
    assert set(reads(job)) == {1}, "some were read ahead"


def test_a_node_copies_few_chunks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies_module, "PULLS_MAX", 1)
    job = protected()
    read_all(job, 3)
    settle(job)
    assert all(keeping(job, index) == set(holders(job, index)) for index in chunks(job))


def test_a_full_node_declines_copies_and_keeps_what_it_owns() -> None:
    job = SimulatedJob(
        2,
        chunk_bytes=MIB,
        tier_memory_bytes=MIB,
        tree_max_bytes=MIB,
        protection=protection_of({Path(b""): 2}),
    )
    job.add(LARGE, 50 * MIB)
    for index in range(50):
        job.read(0, LARGE, offset=index * MIB)
        job.run()
    job.pass_time(30.0)
    check(job)
    assert total(job, "copies_due")
    for node in (each.node for each in job):
        stats = node.statistics()
        assert stats.tier_memory_held_bytes <= stats.tier_memory_budget_bytes
        own = [index for index in range(50) if node.owns_chunk(key_of(job, index))]
        assert len(own) > 30 or all(node.keeps_chunk(key_of(job, index)) for index in own)


# --- after a loss ---------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("has_disk", [False, True])
@pytest.mark.parametrize("has_domains", [False, True])
def test_the_loss_of_a_holder_costs_no_read_of_the_source(
    copies: int, has_disk: bool, has_domains: bool
) -> None:
    job = protected(12, copies=copies, tier_has_disk=has_disk, has_domains=has_domains, rack=3)
    read_all(job, 0)
    settle(job)
    for lost in range(1, copies):
        lose(job, holders(job)[0])
        for node in job.world.alive():
            read_all(job, node)
        assert reads(job) == [1] * len(chunks(job)), lost
    settle(job)
    for index in chunks(job):
        assert set(holders(job, index)) <= keeping(job, index)
    check(job)


def test_copies_survive_losses_at_the_same_time() -> None:
    job = protected(12, copies=3)
    read_all(job, 0)
    settle(job)
    for node in holders(job)[:2]:
        job.world.crash(node)
    for node in job.world.alive():
        read_all(job, node)
    assert reads(job) == [1] * len(chunks(job))


def test_the_next_holder_copies_from_a_survivor() -> None:
    job = protected(12, copies=2)
    read_all(job, 0)
    settle(job)
    before = total(job, "copies_made")
    for node in list(range(1, 12))[:6]:
        lose(job, node)
        settle(job)
        for index in chunks(job):
            assert len(keeping(job, index)) >= 2
    read_all(job, 0)
    assert reads(job) == [1] * len(chunks(job))
    assert total(job, "copies_made") > before - len(chunks(job))


def test_a_node_without_fallbacks_reads_from_copies() -> None:
    job = protected(copies=2, fallback_concurrency=0)
    read_all(job, 3)
    settle(job)
    dead = holders(job)[0]
    job.hold_source(*range(job.nodes))
    job.world.crash(dead)
    reader = next(n for n in job.world.alive() if n not in holders(job, at=n))
    read_all(job, reader)
    assert not any(job.held_reads(n) for n in job.world.alive())


def test_a_node_that_returns_gets_its_chunks_from_copies() -> None:
    job = protected(copies=2)
    read_all(job, 3)
    settle(job)
    dead = holders(job)[0]
    lose(job, dead)
    job.world.restart(dead)
    job.pass_time_until(lambda: not any(dead in job[n].node.gone() for n in job.world.alive()))
    settle(job)
    own = [index for index in chunks(job) if holders(job, index)[0] == dead]
    assert own
    assert all(dead in keeping(job, index) for index in own)
    read_all(job, dead)
    assert reads(job) == [1] * len(chunks(job))
    check(job)


def test_the_copy_of_a_lost_node_is_made_again_when_it_is_lost_again() -> None:
    job = protected(copies=2)
    read(job, 3, 0)
    settle(job)
    first, lost = holders(job)
    lose(job, lost)
    settle(job)
    substitute = holders(job)[1]
    assert substitute in keeping(job)
    job.world.restart(lost)
    job.pass_time_until(lambda: lost in keeping(job))
    settle(job)
    assert key_of(job) not in keeper(job, substitute).ledger
    check(job)
    cache = job[substitute].node._chunk_cache
    assert cache is not None
    cache._gone(cache._owned.drop(key_of(job)), None)
    lose(job, lost)
    settle(job)
    assert keeping(job) == {first, substitute}
    assert reads(job)[0] == 1


def test_a_node_that_was_restarted_unnoticed_gets_its_chunks_from_copies() -> None:
    job = protected(copies=2)
    read_all(job, 3)
    settle(job)
    restarted = holders(job)[0]
    job.world.crash(restarted)
    job.world.restart(restarted)
    job.pass_time(5.0)
    read_all(job, restarted)
    settle(job)
    assert restarted in keeping(job)
    assert reads(job) == [1] * len(chunks(job))


def test_what_an_owner_has_evicted_it_gets_from_a_copy() -> None:
    job = protected(copies=2)
    read(job, 3, 0)
    settle(job)
    first = holders(job)[0]
    cache = job[first].node._chunk_cache
    assert cache is not None
    key = key_of(job)
    cache._gone(cache._owned.drop(key), None)
    check(job)
    read(job, first, 0)
    assert reads(job) == [1]
    assert job[first].node.stats.copies_read == 1


def test_the_owner_learns_of_an_evicted_copy_and_offers_it_again() -> None:
    job = protected(copies=2)
    read(job, 3, 0)
    settle(job)
    first, second = holders(job)
    cache = job[second].node._chunk_cache
    assert cache is not None
    cache._gone(cache._owned.drop(key_of(job)), None)
    job.receive(second, first, CopyReport(LARGE, job.version(LARGE), 9, is_kept=True))
    job.run()
    assert job[first].node.statistics().copies_due == 1
    settle(job)
    assert keeping(job) == {first, second}
    assert reads(job) == [1]


def test_no_node_is_offered_a_chunk_that_it_should_keep_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = protected(copies=2)
    read(job, 3, 0)
    settle(job)
    first, lost = holders(job)
    lose(job, lost)
    settle(job)
    substitute = holders(job)[1]
    assert key_of(job) in keeper(job, substitute).ledger, "it was perhaps told before of the loss"
    monkeypatch.setattr(copies_module, "PULLS_WAITING_MAX", 0)  # it declines
    cache = job[substitute].node._chunk_cache
    assert cache is not None
    cache._gone(cache._owned.drop(key_of(job)), None)
    job.receive(substitute, first, CopyReport(LARGE, job.version(LARGE), 9, is_kept=True))
    job.pass_time(5.0)
    assert (substitute, key_of(job)) in keeper(job, first)._again
    job.world.restart(lost)
    job.pass_time_until(lambda: not job[first].node.gone())
    read(job, lost, 0)
    settle(job)
    job.pass_time(copies_module.AGAIN_MAX_S)
    before = len(job.messages(CopyOffer, first, substitute))
    job.pass_time(2 * copies_module.AGAIN_MAX_S)
    assert len(job.messages(CopyOffer, first, substitute)) == before
    assert not keeper(job, first)._again
    assert not keeper(job, first)._offers
    check(job)


def test_a_node_that_does_not_answer_delays_no_copies_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies_module, "OFFERED_MAX", 6)
    job = protected(3, copies=3)
    first, second, third = holders(job)
    pull = CopyKeeper._pull

    def pull_unless_slow(keeper: CopyKeeper, now: float) -> list[Action]:
        return [] if keeper.membership.members.me == second else pull(keeper, now)

    monkeypatch.setattr(CopyKeeper, "_pull", pull_unless_slow)
    read_all(job, first)
    job.pass_time(3.0)
    assert all(keeping(job, index) >= {first, third} for index in chunks(job))
    assert not any(second in keeping(job, index) for index in chunks(job))
    job.pass_time(copies_module.REPORT_WITHIN_S)
    waiting = keeper(job, first)._again
    assert sum(peer == second for peer, _ in waiting) >= copies_module.OFFERED_EACH_MAX
    check(job)


def test_a_late_answer_about_a_copy_does_not_keep_a_fetch_from_the_next_owner() -> None:
    job = protected(copies=2)
    first, second = holders(job)
    reader = next(n for n in range(8) if n not in (first, second))
    job.hold_source(*range(8))
    begin(job, reader, 0)
    job.run()
    node = job[reader].node
    good = filter(node._routing.is_good, map(NodeId, range(8)))
    late = next(each for each in good if each not in (first, second))
    (fetch,) = (each for each in node._fetches.running() if each.subject[2] == key_of(job))
    fetch.copies = replace(fetch.copies.without(late), over_at=job.now)
    node._fetches.machine._send_request(job.now, fetch, late, of_copy=True)
    assert list(fetch.attempts) == [first, late]
    job.world.crash(first)
    job.run()
    assert list(fetch.attempts) == [late, second]
    check(job)


def test_the_source_is_not_read_while_a_holder_may_be_back_in_a_moment() -> None:
    job = protected(copies=2)
    read(job, holders(job)[0], 0)
    settle(job)
    first, second = holders(job)
    cache = job[first].node._chunk_cache
    assert cache is not None
    cache._gone(cache._owned.drop(key_of(job)), None)
    job.cut(first, second)
    request = begin(job, first, 0)
    job.pass_time(TIMEOUTS.doubt_s / 2)
    assert request not in job.answers[first]
    job.heal()
    assert has(job, first, request, 0)
    assert reads(job)[0] == 1
    assert job[first].node.stats.copies_read == 1
    check(job)


def test_a_holder_that_is_not_back_delays_a_read_by_a_moment_only() -> None:
    job = protected(copies=3)
    read(job, holders(job)[0], 0)
    settle(job)
    first, second, third = holders(job)
    for node in (first, third):
        cache = job[node].node._chunk_cache
        assert cache is not None
        cache._gone(cache._owned.drop(key_of(job)), None)
    job.cut(first, second)
    request = begin(job, first, 0)
    job.run()
    asked = [each.how for each in job.asked(first, ContentKind.CHUNK, third)]
    assert asked[-1:] == [ChunkAskMode.COPY], "it is asked meanwhile"
    job.pass_time(DOUBTED_S)
    assert has(job, first, request, 0)
    assert max(reads(job)) == 2
    check(job)


# --- copies on disks -----------------------------------------------------------------------------


def on_disk_alone(job: SimulatedJob, node: int, *indices: int) -> None:
    """Memory evicts these chunks."""
    cache = job[node].node._chunk_cache
    assert cache is not None
    for index in indices:
        assert keeper(job, node).is_on_disk(key_of(job, index))
        cache._gone(cache._owned.drop(key_of(job, index)), None)


def ask_for_copy(job: SimulatedJob, node: int, peer: int, number: int, index: int) -> None:
    version = job.version(LARGE)
    message = Request(number, 1, ContentKind.CHUNK, LARGE, version, index, ChunkAskMode.COPY)
    job.receive(node, peer, message)


def with_slow_disk(monkeypatch: pytest.MonkeyPatch) -> tuple[SimulatedJob, int, int]:
    """A holder that loads one chunk in a second, and another node."""
    monkeypatch.setattr(copies_module, "LOADS_MAX", 1)
    job = protected(tier_has_disk=True)
    read_all(job, 3)
    settle(job)
    first, second = holders(job)
    on_disk_alone(job, second, *(index for index in chunks(job) if second in holders(job, index)))
    job[second].disk.costs = DiskCosts(1.0, float("inf"), float("inf"))
    return job, second, next(n for n in range(8) if n not in (first, second))


def test_a_peer_with_a_new_connection_gets_no_copy_that_it_asked_for_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, holder, peer = with_slow_disk(monkeypatch)
    last = len(chunks(job)) - 1
    ask_for_copy(job, holder, peer, 1001, 1)
    ask_for_copy(job, holder, peer, 1002, last)
    job.run()
    job.renew(peer, holder)
    job.run()
    ask_for_copy(job, holder, peer, 1002, 0)
    job.pass_time(5.0)
    given = [each for each in job.messages(DataReply, holder, peer) if each.number > 1000]
    assert [(each.number, each.total_bytes) for each in given] == [(1002, CHUNK)]
    check(job)


def test_a_node_keeps_no_request_for_a_copy_that_was_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies_module, "WAITING_LOADS_MAX", 1)
    job, holder, peer = with_slow_disk(monkeypatch)
    for number in (1001, 1002):
        ask_for_copy(job, holder, peer, number, number - 1001)
    job.receive(holder, peer, Cancel(1002))
    for number in (1003, 1004):
        ask_for_copy(job, holder, peer, number, number - 1001)
    job.run()
    assert [each.number for each in job.messages(ErrorReply, holder, peer)][-1:] == [1004]
    check(job)
    job.pass_time(5.0)
    given = [each.number for each in job.messages(DataReply, holder, peer) if each.number > 1000]
    assert given == [1001, 1003]


@pytest.mark.parametrize("is_owner", [False, True])
def test_a_chunk_that_a_disk_has_evicted_is_copied_again(is_owner: bool) -> None:
    job = protected(copies=3, tier_has_disk=True)
    read_all(job, 3)
    settle(job)
    first, second, _ = holders(job)
    loser, asker = (first, second) if is_owner else (second, first)
    on_disk_alone(job, loser, 0)
    job[loser].disk.drop(key_of(job))
    ask_for_copy(job, loser, asker, 1001, 0)
    job.run()
    assert key_of(job) not in keeper(job, loser).ledger
    check(job)
    job.pass_time(5.0)
    settle(job)
    assert keeping(job) == set(holders(job))
    assert key_of(job) in job[loser].disk.chunks
    assert reads(job) == [1] * len(chunks(job))
    check(job)


def test_a_full_ledger_leaves_out_what_has_been_on_the_disk_alone_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = protected(2, tier_has_disk=True)
    monkeypatch.setattr(copies_module, "LEDGER_MAX", len(chunks(job)))
    read_all(job, 0)
    settle(job)
    for node in range(2):
        on_disk_alone(job, node, 1, 0, *chunks(job)[2:])
        read(job, node, 0)  # it is in memory again
    other = Path(b"lib/other")
    job.add(other, 3 * CHUNK)
    for index in range(3):
        read(job, 0, index, other)
    settle(job)
    for node in range(2):
        left = {key.index for key in keeper(job, node).ledger if key.path == LARGE}
        assert left == {0, *chunks(job)[4:]}
        assert sum(key.path == other for key in keeper(job, node).ledger) == 3
        assert job[node].node.stats.copies_untracked == 3
    check(job)


def test_a_full_node_whose_disk_takes_nothing_declines_copies() -> None:
    job = SimulatedJob(
        2,
        chunk_bytes=MIB,
        tier_memory_bytes=MIB,
        tree_max_bytes=MIB,
        tier_has_disk=True,
        protection=protection_of({Path(b""): 2}),
    )
    for each in job:
        each.disk.is_full = True
    job.add(LARGE, 100 * MIB)
    for index in range(100):
        job.read(0, LARGE, offset=index * MIB)
        job.run()
    job.pass_time(30.0)
    assert total(job, "copies_due")
    before, offers = total(job, "copied_bytes"), job.sent["CopyOffer"]
    job.pass_time(100.0)
    assert total(job, "copied_bytes") == before
    assert job.sent["CopyOffer"] > offers
    check(job)


def test_copies_that_a_node_evicts_again_and_again_are_offered_ever_more_rarely() -> None:
    job = protected(copies=2)
    read(job, 3, 0)
    settle(job)
    first, second = holders(job)
    cache, offered_at = job[second].node._chunk_cache, []
    assert cache is not None
    for _ in range(10):
        cache._gone(cache._owned.drop(key_of(job)), None)
        job.receive(second, first, CopyReport(LARGE, job.version(LARGE), 9, is_kept=True))
        job.run()
        assert keeping(job) == {first}
        job.pass_time_until(lambda: second in keeping(job), 100.0)
        offered_at.append(job.now)
    waits = [later - sooner for sooner, later in pairwise(offered_at)]
    assert waits[0] < 3.0 < 55.0 < waits[-1] < 65.0
    settle(job)
    job.pass_time(100.0)
    assert not keeper(job, first)._again


# --- what peers may say ---------------------------------------------------------------------------


def test_who_has_no_copy_refuses_at_once_and_reads_nothing() -> None:
    job = protected()
    version = job.version(LARGE)
    for node in range(8):
        message = Request(99, 1, ContentKind.CHUNK, LARGE, version, 0, ChunkAskMode.COPY)
        job.receive(node, (node + 1) % 8, message)
    job.run()
    assert reads(job) == []
    job.check_at_rest()


@pytest.mark.parametrize("index", [1 << 40, 0])
def test_an_offer_of_a_chunk_that_is_none_or_has_no_class_is_declined(index: int) -> None:
    job = protected()
    path = LARGE if index else Path(b"other/large")
    version = job.version(LARGE)
    job.receive(2, 1, CopyOffer(path, version, index))
    job.run()
    (report,) = job.messages(CopyReport, 2, 1)
    assert not report.is_kept
    assert reads(job) == []


def test_a_copy_that_nobody_has_is_never_read_from_the_source() -> None:
    job = protected()
    first, second = holders(job)
    job.receive(second, first, CopyOffer(LARGE, job.version(LARGE), 0))
    job.run()
    (report,) = job.messages(CopyReport, second, first)
    assert not report.is_kept
    assert reads(job) == []
    check(job)


def test_offers_of_more_chunks_than_a_node_keeps_account_of_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies_module, "LEDGER_MAX", 2)
    job = protected(2)
    read_all(job, 0)
    job.pass_time(5.0)
    assert job[0].node.stats.copies_untracked
    assert all(len(keeper(job, n).ledger) <= 2 for n in range(2))
    assert NodeId(0) in job.world.alive()
    check(job)
