"""Overlay laboratory: a job of several nodes in one process, without clocks or sockets.

Every node is the real one. The source is a dict. Each directed pair of peers has one queue of
messages, and a seed draws which queue moves next. The use of a released blob is a KeyError.
"""

import errno
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from copperfs.driver.driver import Driver
from copperfs.driver.ports import Ports
from copperfs.model.listing import Listing, pack_listing
from copperfs.model.types import (
    ROOT,
    BlobId,
    CallId,
    ChunkKey,
    Entry,
    FetchId,
    HandleId,
    NodeId,
    Path,
    PayloadId,
    RequestId,
    Version,
    split,
)
from copperfs.node.actions import (
    AnswerChunk,
    AnswerEntry,
    AnswerError,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    ListingKey,
    ListSource,
    LoadChunk,
    LogEvent,
    LookupSource,
    ObjectKey,
    OpenForBypass,
    PerformCall,
    ReadChunk,
    ReadSource,
    SourceAction,
)
from copperfs.node.events import (
    CallPerformed,
    Clear,
    ConnectionLost,
    ConnectionMade,
    DiskLoaded,
    Event,
    Failed,
    ListRequest,
    LookupRequest,
    MessageCorrupt,
    MessageReceived,
    Probed,
    PushBatch,
    ReadRequest,
    SourceListed,
    SourceLookedUp,
    SourceOpened,
    SourceRead,
    Start,
    StartCall,
    Stored,
    Tick,
)
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.peer.flow_control import part_size
from copperfs.node.peer.messages import (
    PART_BYTES,
    Batch,
    CollectiveRequest,
    ContentKind,
    Credit,
    DataReply,
    Hello,
    Item,
    Message,
    Offer,
    Request,
)
from copperfs.node.peer.reassembly import Slice
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.hash_ring import Ring
from copperfs.node.routing.trees import Trees
from tests.unit.node_lab import DEADLINE_S, directory, file, with_unknown

MIB = 1 << 20
ASK_DEADLINE_S = 30.0
Outcome = AnswerEntry | AnswerListing | AnswerHandle | AnswerError | bytes


@dataclass
class Tree:
    """Contents follow from the path and the version, so that a mix of two shows."""

    files: dict[Path, Entry] = field(default_factory=dict)
    directories: set[Path] = field(default_factory=lambda: {ROOT})
    counts: Counter[tuple[str, Path]] = field(default_factory=Counter)
    failing: dict[Path, int] = field(default_factory=dict)
    mentions: dict[Path, set[bytes]] = field(default_factory=dict)
    chunk_reads: Counter[tuple[Path, int]] = field(default_factory=Counter)

    def add(self, path: bytes, size: int = 10, changed_s: int = 0) -> Version:
        where = Path(path)
        above, _ = split(where)
        while above not in self.directories:
            self.directories.add(above)
            above, _ = split(above)
        inode = self.files[where].attributes.inode if where in self.files else len(self.files) + 2
        self.files[where] = file(size, inode, changed_s)
        return self.files[where].attributes.version

    def entry(self, path: Path) -> Entry | None:
        return directory() if path in self.directories else self.files.get(path)

    def listing(self, path: Path) -> Listing:
        names = [p for p in [*self.directories, *self.files] if p and split(p)[0] == path]
        rows = [(split(each)[1], self.entry(each)) for each in sorted(names)]
        listing = pack_listing([(name, found) for name, found in rows if found is not None])
        sick = [split(each)[1] for each in self.failing if split(each)[0] == path]
        return with_unknown(listing, *sick) if sick else listing

    def content(self, path: Path, version: Version) -> bytes:
        return content(path, version)


def content(path: Path, version: Version) -> bytes:
    return (
        random.Random(repr((path, version)))
        .randbytes(min(version.size, 1 << 16))
        .ljust(version.size, path[-1:] or b"/")
    )


