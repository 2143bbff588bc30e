"""Random runs, judged by the checkers: a few seeds and those that failed once
(``failed-seeds.txt``); ``make sim`` runs 300."""

from pathlib import Path

import pytest

from copperfs.lab.sim.random_run import RandomRun
from copperfs.lab.sim.seed_sweep import read_seeds

SEEDS = range(12)
FAILED_ONCE = read_seeds(str(Path(__file__).parent / "failed-seeds.txt"))
LINES_SHOWN = 80


@pytest.mark.parametrize("seed", [*SEEDS, *FAILED_ONCE])
def test_seed(seed: int) -> None:
    judge(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 1300, 50))
def test_many_seeds(first: int) -> None:
    for seed in range(first, first + 50):
        judge(seed)


def judge(seed: int) -> None:
    run = RandomRun(seed)
    try:
        run.run()
    except AssertionError as fault:
        print(*run.world.trace.lines()[-LINES_SHOWN:], sep="\n")
        pytest.fail(f"copperfs sim replay --seed {seed}: {fault!r}", pytrace=False)
