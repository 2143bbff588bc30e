"""Goldens of the simulator: 300 seeds and all scenarios of several nodes, one row each.

A row has counts of the boundary trace, for the size of a difference, and the trace's digest.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from copperfs.lab.sim.process_pool import run_all
from copperfs.lab.sim.random_run import RandomRun
from copperfs.lab.sim.scenario import Scenario, needs
from copperfs.lab.sim.world import World
from tests.goldens.boundary import Boundary, observed

SEEDS = range(1, 301)
BATCH = 10
STORIES = Path(__file__).parents[1] / "scenarios" / "jobs"
HEADER = "# {what:<40} lines messages     bytes source loads stores answers digest\n"


def seeds(processes: int | None = None) -> str:
    return _table("seed", [str(seed) for seed in SEEDS], row_of_seed, processes)


def scenarios(processes: int | None = None) -> str:
    stories = sorted(each.stem for each in STORIES.glob("*.txt"))
    return _table("scenario", stories, row_of_scenario, processes)


def _table(what: str, names: list[str], row_of: Callable[[str], str], processes: int | None) -> str:
    batches = [names[at : at + BATCH] for at in range(0, len(names), BATCH)]
    tasks = [lambda batch=batch: [row_of(name) for name in batch] for batch in batches]
    done = dict(run_all(tasks, processes))
    rows = [row for number in sorted(done) for row in done[number]]
    return HEADER.format(what=what) + "".join(f"{row}\n" for row in rows)


def row_of_seed(seed: str) -> str:
    boundary = Boundary()
    with observed(boundary):
        world = run_seed(seed)
    return _row(seed, world, boundary)


def row_of_scenario(name: str) -> str:
    boundary = Boundary()
    with observed(boundary):
        world = run_scenario(name)
    return _row(name, world, boundary)


def run_seed(seed: str) -> World:
    run = RandomRun(int(seed))
    run.run()
    return run.world


def run_scenario(name: str) -> World | None:
    text = (STORIES / f"{name}.txt").read_text()
    if needs(text):
        return None
    scenario = Scenario()
    scenario.tell(text)
    return scenario.world


def _row(name: str, world: World | None, boundary: Boundary) -> str:
    if world is None:
        return f"{name:<42} is not told yet"
    counts = boundary.counts
    sent = sum(world.network.sent.values())
    source = sum(world.source.counts.values())
    answers = sum(count for kind, count in counts.items() if _is_answer(kind))
    return (
        f"{name:<42} {boundary.lines:>5} {sent:>8} {world.network.sent_bytes:>9} {source:>6} "
        f"{counts['load']:>5} {counts['store']:>6} {answers:>7} {boundary.hexdigest()}"
    )


def _is_answer(kind: str) -> bool:
    return kind.startswith("Answer") or kind in ("ChunkGiven", "tuple", "list")


def lines_of(run: Callable[[], object]) -> Iterator[str]:
    kept: list[str] = []
    with observed(Boundary(kept.append)):
        run()
    yield from kept
