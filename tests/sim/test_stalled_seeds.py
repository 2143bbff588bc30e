"""Stalled seeds: schedules of faults, in virtual time, in which a read once waited longer than
needed (``docs/simulator.md``).

A seed shows its defect only while the run draws exactly the same numbers. A change of that has to
undo the fix and find other seeds (``python -m tests.chaos.simulated``).
"""

from pathlib import Path

import pytest

from tests.chaos.arena import Setup
from tests.chaos.judge import stalls
from tests.chaos.schedule import draw
from tests.chaos.simulated import SIMULATED, carry_out

SETUP = Setup(nodes=16, fanout=3, rate=25.0)
READS_MIN = 1000


def read_stalled_seeds() -> list[tuple[int, float]]:
    text = (Path(__file__).parent / "stalled-seeds.txt").read_text()
    rows = [line.split("#")[0].split() for line in text.splitlines()]
    return [(int(row[0]), float(row[1])) for row in rows if row]


@pytest.mark.parametrize(("seed", "at_most_s"), read_stalled_seeds())
def test_no_read_waits_for_so_long_again(seed: int, at_most_s: float) -> None:
    schedule = draw(seed, SETUP.nodes, SETUP.fanout, kinds=SIMULATED)
    found = stalls(carry_out(schedule, SETUP))
    reads = [each for of_one in found.values() for each in of_one]
    assert len(reads) > READS_MIN
    longest = max(reads, key=lambda each: each.took_s)
    assert longest.took_s < at_most_s, f"{longest}, in\n{schedule}"
    assert not [str(each) for each in reads if each.errno]
