"""Simulated job for unit tests: a small job in the simulator (``copperfs/lab/sim``), where only
waiting takes time.

Messages, reads of the source and writes to disks take no time, so ``run`` shows what nodes do
without any time passing. A seed draws the order in which messages of different connections and
reads of different files arrive. Connections that are idle, or whose peer hangs, stay.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, TypeVar

from copperfs.lab.sim import checkers
from copperfs.lab.sim.host import Answered, ChunkGiven, Host
from copperfs.lab.sim.machine_properties import Machine
from copperfs.lab.sim.sim_disk import DiskCosts
from copperfs.lab.sim.sim_source import SourceCosts
from copperfs.lab.sim.virtual_network import CableTimeouts, NetworkCosts
from copperfs.lab.sim.world import Job, World
from copperfs.model.types import NodeId, Path, RequestId, Version
from copperfs.node.actions import (
    AnswerEntry,
    AnswerError,
    AnswerHandle,
    AnswerListing,
    SourceAction,
)
from copperfs.node.events import (
    Event,
    ListRequest,
    LookupRequest,
    NodeRequest,
    PeerMessage,
    ReadRequest,
)
from copperfs.node.peer.messages import ContentKind, DataReply, Hello, Message, Request
from tests.unit.node_lab import DEADLINE_S

Outcome = AnswerEntry | AnswerListing | AnswerHandle | AnswerError | bytes
Passed = tuple[NodeId, NodeId, Message]
"""Sender, receiver, message."""
M = TypeVar("M", bound=Message)

FOREVER = float("inf")
JITTER_S = 1e-9
AT_ONCE_S = 1e-6
"""What is due within this time belongs to the present moment."""
RECONNECTS_S = 0.02
NO_COSTS = NetworkCosts(0.0, FOREVER, 0.0, 0.0, 0.0, 0.0, jitter_s=JITTER_S)
TIMEOUTS = CableTimeouts(
    connect_s=0.0, silent_s=FOREVER, backoff_first_s=RECONNECTS_S, backoff_last_s=RECONNECTS_S,
    probe_s=0.0, retransmit_s=0.0, noticed_s=(0.0, 0.0),
)  # fmt: skip
ASK_DEADLINE_S = 30.0
SETTINGS = {
    "fetch_deadline_s": ASK_DEADLINE_S,
    "source_deadline_s": DEADLINE_S,
    "source_concurrency": 1 << 20,
    "fallback_jitter_s": 0.0,
}


class SimulatedJob:
    def __init__(
        self,
        nodes: int,
        fanout: int = 2,
        seed: int = 0,
        memory_bytes_of: Mapping[int, int] | None = None,
        **settings: Any,
    ) -> None:
        """With any other settings of ``world.Job``."""
        self.random = Random(seed)
        self.world = world = World(
            seed,
            Job(nodes, fanout, **(SETTINGS | settings)),
            network_costs=NO_COSTS,
            timeouts=TIMEOUTS,
            source_costs=SourceCosts(1, 0.0, 0.0, 0.0, FOREVER, FOREVER),
            disk_costs=DiskCosts(0.0, FOREVER, FOREVER),
        )
        for node, memory_bytes in (memory_bytes_of or {}).items():
            world.machines[node] = Machine(memory_bytes=memory_bytes)
        self.source, self.nodes = world.source, nodes
        self.answers: list[dict[RequestId, Outcome]] = [{} for _ in range(nodes)]
        self._sent: list[Passed] = []
        self._taken: list[Passed] = []
        world.network.watch = self._watch
        world.start(settle_s=0.0)
        self.run()

    def __getitem__(self, node: int) -> Host:
        return self.world[node]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.world.hosts)

    # --- files -----------------------------------------------------------------------------------

    def add(self, path: bytes, size: int = 10, changed_s: int = 0) -> Version:
        self.source.slow[Path(path)] = self.random.uniform(0, 4 * JITTER_S)
        return self.source.add(Path(path), size, changed_s)

    def version(self, path: bytes) -> Version:
        found = self.source.entry(Path(path))
        assert found is not None
        return found.attributes.version

    def content(self, path: bytes, version: Version | None = None) -> bytes:
        pieces = self.source.content(Path(path), version or self.version(path))
        return b"".join([each.data or b"" for each in pieces])

    # --- time ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.world.clock.now

    def move(self) -> bool:
        """Make one thing happen that takes no time; False if there is none."""
        clock = self.world.clock
        if clock.next_at > clock.now + AT_ONCE_S:
            return False
        return clock.run(clock.next_at, lambda: True)

    def run(self, moves_max: int = 1_000_000) -> None:
        """Until nothing is left that takes no time."""
        for _ in range(moves_max):
            if not self.move():
                return
        raise AssertionError("it does not come to an end")

    def move_until(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            assert self.move(), "nothing is left to happen"

    def pass_time(self, seconds: float) -> None:
        self.world.run(seconds)
        self.run()

    def pass_time_until(self, is_so: Callable[[], object], within_s: float = 60.0) -> None:
        assert self.world.run_until(lambda: bool(is_so()), within_s)

    # --- requests --------------------------------------------------------------------------------

    def ask(
        self, node: int, make_request: type[LookupRequest] | type[ListRequest], path: bytes
    ) -> RequestId:
        return self.request(node, lambda request: make_request(request, Path(path)))

    def read(
        self, node: int, path: bytes, version: Version | None = None, offset: int = 0
    ) -> RequestId:
        wanted = version or self.version(path)
        return self.request(
            node, lambda request: ReadRequest(request, Path(path), wanted, offset=offset)
        )

    def request(self, node: int, make: Callable[[RequestId], NodeRequest]) -> RequestId:
        made: list[RequestId] = []

        def noted(request: RequestId) -> NodeRequest:
            made.append(request)
            return make(request)

        def answered(answer: Answered) -> None:
            self.answers[node][made[0]] = _outcome(answer)

        self[node].ask(noted, answered)
        return made[0]

    def answer(self, node: int, request: RequestId) -> Outcome:
        return self.answers[node][request]

    # --- events ----------------------------------------------------------------------------------

    def post(self, node: int, event: Event) -> None:
        self[node].post(event)

    def receive(self, node: int, peer: int, message: Message) -> None:
        """Without the peer having sent it."""
        self.post(node, PeerMessage(NodeId(peer), message))

    def call(self, node: int, operation: str, within_s: float = 10.0) -> list[bytes]:
        """Returns a list that gets the result."""
        results: list[bytes] = []
        self[node].call(operation, b"x", within_s, results.append)
        return results

    def push(self, node: int, tree: int, files: Mapping[Path, Version]) -> None:
        self[node].push(1, tree, list(files.items()))

    # --- faults ----------------------------------------------------------------------------------

    def crash(self, *nodes: int) -> None:
        for node in nodes:
            self.world.crash(node)

    def hang(self, *nodes: int) -> None:
        for node in nodes:
            self.world.hang(node)

    def go_on(self, *nodes: int) -> None:
        """Without nodes: all that hang."""
        for node in nodes or range(self.nodes):
            self.world.go_on(node)

    def sleep(self, seconds: float, *nodes: int) -> None:
        """These nodes, or all, stand still meanwhile."""
        for node in nodes or range(self.nodes):
            self.world.be_late(node, seconds)
        self.pass_time(seconds)

    def cut(self, one: int, other: int) -> None:
        """Break their connections, and let none be made until ``heal``; both keep listening."""
        self.world.break_connections(one, other)
        self.world.cut(one, other)

    def cut_off(self, node: int) -> None:
        for other in range(self.nodes):
            if other != node:
                self.cut(node, other)

    def heal(self) -> None:
        """Let all connections be made that nodes wait for."""
        self.world.heal()
        self.pass_time(2 * RECONNECTS_S)

    def renew(self, one: int, other: int) -> None:
        self.world.network.renew_connections(NodeId(one), NodeId(other), AT_ONCE_S / 2)

    def hold(self, sender: int, receiver: int) -> None:
        """What one sends waits until ``let_through``."""
        self.world.cut(sender, receiver, both_ways=False)

    def let_through(self, sender: int, receiver: int) -> None:
        self.world.network.heal(NodeId(sender), NodeId(receiver))

    def lose_held(self, sender: int, receiver: int) -> None:
        """What ``hold`` keeps back never arrives."""
        self.world.network.lose_held(NodeId(sender), NodeId(receiver))
        self.let_through(sender, receiver)

    def hold_source(self, *nodes: int) -> None:
        """Reads of the source that these nodes begin do not end until ``let_source_go``."""
        for node in nodes:
            self[node].hands.holds = True

    def let_source_go(self, *nodes: int) -> None:
        """Without nodes: all that were held, and live."""
        for node in nodes or self.world.alive():
            self[node].hands.let_go()

    # --- observations ----------------------------------------------------------------------------

    def held_reads(self, node: int) -> list[SourceAction]:
        return [fetch for fetch, _ in self[node].hands.held]

    def _watch(self, passes: str, me: NodeId, peer: NodeId, message: object) -> None:
        assert isinstance(message, Message)
        if passes == "sends":
            self._sent.append((me, peer, message))
        else:
            self._taken.append((peer, me, message))

    def messages(
        self, kind: type[M], sender: int | None = None, receiver: int | None = None
    ) -> list[M]:
        """What was sent, from the beginning."""
        return _select(self._sent, kind, sender, receiver)

    def taken(
        self, kind: type[M], sender: int | None = None, receiver: int | None = None
    ) -> list[M]:
        """What has arrived, from the beginning."""
        return _select(self._taken, kind, sender, receiver)

    def asked(self, node: int, what: ContentKind, peer: int | None = None) -> list[Request]:
        return [each for each in self.messages(Request, node, peer) if each.what is what]

    @property
    def sent(self) -> Counter[str]:
        """By kind, without hellos."""
        names = [type(message).__name__ for _, _, message in self._sent]
        return Counter(name for name in names if name != Hello.__name__)

    @property
    def gave(self) -> Counter[int]:
        """How many parts each node has sent."""
        return Counter(me for me, _, message in self._sent if isinstance(message, DataReply))

    def check_at_rest(self) -> None:
        checkers.check_at_rest(self.world)


def _select(
    passed: list[Passed], kind: type[M], sender: int | None, receiver: int | None
) -> list[M]:
    return [
        message
        for me, peer, message in passed
        if isinstance(message, kind) and sender in (None, me) and receiver in (None, peer)
    ]


def _outcome(answer: Answered) -> Outcome:
    if isinstance(answer, AnswerEntry | AnswerListing | AnswerHandle | AnswerError):
        return answer
    pieces = answer.pieces if isinstance(answer, ChunkGiven) else answer
    return b"".join([each.data or b"" for each in pieces])
