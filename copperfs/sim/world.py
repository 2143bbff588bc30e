"""A simulated job: the composition root, and everything that can be done to it.

    world = World(seed=1, nodes=8, fanout=2)
    world.source.add(Path(b"lib/a.py"), 100)
    world.start()
    reading = world.read(5, Path(b"lib/a.py"))
    world.crash(1)
    world.run_until_read()
    world.check_at_rest()

Every node is the real core; messages are the real ones, through the real codec unless *exact* is
off. What is random is drawn from the seed: one seed gives one trace, on every machine and with
every PYTHONHASHSEED.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from copperfs.core.node import Node
from copperfs.core.placement import Placement
from copperfs.core.policy import Policy
from copperfs.core.ring import Ring
from copperfs.core.state import Limits
from copperfs.core.suspicion import Patience
from copperfs.core.trees import Trees
from copperfs.sim.clock import Clock
from copperfs.sim.codec import Transcoder
from copperfs.sim.disk import MOVES_WITHIN_S, Disk, DiskCosts
from copperfs.sim.host import Host
from copperfs.sim.network import Network, NetworkCosts, Timeouts
from copperfs.sim.port import Port
from copperfs.sim.process import Process, State
from copperfs.sim.reading import Reading
from copperfs.sim.source import Hands, Source, SourceCosts
from copperfs.sim.trace import Trace
from copperfs.types import FANOUT, NodeId, Path

MIB = 1 << 20
FALLBACK_JITTER_S = 0.1
"""The daemon's."""


@dataclass(frozen=True, slots=True)
class Job:
    """The settings that the nodes of a job share, with the daemon's defaults."""

    nodes: int
    fanout: int = FANOUT
    rack: int = 8
    """So many neighbours in the roster share power and a switch."""
    push_fanout: int = 2
    trees: int = 1
    memory_bytes: int = 64 * MIB
    tree_max_bytes: int = 10 * MIB
    source_deadline_s: float = 60.0
    fetch_deadline_s: float = 30.0
    fallback_concurrency: int = 4
    source_concurrency: int = 32
    revalidate_s: float | None = None
    ahead_max: int = 0
    """So many files at a time are read ahead; a daemon has 8."""
    cut_through: bool = True
    chunk_bytes: int = 0
    """Of the data tier; 0: there is none."""
    tier_memory_bytes: int = 64 * MIB
    tier_has_disk: bool = False
    tier_waits: bool = True
    tier_backlog_bytes: int = 64 * MIB
    tier_disk_bytes: int = 1 << 40
    ring: tuple[Path, ...] = ()
    crowds_above: int = 256
    """In a job of more nodes large files are asked for up the tree first."""
    lost_from_source: bool = False
    patience: Patience = field(default_factory=Patience)


