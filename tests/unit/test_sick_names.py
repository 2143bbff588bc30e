"""Failed names: what a node remembers of names whose lookup fails."""

import errno

import pytest

from copperfs.model.types import NodeId, Path, Version
from copperfs.node.actions import AnswerError, LookupSource, ReadSource
from copperfs.node.cache.error_cache import BELIEVED_S, SICK_MAX, WITNESSES_ENOUGH, FailedNames
from copperfs.node.events import Clear, ListRequest, LookupRequest, PeerMessage
from copperfs.node.limits_and_counters import FetchKind, Subject
from copperfs.node.peer.messages import ContentKind, ErrorReply, Request
from tests.unit.node_lab import DEADLINE_S
from tests.unit.simulated_job import ASK_DEADLINE_S, SimulatedJob


def of(path: bytes) -> Subject:
    return (FetchKind.ENTRY, Path(path), None)


def test_an_error_is_believed_for_a_moment() -> None:
    names = FailedNames(remembers=True)
    names.note(10.0, of(b"d/f"), errno.EIO, 1)
    found = names.get(10.0 + BELIEVED_S / 2, of(b"d/f"))
    assert found is not None
    assert (found.error, found.witnesses) == (errno.EIO, 1)
    assert names.get(10.0, of(b"d/g")) is None
    assert names.get(10.0 + BELIEVED_S, of(b"d/f")) is None


def test_a_node_alone_remembers_nothing() -> None:
    names = FailedNames(remembers=False)
    names.note(0.0, of(b"f"), errno.EIO, 1)
    assert names.get(0.0, of(b"f")) is None


def test_only_so_many_errors_are_remembered_and_none_after_a_clear() -> None:
    names = FailedNames(remembers=True)
    for number in range(SICK_MAX + 1):
        names.note(0.0, of(b"%d" % number), errno.EIO, 1)
    assert names.get(0.0, of(b"0")) is None
    assert names.get(0.0, of(b"1")) is not None
    names.clear()
    assert names.get(0.0, of(b"1")) is None


def test_an_error_that_was_seen_again_lately_is_not_the_first_that_is_forgotten() -> None:
    names = FailedNames(remembers=True)
    for number in range(SICK_MAX):
        names.note(0.0, of(b"%d" % number), errno.EIO, 1)
    names.note(1.0, of(b"0"), errno.EIO, 1)
    names.note(1.0, of(b"more"), errno.EIO, 1)
    assert names.get(1.0, of(b"0")) is not None
    assert names.get(1.0, of(b"1")) is None


# --- messages between nodes -----------------------------------------------------------------------

SICK = Path(b"lib/sick")


def job_with_a_sick_name(nodes: int) -> SimulatedJob:
    job = SimulatedJob(nodes, fanout=2)
    job.add(SICK)
    job.add(b"lib/well")
    job.source.failing[SICK] = errno.EIO
    for number in range(nodes):
        job.ask(number, ListRequest, b"lib")
    job.run()
    assert job.source.counts["scan", Path(b"lib")] == 1
    return job


def look(job: SimulatedJob, *nodes: int) -> set[int]:
    """On all of these nodes at once; returns the errors, 0 for an entry."""
    requests = [(number, job.ask(number, LookupRequest, SICK)) for number in nodes]
    job.run()
    answers = [job.answer(number, request) for number, request in requests]
    return {each.error if isinstance(each, AnswerError) else 0 for each in answers}


def looks(job: SimulatedJob) -> int:
    return job.source.counts["look", SICK]


def test_few_nodes_of_many_look_at_a_sick_name_however_often_it_is_asked_for() -> None:
    job = job_with_a_sick_name(40)
    assert look(job, *range(40)) == {errno.EIO}
    for _ in range(10):
        assert look(job, *range(40)) == {errno.EIO}
    assert looks(job) <= 1 + 2 + 4
    job.check_at_rest()


