"""Chaos schedules: each follows from its seed, keeps to the rules, and can be written down."""

from __future__ import annotations

import random

import pytest

from tests.chaos.schedule import (
    KINDS,
    STYLES,
    TAKEOVER_KINDS,
    Fault,
    Schedule,
    check,
    draw,
    is_drawn_with_takeover,
    overlap,
    parse,
)

SEEDS = range(400)


def schedules(nodes: int = 16, fanout: int = 3) -> list[Schedule]:
    return [draw(seed, nodes, fanout) for seed in SEEDS]


def test_the_same_seed_gives_the_same_schedule_whatever_was_drawn_before() -> None:
    random.seed(1)
    before = [str(each) for each in schedules()]
    random.seed(2)
    assert [str(draw(seed, 16, 3)) for seed in reversed(SEEDS)] == before[::-1]
    assert len(set(before)) == len(SEEDS)


def test_what_is_written_down_can_be_carried_out_again() -> None:
    for each in schedules():
        assert parse(str(each)) == each


@pytest.mark.parametrize("nodes", [2, 3, 4, 16, 40])
def test_every_fault_ends_in_time_and_somebody_is_never_hurt(nodes: int) -> None:
    for each in schedules(nodes):
        assert all(0 < fault.at_s < fault.ends_s <= each.length_s for fault in each.faults)
        assert {fault.node for fault in each.faults} < set(range(nodes))
        check(each)


def test_no_node_has_two_faults_at_a_time() -> None:
    for each in schedules(nodes=4):
        for index, one in enumerate(each.faults):
            for other in each.faults[index + 1 :]:
                assert one.node != other.node or not overlap(one, other)


def test_nearly_every_schedule_has_faults_and_they_are_of_all_kinds_and_places() -> None:
    drawn = schedules()
    faults = [fault for each in drawn for fault in each.faults]
    assert sum(not each.faults for each in drawn) < len(drawn) / 20
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.node for fault in faults} == set(range(16))
    assert {each.style for each in drawn} == set(STYLES)
    assert sum(any(fault.node == 0 for fault in each.faults) for each in drawn) > len(drawn) / 4
    assert {fault.direction for fault in faults} == {"both", "towards", "away"}
    assert any(fault.lasts_s < 1 for fault in faults)
    assert any(fault.lasts_s > 8 for fault in faults)


def test_in_single_schedules_one_fault_has_ended_long_before_the_next_begins() -> None:
    for each in schedules():
        if each.style == "single":
            assert len({fault.kind for fault in each.faults}) <= 1
            for one, other in zip(each.faults, each.faults[1:], strict=False):
                assert other.at_s - one.ends_s >= 1.4


def test_a_storm_can_take_a_whole_level_all_above_a_node_or_nearly_everybody() -> None:
    at_once = [
        {fault.node for fault in each.faults} for each in schedules() if each.style == "storm"
    ]
    assert any({1, 2, 3} <= nodes and len(nodes) < 6 for nodes in at_once)
    assert any({0, 1, 4} <= nodes and len(nodes) < 6 for nodes in at_once)
    assert any(len(nodes) > 11 for nodes in at_once)


def test_spared_nodes_are_hurt_but_never_killed() -> None:
    faults = [fault for seed in SEEDS for fault in draw(seed, 16, 3, spared=(0, 5)).faults]
    assert not [each for each in faults if each.kind == "kill" and each.node in (0, 5)]
    assert {each.node for each in faults} >= {0, 5}


def test_only_the_wanted_kinds_are_drawn() -> None:
    faults = [fault for seed in SEEDS for fault in draw(seed, 16, 3, kinds=("cut",)).faults]
    assert {each.kind for each in faults} == {"cut"}


def test_own_daemons_are_hurt_in_half_of_the_environments() -> None:
    seeds = [seed for seed in SEEDS if is_drawn_with_takeover(seed)]
    assert len(seeds) == len(SEEDS) / 2
    drawn = [draw(seed, 16, 3, takeover=True) for seed in seeds]
    assert {fault.kind for each in drawn for fault in each.faults} == set(TAKEOVER_KINDS)
    for each in drawn:
        assert parse(str(each)) == each


HEAD = "# schedule 1: 3 nodes, fan-out 2, 10.0 s, mixed"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["1.000 kill node3 for 1.000"], "no such node"),
        (["1.000 tease node1 for 1.000"], "no such fault"),
        (["1.000 upgrade node1 for 1.000"], "not without takeover"),
        (["9.500 kill node1 for 1.000"], "does not end in time"),
        (["1.000 kill node1 for 2.000", "2.000 cut node1 for 1.000"], "two at a time"),
        ([f"1.000 stop node{node} for 1.000" for node in range(3)], "nobody survives"),
        (["1.000 drop node1 for 1.000 share 0.00 both"], "no share"),
        (["node1"], "no fault"),
    ],
)
def test_what_breaks_a_rule_is_refused(lines: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse("\n".join([HEAD, *lines]))
    with pytest.raises(ValueError, match="begins otherwise"):
        parse("\n".join(lines))


def test_a_schedule_reads_as_it_was_meant() -> None:
    text = f"{HEAD}\n0.500 kill node0 for 2.000\n1.000 drop node1 for 2.000 share 0.30 away"
    assert parse(text).faults == (
        Fault(0.5, 0, "kill", 2.0),
        Fault(1.0, 1, "drop", 2.0, 0.3, "away"),
    )
    assert str(parse(text)) == text
