"""Host: one node of a simulated job, the driver in virtual time.

It is the driver's port to the applications, the source and the operations of collectives. A
restarted node is another host with the same number. A late answer or wrong bytes are an
AssertionError where they happen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from copperfs.driver.driver import Driver
from copperfs.driver.ports import Ports
from copperfs.lab.sim.inode_comparison_model import SimulatedComparison
from copperfs.lab.sim.node_clock import NodeClock
from copperfs.lab.sim.payload_pieces import Piece, size_of
from copperfs.lab.sim.process_state import Process
from copperfs.lab.sim.run_trace import Trace
from copperfs.lab.sim.sim_blobs import SimulatedBlobs
from copperfs.lab.sim.sim_chunk_disk import DiskPort
from copperfs.lab.sim.sim_disk import Disk
from copperfs.lab.sim.sim_peers import SimulatedPeers
from copperfs.lab.sim.sim_source import Arrived, ContentRead, FileOpened
from copperfs.lab.sim.sim_transport import Port
from copperfs.lab.sim.source_workers import SourceWorkers
from copperfs.lab.sim.virtual_clock import VirtualClock
from copperfs.lab.sim.virtual_network import VirtualNetwork
from copperfs.model.listing import Listing
from copperfs.model.types import (
    CallId,
    ChunkKey,
    FetchId,
    HandleId,
    NodeId,
    Path,
    RequestId,
    Version,
)
from copperfs.node.actions import (
    Action,
    AnswerChunk,
    AnswerEntry,
    AnswerError,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    ListingKey,
    LogEvent,
    ObjectKey,
    PerformCall,
    SourceAction,
)
from copperfs.node.events import (
    CallPerformed,
    Clear,
    Event,
    Leave,
    NodeRequest,
    PushBatch,
    SourceOpened,
    SourceRead,
    Start,
    StartCall,
)
from copperfs.node.node import Node
from copperfs.node.peer.flow_control import parts_in
from copperfs.node.peer.messages import PART_BYTES, Batch, ContentKind, Item


@dataclass(frozen=True, slots=True)
class ChunkGiven:
    key: ChunkKey
    pieces: Sequence[Piece]
    chunk_bytes: int


Answered = AnswerEntry | AnswerListing | AnswerHandle | AnswerError | ChunkGiven | Sequence[Piece]
"""An object comes as its pieces."""

EPOCH_WITHIN_S, CLEAR_WITHIN_S = 5.0, 15.0
LEAVES_WITHIN_S = 1.0
COMPARES_WITHIN_S = 10.0
SLACK_S = 0.01
"""An answer may come this much after its deadline, when the node is woken for it."""


class Front(Protocol):
    """Answers requests for published content itself."""

    def publish(self, key: ListingKey | ObjectKey) -> None: ...
    def forget(self, key: ListingKey | ObjectKey | ChunkKey) -> None: ...


@dataclass(slots=True)
class _Waiting:
    request: NodeRequest
    deliver: Callable[[Answered], None]
    asked_at: float
    still_s: float


@dataclass(slots=True, eq=False, repr=False)
class Host:
    me: NodeId
    clock: VirtualClock
    process: Process
    node: Node
    hands: SourceWorkers
    trace: Trace
    check_every: int = 1
    """Steps between checks of the node's invariants; 0: never."""
    with_bytes: bool = True
    port: Port = field(init=False)
    peers: SimulatedPeers = field(init=False)
    blobs: SimulatedBlobs = field(init=False)
    own_clock: NodeClock = field(init=False)
    driver: Driver[tuple[Piece, ...], tuple[Piece, ...]] = field(init=False)
    disk_port: DiskPort = field(init=False)
    front: Front | None = None
    taken_over: list[Callable[[], None]] = field(default_factory=list)
    """Let the applications of the daemon before it go on."""
    handles: set[HandleId] = field(default_factory=set)
    happened: list[tuple[float, LogEvent]] = field(default_factory=list)
    is_late: bool = False
    """It is still to be started, for the first time or as the next daemon of its node."""
    slowest_s: float = 0.0
    _waiting: dict[RequestId, _Waiting] = field(default_factory=dict)
    _calls: dict[RequestId, Callable[[bytes], None]] = field(default_factory=dict)
    _at_source: dict[FetchId, tuple[bytes, ...]] = field(default_factory=dict)
    _doing: set[CallId] = field(default_factory=set)
    _steps: int = 0
    _gone: Callable[[], None] | None = None
    """Called when this leaving node may go."""
    _next: int = 1

    def __post_init__(self) -> None:
        self.blobs = SimulatedBlobs(self.with_bytes)
        self.own_clock = NodeClock(self.clock, self.process, self.node, self.post)

    def attach(self, network: VirtualNetwork, random: Random, disk: Disk) -> None:
        """*disk* is the data tier's; it outlives the process."""
        self.peers = SimulatedPeers(self.node, self.blobs, self.post)
        self.port = self.peers.port = Port(self.me, network, self.process, random, self.peers)
        self.disk_port = DiskPort(disk, self.clock, self.process, self.blobs, self.post)
        ports = Ports[tuple[Piece, ...], tuple[Piece, ...]](
            clock=self.own_clock,
            source=self,
            applications=self,
            operations=self,
            failure_log=self,
            network=self.peers,
            chunk_store=self.disk_port,
            observer=self,
        )
        self.driver = Driver(self.node, ports, self.blobs)

    @property
    def disk(self) -> Disk:
        return self.disk_port.disk

    def begin_life(self) -> None:
        self.post(Start())

    def compare_numbers(self, *, is_wanted: bool, ignoring: bool, all_have_met: bool) -> None:
        numbers = self.node.inode_numbers
        assert numbers is not None, "a simulated node has peers"
        numbers.all_have_met, numbers.is_wanted = all_have_met, is_wanted
        self.driver.ports.inode_comparison = SimulatedComparison(
            self.post, self.process, self.hands
        )
        if ignoring:
            self.hands.client.ignore_numbers()
            self.node.ignore_inodes()

    def when_ready(self, do: Callable[[], None], waited_s: float = 0.0) -> None:
        """Begin an application once its node has compared, or has waited long enough for that."""
        if self.has_compared or waited_s > COMPARES_WITHIN_S:
            self.process.take(do)
        else:
            again_s = 0.02
            self.process.after(again_s, self.when_ready, do, waited_s + again_s)

    @property
    def has_compared(self) -> bool:
        numbers = self.node.inode_numbers
        return numbers is None or not numbers.is_pending()

    def leave(self, gone: Callable[[], None]) -> None:
        """Tell the other nodes and finish replies under way; then call *gone*, soon in any case."""
        self._gone = gone
        self.process.after(LEAVES_WITHIN_S, self._go)
        self.post(Leave())

    @property
    def is_gone(self) -> bool:
        """Applications are told so."""
        return not self.process.is_alive and not self.is_late

    @property
    def is_leaving(self) -> bool:
        return self._gone is not None

    @property
    def is_upright(self) -> bool:
        return self.process.runs and not self.is_leaving

    def _go(self) -> None:
        if self._gone is not None:
            gone, self._gone = self._gone, None
            gone()

    # --- for applications ------------------------------------------------------------------------

    def ask(
        self, make_request: Callable[[RequestId], NodeRequest], deliver: Callable[[Answered], None]
    ) -> None:
        request = RequestId(self._number())
        asked = make_request(request)
        still_s = self.process.still_s()
        self._waiting[request] = _Waiting(asked, deliver, self.clock.now, still_s)
        self.post(asked)

    def call(
        self, operation: str, argument: bytes, within_s: float, deliver: Callable[[bytes], None]
    ) -> None:
        """It delivers the numbers that the nodes return, in order."""
        request = RequestId(self._number())
        self._calls[request] = deliver
        self.post(StartCall(request, operation, argument, within_s))

    def clear(self) -> None:
        """In two collectives, as ``daemon/job_requests.py`` does it."""

        def begin(epochs: bytes) -> None:
            latest = max([self.node.epoch, *map(int, epochs.split())])
            self.call("clear", b"%d" % (latest + 1), CLEAR_WITHIN_S, lambda _: None)

        later = self.process.after
        self.call("epoch", b"", EPOCH_WITHIN_S, lambda result: later(0.0, begin, result))

    def push(self, number: int, tree: int, files: Sequence[tuple[Path, Version]]) -> None:
        """Spread files that this node, the root of *tree*, has read, in batches of a part or more.
        It does not wait for a backlog, as ``daemon/warmup_push.py`` does."""
        items: list[Item] = []
        pieces: list[Piece] = []
        left = [
            (path, version, n) for path, version in files for n in range(parts_in(version.size))
        ]
        sequence = 0
        for at, (path, version, index) in enumerate(left):
            piece = self.hands.source.content(path, version)[index]
            start = index * PART_BYTES
            items.append(Item(ContentKind.OBJECT, path, version, version.size, start, piece.size))
            pieces.append(piece)
            last = at + 1 == len(left)
            if last or size_of(pieces) >= PART_BYTES:
                batch = Batch(number, tree, self.node.epoch, sequence, tuple(items), last)
                self.post(PushBatch(batch, self.blobs.keep_blob(tuple(pieces)), size_of(pieces)))
                items, pieces, sequence = [], [], sequence + 1

    @property
    def waits(self) -> int:
        """How many answers it waits for."""
        return len(self._waiting)

    @property
    def calls(self) -> int:
        return len(self._calls)

    # --- the node --------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        self.driver.post(event)
        if self._gone is not None and self.node.is_drained():
            self.process.after(0.0, self._go)

    def disagree(self, peer: NodeId, sentence: str) -> None:
        raise AssertionError(sentence)

    def posted(self, event: Event) -> None:
        if self.trace.is_on:
            self.trace.event(self.clock.now, self.me, event)

    def stepped(self) -> None:
        self._steps += 1
        if self.check_every and self._steps % self.check_every == 0:
            self.node.check_invariants()

    def performs(self, action: Action) -> None:
        if self.trace.is_on:
            self.trace.action(self.clock.now, self.me, action)

    def note(self, happened: LogEvent) -> None:
        self.happened.append((self.clock.now, happened))

    # --- answers ---------------------------------------------------------------------------------

    def answer(self, request: RequestId, answer: AnswerEntry | AnswerListing) -> None:
        self._answer(request, answer)

    def answer_object(self, answer: AnswerObject, content: tuple[Piece, ...]) -> None:
        self._answer(answer.request, content)

    def answer_chunk(self, answer: AnswerChunk, content: tuple[Piece, ...]) -> None:
        self._answer(answer.request, ChunkGiven(answer.key, content, answer.chunk_bytes))

    def answer_handle(self, answer: AnswerHandle) -> None:
        self._answer(answer.request, answer)
        self.handles.remove(answer.handle)  # the application has closed it

    def answer_error(self, request: RequestId, error: int) -> None:
        self._answer(request, AnswerError(request, error))

    def _answer(self, request: RequestId, answer: Answered) -> None:
        waiting = self._waiting.pop(request, None)
        assert waiting is not None, "answered twice, or never asked"
        took_s = self.clock.now - waiting.asked_at - (self.process.still_s() - waiting.still_s)
        self.slowest_s = max(self.slowest_s, took_s)
        limit_s = self.node.limits.fetch_deadline_s + SLACK_S
        assert took_s <= limit_s, f"{waiting.request} was answered after {took_s:.3f} s"
        waiting.deliver(answer)

    # --- publications ----------------------------------------------------------------------------

    def publish_object(self, key: ObjectKey, content: tuple[Piece, ...]) -> None:
        if self.front is not None:
            self.front.publish(key)

    def publish_chunk(self, key: ChunkKey, chunk_bytes: int, content: tuple[Piece, ...]) -> None:
        """The front has no table of chunks."""

    def publish_listing(self, path: Path, listing: Listing) -> None:
        if self.front is not None:
            self.front.publish(ListingKey(path))

    def withdraw(self, key: ListingKey | ObjectKey | ChunkKey) -> None:
        if self.front is not None:
            self.front.forget(key)

    def look_again(self, path: Path) -> None:
        """There is no kernel to notify."""

    def begin_epoch(self, epoch: int) -> None:
        """There is no kernel to notify."""

    # --- the source ------------------------------------------------------------------------------

    def start(self, fetch: SourceAction, names_to_find: tuple[bytes, ...]) -> None:
        assert fetch.fetch not in self._at_source, f"{fetch} is begun twice"
        self._at_source[fetch.fetch] = names_to_find
        self.hands.start(fetch, self._source_said)

    def close_handle(self, handle: HandleId) -> None:
        self.handles.remove(handle)

    def _source_said(self, arrived: Arrived) -> None:
        self.process.take(self._take_arrived, arrived)

    def _take_arrived(self, arrived: Arrived) -> None:
        names_to_find = self._at_source.pop(arrived.fetch)
        match arrived:
            case ContentRead(fetch, content):
                found = tuple(each for each in names_to_find if each in arrived.mentions)
                self.post(SourceRead(fetch, self.blobs.keep_blob(content), found))
            case FileOpened(fetch):
                handle = HandleId(self._number())
                self.handles.add(handle)
                self.post(SourceOpened(fetch, handle))
            case _:
                self.post(arrived)

    # --- calls -----------------------------------------------------------------------------------

    def begin(self, call: PerformCall) -> None:
        self._doing.add(call.call)
        self.process.after(0.0, self._do_our_part, call)

    def stop(self, call: CallId) -> None:
        self._doing.discard(call)

    def merge(self, results: tuple[bytes, ...]) -> bytes:
        return b" ".join(sorted(b" ".join(results).split(), key=int))

    def end(self, request: RequestId, result: bytes) -> None:
        self._calls.pop(request)(result)

    def _do_our_part(self, call: PerformCall) -> None:
        if call.call not in self._doing:
            return
        epoch, result = self.node.epoch, int(self.me)
        if call.operation == "epoch":
            result = epoch
        elif call.operation == "clear" and int(call.argument) > epoch:
            self.post(Clear(int(call.argument)))
        self.post(CallPerformed(call.call, b"%d" % result))

    # --- for checkers ----------------------------------------------------------------------------

    def overdue(self) -> list[NodeRequest]:
        limit_s = self.node.limits.fetch_deadline_s + SLACK_S
        still_s = self.process.still_s()
        return [
            each.request
            for each in self._waiting.values()
            if self.clock.now - each.asked_at - (still_s - each.still_s) > limit_s
        ]

    def _number(self) -> int:
        self._next += 1
        return self._next
