"""Chaos conditions: the disturbances around the nodes follow from the seed, can be written down,
and excuse only what they explain."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from tests.chaos.defects import DEFECTS, changed
from tests.chaos.judge import BELIEVED_S, Outcome, Read, Sick, judge
from tests.chaos.mixture import KINDS, draw_environment, path_of, siblings
from tests.chaos.schedule import Schedule, check, draw, parse
from tests.mount.helpers import PROJECT

SEEDS = range(200)
FILES = 2000


def schedules() -> list[Schedule]:
    return [draw(seed, 16, 3, mixed_files=FILES) for seed in SEEDS]


def test_a_mixed_schedule_follows_from_its_seed_and_can_be_carried_out_again() -> None:
    drawn = schedules()
    assert [str(each) for each in schedules()] == [str(each) for each in drawn]
    for each in drawn:
        assert parse(str(each)) == each


def test_the_faults_of_a_seed_are_the_same_with_a_mixture_and_without() -> None:
    for seed, mixed in enumerate(schedules()):
        alike = draw(seed, 16, 3)
        assert replace(mixed, troubles=(), environment=None) == alike


def test_each_schedule_has_a_sick_name_and_all_kinds_occur() -> None:
    drawn = schedules()
    assert all(any(each.kind == "sick" for each in one.troubles) for one in drawn)
    troubles = [each for one in drawn for each in one.troubles]
    assert {each.kind for each in troubles} == set(KINDS)
    assert {each.how for each in troubles} > {"EIO", "read-EIO", "EACCES", "ENOTCONN", "hang"}
    assert any(each.at_s == 0.0 for each in troubles if each.kind == "sick")
    assert any(each.at_s > 0.0 for each in troubles if each.kind == "sick")
    for one in drawn:
        check(one)


def test_ten_seeds_in_a_row_have_one_environment() -> None:
    drawn = schedules()
    assert [each.environment for each in drawn] == [seed // 10 for seed in SEEDS]
    environments = [draw_environment(number, 16) for number in range(20)]
    assert {each.own_inodes for each in environments} == {True, False}
    assert draw(3, 16, 3, mixed_files=FILES, environment=7).environment == 7


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0.000 sick data/d07/f0057 for 1.000 ENOENT", "no such trouble"),
        ("0.000 sick data/d07/f0057 for 99.000 EIO", "does not end in time"),
        ("0.000 server 8 for 1.000 EIO", "no such server"),
        ("0.000 crowd node16 for 1.000 300", "no such node"),
        ("0.000 clear all for 0.000 twice", "no such trouble"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(line: str, said: str) -> None:
    head = "# schedule 1: 16 nodes, fan-out 3, 8.0 s, mixed, environment 0"
    with pytest.raises(ValueError, match=said):
        parse(f"{head}\n{line}")


@pytest.mark.parametrize("files", [20, 60, 2000])
def test_the_siblings_of_a_name_are_those_of_its_directory(files: int) -> None:
    path = path_of(7, files)
    found = siblings(path, files)
    assert path in found
    everything = [path_of(each, files) for each in range(files)]
    directory = path.rpartition("/")[0] + "/"
    assert sorted(found) == sorted(each for each in everything if each.startswith(directory))


# ---- judging -------------------------------------------------------------------------------------


def verdict_on(read: Read, *, sick_errno: int = errno.EIO) -> bool:
    outcome = Outcome(Schedule(1, 16, 3, 10.0, "calm", ()), 100.0, reads=[read])
    outcome.sick.append(Sick(frozenset(["data/d07/f0057"]), sick_errno, 101.0, 104.0))
    return judge(outcome).is_good


def test_a_sick_name_may_answer_with_just_its_error_and_no_other_name_may() -> None:
    sick = Read(3, 102.0, 102.1, "data/d07/f0057", errno.EIO, wrong=False)
    assert verdict_on(sick)
    assert verdict_on(sick, sick_errno=errno.EACCES) is False
    assert not verdict_on(replace(sick, path="data/d07/f0107"))
    assert not verdict_on(replace(sick, path="data/d07"))
    assert not verdict_on(replace(sick, errno=0, wrong=True))
    assert verdict_on(replace(sick, errno=0))


def test_an_error_before_a_name_got_sick_or_long_after_it_was_well_counts() -> None:
    sick = Read(3, 102.0, 102.1, "data/d07/f0057", errno.EIO, wrong=False)
    assert not verdict_on(replace(sick, began=100.5, ended=100.9))
    assert verdict_on(replace(sick, began=104.5, ended=104.6))
    late = 104.0 + BELIEVED_S + 0.1
    assert not verdict_on(replace(sick, began=late, ended=late + 0.1))


# ---- old defects ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFECTS)
def test_an_old_defect_can_still_be_put_back(name: str) -> None:
    texts: dict[str, str] = {}
    for change in DEFECTS[name]:
        before = texts.get(change.path) or (PROJECT / change.path).read_text()
        texts[change.path] = changed(before, change)
        assert texts[change.path] != before
