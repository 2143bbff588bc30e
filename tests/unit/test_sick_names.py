"""What a node believes of names that cannot be looked at."""

import errno

import pytest

from copperfs.core.actions import AnswerError, LookSource
from copperfs.core.events import Heard, List, Look
from copperfs.core.messages import Ask, Refuse
from copperfs.core.sick_names import BELIEVED_S, SICK_MAX, WITNESSES_ENOUGH, SickNames
from copperfs.types import NodeId, Path
from tests.unit.overlay_lab import Job


def test_an_error_is_believed_for_a_moment() -> None:
    names = SickNames(remembers=True)
    names.note(10.0, Path(b"d/f"), errno.EIO, 1)
    found = names.get(10.0 + BELIEVED_S / 2, Path(b"d/f"))
    assert found is not None
    assert (found.error, found.witnesses) == (errno.EIO, 1)
    assert names.get(10.0, Path(b"d/g")) is None
    assert names.get(10.0 + BELIEVED_S, Path(b"d/f")) is None


def test_a_node_alone_remembers_nothing() -> None:
    names = SickNames(remembers=False)
    names.note(0.0, Path(b"f"), errno.EIO, 1)
    assert names.get(0.0, Path(b"f")) is None


def test_only_so_many_errors_are_remembered_and_none_after_a_clear() -> None:
    names = SickNames(remembers=True)
    for number in range(SICK_MAX + 1):
        names.note(0.0, Path(b"%d" % number), errno.EIO, 1)
    assert names.get(0.0, Path(b"0")) is None
    assert names.get(0.0, Path(b"1")) is not None
    names.clear()
    assert names.get(0.0, Path(b"1")) is None


# --- what nodes tell each other -------------------------------------------------------------------

SICK = Path(b"lib/sick")


def job_with_a_sick_name(nodes: int) -> Job:
    """All have the listing of its directory."""
    job = Job(nodes, fanout=2)
    job.tree.add(SICK)
    job.tree.add(b"lib/well")
    job.tree.failing[SICK] = errno.EIO
    for number in range(nodes):
        job.ask(number, List, b"lib")
    job.run()
    assert job.tree.counts["scan", Path(b"lib")] == 1
    return job


def look(job: Job, *nodes: int) -> set[int]:
    """All of these nodes at once; the errors that they are told."""
    requests = [(number, job.ask(number, Look, SICK)) for number in nodes]
    job.run()
    answers = [job.answer(number, request) for number, request in requests]
    return {each.error if isinstance(each, AnswerError) else 0 for each in answers}


def looks(job: Job) -> int:
    return job.tree.counts["look", SICK]


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
    del job.tree.failing[SICK]
    job.pass_time(BELIEVED_S)
    assert look(job, *range(40)) == {0}
    assert looks(job) == before + 1
    assert job.tree.counts["scan", Path(b"lib")] == 1


def test_a_clear_has_the_name_looked_at_again() -> None:
    job = job_with_a_sick_name(3)
    look(job, 0, 1, 2)
    job.tree.failing.clear()
    for number in range(3):
        job.clear(number)
    job.run()
    assert look(job, 0, 1, 2) == {0}


def test_a_name_that_hangs_costs_each_node_one_look_in_its_deadline() -> None:
    job = job_with_a_sick_name(7)
    job.no_source |= {NodeId(number) for number in range(7)}
    requests = [(number, job.ask(number, Look, SICK)) for number in range(7)]
    job.pass_time(job.deadline_s + 1.0)
    for number, request in requests:
        assert job.answer(number, request) == AnswerError(request, errno.ETIMEDOUT)
    assert looks(job) <= 7


@pytest.mark.parametrize("witnesses", range(WITNESSES_ENOUGH + 1))
def test_a_node_looks_unless_enough_others_above_it_have(witnesses: int) -> None:
    job = job_with_a_sick_name(2)
    child = job.daemons[1].node
    job.ask(1, Look, SICK)
    sent = [message for message, _ in job.queues[NodeId(1), NodeId(0)]]
    ask = next(message for message in sent if isinstance(message, Ask))
    actions = child.step(job.now, Heard(NodeId(0), Refuse(ask.number, 1, errno.EIO, witnesses)))
    told = [each for each in actions if isinstance(each, AnswerError)]
    looked = [each for each in actions if isinstance(each, LookSource)]
    assert (len(told), len(looked)) == ((1, 0) if witnesses >= WITNESSES_ENOUGH else (0, 1))
