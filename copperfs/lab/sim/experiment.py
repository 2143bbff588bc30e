"""Experiment: measures how long a job of a given number of nodes takes for a workload.

The first time is *cold*: no cache holds anything. The second is *warm*. For a *push* the root of
the tree reads the set and spreads it before the applications begin. For the largest jobs some nodes
stand for others (docs/simulator.md has the error).
"""

import gc
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from copperfs.lab.sim.costs import Costs
from copperfs.lab.sim.node_application import ApplicationPlan, NodeApplication
from copperfs.lab.sim.workload import Workload
from copperfs.lab.sim.world import Job, World
from copperfs.node.routing.tree_failover import child_positions

SETTLE_S = 1.0
WHOLE_LEVEL_MAX = 300
"""Levels of at most this many seats are simulated whole."""
STEP_S = 0.05
LIMIT_S = 3600.0
Tell = Callable[[float], None]


class Stuck(AssertionError):
    """Programs that do not end."""


@dataclass(frozen=True, slots=True)
class Experiment:
    workload: Workload
    job: Job
    costs: Costs = field(default_factory=Costs)
    seed: int = 1
    skew_s: float = 0.3
    """The Copper paper found 0.1 to 0.3 s for ``mpiexec`` (section V)."""
    push: bool = False
    by_name: bool = False
    """Directories can only be searched: names are looked up one by one."""
    stand_for: int = 1


@dataclass(frozen=True, slots=True)
class Result:
    nodes: int
    cold_s: float
    """From the first application's start to the last one's end."""
    warm_s: float
    pushed_s: float | None
    """Until all nodes had all files."""
    messages: dict[str, int]
    message_bytes: int
    source: dict[str, int]
    source_most: int
    """The most operations of one kind on one path."""
    streamed_bytes: int
    misses: float
    """The mean number of misses that an application waited for."""
    simulated: int
    """Nodes that were simulated by themselves."""
    cpu_s: float
    """CPU time of the simulation."""
    memory_bytes: int

    @property
    def messages_total(self) -> int:
        return sum(self.messages.values())


def run(experiment: Experiment, tell: Tell = lambda _: None) -> Result:
    """*tell* gets the share of the applications that have ended."""
    began = time.process_time()
    collects = gc.isenabled()
    gc.disable()  # there is no garbage, and a scan takes long
    try:
        return _Run(experiment, tell).run(began)
    finally:
        if collects:
            gc.enable()


