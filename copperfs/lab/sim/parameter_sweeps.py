"""Parameter sweeps: change one parameter and keep all others; each sweep becomes one chart.

Every point is a whole simulated job, so a sweep can be spread over processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from copperfs.lab.sim import baselines
from copperfs.lab.sim.costs import Costs
from copperfs.lab.sim.experiment import Experiment, Result
from copperfs.lab.sim.svg_charts import Chart, ChartLine
from copperfs.lab.sim.workload import MIB, Want, Workload
from copperfs.lab.sim.world import Job
from copperfs.model.types import Path

MEMORY_BYTES = 1024 * MIB
AHEAD_MAX, CHUNK_BYTES, TIER_MEMORY_BYTES = 8, MIB, 512 * MIB
"""The daemon's."""
ALL_MAX = 600
"""Larger jobs simulate each node by itself only on request."""
STAND_FOR = 8


Model = Callable[[Workload, int, Costs], baselines.Modelled]


@dataclass(frozen=True, slots=True)
class Point:
    line: str
    x: float
    experiment: Experiment
    value: Callable[[Result], float]


@dataclass(frozen=True, slots=True)
class Effect:
    name: str
    points: Sequence[Point]
    draw: Callable[[Sequence[ChartLine]], Chart]

    def chart(self, results: Sequence[Result]) -> Chart:
        lines: dict[str, list[tuple[float, float]]] = {}
        for point, result in zip(self.points, results, strict=True):
            lines.setdefault(point.line, []).append((point.x, point.value(result)))
        return self.draw([ChartLine(name, places) for name, places in lines.items()])


def job_of(nodes: int, **settings: int) -> Job:
    job = Job(
        nodes,
        memory_bytes=MEMORY_BYTES,
        ahead_max=AHEAD_MAX,
        chunk_bytes=CHUNK_BYTES,
        tier_memory_bytes=TIER_MEMORY_BYTES,
    )
    return replace(job, **settings)  # type: ignore[arg-type]


def experiment_of(workload: Workload, costs: Costs, job: Job, *, push: bool = False) -> Experiment:
    stand_for = 1 if job.nodes <= ALL_MAX else STAND_FOR
    return Experiment(workload, job, costs, push=push, stand_for=stand_for)


def imports(workload: Workload, costs: Costs, counts: Sequence[int], *, cold: bool) -> Effect:
    """Figure 4 of the Copper paper, or Figure 5."""
    points = [
        Point(
            "copperfs (simulated)",
            count,
            experiment_of(workload, costs, job_of(count)),
            (lambda result: result.cold_s) if cold else (lambda result: result.warm_s),
        )
        for count in counts
    ]

    def modelled(of: Model) -> list[tuple[int, float]]:
        found = [(count, of(workload, count, costs)) for count in counts]
        return [(count, each.cold_s if cold else each.warm_s) for count, each in found]

    def draw(lines: Sequence[ChartLine]) -> Chart:
        others = [
            ChartLine("Lustre alone (model)", modelled(baselines.lustre)),
            ChartLine("Copper's design (model)", modelled(baselines.copper)),
        ]
        if workload.name.startswith("torch"):
            alone = baselines.LUSTRE_PUBLISHED_COLD if cold else baselines.LUSTRE_PUBLISHED_WARM
            copper = baselines.COPPER_PUBLISHED_COLD if cold else baselines.COPPER_PUBLISHED_WARM
            others.append(ChartLine("Lustre alone, published", alone, is_joined=False))
            others.append(ChartLine("Copper, published", copper, is_joined=False))
        state = "the first time" if cold else "again"
        title = f"import {workload.name}, {state}, {workload.processes} processes a node"
        return Chart(title, "nodes", "seconds", [*lines, *others], f"costs: {costs.name}")

    return Effect("cold" if cold else "warm", points, draw)


def fanouts(workload: Workload, costs: Costs, nodes: int, counts: Sequence[int]) -> Effect:
    points = [
        Point("cold import", k, experiment_of(workload, costs, job_of(nodes, fanout=k)), _cold)
        for k in counts
    ]
    return Effect("fanout", points, _drawn("Fan-out of the pull tree", "fan-out", nodes, costs))


def trees(workload: Workload, costs: Costs, nodes: int, counts: Sequence[int]) -> Effect:
    points = [
        Point("cold import", k, experiment_of(workload, costs, job_of(nodes, trees=k)), _cold)
        for k in counts
    ]
    return Effect("trees", points, _drawn("Number of trees", "trees", nodes, costs))


def pushes(workload: Workload, costs: Costs, counts: Sequence[int]) -> Effect:
    one = replace(workload, compute_s=0.0)
    points = []
    for count in counts:
        job = job_of(count)
        points.append(Point("pulled", count, experiment_of(one, costs, job), _cold))
        pushed = experiment_of(one, costs, job, push=True)
        points.append(Point("pushed, fan-out 2", count, pushed, _pushed))
    chart = _drawn("A working set comes to all nodes", "nodes", None, costs)
    return Effect("push", points, chart)


def cut_through(costs: Costs, nodes: int, sizes_mib: Sequence[int]) -> Effect:
    """One file, by size."""
    points = []
    for size in sizes_mib:
        path, length = Path(b"d/large"), size * MIB
        one = Workload("one file", {path: length}, [Want(Path(b"d")), Want(path, length)], 0.0)
        for line, through in (("passed on as it comes", True), ("passed on whole", False)):
            job = job_of(nodes, fanout=4, tree_max_bytes=512 * MIB)
            experiment = experiment_of(one, costs, replace(job, cut_through=through))
            points.append(Point(line, size, replace(experiment, skew_s=0.0), _cold))
    chart = _drawn("One file to all nodes, fan-out 4", "MiB", nodes, costs)
    return Effect("cut-through", points, chart)


def listings(workload: Workload, costs: Costs, counts: Sequence[int]) -> Effect:
    """Listing first, or a lookup of each name."""
    points = []
    for count in counts:
        job = job_of(count)
        points.append(
            Point("directories listed", count, experiment_of(workload, costs, job), _cold)
        )
        by_name = replace(experiment_of(workload, costs, job), by_name=True)
        points.append(Point("each name by itself", count, by_name, _cold))
    chart = _drawn("Cold import: listings first, or names", "nodes", None, costs)
    return Effect("listing", points, chart)


def _cold(result: Result) -> float:
    return result.cold_s


def _pushed(result: Result) -> float:
    assert result.pushed_s is not None
    return result.pushed_s


def _drawn(
    title: str, across: str, nodes: int | None, costs: Costs
) -> Callable[[Sequence[ChartLine]], Chart]:
    of_nodes = "" if nodes is None else f", {nodes:,} nodes"

    def draw(lines: Sequence[ChartLine]) -> Chart:
        note = f"costs: {costs.name}"
        return Chart(title + of_nodes, across, "seconds", lines, note, up_from_zero=True)

    return draw