def test_a_name_that_is_well_again_is_found_by_all_after_a_moment() -> None:
    job = job_with_a_sick_name(40)
    look(job, *range(40))
    before = looks(job)
    del job.source.failing[SICK]
    job.pass_time(BELIEVED_S)
    assert look(job, *range(40)) == {0}
    assert looks(job) == before + 1
    assert job.source.counts["scan", Path(b"lib")] == 1


def test_a_clear_has_the_name_looked_at_again() -> None:
    job = job_with_a_sick_name(3)
    look(job, 0, 1, 2)
    job.source.failing.clear()
    for number in range(3):
        job.post(number, Clear())
    job.run()
    assert look(job, 0, 1, 2) == {0}


def test_a_name_that_hangs_costs_each_node_one_look_in_its_deadline() -> None:
    job = job_with_a_sick_name(7)
    job.hold_source(*range(7))
    requests = [(number, job.ask(number, LookupRequest, SICK)) for number in range(7)]
    job.pass_time(DEADLINE_S + 1.0)
    for number, request in requests:
        assert job.answer(number, request) == AnswerError(request, errno.ETIMEDOUT)
    assert all(len(job.held_reads(number)) <= 1 for number in range(7))


def test_a_node_that_has_looked_does_not_look_again_when_its_parent_fails_as_well() -> None:
    job = job_with_a_sick_name(2)
    job.hang(0)
    request = job.ask(1, LookupRequest, SICK)
    job.pass_time(1.0)
    assert looks(job) == 1, "in the place of the parent, which says nothing"
    assert request not in job.answers[1], "the parent may know better"
    job.hold_source(0)  # its lookup takes longer than an error stays valid
    job.go_on()
    job.pass_time(2 * BELIEVED_S)
    job.let_source_go()
    job.pass_time(1.0)
    assert job.answer(1, request) == AnswerError(request, errno.EIO)
    assert looks(job) == 2, "each has looked once"


@pytest.mark.parametrize("witnesses", range(WITNESSES_ENOUGH + 1))
def test_a_node_looks_unless_enough_others_above_it_have(witnesses: int) -> None:
    job = job_with_a_sick_name(2)
    child = job[1].node
    job.ask(1, LookupRequest, SICK)
    (ask,) = job.asked(1, ContentKind.ENTRY)
    actions = child.step(
        job.now, PeerMessage(NodeId(0), ErrorReply(ask.number, 1, errno.EIO, witnesses))
    )
    told = [each for each in actions if isinstance(each, AnswerError)]
    looked = [each for each in actions if isinstance(each, LookupSource)]
    assert (len(told), len(looked)) == ((1, 0) if witnesses >= WITNESSES_ENOUGH else (0, 1))


# --- bytes ----------------------------------------------------------------------------------------

WELL = Path(b"lib/well")


def job_that_cannot_read(
    nodes: int, source_deadline_s: float = DEADLINE_S
) -> tuple[SimulatedJob, Version]:
    job = SimulatedJob(nodes, fanout=2, source_deadline_s=source_deadline_s)
    wanted = job.add(WELL)
    for number in range(nodes):
        job.ask(number, ListRequest, b"lib")
    job.run()
    job.source.failing[WELL] = errno.EIO
    return job, wanted


def read(job: SimulatedJob, wanted: Version, *nodes: int) -> set[int]:
    """On all of these nodes at once; returns the errors, 0 for the bytes."""
    requests = [(number, job.read(number, WELL, wanted)) for number in nodes]
    job.run()
    answers = [job.answer(number, request) for number, request in requests]
    return {each.error if isinstance(each, AnswerError) else 0 for each in answers}


def reads(job: SimulatedJob) -> int:
    return job.source.counts["read", WELL]


def refuse(job: SimulatedJob, number: int, peer: int, error: int, witnesses: int) -> None:
    ask = job.messages(Request, number, peer)[-1]
    job.receive(number, peer, ErrorReply(ask.number, 1, error, witnesses))


