"""`simulated`: compares the times of real daemons on this machine with those of simulated ones with
its costs.

The job is that of ``tests/cluster/test_simulated.py``: at any moment one chain of daemons works,
each waiting for the next, and two cores are enough for all. ``copperfs sim calibrate`` measures the
costs beforehand. Times are from the first node's first file to the last node's last one, in a job
that is started anew each time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from copperfs.lab.sim.costs import Costs, costs_of
from copperfs.lab.sim.node_application import ApplicationPlan, NodeApplication
from copperfs.lab.sim.workload import Want, Workload
from copperfs.lab.sim.world import MIB, Job, World
from copperfs.model.types import Path as SourcePath
from copperfs.node.prefetch.access_history import STEP_MAX
from copperfs.node.routing.tree_failover import depth_of
from tests.bench.cluster import cluster, copperfs
from tests.bench.lab import Context
from tests.bench.results import JUDGED, Bound, Measure, Target

NODES = (4, 8, 16)
FANOUT = 2
SIZES = (1, 300, 4096, 70_000, 1, 1, 100, 5000, 1 << 20, 7, (1 << 20) + 1, 3 * MIB + 17, 9)
DIRECTORIES = 3
FILES_IN_EACH = STEP_MAX + 8
SIMULATED = "simulated"
WITHIN = Target((Bound("at most", 1.3),))
STEP_S = 0.001
PATIENT = ("--hedge-after", "20", "--dead-after", "60")


def run(context: Context) -> Iterator[Measure]:
    files = {
        f"d{directory}/f.{number}": SIZES[number % len(SIZES)]
        for directory in range(DIRECTORIES)
        for number in range(FILES_IN_EACH)
    }
    with tempfile.TemporaryDirectory(prefix="copperfs-bench-") as base:
        source, found = Path(base).resolve() / "source", Path(base) / "costs.json"
        for name, size in files.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * size)
        copperfs("sim", "calibrate", "-o", found, "--files", 1000)
        costs = costs_of(str(found))
        for nodes in NODES:
            simulated_s = _simulated(nodes, files, costs)
            samples: dict[str, list[float]] = {JUDGED: [], SIMULATED: [simulated_s]}
            for _ in range(context.repeats):
                samples[JUDGED].append(_real(nodes, files, source))
            name = f"{nodes} nodes, {len(files)} files each"
            yield Measure("simulated", name, "s", samples, yardstick=SIMULATED, target=WITHIN)


def _order(node: int, files: dict[str, int]) -> list[str]:
    names = list(files)
    return names if depth_of(node, FANOUT) % 2 == 0 else names[::-1]


def _real(nodes: int, files: dict[str, int], source: Path) -> float:
    options = ("--fanout", FANOUT, "--no-read-ahead", "--memory", "256MiB", *PATIENT)
    with cluster(nodes, source, *options) as job:
        began = time.perf_counter()
        for node, mount in enumerate(job.mounts):
            for name in _order(node, files):
                (mount / name).read_bytes()
        return time.perf_counter() - began


def _simulated(nodes: int, files: dict[str, int], costs: Costs) -> float:
    job = Job(nodes, fanout=FANOUT, memory_bytes=256 * MIB)
    world = World(1, job, exact=False, network_costs=costs.network, source_costs=costs.source)
    world.trace.keep(0)
    paths = {SourcePath(name.encode()): size for name, size in files.items()}
    for path, size in paths.items():
        world.source.add(path, size)
    wants, number = _wants(files)
    plan = ApplicationPlan(
        Workload("one after the other", paths, wants, 0.0), world.source, costs.node
    )
    world.start()
    began = world.clock.now
    over: list[NodeApplication] = []
    for host in world.hosts:
        seen: set[str] = set()
        order: list[int] = []
        for name in _order(host.me, files):
            for each in (name.rpartition("/")[0], name):
                if each not in seen:
                    order.append(number[each])
                    seen.add(each)
        NodeApplication(host, plan, [number[""], *order], over.append).start()
        while len(over) <= host.me:
            world.run(STEP_S)
    assert over[-1].ended_at is not None
    return over[-1].ended_at - began


def _wants(files: dict[str, int]) -> tuple[list[Want], dict[str, int]]:
    wants, number = [Want(SourcePath(b""))], {"": 0}
    for name, size in files.items():
        directory = name.rpartition("/")[0]
        if directory not in number:
            number[directory] = len(wants)
            wants.append(Want(SourcePath(directory.encode())))
        number[name] = len(wants)
        wants.append(Want(SourcePath(name.encode()), size))
    return wants, number