class LabBlobs(dict[BlobId, bytearray]):
    """The use of a released blob is a KeyError."""

    daemon: "Daemon"
    parts_given = 0

    def __init__(self) -> None:
        super().__init__()
        self.payloads: dict[PayloadId, bytes] = {}
        self.held: set[PayloadId] = set()

    def keep_blob(self, data: bytes) -> BlobId:
        number = BlobId(self.daemon.number())
        self[number] = bytearray(data)
        return number

    def content(self, blob: BlobId) -> bytes:
        return bytes(self[blob])

    def release(self, blob: BlobId) -> None:
        del self[blob]

    def part(self, content: BlobId | Listing, index: int, total_bytes: int) -> bytes:
        start, size = index * PART_BYTES, part_size(index, total_bytes)
        if isinstance(content, Listing):
            payload = content.packed[start : start + size]
        else:
            self.parts_given += 1
            payload = bytes(self[content][start : start + size])
        assert len(payload) == size
        return payload

    def whole(self, blob: BlobId) -> bytes:
        return bytes(self[blob])

    def offer(self, offer: Offer, contents: tuple[BlobId | Listing, ...]) -> tuple[Offer, bytes]:
        payload = b"".join(
            each.packed if isinstance(each, Listing) else bytes(self[each]) for each in contents
        )
        assert len(payload) == sum(item.length for item in offer.items)
        return offer, payload

    # --- payloads of messages --------------------------------------------------------------------

    def lend(self, payload: bytes) -> PayloadId:
        number = PayloadId(self.daemon.number())
        self.payloads[number] = payload
        return number

    def take_back(self, number: PayloadId) -> None:
        if number not in self.held:
            del self.payloads[number]

    def size(self, payload: PayloadId) -> int:
        return len(self.payloads[payload])

    def hold(self, payload: PayloadId) -> None:
        self.held.add(payload)

    def drop(self, payload: PayloadId) -> None:
        self.held.discard(payload)
        del self.payloads[payload]

    def take_part(
        self, payload: PayloadId, blob: BlobId | None, index: int, total_bytes: int
    ) -> BlobId:
        data = self.payloads[payload]
        if blob is None:
            blob = self.keep_blob(b"")
        assert len(self[blob]) == index * PART_BYTES
        self[blob] += data
        return blob

    def keep(self, payload: PayloadId) -> BlobId:
        return self.keep_blob(self.payloads[payload])

    def empty(self) -> BlobId:
        return self.keep_blob(b"")

    def take_item(self, payload: PayloadId, where: Slice, blob: BlobId | None = None) -> BlobId:
        if blob is None:
            blob = self.keep_blob(b"")
        assert len(self[blob]) == where.item.offset
        self[blob] += self._slice(payload, where)
        return blob

    def blob_listing(self, blob: BlobId, directory: Version | None) -> Listing:
        return Listing(bytes(self[blob]), directory)

    def is_item(self, payload: PayloadId, where: Slice) -> bool:
        return True

    def item_listing(self, payload: PayloadId, where: Slice) -> Listing:
        return Listing(self._slice(payload, where), where.item.version)

    def listing(
        self, payloads: Sequence[PayloadId], total_bytes: int, directory: Version | None
    ) -> Listing:
        packed = b"".join(self.payloads[each] for each in payloads)
        assert len(packed) == total_bytes
        return Listing(packed, directory)

    def _slice(self, payload: PayloadId, where: Slice) -> bytes:
        return self.payloads[payload][where.start : where.start + where.item.length]


