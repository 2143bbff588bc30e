"""Simulated job for unit tests: a small job in the simulator (``copperfs/lab/sim``), in which only
waiting takes time.

Messages, reads of the source and writes to disks take no time, so ``run`` shows what nodes do
at one moment. A seed draws the order in which messages of different connections and
reads of different files arrive. Connections stay while a peer hangs or a cable is cut.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

from copperfs.lab.sim import checkers
from copperfs.lab.sim.host import Answered, ChunkGiven, Host
from copperfs.lab.sim.machine_properties import Machine
from copperfs.lab.sim.payload_pieces import Piece
from copperfs.lab.sim.sim_disk import DiskCosts
from copperfs.lab.sim.sim_source import SourceCosts
from copperfs.lab.sim.virtual_network import CableTimeouts, NetworkCosts
from copperfs.lab.sim.world import Job, World
from copperfs.model.types import NodeId, Path, RequestId, Version
from copperfs.node.actions import SourceAction
from copperfs.node.events import Event, NodeRequest, PeerMessage, ReadRequest
from copperfs.node.peer.messages import ContentKind, DataReply, Hello, Message, Request
from tests.unit.node_lab import DEADLINE_S

M = TypeVar("M", bound=Message)

FOREVER = float("inf")
ASK_DEADLINE_S = 30.0
JITTER_S = 1e-9
AT_ONCE_S = 1e-6
"""What is due within this time belongs to the present moment."""
RECONNECTS_S = 0.02
NO_COSTS = NetworkCosts(0.0, FOREVER, 0.0, 0.0, 0.0, 0.0, jitter_s=JITTER_S)
TIMEOUTS = CableTimeouts(
    connect_s=0.0, silent_s=FOREVER, backoff_first_s=RECONNECTS_S, backoff_last_s=RECONNECTS_S,
    probe_s=0.0, retransmit_s=0.0, noticed_s=(0.0, 0.0),
)  # fmt: skip
SETTINGS: dict[str, Any] = {
    "source_deadline_s": DEADLINE_S,
    "fetch_deadline_s": ASK_DEADLINE_S,
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
        self.nodes, self.random = nodes, Random(seed)
        self.answers: list[dict[RequestId, Answered | bytes]] = [{} for _ in range(nodes)]
        self._passed: list[tuple[str, NodeId, NodeId, Message]] = []
        self.world = world = World(
            seed,
            Job(nodes, fanout, **(SETTINGS | settings)),
            network_costs=NO_COSTS,
            timeouts=TIMEOUTS,
            source_costs=SourceCosts(1, 0.0, 0.0, 0.0, FOREVER, FOREVER),
            disk_costs=DiskCosts(0.0, FOREVER, FOREVER),
        )
        self.source = world.source
        for node, memory_bytes in (memory_bytes_of or {}).items():
            world.machines[node] = Machine(memory_bytes=memory_bytes)
        world.network.watch = self._note
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
        return _joined(self.source.content(Path(path), version or self.version(path)))

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

    def run(self) -> None:
        """Until nothing is left that takes no time."""
        for _ in range(1_000_000):
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

    # --- requests and events ---------------------------------------------------------------------

    def ask(self, node: int, kind: Callable[..., NodeRequest], path: bytes) -> RequestId:
        return self.request(node, partial(kind, path=Path(path)))

    def read(
        self, node: int, path: bytes, version: Version | None = None, offset: int = 0
    ) -> RequestId:
        named = partial(ReadRequest, path=Path(path), version=version or self.version(path))
        return self.request(node, partial(named, offset=offset))

    def request(self, node: int, make: Callable[[RequestId], NodeRequest]) -> RequestId:
        made: list[RequestId] = []

        def noted(request: RequestId) -> NodeRequest:
            made.append(request)
            return make(request)

        def answered(answer: Answered) -> None:
            found = answer.pieces if isinstance(answer, ChunkGiven) else answer
            self.answers[node][made[0]] = _joined(found) if isinstance(found, Sequence) else found

        self[node].ask(noted, answered)
        return made[0]

    def answer(self, node: int, request: RequestId) -> Answered | bytes:
        return self.answers[node][request]

    def post(self, node: int, event: Event) -> None:
        self[node].post(event)

    def receive(self, node: int, peer: int, message: Message) -> None:
        """Without the peer having sent it."""
        self.post(node, PeerMessage(NodeId(peer), message))

    # --- faults ----------------------------------------------------------------------------------

    def hang(self, *nodes: int) -> None:
        for node in nodes:
            self.world.hang(node)

    def go_on(self, *nodes: int) -> None:
        """Without nodes: all that hang."""
        for node in nodes or range(self.nodes):
            self.world.go_on(node)

    def cut(self, one: int, other: int) -> None:
        """Break their connections, and let none be made until ``heal``; both keep listening."""
        self.world.break_connections(one, other)
        self.world.cut(one, other)

    def cut_off(self, node: int) -> None:
        for other in {*range(self.nodes)} - {node}:
            self.cut(node, other)

    def heal(self) -> None:
        self.world.heal()
        self.pass_time(2 * RECONNECTS_S)

    def renew(self, one: int, other: int) -> None:
        self.world.network.renew_connections(NodeId(one), NodeId(other), AT_ONCE_S / 2)

    def hold(self, sender: int, receiver: int) -> None:
        """What one sends waits until ``let_through``."""
        self.world.cut(sender, receiver, both_ways=False)

    def let_through(self, sender: int, receiver: int) -> None:
        self.world.network.heal(NodeId(sender), NodeId(receiver))

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

    def _note(self, passes: str, me: NodeId, peer: NodeId, message: Any) -> None:
        self._passed.append((passes, me, peer, message))

    def messages(self, kind: type[M], sender: int, receiver: int | None = None) -> list[M]:
        """All that were sent since the beginning."""
        return [each for peer, each in self._all("sends", kind, sender) if receiver in (None, peer)]

    def taken(self, kind: type[M], receiver: int, sender: int | None = None) -> list[M]:
        """All that arrived since the beginning."""
        return [each for peer, each in self._all("takes", kind, receiver) if sender in (None, peer)]

    def _all(self, passes: str, kind: type[M], node: int) -> list[tuple[NodeId, M]]:
        return [
            (peer, message)
            for what, me, peer, message in self._passed
            if what == passes and me == node and isinstance(message, kind)
        ]

    def asked(self, node: int, what: ContentKind, peer: int | None = None) -> list[Request]:
        return [each for each in self.messages(Request, node, peer) if each.what is what]

    @property
    def sent(self) -> Counter[str]:
        """By kind, without hellos."""
        kinds = [type(message) for passes, _, _, message in self._passed if passes == "sends"]
        return Counter(kind.__name__ for kind in kinds if kind is not Hello)

    @property
    def gave(self) -> Counter[int]:
        """How many parts each node has sent."""
        return Counter({node: len(self.messages(DataReply, node)) for node in range(self.nodes)})

    def check_at_rest(self) -> None:
        checkers.check_at_rest(self.world)


def _joined(pieces: Sequence[Piece]) -> bytes:
    return b"".join([each.data or b"" for each in pieces])
