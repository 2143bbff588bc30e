"""Random runs, judged by the checkers; ``python -m copperfs.sim --seed N`` shows one."""

import pytest

from copperfs.sim.random_run import RandomRun

SEEDS = range(25)
# Those that failed once are run always.
FAILED_ONCE: tuple[int, ...] = ()
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
        pytest.fail(f"python -m copperfs.sim --seed {seed}: {fault!r}", pytrace=False)
