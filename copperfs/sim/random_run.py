"""A random run: a job of 5 to 30 nodes that read and are hurt, drawn from one seed.

First rounds of reads and faults; then the faults end, and every node that lives has to get every
file. What may be asked of a job meanwhile, and at the end, is in ``checkers.py``; what is more,

* no application on a node that lives is told an error: a deadline is a minute, and nothing that is
  drawn here lasts for longer than a third of it;
* wrong bytes are never given to anybody, and what is damaged on the way is asked for again;
* without any fault every object is read from the source once, and every directory scanned once.

The run is the same for a seed wherever it is made; ``python -m copperfs.sim --seed N`` shows it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from copperfs.sim import checkers
from copperfs.sim.world import MIB, Job, World
from copperfs.types import Path

SIZES = (0, 1, 300, 4096, 70_000, 1 << 20, (1 << 20) + 1, 3 * MIB + 17, 9 * MIB, 12 * MIB)
"""One of several parts, one that is on the edge, and one that is too large for the tree."""
FAULT_S_MAX = 20.0
CALM = 0.15
"""Of the seeds, those without faults."""


@dataclass(slots=True, repr=False)
class RandomRun:
    seed: int
    exact: bool = True
    world: World = field(init=False)
    faults: int = 0
    _draw: Random = field(init=False)
    _calm: bool = field(init=False)
    _lame: dict[int, float] = field(default_factory=dict)
    """Nodes that stand still, and until when."""

    def __post_init__(self) -> None:
        draw = self._draw = Random(self.seed)
        job = Job(
            nodes=draw.randint(5, 30),
            fanout=draw.choice((1, 2, 3, 4, 16)),
            push_fanout=draw.choice((2, 3)),
            trees=draw.choice((1, 1, 2, 3)),
            memory_bytes=draw.choice((24, 64, 256)) * MIB,
        )
        self._calm = draw.random() < CALM
        self.world = World(self.seed, job, self.exact)
        for number in range(draw.randint(1, 12)):
            path = Path(b"d%d/f%d" % (number % 3, number))
            self.world.source.add(path, draw.choice(SIZES))

    def run(self) -> None:
        """AssertionError if a promise is broken."""
        world, draw = self.world, self._draw
        # Who reads before its parents are connected reads the source itself.
        world.start(settle_s=1.0 if self._calm else draw.choice((0.0, 0.001, 1.0)))
        for _ in range(draw.randint(2, 8)):
            self._read_some()
            self._pass(draw.choice((0.0, 0.0005, 0.003, 0.02)))
            if not self._calm:
                self._hurt()
            self._pass(draw.choice((0.001, 0.1, 2.0, 12.0)))
            checkers.check_answered(world)
        self._end_faults()
        self._pass(30.0)
        for node in world.alive():
            for path in world.source.files():
                world.read(node, path)
        world.run_until_read()
        world.run(15.0)
        self._judge()

    def _judge(self) -> None:
        checkers.check_answered(self.world)
        checkers.check_errors(self.world)
        checkers.check_at_rest(self.world)
        checkers.check_views(self.world)
        if self._calm and self.world.job.memory_bytes > 100 * MIB:  # nothing is evicted
            checkers.check_source_reads(self.world, 1)

    def _read_some(self) -> None:
        world, draw = self.world, self._draw
        files = world.source.files()
        for _ in range(draw.randint(1, 3 * world.job.nodes)):
            world.read(draw.choice(world.alive()), draw.choice(files))

    def _pass(self, seconds: float) -> None:
        """Time, in which some of those that stand still go on."""
        world, until = self.world, self.world.clock.now + seconds
        for node, when in sorted(self._lame.items(), key=lambda each: each[1]):
            if when > until:
                break
            world.run(max(0.0, when - world.clock.now))
            del self._lame[node]
            world.go_on(node)
        world.run(until - world.clock.now)

    # --- faults ----------------------------------------------------------------------------------

    def _hurt(self) -> None:
        hurts: tuple[Callable[[], None], ...] = (
            self._crash,
            self._crash,
            self._restart,
            self._leave,
            self._stand_still,
            self._be_late,
            self._cut,
            self._part,
            self._isolate,
            self._heal,
            self._break,
            self._spoil,
            self._delay,
            self._slow_source,
        )
        for _ in range(self._draw.randint(0, 3)):
            self.faults += 1
            self._draw.choice(hurts)()

    def _upright(self) -> list[int]:
        """Nodes that live and run."""
        return [host.me for host in self.world.hosts if host.process.runs]

    def _crash(self) -> None:
        if len(self._upright()) > 2:
            node = self._draw.choice(self._upright())
            if self._draw.random() < 0.3:
                self.world.power_off(node)
            else:
                self.world.crash(node)

    def _leave(self) -> None:
        if len(self._upright()) > 2:
            self.world.leave(self._draw.choice(self._upright()))

    def _restart(self) -> None:
        dead = [host.me for host in self.world.hosts if not host.process.is_alive]
        if dead:
            self.world.restart(self._draw.choice(dead))

    def _stand_still(self) -> None:
        if len(self._upright()) <= 2:
            return
        node = self._draw.choice(self._upright())
        if self._draw.random() < 0.5:
            self.world.stop(node)
        else:
            self.world.hang(node)
        self._lame[node] = self.world.clock.now + self._draw.uniform(0.1, FAULT_S_MAX)

    def _be_late(self) -> None:
        self.world.be_late(self._draw.choice(self._upright()), self._draw.uniform(0.1, 1.5))

    def _pair(self) -> tuple[int, int]:
        one, other = self._draw.sample(range(self.world.job.nodes), 2)
        return one, other

    def _cut(self) -> None:
        self.world.cut(*self._pair(), both_ways=self._draw.random() < 0.5)

    def _part(self) -> None:
        nodes = self.world.job.nodes
        self.world.part(set(self._draw.sample(range(nodes), self._draw.randint(1, nodes - 1))))

    def _isolate(self) -> None:
        """A node that wants many things is cut off."""
        node = self._draw.choice(self._upright())
        for path in self.world.source.files():
            self.world.read(node, path)
        self.world.isolate(node)

    def _heal(self) -> None:
        self.world.heal()

    def _break(self) -> None:
        self.world.break_connections(*self._pair())

    def _spoil(self) -> None:
        one, other = self._pair()
        parents = list(self._trees_of(one))
        if parents:
            other = self._draw.choice(parents)  # what comes from there
        self.world.spoil_next(other, one)

    def _trees_of(self, node: int) -> list[int]:
        trees = self.world[node].node.trees
        assert trees is not None
        return list(trees.parents())

    def _delay(self) -> None:
        self.world.delay(*self._pair(), self._draw.choice((0.01, 0.2, 1.0)))

    def _slow_source(self) -> None:
        path = self._draw.choice(self.world.source.files())
        self.world.source.slow[path] = self._draw.choice((0.05, 1.0, FAULT_S_MAX))

    def _end_faults(self) -> None:
        world = self.world
        world.heal()
        world.source.slow.clear()
        for node in list(self._lame):
            del self._lame[node]
            world.go_on(node)
        for host in list(world.hosts):
            if not host.process.is_alive and self._draw.random() < 0.5:
                world.restart(host.me)
