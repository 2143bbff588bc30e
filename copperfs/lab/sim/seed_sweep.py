"""Seed sweep: runs and judges many random seeds, for ``make sim`` and ``make sim-night``.

Each batch of seeds runs in a process of its own (``process_pool.py``). ``copperfs sim replay --seed
N`` shows how a failed seed broke its promise.
"""

import gc
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from copperfs.lab.sim.process_pool import run_all
from copperfs.lab.sim.random_run import RandomRun
from copperfs.model.errors import SimulationError

BATCH = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    seed: int
    fault: str | None
    nodes: int
    faults: int
    messages: int
    cpu_s: float
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    seeds: int
    nodes: int
    faults: int
    messages: int
    cpu_s: float
    environments: dict[str, int]
    """Seeds that drew each of these."""


@dataclass(slots=True)
class Night:
    first: int
    count: int
    kept: Sequence[int] = ()
    """Seeds that failed once; they come first."""
    seeds: list[int] = field(init=False)
    _verdicts: list[Verdict] = field(default_factory=list)

    def __post_init__(self) -> None:
        fresh = range(self.first, self.first + self.count)
        self.seeds = [*dict.fromkeys([*self.kept, *fresh])]

    def run(self, processes: int | None = None) -> Iterator[Verdict]:
        batches = [self.seeds[at : at + BATCH] for at in range(0, len(self.seeds), BATCH)]
        tasks = [lambda batch=batch: [judge(seed) for seed in batch] for batch in batches]
        for _, verdicts in run_all(tasks, processes):
            for verdict in verdicts:
                self._verdicts.append(verdict)
                yield verdict

    def summary(self) -> Summary:
        done = self._verdicts
        drawn = Counter(what for each in done for what in each.environment)
        return Summary(
            len(done),
            sum(each.nodes for each in done),
            sum(each.faults for each in done),
            sum(each.messages for each in done),
            sum(each.cpu_s for each in done),
            dict(sorted(drawn.items())),
        )


def judge(seed: int) -> Verdict:
    collects = gc.isenabled()
    gc.disable()  # a scan of a job's objects takes a tenth of the time
    try:
        return _judge(seed)
    finally:
        if collects:
            gc.enable()


def _judge(seed: int) -> Verdict:
    began = time.process_time()
    run = RandomRun(seed)
    fault = None
    try:
        run.run()
    except AssertionError as broken:
        fault = f"{type(broken).__name__}: {broken}"
    except Exception as error:  # noqa: BLE001 - whatever a node raises is a finding
        fault = f"{type(error).__name__}: {error}"
    messages = sum(run.world.network.sent.values())
    took = time.process_time() - began
    faults, drawn = run.faults + run.troubles.count, tuple(run.environment.drawn)
    return Verdict(seed, fault, run.world.job.nodes, faults, messages, took, drawn)


def read_seeds(path: str) -> list[int]:
    """A seed from each line; words after it are for people."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = [line.split("#")[0].split() for line in file]
        return [int(row[0]) for row in rows if row]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise SimulationError(f"{path} is no list of seeds: {error}") from None
