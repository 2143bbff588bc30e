"""World: a simulated job; the composition root, and everything that can be done to it.

    world = World(seed=1, nodes=8, fanout=2)
    world.source.add(Path(b"lib/a.py"), 100)
    world.start()
    reading = world.read(5, Path(b"lib/a.py"))
    world.crash(1)
    world.run_until_read()
    world.check_at_rest()

One seed gives one trace, on every machine and with every PYTHONHASHSEED.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from copperfs.lab.sim.codec_check import Transcoder
from copperfs.lab.sim.directory_walker import Walk
from copperfs.lab.sim.file_reader import Reading
from copperfs.lab.sim.host import Host
from copperfs.lab.sim.machine_properties import PLAIN, Machine
from copperfs.lab.sim.process_state import Process, State
from copperfs.lab.sim.run_trace import Trace
from copperfs.lab.sim.sim_disk import MOVES_WITHIN_S, Disk, DiskCosts
from copperfs.lab.sim.sim_resolver import SimulatedResolver
from copperfs.lab.sim.sim_source import SimulatedSource, SourceCosts
from copperfs.lab.sim.source_client import SimulatedClient
from copperfs.lab.sim.source_workers import SourceWorkers
from copperfs.lab.sim.virtual_clock import VirtualClock
from copperfs.lab.sim.virtual_network import CableTimeouts, NetworkCosts, VirtualNetwork
from copperfs.model.protection import UNPROTECTED, Protection
from copperfs.model.types import FANOUT, NodeId, Path
from copperfs.node.limits_and_counters import Limits
from copperfs.node.membership.failure_detector import Timeouts
from copperfs.node.node import Node
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.hash_ring import Ring
from copperfs.node.routing.placement_order import Placement
from copperfs.node.routing.trees import Trees

MIB = 1 << 20
FALLBACK_JITTER_S = 0.1
"""The daemon's."""


@dataclass(frozen=True, slots=True)
class Job:
    """The settings of a job, with the daemon's defaults."""

    nodes: int
    fanout: int = FANOUT
    rack: int = 8
    """Neighbours in the roster that share power and a switch."""
    push_fanout: int = 2
    trees: int = 1
    memory_bytes: int = 64 * MIB
    tree_max_bytes: int = 10 * MIB
    source_deadline_s: float = 60.0
    fetch_deadline_s: float = 30.0
    fallback_concurrency: int = 4
    fallback_jitter_s: float = FALLBACK_JITTER_S
    source_concurrency: int = 32
    revalidate_s: float | None = None
    ahead_max: int = 0
    """A daemon has 8."""
    cut_through: bool = True
    chunk_bytes: int = 0
    """0: there is no data tier."""
    tier_memory_bytes: int = 64 * MIB
    tier_has_disk: bool = False
    tier_waits: bool = True
    tier_backlog_bytes: int = 64 * MIB
    tier_disk_bytes: int = 1 << 40
    ring: tuple[Path, ...] = ()
    protection: Protection = UNPROTECTED
    has_domains: bool = False
    """A rack is a failure domain; otherwise each node is one."""
    hot_files_above_nodes: int = 256
    """In a larger job a request for a large file goes up the tree first."""
    lost_from_source: bool = False
    inodes: str | None = None
    """"auto": nodes compare inode numbers; "ignore": they leave them out; None: neither."""
    all_have_met: bool = True
    """Applications wait until their node has compared with the first one."""
    timeouts: Timeouts = field(default_factory=Timeouts)