@dataclass(slots=True, repr=False)
class World:
    seed: int
    job: Job
    exact: bool = True
    """Real bytes, the real codec, and invariants checked."""
    check_every: int = 1
    """After so many steps of a node."""
    network_costs: NetworkCosts = field(default_factory=NetworkCosts)
    timeouts: Timeouts = field(default_factory=Timeouts)
    source_costs: SourceCosts = field(default_factory=SourceCosts)
    disk_costs: DiskCosts = field(default_factory=DiskCosts)
    trace: Trace = field(default_factory=Trace)
    clock: Clock = field(default_factory=Clock)
    hosts: list[Host] = field(default_factory=list)
    """By node; the last one that was started."""
    readings: list[Reading] = field(default_factory=list)
    source: Source = field(init=False)
    network: Network = field(init=False)
    random: Random = field(init=False)
    lives: int = 0
    """How often a node was started."""
    _pushes: int = 0
    _disks: dict[NodeId, Disk] = field(default_factory=dict)
    _placement: Placement | None = None

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.source = Source(self.clock, self.source_costs, with_bytes=self.exact)
        self.network = Network(
            self.clock,
            self._another_random(),
            self.network_costs,
            self.timeouts,
            Transcoder() if self.exact else None,
        )

    # --- nodes -----------------------------------------------------------------------------------

    def start(self, settle_s: float = 1.0) -> None:
        """All nodes, and time for them to connect."""
        self._place([1.0] * self.job.nodes)
        for number in range(self.job.nodes):
            self.hosts.append(self._new_host(NodeId(number)))
        self.run(settle_s)

    def start_some(self, weights: dict[int, int], settle_s: float) -> None:
        """Of a job that is too large only these, each of which stands for so many; the others are
        as if they had not been started yet. ``hosts`` then has them in this order. Chunks are owned
        by those that stand for nobody else: each has one owner, which reads it once."""
        self._place([float(weights.get(number) == 1) for number in range(self.job.nodes)])
        for number, weight in weights.items():
            host = self._new_host(NodeId(number))
            host.port.weight = host.hands.times = weight
            self.hosts.append(host)
        self.run(settle_s)

    def _place(self, shares: list[float]) -> None:
        """By the daemon's default."""
        if self.job.chunk_bytes:
            self._placement = Ring([f"n{number}" for number in range(len(shares))], shares)

    def _new_host(self, me: NodeId) -> Host:
        job = self.job
        self.lives += 1
        limits = Limits(
            memory_bytes=job.memory_bytes,
            tree_max_bytes=job.tree_max_bytes,
            bypass_above_bytes=None,
            fetch_deadline_s=job.source_deadline_s,
            trees=job.trees,
            ask_deadline_s=job.fetch_deadline_s,
            fallbacks_max=job.fallback_concurrency,
            fallback_jitter_s=FALLBACK_JITTER_S,
            chunk_bytes=job.chunk_bytes,
            tier_memory_bytes=job.tier_memory_bytes,
            tier_has_disk=job.tier_has_disk,
            tier_waits=job.tier_waits,
            tier_backlog_bytes=job.tier_backlog_bytes,
            takers_max=job.fanout,
            ahead_max=job.ahead_max,
            cut_through=job.cut_through,
            crowds_above=job.crowds_above,
            lost_from_source=job.lost_from_source,
        )
        trees = Trees(job.nodes, me, job.fanout, job.push_fanout, job.trees)
        policy = Policy(
            source=b"/src", mountpoint=b"/mnt", revalidate_s=job.revalidate_s, ring=job.ring
        )
        own = self._another_random()
        node = Node(policy, limits, trees, job.patience, own, self._placement)
        process = Process(self.clock)
        every = self.check_every if self.exact else 0
        hands = Hands(self.source, job.source_concurrency)
        host = Host(me, self.clock, process, node, hands, self.trace, every, self.exact)
        if me not in self._disks:
            self._disks[me] = Disk(self.clock, self.disk_costs, job.tier_disk_bytes)
        host.disk = self._disks[me]
        port = Port(me, self.network, process, self._another_random(), host)
        host.attach(port)
        self.network.attach(port)
        process.after(0.0, host.start)
        return host

    @property
    def acting(self) -> int | None:
        """Whose step was the last one."""
        return self.trace.last_node()

    def _another_random(self) -> Random:
        return Random(self.random.getrandbits(64))

    def __getitem__(self, node: int) -> Host:
        return self.hosts[node]

    def alive(self) -> list[int]:
        return [host.me for host in self.hosts if host.process.is_alive]

    # --- time ------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.clock.run(self.clock.now + seconds)

    def run_until(self, is_over: Callable[[], bool], within_s: float) -> bool:
        """Whether it came to that in time."""
        return is_over() or self.clock.run(self.clock.now + within_s, is_over)

    def run_until_read(self, within_s: float = 300.0) -> bool:
        """Until no application waits for anything any more."""
        waiting = [each for each in self.readings if not each.is_over]

        def is_over() -> bool:
            while waiting and waiting[-1].is_over:
                waiting.pop()
            return not waiting

        return self.run_until(is_over, within_s)

    def run_until_source_rests(self, within_s: float = 300.0) -> bool:
        """Until no node is at the source any more: reads that nobody waits for go on to their
        end."""
        return self.run_until(lambda: not any(host.hands.busy for host in self.hosts), within_s)

    # --- what applications do --------------------------------------------------------------------

    def read(self, node: int, path: Path) -> Reading:
        reading = Reading.start(self.hosts[node], self.source, path)
        self.readings.append(reading)
        self._tell(f"node {node} reads {path.decode()}")
        return reading

    def push(self, node: int, paths: list[Path]) -> None:
        """A working set from the root of the first tree to all nodes."""
        entries = [(path, self.source.entry(path)) for path in paths]
        files = [(path, entry.attributes.version) for path, entry in entries if entry is not None]
        self._tell(f"node {node} pushes {len(files)} files")
        self._pushes += 1
        host = self.hosts[node]
        host.process.take(host.push, self._pushes, 0, files)

    def clear(self, node: int) -> None:
        """A new epoch, on all nodes."""
        self._tell(f"node {node} clears")
        host = self.hosts[node]
        host.process.take(host.clear)

    # --- what happens to nodes -------------------------------------------------------------------

    def crash(self, node: int) -> None:
        """SIGKILL: the kernel closes its connections."""
        self._tell(f"node {node} crashes")
        self.hosts[node].process.end()
        self.hosts[node].disk.process_ended()
        self.network.died(NodeId(node))

    def power_off(self, node: int) -> None:
        """The machine is gone; nothing tells anybody."""
        self._tell(f"node {node} loses power")
        self.hosts[node].process.end()
        self.hosts[node].disk.process_ended()
        self.network.lost_power(NodeId(node))

    def stop(self, node: int) -> None:
        """SIGSTOP."""
        self._tell(f"node {node} is stopped")
        self.hosts[node].process.stop(State.STOPPED)
        self.network.stopped(NodeId(node))

    def hang(self, node: int) -> None:
        """Its event loop does nothing any more; the thread of ZeroMQ goes on."""
        self._tell(f"the loop of node {node} hangs")
        self.hosts[node].process.stop(State.HUNG)

    def go_on(self, node: int) -> None:
        """After a stop or a hang; what came meanwhile is done first."""
        process = self.hosts[node].process
        if process.runs or not process.is_alive:
            return
        self._tell(f"node {node} goes on")
        was_stopped = process.state is State.STOPPED
        process.go_on()
        if was_stopped and process.is_alive:
            self.network.went_on(NodeId(node))

    def be_late(self, node: int, seconds: float) -> None:
        """Its event loop is busy with something else for so long."""
        self.hang(node)
        process, since = self.hosts[node].process, self.clock.now

        def end() -> None:
            if process is self.hosts[node].process and process.since == since:
                self.go_on(node)

        self.clock.after(seconds, end)

    def restart(self, node: int) -> None:
        """A new daemon with nothing in its caches; the old one is dead."""
        self._tell(f"node {node} is started again")
        self.hosts[node] = self._new_host(NodeId(node))

    def leave(self, node: int) -> None:
        """SIGTERM: it tells its peers, and is gone when it may go."""
        self._tell(f"node {node} leaves")
        host = self.hosts[node]

        def gone() -> None:
            if host.process.is_alive:
                host.process.end()
                host.disk.process_ended(MOVES_WITHIN_S)
                self.network.died(NodeId(node))

        host.process.take(host.leave, gone)

    def slow_down(self, node: int, times: float) -> None:
        """Its processor takes so many times as long from now on; 1 is well."""
        self._tell(f"node {node} is {times:g} times as slow")
        self.hosts[node].port.slowness = times

    def sicken(self, node: int, *, is_sick: bool = True) -> None:
        """Its own client of the source's filesystem gives errors."""
        self._tell(f"the source gives {'errors' if is_sick else 'no errors'} to node {node}")
        self.hosts[node].hands.is_sick = is_sick

    def rack(self, node: int) -> list[int]:
        """Those that share power and a switch with it."""
        first = node - node % self.job.rack
        return list(range(first, min(first + self.job.rack, self.job.nodes)))

    # --- what happens to the source and to disks --------------------------------------------------

    def stall_source(self, seconds: float) -> None:
        self._tell(f"the source stalls for {seconds:g} s")
        self.source.stalled_until = self.clock.now + seconds

    def fail_source(self, path: Path, error: int) -> None:
        """For everybody, until ``heal_source``."""
        self._tell(f"the source fails for {path.decode()}")
        self.source.failing[path] = error

    def change(self, path: Path) -> None:
        self._tell(f"{path.decode()} is written anew")
        self.source.change(path)

    def heal_source(self) -> None:
        self._tell("the source is well again")
        self.source.failing.clear()
        self.source.slow.clear()
        self.source.stalled_until = 0.0

    def fill_disk(self, node: int, *, is_full: bool) -> None:
        self._tell(f"the disk of node {node} {'is full' if is_full else 'has room again'}")
        self.hosts[node].disk_is(full=is_full)

    def damage_disk(self, node: int) -> None:
        """A bit of each chunk that lies there."""
        disk = self.hosts[node].disk
        self._tell(f"{len(disk.chunks)} chunks on the disk of node {node} are damaged")
        for key in list(disk.chunks):
            disk.damage(key)

    # --- what happens to cables ------------------------------------------------------------------

    def cut(self, one: int, other: int, *, both_ways: bool = True) -> None:
        """Nothing passes from *one* to *other* any more."""
        self._tell(f"the way {one} {'--' if both_ways else '->'} {other} is cut")
        self.network.cut(NodeId(one), NodeId(other))
        if both_ways:
            self.network.cut(NodeId(other), NodeId(one))

    def isolate(self, node: int) -> None:
        """Its cable is pulled."""
        for other in range(self.job.nodes):
            if other != node:
                self.cut(node, other)

    def part(self, group: set[int]) -> None:
        """Nothing passes between these nodes and the others."""
        for one in sorted(group):
            for other in range(self.job.nodes):
                if other not in group:
                    self.cut(one, other)

    def heal(self) -> None:
        self._tell("all cables are whole again")
        self.network.heal_all()

    def break_connections(self, one: int, other: int) -> None:
        self._tell(f"the connections of {one} and {other} break")
        self.network.break_connections(NodeId(one), NodeId(other))

    def spoil_next(self, sender: int, receiver: int) -> None:
        self._tell(f"the next bytes from {sender} to {receiver} are damaged on the way")
        self.network.spoil_next(NodeId(sender), NodeId(receiver))

    def delay(self, sender: int, receiver: int, seconds: float) -> None:
        self._tell(f"what {sender} sends to {receiver} takes {seconds:g} s longer")
        self.network.delays[NodeId(sender), NodeId(receiver)] = seconds

    def _tell(self, what: str) -> None:
        self.trace.fault(self.clock.now, what)