class _Run:
    def __init__(self, experiment: Experiment, tell: Tell) -> None:
        if experiment.by_name:
            workload = experiment.workload
            experiment = replace(experiment, workload=replace(workload, wants=workload.by_name))
        self.experiment, self.tell = experiment, tell
        costs = experiment.costs
        self.world = world = World(
            experiment.seed,
            experiment.job,
            exact=False,
            network_costs=costs.network,
            source_costs=costs.source,
            disk_costs=costs.disk,
        )
        world.trace.keep(0)
        for path, size in experiment.workload.files.items():
            world.source.add(path, size)
        for want in experiment.workload.wants:
            if want.size is None:
                world.source.add_directory(want.path)
        world.source.only_searched = experiment.by_name
        self.plan = ApplicationPlan(experiment.workload, world.source, costs.node)
        self.applications: list[NodeApplication] = []
        self.left = 0

    def run(self, began: float) -> Result:
        world, experiment = self.world, self.experiment
        weights = weights_of(experiment.job, experiment.stand_for)
        world.start_some(weights, SETTLE_S)
        orders = experiment.workload.orders
        self.applications = [
            NodeApplication(
                host, self.plan, None if orders is None else orders(host.me), self._ended
            )
            for host in world.hosts
        ]
        pushed_s = self._push() if experiment.push else None
        before = sum(world.network.sent.values())
        cold_s = self._all()
        misses = sum(each.misses for each in self.applications) / len(self.applications)
        messages = world.network.sent
        assert sum(messages.values()) >= before
        warm_s = self._all()
        source: dict[str, int] = {}
        for (kind, _), count in world.source.counts.items():
            source[kind] = source.get(kind, 0) + count
        return Result(
            nodes=experiment.job.nodes,
            cold_s=cold_s,
            warm_s=warm_s,
            pushed_s=pushed_s,
            messages=dict(sorted(messages.items())),
            message_bytes=world.network.sent_bytes,
            source=source,
            source_most=max(world.source.counts.values(), default=0),
            streamed_bytes=world.source.streamed_bytes,
            misses=misses,
            simulated=len(weights),
            cpu_s=time.process_time() - began,
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    def _ended(self, application: NodeApplication) -> None:
        self.left -= 1

    def _all(self) -> float:
        """How long all applications took."""
        world, began = self.world, self.world.clock.now
        self.left = len(self.applications)
        for application in self.applications:
            wait_s = world.random.uniform(0, self.experiment.skew_s)
            application.host.process.after(wait_s, application.start)
        self._run_until(lambda: self.left == 0)
        first = min(each.began_at for each in self.applications)
        assert first >= began
        return max(each.ended_at or 0.0 for each in self.applications) - first

    def _run_until(self, is_over: Callable[[], bool]) -> None:
        limit = self.world.clock.now + LIMIT_S
        while not is_over():
            if self.world.clock.now > limit:
                raise Stuck(f"{self.left} applications have not ended in {LIMIT_S:g} s")
            self.world.run(STEP_S)
            self.tell(1 - self.left / max(1, len(self.applications)))

    def _push(self) -> float:
        """Returns how long it took until all nodes had all."""
        world = self.world
        files = world.hosts[0].node.files
        sizes = [(w.path, w.size) for w in self.plan.workload.wants if w.size is not None]
        small = [path for path, size in sizes if files.is_pushed(path, size)]
        began = world.clock.now
        root = world.hosts[0]
        for path in small:
            world.read(root.me, path)
        assert world.run_until_read()
        full = [path for path in small if self.plan.workload.files[path]]
        world.push(root.me, full)
        others = world.hosts[1:]
        entries = [world.source.entry(path) for path in full]
        versions = [each.attributes.version for each in entries if each is not None]

        def is_over() -> bool:
            while others and all(
                others[-1].node.holds(path, version)
                for path, version in zip(full[-8:], versions[-8:], strict=True)
            ):
                others.pop()
            return not others

        self._run_until(is_over)
        for application in self.applications:
            for path in full:
                application.mark(path)
        return world.clock.now - began


def weights_of(job: Job, stand_for: int) -> dict[int, int]:
    """The nodes to simulate, and how many each stands for.

    Of siblings with equally many nodes below them in the pull tree, one stands for up to
    *stand_for*, and the nodes below it for those below the others. Messages between it and its
    parent cost the parent as many times. A level with few nodes is simulated whole.
    """
    fanout, nodes = job.fanout, job.nodes
    weights, level, width = {0: 1}, [0], 1
    while level:
        width *= fanout
        together = 1 if width <= WHOLE_LEVEL_MAX else stand_for
        below: list[int] = []
        for parent in level:
            for group in _alike(child_positions(parent, fanout, nodes), job, together):
                weights[group[0]] = weights[parent] * len(group)
                below.append(group[0])
        level = below
    return weights


def _alike(siblings: Iterable[int], job: Job, most: int) -> list[list[int]]:
    """Neighbours with as many nodes below them, at most *most* in a group."""
    groups: list[list[int]] = []
    size = -1
    for each in siblings:
        before, size = size, _below(each, job)
        if groups and size == before and len(groups[-1]) < most:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _below(position: int, job: Job) -> int:
    count, low, high = 0, position, position
    while low < job.nodes:
        count += min(high + 1, job.nodes) - low
        low, high = low * job.fanout + 1, high * job.fanout + job.fanout
    return count
