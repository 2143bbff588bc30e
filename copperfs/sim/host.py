"""One node of a simulated job: the core, and what performs its actions.

It does what ``runtime/engine.py`` does: events go in one at a time, actions are performed in their
order, the source is asked by as many hands as the node has threads, and the core is woken when it
wants to be. A node that is started again is another host with the same number.

A question has its deadline, and the bytes that answer it are compared with the source's; what is
wrong with either is an AssertionError here, where it happens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from copperfs.core.actions import (
    Action,
    AnswerChunk,
    AnswerEntry,
    AnswerError,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    Connect,
    Disconnect,
    DropCall,
    EndCall,
    Evict,
    Happened,
    ListingKey,
    LoadChunk,
    LookAgain,
    LookSource,
    NewEpoch,
    ObjectKey,
    OpenSource,
    PerformCall,
    Probe,
    Publish,
    ReadChunk,
    ReadSource,
    ReleaseBlob,
    ReleaseHandle,
    ScanSource,
    Send,
    StoreChunk,
)
from copperfs.core.events import (
    CallPerformed,
    Clear,
    DiskRecovered,
    Event,
    HaveRead,
    Leave,
    Loaded,
    Opened,
    Probed,
    PushBatch,
    Question,
    Start,
    StartCall,
    Stored,
    Tick,
)
from copperfs.core.links import parts_in
from copperfs.core.messages import PART_BYTES, Batch, Item, Message, Return, What
from copperfs.core.node import Node
from copperfs.sim.clock import Clock
from copperfs.sim.disk import Disk
from copperfs.sim.peers import Blobs, Peers
from copperfs.sim.pieces import Piece, size_of
from copperfs.sim.port import Port
from copperfs.sim.process import Process
from copperfs.sim.source import Arrived, ContentRead, FileOpened, Hands
from copperfs.sim.trace import Trace
from copperfs.types import (
    CallId,
    ChunkKey,
    FetchId,
    HandleId,
    NodeId,
    Path,
    PeerRequest,
    RequestId,
    Version,
)


@dataclass(frozen=True, slots=True)
class ChunkGiven:
    key: ChunkKey
    pieces: Sequence[Piece]
    chunk_bytes: int


Answered = AnswerEntry | AnswerListing | AnswerHandle | AnswerError | ChunkGiven | Sequence[Piece]
"""How a question ended; an object as its pieces."""

EPOCH_WITHIN_S, CLEAR_WITHIN_S = 5.0, 15.0
LEAVES_WITHIN_S = 1.0
SLACK_S = 0.01
"""That an answer may be later than its deadline: the node is woken for it at that time."""


class Front(Protocol):
    """Answers by itself what was published."""

    def publish(self, key: ListingKey | ObjectKey) -> None: ...
    def forget(self, key: ListingKey | ObjectKey | ChunkKey) -> None: ...


@dataclass(slots=True)
class _Waiting:
    question: Question
    deliver: Callable[[Answered], None]
    asked_at: float
    still_s: float
    """That the process had stood still before."""


@dataclass(slots=True, eq=False, repr=False)
class Host:
    me: NodeId
    clock: Clock
    process: Process
    node: Node
    hands: Hands
    trace: Trace
    check_every: int = 1
    """So many steps the core's invariants are checked once; 0: never."""
    with_bytes: bool = True
    port: Port = field(init=False)
    peers: Peers = field(init=False)
    blobs: Blobs = field(default_factory=Blobs)
    disk: Disk = field(init=False)
    """Of the data tier; it outlives the process."""
    front: Front | None = None
    """What stands between applications and the daemon, if anything does."""
    handles: set[HandleId] = field(default_factory=set)
    happened: list[tuple[float, Happened]] = field(default_factory=list)
    """What the core wrote into its log of events."""
    slowest_s: float = 0.0
    """Of all answers."""
    _waiting: dict[RequestId, _Waiting] = field(default_factory=dict)
    _calls: dict[RequestId, Callable[[bytes], None]] = field(default_factory=dict)
    _at_source: dict[FetchId, tuple[bytes, ...]] = field(default_factory=dict)
    _doing: set[CallId] = field(default_factory=set)
    _steps: int = 0
    _alarm: float | None = None
    _gone: Callable[[], None] | None = None
    """Called when this node, which leaves, may go."""
    _next: int = 1

    def attach(self, port: Port) -> None:
        self.port = port
        self.peers = Peers(port, self.node, self.blobs, self.post, self.post_all, self.with_bytes)

    def start(self) -> None:
        self.post(Start())

    def leave(self, gone: Callable[[], None]) -> None:
        """Tell the other nodes, give those who ask what they wait for, and be *gone* then; after a
        moment in any case."""
        self._gone = gone
        self.process.after(LEAVES_WITHIN_S, self._go)
        self.post(Leave())

    @property
    def is_leaving(self) -> bool:
        return self._gone is not None

    def _go(self) -> None:
        if self._gone is not None:
            gone, self._gone = self._gone, None
            gone()

    # --- for applications ------------------------------------------------------------------------

    def ask(
        self, question: Callable[[RequestId], Question], deliver: Callable[[Answered], None]
    ) -> None:
        request = RequestId(self._number())
        asked = question(request)
        still_s = self.process.still_s()
        self._waiting[request] = _Waiting(asked, deliver, self.clock.now, still_s)
        self.post(asked)

    def call(
        self, operation: str, argument: bytes, within_s: float, deliver: Callable[[bytes], None]
    ) -> None:
        """Have all nodes do something; the numbers that they return, in order."""
        request = RequestId(self._number())
        self._calls[request] = deliver
        self.post(StartCall(request, operation, argument, within_s))

    def clear(self) -> None:
        """On all nodes, in two calls as ``runtime/job.py`` does it."""

        def begin(epochs: bytes) -> None:
            latest = max([self.node.epoch, *map(int, epochs.split())])
            self.call("clear", b"%d" % (latest + 1), CLEAR_WITHIN_S, lambda _: None)

        later = self.process.after
        self.call("epoch", b"", EPOCH_WITHIN_S, lambda result: later(0.0, begin, result))

    def push(self, number: int, tree: int, files: Sequence[tuple[Path, Version]]) -> None:
        """Spread files that this node, the root of *tree*, has read, in batches of a part or more;
        all at once, where ``runtime/warmup.py`` waits for its backlog."""
        items: list[Item] = []
        pieces: list[Piece] = []
        left = [
            (path, version, n) for path, version in files for n in range(parts_in(version.size))
        ]
        sequence = 0
        for at, (path, version, index) in enumerate(left):
            piece = self.hands.source.content(path, version)[index]
            start = index * PART_BYTES
            items.append(Item(What.OBJECT, path, version, version.size, start, piece.size))
            pieces.append(piece)
            last = at + 1 == len(left)
            if last or size_of(pieces) >= PART_BYTES:
                batch = Batch(number, tree, self.node.epoch, sequence, tuple(items), last)
                self.post(PushBatch(batch, self.blobs.keep(tuple(pieces)), size_of(pieces)))
                items, pieces, sequence = [], [], sequence + 1

    @property
    def waits(self) -> int:
        """For so many answers."""
        return len(self._waiting)

    @property
    def calls(self) -> int:
        """To all nodes, without an answer so far."""
        return len(self._calls)

    # --- the core --------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        """One step, and what it wants."""
        self._step(event)
        self._set_alarm(self.node.deadline())
        if self._gone is not None and self.node.may_go():
            self.process.after(0.0, self._go)

    def post_all(self, events: Sequence[Event]) -> None:
        """The same for several; when to be woken is asked once."""
        for event in events[:-1]:
            self._step(event)
        self.post(events[-1])

    def _step(self, event: Event) -> None:
        now, traced = self.clock.now, self.trace.is_on
        if traced:
            self.trace.event(now, self.me, event)
        actions = self.node.step(now, event)
        self._steps += 1
        if self.check_every and self._steps % self.check_every == 0:
            self.node.check_invariants()
        for action in actions:
            if traced:
                self.trace.action(now, self.me, action)
            if isinstance(action, Send):
                self.peers.send(action)
            else:
                self._perform(action)

    def _set_alarm(self, deadline: float | None) -> None:
        if deadline is not None and (self._alarm is None or deadline < self._alarm):
            self._alarm = deadline
            self.clock.at(deadline, self.process.take, self._wake, deadline)

    def _wake(self, meant: float) -> None:
        if self._alarm == meant:
            self._alarm = None
        deadline = self.node.deadline()
        if deadline is None or deadline > self.clock.now:
            self._set_alarm(deadline)
            return
        self.post(Tick())
        if self._alarm is not None and self._alarm <= self.clock.now:
            after = self.node.deadline()
            done = after is None or after > self.clock.now
            assert done, "it wants to be woken for what it has done"

    def _perform(self, action: Action) -> None:
        match action:
            case Publish(key):
                # Chunks that are read ahead are asked for all the same: it has no table of them.
                if self.front is not None and not isinstance(key, ChunkKey):
                    self.front.publish(key)
            case ScanSource() | LookSource() | ReadSource() | OpenSource() | ReadChunk():
                assert action.fetch not in self._at_source, f"{action} is begun twice"
                looked_for = self.node.looks_for(action.fetch)
                self._at_source[action.fetch] = looked_for
                self.hands.start(action, self._source_said)
            case AnswerObject(request, _, blob):
                self._answer(request, self.blobs.held[blob])
            case AnswerChunk(request, key, blob, chunk_bytes):
                self._answer(request, ChunkGiven(key, self.blobs.held[blob], chunk_bytes))
            case LoadChunk(fetch, key):
                self.clock.at(self.disk.loaded_at(key), self.process.take, self._load, fetch, key)
            case StoreChunk(key, blob):
                written_at = self.disk.store(key, self.blobs.held[blob])
                at = self.clock.now if written_at is None else written_at
                written = written_at is not None
                self.clock.at(at, self.process.take, self._stored, key, written)
            case AnswerEntry() | AnswerListing() | AnswerError():
                self._answer(action.request, action)
            case AnswerHandle(request, handle):
                self._answer(request, action)
                self.handles.remove(handle)  # whoever read has closed it
            case ReleaseBlob(blob):
                del self.blobs.held[blob]
            case ReleaseHandle(handle):
                self.handles.remove(handle)
            case PerformCall():
                self._doing.add(action.call)
                self.process.after(0.0, self._do_our_part, action)
            case EndCall(call, asker, _, results):
                self._doing.discard(call)
                self._end_call(asker, b" ".join(sorted(b" ".join(results).split(), key=int)))
            case DropCall(call):
                self._doing.discard(call)
            case Connect(peer):
                self.port.connect(peer)
            case Disconnect(peer):
                self.port.disconnect(peer)
            case Probe(peer):
                self.port.probe(peer, lambda refused: self.post(Probed(peer, refused)))
            case Happened():
                self.happened.append((self.clock.now, action))
            case Send():
                self.peers.send(action)
            case Evict(key):
                if self.front is not None:
                    self.front.forget(key)
            case LookAgain() | NewEpoch():
                pass  # there is no kernel to be told
            case _:
                assert_never(action)

    def _answer(self, request: RequestId, answer: Answered) -> None:
        waiting = self._waiting.pop(request, None)
        assert waiting is not None, "answered twice, or never asked"
        took_s = self.clock.now - waiting.asked_at - (self.process.still_s() - waiting.still_s)
        self.slowest_s = max(self.slowest_s, took_s)
        limit_s = self.node.limits.fetch_deadline_s + SLACK_S
        assert took_s <= limit_s, f"{waiting.question} was answered after {took_s:.3f} s"
        waiting.deliver(answer)

    # --- the source ------------------------------------------------------------------------------

    def _source_said(self, arrived: Arrived) -> None:
        self.process.take(self._take_arrived, arrived)

    def _take_arrived(self, arrived: Arrived) -> None:
        looked_for = self._at_source.pop(arrived.fetch)
        match arrived:
            case ContentRead(fetch, content):
                found = tuple(each for each in looked_for if each in arrived.mentions)
                self.post(HaveRead(fetch, self.blobs.keep(content), found))
            case FileOpened(fetch):
                handle = HandleId(self._number())
                self.handles.add(handle)
                self.post(Opened(fetch, handle))
            case _:
                self.post(arrived)

    def _load(self, fetch: FetchId, key: ChunkKey) -> None:
        pieces = self.disk.load(key)
        self.post(Loaded(fetch, None if pieces is None else self.blobs.keep(pieces)))

    def _stored(self, key: ChunkKey, written: bool) -> None:
        self.post(Stored(key, written, self.disk.is_full, self.disk.is_outgrown))

    # --- what the port says ----------------------------------------------------------------------

    def connected(self, peer: NodeId) -> None:
        self.peers.connection(peer)

    def lost(self, peer: NodeId) -> None:
        self.peers.lose(peer)

    def received(self, peer: NodeId, message: Message, pieces: tuple[Piece, ...]) -> None:
        self.peers.take(peer, message, pieces)

    def corrupt(self, peer: NodeId, message: Message) -> None:
        self.peers.drop_spoiled(peer, message)

    # --- calls -----------------------------------------------------------------------------------

    def _do_our_part(self, action: PerformCall) -> None:
        if action.call not in self._doing:
            return
        epoch, result = self.node.epoch, int(self.me)
        if action.operation == "epoch":
            result = epoch
        elif action.operation == "clear" and int(action.argument) > epoch:
            self.post(Clear(int(action.argument)))
        self.post(CallPerformed(action.call, b"%d" % result))

    def _end_call(self, asker: RequestId | PeerRequest, merged: bytes) -> None:
        if isinstance(asker, PeerRequest):
            self.peers.send(Send(asker.peer, Return(asker.number, merged)))
        else:
            self._calls.pop(asker)(merged)

    def disk_is(self, *, full: bool) -> None:
        """Others fill it, or leave room again."""
        recovered, self.disk.is_full = self.disk.is_full and not full, full
        if recovered:
            self.process.take(self.post, DiskRecovered())

    # --- for checkers ----------------------------------------------------------------------------

    def overdue(self) -> list[Question]:
        """Questions that should have been answered."""
        limit_s = self.node.limits.fetch_deadline_s + SLACK_S
        still_s = self.process.still_s()
        return [
            each.question
            for each in self._waiting.values()
            if self.clock.now - each.asked_at - (still_s - each.still_s) > limit_s
        ]

    def _number(self) -> int:
        self._next += 1
        return self._next