def test_few_nodes_of_many_read_what_cannot_be_read_however_often_it_is_asked_for() -> None:
    job, wanted = job_that_cannot_read(40)
    assert read(job, wanted, 39) == {errno.EIO}
    assert reads(job) <= 3, "the root, one below it, and one that is asked for a second opinion"
    for _ in range(10):
        assert read(job, wanted, *range(40)) == {errno.EIO}
    assert reads(job) <= 1 + 2 + 4
    job.check_at_rest()


def test_a_file_that_is_well_again_is_read_by_one_for_all_after_a_moment() -> None:
    job, wanted = job_that_cannot_read(40)
    read(job, wanted, *range(40))
    before = reads(job)
    job.source.failing.clear()
    job.pass_time(BELIEVED_S)
    assert read(job, wanted, *range(40)) == {0}
    assert reads(job) == before + 1


def test_a_clear_has_the_file_read_again() -> None:
    job, wanted = job_that_cannot_read(3)
    read(job, wanted, 0, 1, 2)
    job.source.failing.clear()
    for number in range(3):
        job.post(number, Clear())
    job.run()
    assert read(job, wanted, 0, 1, 2) == {0}


def test_another_version_of_the_file_is_read() -> None:
    job, wanted = job_that_cannot_read(3)
    read(job, wanted, 0, 1, 2)
    job.source.failing.clear()
    newer = job.add(WELL, changed_s=1)
    assert read(job, newer, 0, 1, 2) == {0}


@pytest.mark.parametrize("witnesses", range(WITNESSES_ENOUGH + 1))
def test_a_node_reads_unless_enough_others_above_it_have(witnesses: int) -> None:
    job, wanted = job_that_cannot_read(2)
    job.hold_source(1)
    request = job.read(1, WELL, wanted)
    refuse(job, 1, 0, errno.EIO, witnesses)
    reading = [each for each in job.held_reads(1) if isinstance(each, ReadSource)]
    told = request in job.answers[1]
    assert (told, len(reading)) == ((True, 0) if witnesses >= WITNESSES_ENOUGH else (False, 1))


def test_what_a_node_got_from_another_although_its_own_read_had_failed_is_no_sick_file() -> None:
    job, wanted = job_that_cannot_read(2)
    job.hang(0)
    request = job.read(1, WELL, wanted)
    job.pass_time(1.0)
    assert reads(job) == 1, "in the place of the parent, which says nothing"
    job.source.failing.clear()
    job.go_on()
    job.pass_time(0.1)
    assert isinstance(job.answer(1, request), bytes)
    assert job[1].node._handler.failed_names.get(job.now, (FetchKind.OBJECT, WELL, wanted)) is None


@pytest.mark.parametrize("has_read", [False, True])
def test_only_a_peer_that_has_read_has_the_last_word_on_a_file(has_read: bool) -> None:
    job, wanted = job_that_cannot_read(4)
    job.hang(0, 1, 2)
    request = job.read(3, WELL, wanted)  # its parent is 1, and the one above that is 0
    refuse(job, 3, 1, errno.EFBIG, 0)
    job.run()
    assert reads(job) == 1
    assert request not in job.answers[3]
    refuse(job, 3, 0, errno.EIO if has_read else errno.EBUSY, int(has_read))
    assert (request in job.answers[3]) == has_read


def test_a_node_that_cannot_read_waits_for_each_peer_that_may_still_give_the_bytes() -> None:
    job, wanted = job_that_cannot_read(4, source_deadline_s=4 * ASK_DEADLINE_S)
    job.hold_source(0, 1)
    request = job.read(3, WELL, wanted)  # its parent is 1, and the one above that is 0
    job.pass_time(ASK_DEADLINE_S + 1.0)
    assert reads(job) == 1, "both are silent about it"
    job.let_source_go(0)
    job.run()
    assert reads(job) == 2, "the root has failed as well"
    assert request not in job.answers[3]
    job.source.failing.clear()
    job.let_source_go()
    job.pass_time(1.0)
    assert isinstance(job.answer(3, request), bytes)
