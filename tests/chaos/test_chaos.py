"""Schedules with fixed seeds on a real cluster: three in ``make test``, 23 in ``make test-long``.

Nothing here depends on how long anything took; ``python -m tests.chaos --report`` says that.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.chaos.arena import Arena, Setup
from tests.chaos.judge import judge, more_than_once
from tests.chaos.report import complaints
from tests.chaos.schedule import Fault, Schedule, draw
from tests.cluster.test_links import networks_can_be_made

SETUP = Setup()
# Each of another style: a storm that takes the root along, any kinds at any times, one kind.
SEEDS = (3, 8, 2)
LONG_SEEDS = range(100, 120)

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(
        not networks_can_be_made() or shutil.which("nft") is None,
        reason="networks of nodes need root, iproute2 and nftables",
    ),
]


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with Arena(tmp_path_factory.mktemp("chaos"), SETUP) as arena:
        yield arena


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(each, marks=pytest.mark.long) for each in LONG_SEEDS)]
)
def test_nobody_sees_an_error_or_a_wrong_byte(arena: Arena, seed: int) -> None:
    outcome = arena.carry_out(draw(seed, SETUP.nodes, SETUP.fanout))
    verdict = judge(outcome)
    said = [f"seed {seed}", str(outcome.schedule), *complaints(outcome, verdict)]
    assert verdict.is_good, "\n".join(said)
    assert len({each.node for each in outcome.reads}) == SETUP.nodes
    assert len(outcome.imports) == SETUP.nodes


def test_without_faults_everything_is_read_once(arena: Arena) -> None:
    """So what is read again in other schedules is due to their faults."""
    outcome = arena.carry_out(Schedule(0, SETUP.nodes, SETUP.fanout, 3.0, "calm", ()))
    verdict = judge(outcome)
    assert verdict.is_good, "\n".join(complaints(outcome, verdict))
    assert sum(outcome.opened.values()) > 200
    assert not more_than_once(outcome.opened)
    assert not more_than_once(outcome.listed)


def test_faults_are_really_in_force(arena: Arena) -> None:
    """Else everything would be good."""
    kinds = ("kill", "stop", "cut", "drop", "stick")
    faults = [Fault(1.0, 10 + place, kind, 2.0) for place, kind in enumerate(kinds)]
    schedule = Schedule(0, SETUP.nodes, SETUP.fanout, 4.0, "mixed", tuple(faults))
    before = [arena.pid(each.node) for each in faults]
    outcome = arena.carry_out(schedule)
    verdict = judge(outcome)
    assert verdict.is_good, "\n".join(complaints(outcome, verdict))
    after = [arena.pid(each.node) for each in faults]
    assert [one != other for one, other in zip(before, after, strict=True)] == [
        each == "kill" for each in kinds
    ]
    assert verdict.excused, "who was killed was told so"
    applied = {each.fault.node: each for each in outcome.applied}
    assert len(applied) == len(faults)
    for fault in faults[:2]:  # what is stuck still answers what it has
        here = applied[fault.node]
        assert not [
            each
            for each in outcome.reads
            if each.node == fault.node
            and not each.errno
            and here.began + 0.5 < each.began < each.ended < here.ended
        ], f"{fault}: it goes on reading"
