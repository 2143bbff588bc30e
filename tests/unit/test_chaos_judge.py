"""Chaos judge: what counts as an error, and to which fault a stall is attributed."""

from __future__ import annotations

import errno

import pytest

from tests.chaos.judge import (
    Applied,
    Imported,
    Outcome,
    Read,
    beyond_faults,
    judge,
    more_than_once,
    quantile,
    stalls,
)
from tests.chaos.report import complaints, line, opened_beyond_faults
from tests.chaos.schedule import Fault, Schedule

BEGAN = 100.0


def applied(kind: str, node: int, at: float, until: float) -> Applied:
    return Applied(Fault(at, node, kind, until - at), BEGAN + at, BEGAN + until)


def read(node: int, at: float, took: float = 0.001, *, code: int = 0, wrong: bool = False) -> Read:
    return Read(node, BEGAN + at, BEGAN + at + took, "f", code, wrong)


def outcome(*faults: Applied, reads: list[Read], imports: list[Imported] | None = None) -> Outcome:
    schedule = Schedule(1, 16, 3, 10.0, "mixed", tuple(each.fault for each in faults))
    return Outcome(schedule, BEGAN, list(faults), reads, imports or [], whole_s=1.0)


def labels(found: Outcome) -> list[tuple[str, str]]:
    return [key for key, reads in stalls(found).items() for _ in reads]


def test_an_error_counts_unless_it_tells_of_the_death_of_the_readers_own_daemon() -> None:
    fault = applied("kill", 3, 2.0, 4.0)
    own = read(3, 3.9, code=errno.ENOTCONN)
    over = read(3, 1.0, 1.5, code=errno.ECONNABORTED)
    bare = read(3, 3.95, code=errno.ENOENT)
    excused = judge(outcome(fault, reads=[own, over, bare]))
    assert excused.is_good
    assert excused.excused == {"ENOTCONN": 1, "ECONNABORTED": 1, "ENOENT": 1}
    wrong = read(3, 3.0, code=errno.EIO)
    after = read(3, 4.1, code=errno.ENOTCONN)
    other = read(4, 3.0, code=errno.ENOTCONN)
    verdict = judge(outcome(fault, reads=[own, wrong, after, other]))
    assert verdict.errors == [wrong, after, other]
    assert not verdict.is_good


@pytest.mark.parametrize("kind", ["stop", "stick", "cut", "drop"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOTCONN])
def test_a_daemon_that_is_there_again_and_a_bad_link_excuse_nothing(kind: str, code: int) -> None:
    fails = read(3, 3.0, code=code)
    verdict = judge(outcome(applied(kind, 3, 2.0, 4.0), reads=[fails]))
    assert verdict.errors == [fails]
    assert not verdict.is_good


def test_a_schedule_in_which_nothing_was_read_is_bad() -> None:
    assert judge(outcome(reads=[read(1, 1.0)])).is_good
    verdict = judge(outcome(reads=[]))
    assert verdict.problems == ["nothing was read"]
    assert not verdict.is_good


def test_wrong_bytes_count_wherever_they_are_read() -> None:
    wrong = read(3, 3.0, wrong=True)
    verdict = judge(outcome(applied("kill", 3, 2.0, 4.0), reads=[wrong]))
    assert verdict.wrong == [wrong]
    assert not verdict.is_good


def test_an_import_is_judged_as_a_read_is() -> None:
    fails = [Imported(node, BEGAN + 3, BEGAN + 3.5, 1, "ImportError") for node in (3, 4)]
    well = Imported(5, BEGAN + 3, BEGAN + 3.5, 0, "")
    verdict = judge(
        outcome(applied("kill", 3, 2.0, 4.0), reads=[read(1, 1.0)], imports=[*fails, well])
    )
    assert [each.node for each in verdict.imports] == [4]
    assert not verdict.is_good


def test_a_tree_that_does_not_become_whole_is_bad() -> None:
    found = outcome(reads=[read(1, 1.0)])
    assert judge(found).is_good
    found.problems.append("node3 is missing")
    verdict = judge(found)
    assert not verdict.is_good
    assert "node3 is missing" in complaints(found, verdict)
    assert "BAD" in line(found, verdict)


def test_a_stall_is_put_down_to_the_fault_in_force_when_it_began() -> None:
    kill, cut = applied("kill", 0, 2.0, 3.0), applied("cut", 5, 6.0, 7.0)
    reads = [
        read(9, -1.0),
        read(9, 1.0),
        read(9, 2.5),
        read(9, 3.9),  # it has just returned
        read(9, 4.5, 2.0),  # it was waiting when the fault began
        read(9, 6.5, 3.0),
    ]
    assert labels(outcome(kill, cut, reads=reads)) == [
        ("cold", "others"),
        ("none", "others"),
        *[("kill root", "others")] * 2,
        *[("cut", "others")] * 2,
    ]


def test_several_faults_at_once_share_the_blame() -> None:
    faults = applied("kill", 1, 2.0, 4.0), applied("stop", 2, 3.0, 4.0)
    assert labels(outcome(*faults, reads=[read(9, 2.5), read(9, 3.5)])) == [
        ("kill", "others"),
        ("several", "others"),
    ]


def test_who_cannot_answer_does_not_count_and_who_is_cut_off_counts_by_itself() -> None:
    stop, cut = applied("stop", 1, 2.0, 3.0), applied("cut", 2, 6.0, 7.0)
    reads = [read(1, 1.5, 3.0), read(2, 6.5, 1.0), read(1, 6.5)]
    assert labels(outcome(stop, cut, reads=reads)) == [("cut", "own"), ("cut", "others")]


def test_a_fault_that_was_never_healed_lasts() -> None:
    fault = Applied(Fault(1.0, 0, "kill", 1.0), BEGAN + 1)
    found = outcome(fault, reads=[read(9, 9.0), read(0, 9.0, code=errno.ENOTCONN)])
    assert labels(found) == [("kill root", "others")]
    assert judge(found).is_good


def test_one_more_read_of_a_file_is_due_to_each_fault_and_no_others() -> None:
    found = outcome(applied("kill", 0, 2.0, 3.0), reads=[])
    found.opened = {"a": 1, "b": 2, "c": 3}
    assert more_than_once(found.opened) == {"b": 2, "c": 3}
    assert beyond_faults(found) == {"c": 3}


@pytest.mark.parametrize(
    ("openings_s", "node", "explained"),
    [
        ((0.5, 2.5, 3.5), 0, True),  # the heir, and the root once it is back
        ((0.5, 2.5, 2.6), 0, False),
        ((0.5, 3.5, 4.5), 0, False),
        ((0.5, 2.5, 3.5), 2, False),  # no heir reads for another node
    ],
)
def test_a_dead_root_costs_one_read_while_it_is_gone_and_one_after_it(
    openings_s: tuple[float, ...], node: int, explained: bool
) -> None:
    found = outcome(applied("kill", node, 2.0, 3.0), reads=[])
    found.opened = {"a": 3}
    found.openings = {"a": [(BEGAN + each, "client") for each in openings_s]}
    assert (beyond_faults(found) == {}) is explained
    assert bool(opened_beyond_faults(found)) is not explained


def test_quantiles_are_values_that_occurred() -> None:
    values = [float(each) for each in range(1000)]
    assert [quantile(values, share) for share in (0.5, 0.99, 0.999, 1.0)] == [500, 990, 999, 999]
    assert quantile([7.0], 0.5) == 7.0