@dataclass
class Daemon:
    job: "Job"
    me: NodeId
    node: Node
    driver: Driver[bytes, bytes] = field(init=False)
    blobs: LabBlobs = field(default_factory=LabBlobs)
    handles: set[HandleId] = field(default_factory=set)
    answers: dict[RequestId, Outcome] = field(default_factory=dict)
    fetches: list[SourceAction] = field(default_factory=list)
    loads: list[LoadChunk] = field(default_factory=list)
    disk: dict[ChunkKey, bytes] = field(default_factory=dict)
    stored: list[ChunkKey] = field(default_factory=list)
    next: int = 1
    epochs: list[int] = field(default_factory=list)
    calls: list[tuple[CallId, str, bytes]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    """Sequence numbers, in order of arrival."""
    called: dict[RequestId, bytes] = field(default_factory=dict)
    probes: list[NodeId] = field(default_factory=list)
    happened: list[LogEvent] = field(default_factory=list)
    published: list[ObjectKey | ChunkKey | ListingKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        ports = Ports[bytes, bytes](
            clock=self,
            source=self,
            applications=self,
            operations=self,
            failure_log=self,
            network=self,
            chunk_store=self,
            observer=self,
        )
        self.driver = Driver(self.node, ports, self.blobs)
        self.blobs.daemon = self
        self.node.attach(self.blobs)

    def number(self) -> int:
        self.next += 1
        return self.next

    def now(self) -> float:
        return self.job.now

    def wake_at(self, deadline: float | None) -> None:
        """``Job.tick`` wakes it."""

    def posted(self, event: Event) -> None: ...
    def performs(self, action: object) -> None: ...

    def stepped(self) -> None:
        self.node.check_invariants()

    def note(self, happened: LogEvent) -> None:
        self.happened.append(happened)

    def disagree(self, peer: NodeId, sentence: str) -> None:
        raise AssertionError(sentence)

    # --- the source and the disk -----------------------------------------------------------------

    def start(self, fetch: SourceAction, names_to_find: tuple[bytes, ...]) -> None:
        self.fetches.append(fetch)

    def close_handle(self, handle: HandleId) -> None:
        self.handles.remove(handle)

    def load(self, fetch: FetchId, key: ChunkKey) -> None:
        self.loads.append(LoadChunk(fetch, key))

    def save(self, key: ChunkKey, blob: BlobId) -> None:
        assert key not in self.disk
        self.disk[key] = bytes(self.blobs[blob])
        self.stored.append(key)

    # --- applications ----------------------------------------------------------------------------

    def answer(self, request: RequestId, answer: AnswerEntry | AnswerListing) -> None:
        self._answered(request, answer)

    def answer_object(self, answer: AnswerObject, content: bytes) -> None:
        self._answered(answer.request, content)

    def answer_chunk(self, answer: AnswerChunk, content: bytes) -> None:
        self._answered(answer.request, content)

    def answer_handle(self, answer: AnswerHandle) -> None:
        self._answered(answer.request, answer)

    def answer_error(self, request: RequestId, error: int) -> None:
        self._answered(request, AnswerError(request, error))

    def _answered(self, request: RequestId, outcome: Outcome) -> None:
        assert request not in self.answers
        self.answers[request] = outcome

    def publish_object(self, key: ObjectKey, content: bytes) -> None:
        self._published(key)

    def publish_chunk(self, key: ChunkKey, chunk_bytes: int, content: bytes) -> None:
        self._published(key)

    def publish_listing(self, path: Path, listing: Listing) -> None:
        self._published(ListingKey(path))

    def _published(self, key: ObjectKey | ChunkKey | ListingKey) -> None:
        self.published.append(key)

    def withdraw(self, key: ListingKey | ObjectKey | ChunkKey) -> None: ...
    def look_again(self, path: Path) -> None: ...

    def begin_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    # --- calls -----------------------------------------------------------------------------------

    def begin(self, call: PerformCall) -> None:
        self.calls.append((call.call, call.operation, call.argument))

    def stop(self, call: CallId) -> None:
        self.calls = [each for each in self.calls if each[0] != call]

    def merge(self, results: tuple[bytes, ...]) -> bytes:
        return b" ".join(sorted(b" ".join(results).split()))

    def end(self, request: RequestId, result: bytes) -> None:
        self.called[request] = result

    # --- peers -----------------------------------------------------------------------------------

    def send(self, peer: NodeId, message: Message, payload: bytes | None) -> None:
        self.job.send(self.me, peer, message, payload)

    def connect(self, peer: NodeId) -> None:
        self.job.wants.add((self.me, peer))

    def disconnect(self, peer: NodeId) -> None:
        self.job.drop(self.me, peer)

    def probe(self, peer: NodeId) -> None:
        self.probes.append(peer)


@dataclass
class Job:
    nodes: int
    fanout: int = 2
    count: int = 1
    memory_bytes: int = 64 * MIB
    memory_bytes_of: dict[int, int] = field(default_factory=dict)
    tree_max_bytes: int = 10 * MIB
    revalidate_s: float | None = None
    ahead_max: int = 0
    seed: int = 0
    tree: Tree = field(default_factory=Tree)
    now: float = 0.0
    daemons: list[Daemon] = field(default_factory=list)
    queues: dict[tuple[NodeId, NodeId], deque[tuple[Message, bytes | None]]] = field(
        default_factory=dict
    )
    sent: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[tuple[NodeId, NodeId]] = field(default_factory=Counter)
    in_flight_max: int = 0
    within_s: list[float] = field(default_factory=list)
    wants: set[tuple[NodeId, NodeId]] = field(default_factory=set)
    """The first node keeps a connection to the second."""
    severed: set[frozenset[NodeId]] = field(default_factory=set)
    crashed: set[NodeId] = field(default_factory=set)
    frozen: set[NodeId] = field(default_factory=set)
    """Stopped nodes: connected, and doing nothing."""
    no_source: set[NodeId] = field(default_factory=set)
    """Nodes whose reads of the source do not end."""
    fallbacks_max: int = 4
    deadline_s: float = DEADLINE_S
    chunk_bytes: int = 0
    tier_memory_bytes: int = 64 * MIB
    disks: bool = False
    disks_write: bool = True
    """If False, disks never report a chunk as written."""
    tier_waits: bool = True
    tier_backlog_bytes: int = 64 * MIB
    ring: tuple[bytes, ...] = ()
    lost_from_source: bool = False
    crowds_above: int = 256
    spoil: Counter[NodeId] = field(default_factory=Counter)
    """How many of the parts that a node receives next arrive corrupt."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        policy = Policy(
            source=b"/src",
            mountpoint=b"/mnt",
            revalidate_s=self.revalidate_s,
            ring=tuple(map(Path, self.ring)),
        )
        names = [f"n{number}" for number in range(self.nodes)]
        placement = Ring(names) if self.chunk_bytes else None
        for number in range(self.nodes):
            memory_bytes = self.memory_bytes_of.get(number, self.memory_bytes)
            limits = Limits(
                memory_bytes,
                self.tree_max_bytes,
                None,
                self.deadline_s,
                ahead_max=self.ahead_max,
                trees=self.count,
                ask_deadline_s=ASK_DEADLINE_S,
                fallbacks_max=self.fallbacks_max,
                chunk_bytes=self.chunk_bytes,
                tier_memory_bytes=self.tier_memory_bytes,
                tier_has_disk=self.disks,
                tier_waits=self.tier_waits,
                tier_backlog_bytes=self.tier_backlog_bytes,
                takers_max=self.fanout,
                lost_from_source=self.lost_from_source,
                hot_files_above_nodes=self.crowds_above,
            )
            trees = Trees(self.nodes, NodeId(number), self.fanout, 2, self.count)
            node = Node(policy, limits, trees, placement=placement)
            self.daemons.append(Daemon(self, NodeId(number), node))
        for number in range(self.nodes):
            self.happen(NodeId(number), Start())
        for number, daemon in enumerate(self.daemons):
            assert daemon.node.trees is not None
            for parent in daemon.node.trees.parents():
                self.connect(NodeId(number), parent)
        while self._connectable():
            self.connect(*self._connectable()[0])

    # --- actions of a test -----------------------------------------------------------------------

    def connect(self, one: NodeId, other: NodeId) -> None:
        self.severed.discard(frozenset((one, other)))
        for me, peer in ((one, other), (other, one)):
            self.queues[me, peer] = deque()
            self.in_flight[me, peer] = 0
        for me, peer in ((one, other), (other, one)):
            self.happen(me, ConnectionMade(peer))
        while any(self._pass_hello(*pair) for pair in ((one, other), (other, one))):
            pass  # both have said hello when this returns

    def _pass_hello(self, sender: NodeId, receiver: NodeId) -> bool:
        queue = self.queues.get((sender, receiver))
        if not queue or not isinstance(queue[0][0], Hello):
            return False
        self._arrive(sender, receiver, *queue.popleft())
        return True

    def cut(self, one: NodeId, other: NodeId) -> None:
        """Disconnects two nodes until ``connect``; both keep listening."""
        self.severed.add(frozenset((one, other)))
        self._sever(one, other)

    def crash(self, number: int) -> None:
        dead = NodeId(number)
        self.crashed.add(dead)
        daemon = self.daemons[number]
        daemon.fetches.clear()
        daemon.loads.clear()
        daemon.stored.clear()
        daemon.calls.clear()
        daemon.probes.clear()
        self.wants = {each for each in self.wants if each[0] != dead}
        for me, peer in list(self.queues):
            if me == dead:
                self._sever(me, peer)

    def _sever(self, one: NodeId, other: NodeId) -> None:
        for me, peer in ((one, other), (other, one)):
            del self.queues[me, peer]
        for me, peer in ((one, other), (other, one)):
            if me not in self.crashed:
                self.happen(me, ConnectionLost(peer))

    def _connectable(self) -> list[tuple[NodeId, NodeId]]:
        return [
            (me, peer)
            for me, peer in sorted(self.wants)
            if (me, peer) not in self.queues
            and peer not in self.crashed
            and not {me, peer} & self.frozen
            and frozenset((me, peer)) not in self.severed
        ]

    def ask(
        self, number: int, make_request: type[LookupRequest] | type[ListRequest], path: bytes
    ) -> RequestId:
        request = self._request(number)
        self.happen(NodeId(number), make_request(request, Path(path)))
        return request

    def read(self, number: int, path: bytes, version: Version, offset: int = 0) -> RequestId:
        request = self._request(number)
        self.happen(NodeId(number), ReadRequest(request, Path(path), version, offset=offset))
        return request

    def call(self, number: int, operation: str, within_s: float = 10.0) -> RequestId:
        request = self._request(number)
        self.happen(NodeId(number), StartCall(request, operation, b"x", within_s))
        return request

    def clear(self, number: int) -> None:
        self.happen(NodeId(number), Clear())

    def answer(self, number: int, request: RequestId) -> Outcome:
        return self.daemons[number].answers[request]

    def asked(self, number: int, what: ContentKind) -> list[Request]:
        return [
            message
            for (me, _), queue in self.queues.items()
            for message, _ in queue
            if me == number and isinstance(message, Request) and message.what is what
        ]

    def run(self, steps: int = 1_000_000) -> None:
        """Until nothing is left to happen, in an order that the seed draws."""
        for _ in range(steps):
            if not self.move():
                return
        raise AssertionError("it does not come to an end")

    def move(self) -> bool:
        ready: list[tuple[NodeId, NodeId] | int] = [
            key for key, queue in self.queues.items() if queue and key[1] not in self.frozen
        ]
        ready += [
            n
            for n, each in enumerate(self.daemons)
            if (each.fetches and n not in self.no_source)
            or each.calls
            or each.probes
            or each.loads
            or (each.stored and self.disks_write)
            if n not in self.frozen
        ]
        ready += self._connectable()
        if not ready:
            return False
        chosen = self.random.choice(ready)
        if isinstance(chosen, int):
            daemon = self.daemons[chosen]
            if daemon.probes:
                peer = daemon.probes.pop(0)
                self.happen(NodeId(chosen), Probed(peer, refused=peer in self.crashed))
                return True
            if daemon.loads:
                load = daemon.loads.pop()
                data = daemon.disk.get(load.key)
                blob = None if data is None else self._keep(chosen, data)
                self.happen(NodeId(chosen), DiskLoaded(load.fetch, blob))
                return True
            if daemon.stored and self.disks_write:
                self.happen(NodeId(chosen), Stored(daemon.stored.pop(0), written=True))
                return True
            if daemon.calls:
                call, operation, argument = daemon.calls.pop()
                mine = b"%s:%s:%d" % (operation.encode(), argument, chosen)
                self.happen(NodeId(chosen), CallPerformed(call, mine))
                return True
            self._read_source(
                chosen, daemon.fetches.pop(self.random.randrange(len(daemon.fetches)))
            )
        elif chosen not in self.queues:
            self.connect(*chosen)
        else:
            self._arrive(*chosen, *self.queues[chosen].popleft())
        return True

    def pass_time(self, seconds: float, step_s: float = 0.05) -> None:
        for _ in range(round(seconds / step_s)):
            self.tick(step_s)
            self.run()

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for number in range(self.nodes):
            if number not in self.crashed | self.frozen:
                self.happen(NodeId(number), Tick())

    # --- events ----------------------------------------------------------------------------------

    def _request(self, number: int) -> RequestId:
        return RequestId(self._number(number))

    def _number(self, number: int) -> int:
        return self.daemons[number].number()

    def happen(self, number: NodeId, event: Event) -> None:
        self.daemons[number].driver.post(event)

    def drop(self, me: NodeId, peer: NodeId) -> None:
        self.wants.discard((me, peer))
        if (me, peer) in self.queues and (peer, me) not in self.wants:
            self._sever(me, peer)

    def send(self, me: NodeId, peer: NodeId, message: Message, payload: bytes | None) -> None:
        if (me, peer) not in self.queues:
            return
        if not isinstance(message, Hello):
            self.sent[type(message).__name__] += 1
        if isinstance(message, CollectiveRequest):
            self.within_s.append(message.within_s)
        elif isinstance(message, Credit):
            self.in_flight[peer, me] -= message.count_bytes
            assert self.in_flight[peer, me] >= 0
        if payload is not None:
            self.in_flight[me, peer] += len(payload)
            self.in_flight_max = max(self.in_flight_max, self.in_flight[me, peer])
        self.queues[me, peer].append((message, payload))

    def _arrive(self, sender: NodeId, me: NodeId, message: Message, payload: bytes | None) -> None:
        if isinstance(message, Batch):
            self.daemons[me].batches.append(message.sequence)
        if isinstance(message, DataReply) and self.spoil[me]:
            self.spoil[me] -= 1
            self.happen(me, MessageCorrupt(sender, message))
        elif payload is None:
            self.happen(me, MessageReceived(sender, message))
        else:
            blobs = self.daemons[me].blobs
            number = blobs.lend(payload)
            self.happen(me, MessageReceived(sender, message, number))
            blobs.take_back(number)

    def push(self, number: int, tree: int, sequence: int, items: dict[Path, Version]) -> None:
        data = [content(path, wanted) for path, wanted in items.items()]
        shown = [
            Item(ContentKind.OBJECT, path, wanted, wanted.size, 0, wanted.size)
            for path, wanted in items.items()
        ]
        batch = Batch(1, tree, 1, sequence, tuple(shown))
        blob = BlobId(self._number(number))
        self.daemons[number].blobs[blob] = bytearray(b"".join(data))
        size = sum(map(len, data))
        self.happen(NodeId(number), PushBatch(batch, blob, size))

    def _read_source(self, number: int, fetch: SourceAction) -> None:
        kind = type(fetch).__name__.removesuffix("Source").lower()
        self.tree.counts[kind, fetch.path] += 1
        if isinstance(fetch, ReadChunk):
            self.tree.chunk_reads[fetch.path, fetch.offset] += 1
        self.happen(NodeId(number), self._outcome(number, fetch))

    def _outcome(self, number: int, fetch: SourceAction) -> Event:
        daemon, path = self.daemons[number], fetch.path
        failing = self.tree.failing.get(path)
        if failing is not None:
            return Failed(fetch.fetch, failing)
        found = self.tree.entry(path)
        match fetch:
            case LookupSource():
                return SourceLookedUp(fetch.fetch, found)
            case _ if found is None:
                return Failed(fetch.fetch, errno.ENOENT)
            case ListSource():
                return SourceListed(fetch.fetch, self.tree.listing(path))
            case ReadChunk(_, _, version, offset, length):
                if found.attributes.version != version:
                    return Failed(fetch.fetch, errno.ESTALE)
                data = self.tree.content(path, version)[offset : offset + length]
                assert len(data) == length
                return SourceRead(fetch.fetch, self._keep(number, data))
            case ReadSource(_, _, version) | OpenForBypass(_, _, version):
                if found.attributes.version != version:
                    return Failed(fetch.fetch, errno.ESTALE)
                if isinstance(fetch, OpenForBypass):
                    handle = HandleId(self._number(number))
                    daemon.handles.add(handle)
                    return SourceOpened(fetch.fetch, handle)
                blob = BlobId(self._number(number))
                daemon.blobs[blob] = bytearray(self.tree.content(path, version))
                mentions = self.tree.mentions.get(path, set())
                names_to_find = daemon.node.names_to_find(fetch.fetch)
                there = tuple(each for each in names_to_find if each in mentions)
                return SourceRead(FetchId(fetch.fetch), blob, there)
        raise AssertionError("unreachable")

    def _keep(self, number: int, data: bytes) -> BlobId:
        return self.daemons[number].blobs.keep_blob(data)

    # --- observations of a test ------------------------------------------------------------------

    @property
    def gave(self) -> Counter[NodeId]:
        """By sender."""
        return Counter({each.me: each.blobs.parts_given for each in self.daemons})

    def source_reads(self) -> Counter[tuple[str, Path]]:
        return self.tree.counts

    def check_at_rest(self) -> None:
        for daemon in self.daemons:
            stats = daemon.node.statistics()
            assert stats.fetching == 0
            assert not daemon.blobs.payloads
            held = [key for key, _ in daemon.node.held() if hasattr(key, "version")]
            assert len(daemon.blobs) == len(held) + len(daemon.node.held_chunks())
            assert stats.reserved_bytes == 0


class Never(deque[Any]):
    def __bool__(self) -> bool:
        return False


def names(job: Job, path: bytes) -> list[bytes]:
    return [name for name, _ in job.tree.listing(Path(path)).rows()]