@dataclass(slots=True, repr=False)
class World:
    seed: int
    job: Job
    exact: bool = True
    """Real bytes, the real codec, and invariants checked."""
    check_every: int = 1
    network_costs: NetworkCosts = field(default_factory=NetworkCosts)
    timeouts: CableTimeouts = field(default_factory=CableTimeouts)
    source_costs: SourceCosts = field(default_factory=SourceCosts)
    disk_costs: DiskCosts = field(default_factory=DiskCosts)
    machines: dict[int, Machine] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)
    clock: VirtualClock = field(default_factory=VirtualClock)
    hosts: list[Host] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    walks: list[Walk] = field(default_factory=list)
    source: SimulatedSource = field(init=False)
    network: VirtualNetwork = field(init=False)
    random: Random = field(init=False)
    lives: int = 0
    _pushes: int = 0
    _disks: dict[NodeId, Disk] = field(default_factory=dict)
    _placement: Placement | None = None

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.source = SimulatedSource(self.clock, self.source_costs, with_bytes=self.exact)
        self.network = VirtualNetwork(
            self.clock,
            self._another_random(),
            self.network_costs,
            self.timeouts,
            Transcoder() if self.exact else None,
        )

    # --- nodes -----------------------------------------------------------------------------------

    def start(self, settle_s: float = 1.0) -> None:
        self._place([1.0] * self.job.nodes)
        for number in range(self.job.nodes):
            starts_s = self._machine(number).starts_s
            host = self._new_host(NodeId(number), is_late=starts_s > 0)
            self.hosts.append(host)
            if starts_s > 0:
                self.clock.after(starts_s, self.start_late, host)
        self.run(settle_s)

    def start_late(self, host: Host) -> None:
        if host.is_late:
            self._tell(f"node {host.me} is started")
            self._begin(host)

    def _machine(self, node: int) -> Machine:
        return self.machines.get(node, PLAIN)

    def memory_bytes(self, node: int) -> int:
        own = self._machine(node).memory_bytes
        return self.job.memory_bytes if own is None else own

    @property
    def numbers_differ(self) -> bool:
        """Whether a client of the source gives files inode numbers of its own."""
        return any(machine.own_numbers for machine in self.machines.values())

    def start_some(self, weights: dict[int, int], settle_s: float) -> None:
        """Start a sample of a large job: the nodes in *weights*, each of which stands for as many
        as its weight. ``hosts`` has them in this order. The others are as if not started. The nodes
        that stand for no other own the chunks, so each chunk has one owner."""
        self._place([float(weights.get(number) == 1) for number in range(self.job.nodes)])
        for number, weight in weights.items():
            host = self._new_host(NodeId(number))
            host.port.weight = host.hands.times = weight
            self.hosts.append(host)
        self.run(settle_s)

    def _place(self, shares: list[float]) -> None:
        if self.job.chunk_bytes:
            self._placement = Ring([f"n{number}" for number in range(len(shares))], shares)

    def _domains(self) -> tuple[int, ...]:
        job = self.job
        if not job.has_domains:
            return ()
        return tuple(number - number % job.rack for number in range(job.nodes))

    def _new_host(self, me: NodeId, *, is_late: bool = False) -> Host:
        job, machine = self.job, self._machine(me)
        limits = Limits(
            memory_bytes=self.memory_bytes(me),
            tree_max_bytes=job.tree_max_bytes,
            bypass_above_bytes=None,
            fetch_deadline_s=job.source_deadline_s,
            trees=job.trees,
            ask_deadline_s=job.fetch_deadline_s,
            fallbacks_max=job.fallback_concurrency,
            fallback_jitter_s=job.fallback_jitter_s,
            chunk_bytes=job.chunk_bytes,
            tier_memory_bytes=job.tier_memory_bytes,
            tier_has_disk=job.tier_has_disk,
            tier_waits=job.tier_waits,
            tier_backlog_bytes=job.tier_backlog_bytes,
            takers_max=job.fanout,
            ahead_max=job.ahead_max,
            cut_through=job.cut_through,
            hot_files_above_nodes=job.hot_files_above_nodes,
            lost_from_source=job.lost_from_source,
        )
        trees = Trees(job.nodes, me, job.fanout, job.push_fanout, job.trees)
        policy = Policy(
            source=b"/src",
            mountpoint=b"/mnt",
            revalidate_s=job.revalidate_s,
            ring=job.ring,
            protection=job.protection,
        )
        own = self._another_random()
        node = Node(policy, limits, trees, job.timeouts, own, self._placement, self._domains())
        process = Process(self.clock)
        every = self.check_every if self.exact else 0
        client = SimulatedClient(me + 1, machine.own_numbers, machine.ahead_s)
        hands = SourceWorkers(self.source, job.source_concurrency, client=client)
        hands.deadline_s = self.source.scan_deadline_s = job.source_deadline_s
        host = Host(me, self.clock, process, node, hands, self.trace, every, self.exact)
        if me not in self._disks:
            self._disks[me] = Disk(self.clock, self.disk_costs, job.tier_disk_bytes)
        host.attach(self.network, self._another_random(), self._disks[me])
        port = host.port
        host.own_clock.boot_s, host.own_clock.rate = machine.boot_s, machine.rate
        port.ahead_s, port.descriptors = machine.ahead_s, machine.descriptors
        port.others, hands.may_open = (lambda: 2 * hands.opened), port.has_descriptor
        if machine.resolver_s is not None:
            port.names = SimulatedResolver(
                process, machine.resolver_s, machine.resolver_fails_until
            )
        if job.inodes is not None:
            host.compare_numbers(
                is_wanted=job.inodes == "auto",
                ignoring=job.inodes == "ignore",
                all_have_met=job.all_have_met,
            )
        if is_late:
            host.is_late = True
            process.end()
        else:
            self._begin(host)
        return host

    def _begin(self, host: Host) -> None:
        self.lives += 1
        host.is_late = False
        host.process.state = State.RUNS
        self.network.attach(host.port)
        host.process.after(0.0, host.begin_life)
        for go_on in host.taken_over:
            host.process.after(0.0, go_on)

    @property
    def acting(self) -> int | None:
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
        return is_over() or self.clock.run(self.clock.now + within_s, is_over)

    def run_until_read(self, within_s: float = 300.0) -> bool:
        waiting = [each for each in self.readings if not each.is_over]

        def is_over() -> bool:
            while waiting and waiting[-1].is_over:
                waiting.pop()
            return not waiting

        return self.run_until(is_over, within_s)

    def run_until_source_rests(self, within_s: float = 300.0) -> bool:
        """Run until no node is at the source: reads without a waiting application go on, too."""
        return self.run_until(lambda: not any(host.hands.busy for host in self.hosts), within_s)

    # --- applications ----------------------------------------------------------------------------

    def read(self, node: int, path: Path) -> Reading:
        reading = Reading.start(self.hosts[node], self.source, path)
        self.readings.append(reading)
        self._tell(f"node {node} reads {path.decode()}")
        return reading

    def walk(self, node: int, directory: Path, names_at_once: int, pause_s: float) -> Walk:
        walk = Walk.start(self.hosts[node], directory, names_at_once, pause_s)
        self.walks.append(walk)
        self._tell(f"node {node} walks through {directory.decode()}")
        return walk

    def push(self, node: int, paths: list[Path]) -> None:
        client = self.hosts[node].hands.client
        entries = [(path, self.source.entry(path)) for path in paths]
        files = [
            (path, client.entry(entry).attributes.version)
            for path, entry in entries
            if entry is not None
        ]
        self._tell(f"node {node} pushes {len(files)} files")
        self._pushes += 1
        host = self.hosts[node]
        host.process.take(host.push, self._pushes, 0, files)

    def clear(self, node: int) -> None:
        self._tell(f"node {node} clears")
        host = self.hosts[node]
        host.process.take(host.clear)

    # --- faults of nodes -------------------------------------------------------------------------

    def crash(self, node: int) -> None:
        """Send SIGKILL: the kernel closes its connections."""
        self._tell(f"node {node} crashes")
        self.hosts[node].process.end()
        self.hosts[node].disk.process_ended()
        self.network.died(NodeId(node))

    def power_off(self, node: int) -> None:
        """No peer is told."""
        self._tell(f"node {node} loses power")
        self.hosts[node].process.end()
        self.hosts[node].disk.process_ended()
        self.network.lost_power(NodeId(node))

    def stop(self, node: int) -> None:
        self._tell(f"node {node} is stopped")
        self.hosts[node].process.stop(State.STOPPED)
        self.network.stopped(NodeId(node))

    def hang(self, node: int) -> None:
        """Hang its event loop; the thread of ZeroMQ still runs."""
        self._tell(f"the loop of node {node} hangs")
        self.hosts[node].process.stop(State.HUNG)

    def go_on(self, node: int) -> None:
        """End a stop or a hang; the process first handles what came meanwhile."""
        process = self.hosts[node].process
        if process.runs or not process.is_alive:
            return
        self._tell(f"node {node} goes on")
        was_stopped = process.state is State.STOPPED
        process.go_on()
        if was_stopped and process.is_alive:
            self.network.went_on(NodeId(node))

    def be_late(self, node: int, seconds: float) -> None:
        self.hang(node)
        process, since = self.hosts[node].process, self.clock.now

        def end() -> None:
            if process is self.hosts[node].process and process.since == since:
                self.go_on(node)

        self.clock.after(seconds, end)

    def restart(self, node: int) -> None:
        self._tell(f"node {node} is started again")
        self.hosts[node] = self._new_host(NodeId(node))

    def take_over(self, node: int, after_s: float) -> None:
        """Kill its daemon; another one goes on with the mount (``daemon/succession.py``). It knows
        the epoch and finds the chunks on the disk."""
        self._tell(f"the daemon of node {node} dies, and after {after_s:.3f} s another takes over")
        dead = self.hosts[node]
        dead.process.end()
        dead.disk.process_ended()
        self.network.died(NodeId(node))
        host = self.hosts[node] = self._new_host(NodeId(node), is_late=True)
        host.node.resume(dead.node.epoch)
        host.port.slowness, host.hands.is_sick = dead.port.slowness, dead.hands.is_sick
        host.hands.starved_s = dead.hands.starved_s  # checkers look at the node
        applications: list[Reading | Walk] = [
            *(each for each in self.readings if each.host is dead and each.ended is None),
            *(each for each in self.walks if each.host is dead and not each.is_over),
        ]
        for each in applications:
            each.move(host)
            host.taken_over.append(each.go_on)
        self.clock.after(after_s, self.start_late, host)

    def leave(self, node: int) -> None:
        """Send SIGTERM: it tells its peers, and ends when it may."""
        self._tell(f"node {node} leaves")
        host = self.hosts[node]

        def gone() -> None:
            if host.process.is_alive:
                host.process.end()
                host.disk.process_ended(MOVES_WITHIN_S)
                self.network.died(NodeId(node))

        host.process.take(host.leave, gone)

    def slow_down(self, node: int, times: float) -> None:
        """1 is the normal speed."""
        self._tell(f"node {node} is {times:g} times as slow")
        self.hosts[node].port.slowness = times

    def sicken(self, node: int, *, is_sick: bool = True) -> None:
        self._tell(f"the source gives {'errors' if is_sick else 'no errors'} to node {node}")
        self.hosts[node].hands.is_sick = is_sick

    def step_clock(self, node: int, ahead_s: float) -> None:
        self._tell(f"the clock of node {node} is set to be {ahead_s:+.3f} s off")
        self.machines[node] = replace(self._machine(node), ahead_s=ahead_s)
        host = self.hosts[node]
        host.port.ahead_s = host.hands.client.ahead_s = ahead_s

    def resolve(self, node: int, takes_s: float, fails_until: float) -> None:
        self._tell(f"names take {takes_s:g} s on node {node}, and fail until {fails_until:.3f}")
        self.machines[node] = replace(
            self._machine(node), resolver_s=takes_s, resolver_fails_until=fails_until
        )
        names = self.hosts[node].port.names
        if names is not None:
            names.takes_s, names.fails_until = takes_s, fails_until

    def strangers(self, node: int, count: int, each_s: float) -> None:
        self._tell(f"{count} strangers connect to node {node}")
        host = self.hosts[node]
        for number in range(count):
            host.process.after(number * each_s, host.port.stranger)

    def rack(self, node: int) -> list[int]:
        first = node - node % self.job.rack
        return list(range(first, min(first + self.job.rack, self.job.nodes)))

    # --- faults of the source and disks -----------------------------------------------------------

    def stall_source(self, seconds: float) -> None:
        self._tell(f"the source stalls for {seconds:g} s")
        self.source.stalled_until = self.clock.now + seconds

    def fail_source(self, path: Path, error: int) -> None:
        self._tell(f"the source fails for {path.decode()}")
        self.source.failing[path] = error

    def change(self, path: Path) -> None:
        self._tell(f"{path.decode()} is written anew")
        self.source.change(path)

    def write(self, path: Path) -> None:
        self._tell(f"{path.decode()} is written, at the server's time")
        self.source.write(path)

    def rewrite(self, path: Path) -> None:
        self._tell(f"{path.decode()} is written when it is looked at, and when it is read")
        self.source.rewritten = path

    def remove(self, path: Path) -> None:
        self._tell(f"{path.decode()} is removed")
        self.source.remove(path)

    def hang_name(self, path: Path, until: float) -> None:
        self._tell(f"{path.decode()} hangs until {until:g}")
        self.source.hanging[path] = until

    def sicken_server(self, server: int, seconds: float) -> None:
        self._tell(f"server {server} of the source does not answer for {seconds:g} s")
        self.source.sick_server = server, self.clock.now + seconds

    def heal_source(self) -> None:
        self._tell("the source is well again")
        self.source.heal()

    def fill_disk(self, node: int, *, is_full: bool) -> None:
        self._tell(f"the disk of node {node} {'is full' if is_full else 'has room again'}")
        self.hosts[node].disk_port.set_full(is_full)

    def hang_disk(self, node: int, seconds: float) -> None:
        self._tell(f"the disk of node {node} hangs for {seconds:g} s")
        self.hosts[node].disk.hang(seconds)
        self.hosts[node].disk_port.watch()

    def damage_disk(self, node: int) -> None:
        disk = self.hosts[node].disk
        self._tell(f"{len(disk.chunks)} chunks on the disk of node {node} are damaged")
        for key in list(disk.chunks):
            disk.damage(key)

    # --- faults of cables ------------------------------------------------------------------------

    def cut(self, one: int, other: int, *, both_ways: bool = True) -> None:
        self._tell(f"the way {one} {'--' if both_ways else '->'} {other} is cut")
        self.network.cut(NodeId(one), NodeId(other))
        if both_ways:
            self.network.cut(NodeId(other), NodeId(one))

    def isolate(self, node: int) -> None:
        for other in range(self.job.nodes):
            if other != node:
                self.cut(node, other)

    def part(self, group: set[int]) -> None:
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
