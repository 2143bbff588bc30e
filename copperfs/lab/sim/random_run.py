"""Random run: a job of 5 to 60 nodes that read and suffer faults, drawn from one seed.

docs/simulator.md says what is drawn. First come rounds of reads and faults. Then the faults end,
and every live node has to get every file. Beyond the promises of ``checkers.py``:

* no application on a live node gets an error, unless the source itself gave one to this node or for
  this file: no fault that is drawn here lasts a third of the deadline of a minute;
* no reader ever gets wrong bytes; damaged data is requested again;
* without faults every object and chunk is read from the source once, and every directory scanned
  once, also where disks are slower than the source and memory is small.

Environments and troubles have streams of their own, so a seed keeps its faults.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from copperfs.lab.sim import checkers
from copperfs.lab.sim.outside_faults import Troubles
from copperfs.lab.sim.protected_losses import lose_protected
from copperfs.lab.sim.random_environment import Environment, draw_environment
from copperfs.lab.sim.sim_disk import DiskCosts
from copperfs.lab.sim.world import MIB, Job, World
from copperfs.model.protection import protection_of
from copperfs.model.types import Path

SIZES = (0, 1, 300, 4096, 70_000, 1 << 20, (1 << 20) + 1, 3 * MIB + 17, 9 * MIB, 12 * MIB)
"""Some of several parts, some at the edges, one too large for the tree."""
FAULT_S_MAX = 20.0
MTBF_S = (1.0, 5.0, 20.0)
"""Of the whole job, where nodes fail at random times."""
REPAIRED_S = 5.0
CHECKED_ALWAYS_MAX, CHECK_EVERY = 12, 10
"""Larger jobs check invariants after every tenth step of a node: the checks are half of a run's
time, and a broken invariant mostly stays broken."""
CHUNKS_BYTES = (256 << 10, 1 << 20)
TIER_AMPLE_BYTES = 64 * MIB
"""An owner of what is read here keeps all of it."""
TIER_DISK_AMPLE_BYTES = 1024 * MIB
DISK_WRITES_BYTES_S = (1.5e9, 1.5e9, 100e6, 20e6)
"""The slowest disk writes all that is read here within some seconds."""
TOLD_OF_SICK = ("fallbacks", "overdue", "failures")
"""Counters that grow when an application requests a sick name."""
CALM = 0.15
PROTECTED = 0.4
"""Of the jobs with a data tier."""
WITH_TAKEOVER = 0.2
TAKEOVER_S_MIN, TAKEOVER_S_MAX = 0.02, 0.3
"""From the death of a daemon until another one begins."""


@dataclass(slots=True, repr=False)
class RandomRun:
    seed: int
    exact: bool = True
    world: World = field(init=False)
    environment: Environment = field(init=False)
    troubles: Troubles = field(init=False)
    faults: int = 0
    _draw: Random = field(init=False)
    _calm: bool = field(init=False)
    _files: list[Path] = field(default_factory=list)
    _lame: dict[int, float] = field(default_factory=dict)
    """Nodes that stand still, and until when."""
    _excused: set[tuple[Path | None, int | None]] = field(default_factory=set)
    """Where the source gave errors."""
    _mtbf_s: float | None = None
    _changes: bool = False
    _at_once: int = 3
    _changed: set[Path] = field(default_factory=set)
    _clears: int = 0
    _pushes: int = 0
    _takeovers: Random | None = None

    def __post_init__(self) -> None:
        draw = self._draw = Random(self.seed)
        job = Job(
            nodes=draw.choice((draw.randint(5, 20), draw.randint(5, 60))),
            fanout=draw.choice((1, 2, 3, 4, 16)),
            rack=draw.choice((2, 4, 8)),
            push_fanout=draw.choice((2, 3)),
            trees=draw.choice((1, 1, 2, 3)),
            memory_bytes=draw.choice((24, 64, 256)) * MIB,
            ahead_max=draw.choice((0, 8)),
            chunk_bytes=draw.choice((0, 0, *CHUNKS_BYTES)),
            tier_has_disk=draw.random() < 0.5,
            tier_disk_bytes=draw.choice((4 * MIB, TIER_DISK_AMPLE_BYTES)),
            ring=draw.choice(((), (Path(b"d1"),))),
            tier_memory_bytes=draw.choice((4 * MIB, TIER_AMPLE_BYTES)),
            hot_files_above_nodes=draw.choice((4, 256)),
            lost_from_source=draw.random() < 0.1,
            tree_max_bytes=draw.choice((2, 10, 10)) * MIB,
            cut_through=draw.random() < 0.8,
            source_concurrency=draw.choice((2, 32)),
            fallback_concurrency=draw.choice((1, 4)),
            revalidate_s=draw.choice((None, None, None, 3.0)),
        )
        # A stream of its own keeps the rest of the seed's run unchanged.
        disk = Random(f"disk {self.seed}")
        job = replace(
            job,
            tier_waits=disk.random() < 0.7,
            tier_backlog_bytes=disk.choice((2, 8, 64)) * MIB,
        )
        job = self._protected(job)
        costs = DiskCosts(write_bytes_per_s=disk.choice(DISK_WRITES_BYTES_S))
        self._calm = draw.random() < CALM
        if not self._calm and draw.random() < 0.25:
            self._mtbf_s = draw.choice(MTBF_S)
        takeovers = Random(f"own daemons {self.seed}")
        if not self._calm and takeovers.random() < WITH_TAKEOVER:
            self._takeovers = takeovers
        self.world = World(self.seed, job, self.exact, disk_costs=costs)
        if job.nodes > CHECKED_ALWAYS_MAX:
            self.world.check_every = CHECK_EVERY
        self.world.source.only_searched = draw.random() < 0.1
        self._at_once = draw.choice((3, 3, 3, 10))
        self._changes = not self._calm and draw.random() < 0.3
        sizes: dict[Path, int] = {}
        for number in range(draw.randint(1, 12)):
            path = Path(b"d%d/f%d" % (number % 3, number))
            self._files.append(path)
            sizes[path] = draw.choice(SIZES)
        self._set_up(sizes)

    def _protected(self, job: Job) -> Job:
        """A stream of its own, too: a seed without classes runs as before."""
        draw = Random(f"protect {self.seed}")
        if not job.chunk_bytes or draw.random() >= PROTECTED:
            return job
        classes = draw.choice(({b"": 2}, {b"": 3}, {b"": 2, b"d1": 4}, {b"d0": 2, b"d1": 3}))
        protection = protection_of({Path(prefix): copies for prefix, copies in classes.items()})
        # Otherwise most of these jobs read no file in chunks.
        ring = draw.choice((job.ring, (Path(b"d0"), Path(b"d1"))))
        has_domains = draw.random() < 0.4
        return replace(job, protection=protection, has_domains=has_domains, ring=ring)

    def _set_up(self, sizes: dict[Path, int]) -> None:
        world, nodes = self.world, self.world.job.nodes
        found = draw_environment(self.seed, nodes, self._files, calm=self._calm)
        self.environment, world.machines = found, found.machines
        # A directory that may not be listed is not sampled, so no comparison finds a difference.
        is_blind = world.source.only_searched and world.numbers_differ
        world.job = replace(
            world.job,
            inodes="ignore" if is_blind else found.inodes,
            all_have_met=world.numbers_differ,
        )
        self.troubles = Troubles(world, found, self._files, self._calm)
        for path, size in sizes.items():
            world.source.add(path, size)
        self.troubles.begin()

    def run(self) -> None:
        """A broken promise raises Violation, with the seed and the time."""
        try:
            self._run()
        except checkers.Violation:
            raise
        except AssertionError as broken:
            raise checkers.Violation(
                f"seed {self.seed}, at {self.world.clock.now:.6f}, node {self.world.acting}: "
                f"{str(broken) or 'an invariant of the node'}"
            ) from broken

    def _run(self) -> None:
        world, draw = self.world, self._draw
        # A node that reads before its parents are connected reads the source itself.
        world.start(settle_s=1.0 if self._calm else draw.choice((0.0, 0.001, 1.0)))
        if self._calm:
            self._await_all()
        if self._mtbf_s is not None:
            self._await_failure()
        for _ in range(draw.randint(2, 8)):
            self._read_some()
            self._pass(draw.choice((0.0, 0.0005, 0.003, 0.02)))
            if not self._calm:
                self._hurt()
            self._take_over()
            self.troubles.hurt()
            self._pass(draw.choice((0.001, 0.1, 2.0, 12.0)))
            checkers.check_answered(world)
        self._end_faults()
        self.troubles.end()
        self._pass(30.0)
        world.source.rewritten = None  # drawn before the end, and begun a moment after it
        self._changed |= self.troubles.written
        if self._changed:
            self._clear()
            self._pass(20.0)
        before = len(world.readings)
        for node in world.alive():
            for path in (*self._files, *self.environment.sick):
                world.read(node, path)
        world.run_until_read()
        world.run(15.0)
        self._judge(before)
        if world.job.protection:
            lose_protected(world, self._files, Random(f"losses {self.seed}"))

    def _await_all(self) -> None:
        self.world.run(self.environment.starts_within_s)

        def is_over() -> bool:
            hosts = self.world.hosts
            return all(host.node.is_in_touch() and host.has_compared for host in hosts)

        reached = self.world.run_until(is_over, 10.0)
        checkers.check(self.world, reached, "not all are in touch, or have compared")
        self.world.run(1.0)

    def _judge(self, before: int) -> None:
        """*before*: the number of reads that began before the faults were over."""
        world, job = self.world, self.world.job
        checkers.check_answered(world)
        sick = self.troubles.sick
        checkers.check_errors(world, world.readings[:before], self._excused, self._changed, sick)
        checkers.check_errors(world, world.readings[before:])
        checkers.check_newest(world, world.readings[before:])
        checkers.check_at_rest(world)
        self._judge_views()
        checkers.check_epochs(world)
        checkers.check_limits(world)
        checkers.check_numbers(world)
        checkers.check_descriptors(world)
        checkers.check_walks(world, self.troubles.kept, self._excused)
        checkers.check_looks(world, sick)
        has_disks = job.tier_has_disk and job.tier_disk_bytes >= TIER_DISK_AMPLE_BYTES
        if self._calm and has_disks and job.tier_waits:
            checkers.check_chunk_reads(world, 1)  # however little memory it holds
        least_bytes = min(map(world.memory_bytes, range(job.nodes)))
        if least_bytes < 100 * MIB or job.revalidate_s is not None:
            return  # evicted or expired entries are read again
        if self._calm:
            checkers.check_source_reads(world, 1, sick)
            if job.tier_memory_bytes >= TIER_AMPLE_BYTES:
                checkers.check_chunk_reads(world, 1)
            if not world.source.only_searched:  # EACCES counts as a failure
                checkers.check_untroubled(world, besides=TOLD_OF_SICK if sick else ())
        else:
            clears = self._clears + self.troubles.clears + world.numbers_differ
            times = world.lives * (1 + clears) + self._pushes
            checkers.check_reads_bounded(world, times, self._excused)
            if job.tier_memory_bytes >= TIER_AMPLE_BYTES:
                checkers.check_chunk_reads(world, 2 * times)

    def _judge_views(self) -> None:
        """If a node died while no other was connected to it, the truth takes longer: those that
        want the node wait as long as for one that is not started yet."""
        try:
            checkers.check_views(self.world)
            checkers.check_overlay(self.world)
        except checkers.Violation:
            self.world.run(self.world.job.timeouts.reach_s + 10.0)
            checkers.check_views(self.world)
            checkers.check_overlay(self.world)

    def _read_some(self) -> None:
        world, draw = self.world, self._draw
        for _ in range(draw.randint(1, 3 * world.job.nodes)):
            node, path = draw.choice(self._living()), draw.choice(self._files)
            if not world[node].is_late:
                world.read(node, path)

    def _living(self) -> list[int]:
        """The draw must not depend on when late nodes start."""
        return [host.me for host in self.world.hosts if host.process.is_alive or host.is_late]

    def _pass(self, seconds: float) -> None:
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
            self._lose_rack,
            self._part_one_way,
            self._slow_node,
            self._sicken,
            self._fail_source,
            self._stall_source,
            self._hurt_disk,
            self._clear,
            self._push,
            self._change,
        )
        for _ in range(self._draw.randint(0, self._at_once)):
            self.faults += 1
            self._draw.choice(hurts)()

    def _upright(self) -> list[int]:
        hosts = self.world.hosts
        well = [host for host in hosts if host.is_upright]
        return [host.me for host in hosts if host.is_late or host in well]

    def _one(self) -> int:
        node = self._draw.choice(self._upright())
        self.world.start_late(self.world[node])
        return node

    def _crash(self) -> None:
        if len(self._upright()) > 2:
            node = self._one()
            if self._draw.random() < 0.3:
                self.world.power_off(node)
            else:
                self.world.crash(node)

    def _take_over(self) -> None:
        """At once or while the round's reads are under way."""
        if self._takeovers is None:
            return
        for _ in range(self._takeovers.choice((0, 1, 1, 3))):
            self.faults += 1
            later_s = self._takeovers.choice((0.0, 0.001, 0.1))
            which, after_s = (
                self._takeovers.random(),
                self._takeovers.uniform(TAKEOVER_S_MIN, TAKEOVER_S_MAX),
            )
            self.world.clock.after(later_s, self._take_over_one, which, after_s)

    def _take_over_one(self, which: float, after_s: float) -> None:
        upright = [host.me for host in self.world.hosts if host.is_upright]
        if upright:
            self.world.take_over(upright[int(which * len(upright))], after_s)

    def _leave(self) -> None:
        if len(self._upright()) > 2:
            self.world.leave(self._one())

    def _restart(self) -> None:
        dead = set(range(self.world.job.nodes)).difference(self._living())
        if dead:
            self.world.restart(self._draw.choice(sorted(dead)))

    def _stand_still(self) -> None:
        if len(self._upright()) <= 2:
            return
        node = self._one()
        if self._draw.random() < 0.5:
            self.world.stop(node)
        else:
            self.world.hang(node)
        self._lame[node] = self.world.clock.now + self._draw.uniform(0.1, FAULT_S_MAX)

    def _be_late(self) -> None:
        if len(self._upright()) > 2:
            self.world.be_late(self._one(), self._draw.uniform(0.1, 1.5))

    def _pair(self) -> tuple[int, int]:
        one, other = self._draw.sample(range(self.world.job.nodes), 2)
        return one, other

    def _cut(self) -> None:
        self.world.cut(*self._pair(), both_ways=self._draw.random() < 0.5)

    def _part(self) -> None:
        nodes = self.world.job.nodes
        self.world.part(set(self._draw.sample(range(nodes), self._draw.randint(1, nodes - 1))))

    def _isolate(self) -> None:
        node = self._one()
        for path in self._files:
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
        path = self._draw.choice(self._files)
        self.world.source.slow[path] = self._draw.choice((0.05, 1.0, FAULT_S_MAX))

    def _lose_rack(self) -> None:
        nodes = self.world.rack(self._one())
        how = self._draw.random()
        if how < 0.3:
            self.world.part(set(nodes))
            return
        for node in nodes:
            if len(self._upright()) > 2 and self.world.hosts[node].process.is_alive:
                if how < 0.6:
                    self.world.power_off(node)
                else:
                    self.world.crash(node)

    def _part_one_way(self) -> None:
        nodes = range(self.world.job.nodes)
        group = set(self._draw.sample(nodes, self._draw.randint(1, len(nodes) // 2)))
        for one in sorted(group):
            for other in nodes:
                if other not in group:
                    self.world.cut(one, other, both_ways=False)

    def _slow_node(self) -> None:
        self.world.slow_down(self._one(), self._draw.choice((10, 100, 1000)))

    def _sicken(self) -> None:
        node = self._one()
        self._excused.add((None, node))
        self.world.sicken(node, is_sick=True)

    def _fail_source(self) -> None:
        path = self._draw.choice(self._files)
        self._excused.add((path, None))
        self.world.fail_source(path, errno.EIO)

    def _stall_source(self) -> None:
        self.world.stall_source(self._draw.uniform(0.1, FAULT_S_MAX / 2))

    def _hurt_disk(self) -> None:
        node = self._one()
        if self._draw.random() < 0.5:
            self.world.fill_disk(node, is_full=True)
        else:
            self.world.damage_disk(node)

    def _clear(self) -> None:
        """No fault, but all that is under way then belongs to an older epoch."""
        self._clears += 1
        self.world.clear(self._one())

    def _push(self) -> None:
        job, source = self.world.job, self.world.source
        roots = [node for node in self._upright() if self._is_push_root(node)]
        files = self.world.hosts[0].node.files
        paths = [path for path in self._files if not path.startswith(job.ring or b"/")]
        full = [path for path in paths if source.size(path) > 0]
        small = [path for path in full if files.is_pushed(path, source.size(path))]
        if roots and small:
            self._pushes += 1
            self.world.push(self._draw.choice(roots), small)

    def _is_push_root(self, node: int) -> bool:
        membership = self.world[node].node.membership
        assert membership is not None
        return membership.trees.push_parent(0, membership.members.gone) is None

    def _change(self) -> None:
        """Write a file anew; a reader that looked it up before may get ESTALE."""
        if self._changes:
            path = self._draw.choice(self._files)
            self._changed.add(path)
            self.world.change(path)

    def _await_failure(self) -> None:
        if self._mtbf_s is not None:
            wait_s = self._draw.expovariate(1 / self._mtbf_s)
            self.world.clock.after(wait_s, self._fail_some)

    def _fail_some(self) -> None:
        if self._mtbf_s is None:
            return  # the faults have ended
        if len(self._upright()) > 2:
            self.faults += 1
            node = self._one()
            self.world.crash(node)
            self.world.clock.after(REPAIRED_S, self._repair, node)
        self._await_failure()

    def _repair(self, node: int) -> None:
        if self.world.hosts[node].is_gone:
            self.world.restart(node)

    def _end_faults(self) -> None:
        world = self.world
        self._mtbf_s = None
        world.heal()
        world.heal_source()
        for host in world.hosts:
            host.port.slowness = 1.0
            host.hands.is_sick = False
            host.disk_port.set_full(False)
        for node in list(self._lame):
            del self._lame[node]
            world.go_on(node)
        for host in list(world.hosts):
            if not (host.process.is_alive or host.is_late) and self._draw.random() < 0.5:
                world.restart(host.me)
