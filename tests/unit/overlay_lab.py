"""A job of several nodes in one process, without clocks or sockets: for tests of the overlay.

Every node is the real core. ``Job`` performs its actions: the source is a dict, messages wait in
one queue for each directed pair of peers, as the transport promises, and which queue moves next is
drawn from a seed. Bytes are kept as the daemon keeps them, so that a blob that is used after its
release is a KeyError."""

import errno
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

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
    LoadChunk,
    LookAgain,
    LookSource,
    NewEpoch,
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
    BatchTaken,
    CallPerformed,
    Clear,
    Event,
    Failed,
    HaveRead,
    Heard,
    List,
    ListingTaken,
    Loaded,
    Look,
    Looked,
    OfferTaken,
    Opened,
    PartPassed,
    PartSpoiled,
    PartTaken,
    PeerDown,
    PeerUp,
    Probed,
    PushBatch,
    Pushed,
    PushedListing,
    Read,
    Scanned,
    Start,
    StartCall,
    Stored,
    Tick,
)
from copperfs.core.links import part_size, parts_in
from copperfs.core.listing import Listing, pack_listing
from copperfs.core.messages import (
    PART_BYTES,
    Batch,
    Call,
    Credit,
    GivePart,
    Item,
    Message,
    Offer,
    Return,
    What,
)
from copperfs.core.node import Node
from copperfs.core.policy import Policy
from copperfs.core.ring import Ring
from copperfs.core.state import Limits
from copperfs.core.trees import Trees
from copperfs.types import (
    ROOT,
    BlobId,
    CallId,
    ChunkKey,
    Entry,
    FetchId,
    HandleId,
    NodeId,
    Path,
    PeerRequest,
    RequestId,
    Version,
    split,
)
from tests.unit.core_lab import DEADLINE_S, directory, file, with_unknown

AtSource = ScanSource | LookSource | ReadSource | OpenSource | ReadChunk
MIB = 1 << 20
ASK_DEADLINE_S = 30.0
Outcome = AnswerEntry | AnswerListing | AnswerHandle | AnswerError | bytes
"""How a question ended; an object as its bytes."""


@dataclass
class Tree:
    """The source. Contents are made from the path and the version, so a mix of two shows."""

    files: dict[Path, Entry] = field(default_factory=dict)
    directories: set[Path] = field(default_factory=lambda: {ROOT})
    counts: Counter[tuple[str, Path]] = field(default_factory=Counter)
    failing: dict[Path, int] = field(default_factory=dict)
    mentions: dict[Path, set[bytes]] = field(default_factory=dict)
    """Of compiled files: what they would be found to mention."""
    chunk_reads: Counter[tuple[Path, int]] = field(default_factory=Counter)
    """By path and offset."""

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
    """What a file of this path and version has in it."""
    return (
        random.Random(repr((path, version)))
        .randbytes(min(version.size, 1 << 16))
        .ljust(version.size, path[-1:] or b"/")
    )


@dataclass
class Daemon:
    """What surrounds one node."""

    node: Node
    blobs: dict[BlobId, bytearray] = field(default_factory=dict)
    listings: dict[tuple[NodeId, int], bytes] = field(default_factory=dict)
    handles: set[HandleId] = field(default_factory=set)
    answers: dict[RequestId, Outcome] = field(default_factory=dict)
    fetches: list[AtSource] = field(default_factory=list)
    loads: list[LoadChunk] = field(default_factory=list)
    disk: dict[ChunkKey, bytes] = field(default_factory=dict)
    stored: list[ChunkKey] = field(default_factory=list)
    """Written, and not told so."""
    next: int = 1
    epochs: list[int] = field(default_factory=list)
    calls: list[tuple[CallId, str, bytes]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    """Sequence numbers, as they came."""
    called: dict[RequestId, bytes] = field(default_factory=dict)
    probes: list[NodeId] = field(default_factory=list)
    happened: list[Happened] = field(default_factory=list)


@dataclass
class Job:
    """``Job(8)`` is a job of eight nodes that are all connected; ``run`` lets everything happen."""

    nodes: int
    fanout: int = 2
    count: int = 1
    memory_bytes: int = 64 * MIB
    memory_bytes_of: dict[int, int] = field(default_factory=dict)
    """Of nodes that have another size."""
    tree_max_bytes: int = 10 * MIB
    revalidate_s: float | None = None
    ahead_max: int = 0
    seed: int = 0
    tree: Tree = field(default_factory=Tree)
    now: float = 0.0
    daemons: list[Daemon] = field(default_factory=list)
    queues: dict[tuple[NodeId, NodeId], deque[tuple[Message, bytes | Listing | None]]] = field(
        default_factory=dict
    )
    sent: Counter[str] = field(default_factory=Counter)
    gave: Counter[NodeId] = field(default_factory=Counter)
    """Parts of objects, by who gave them."""
    in_flight: Counter[tuple[NodeId, NodeId]] = field(default_factory=Counter)
    """Bytes of payload that were sent and not yet credited."""
    in_flight_max: int = 0
    within_s: list[float] = field(default_factory=list)
    """What calls were given, in the order in which they were sent."""
    wants: set[tuple[NodeId, NodeId]] = field(default_factory=set)
    """Who keeps a connection to whom."""
    severed: set[frozenset[NodeId]] = field(default_factory=set)
    crashed: set[NodeId] = field(default_factory=set)
    frozen: set[NodeId] = field(default_factory=set)
    """Stopped: connected, and doing nothing."""
    no_source: set[NodeId] = field(default_factory=set)
    """Whose reads of the source do not end."""
    fallbacks_max: int = 4
    deadline_s: float = DEADLINE_S
    chunk_bytes: int = 0
    """Of the data tier; 0: there is none."""
    tier_memory_bytes: int = 64 * MIB
    disks: bool = False
    disks_write: bool = True
    """False: what they are given they do not say to have written."""
    tier_waits: bool = True
    tier_backlog_bytes: int = 64 * MIB
    ring: tuple[bytes, ...] = ()
    lost_from_source: bool = False
    crowds_above: int = 256
    spoil: Counter[NodeId] = field(default_factory=Counter)
    """How many of the parts that a node receives next are spoiled on the way."""

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
                crowds_above=self.crowds_above,
            )
            trees = Trees(self.nodes, NodeId(number), self.fanout, 2, self.count)
            self.daemons.append(Daemon(Node(policy, limits, trees, placement=placement)))
        for number in range(self.nodes):
            self.happen(NodeId(number), Start())
        for number, daemon in enumerate(self.daemons):
            assert daemon.node.trees is not None
            for parent in daemon.node.trees.parents():
                self.connect(NodeId(number), parent)
        while self._connectable():
            self.connect(*self._connectable()[0])

    # --- what a test does ------------------------------------------------------------------------

    def connect(self, one: NodeId, other: NodeId) -> None:
        self.severed.discard(frozenset((one, other)))
        for me, peer in ((one, other), (other, one)):
            self.queues[me, peer] = deque()
            self.in_flight[me, peer] = 0
        for me, peer in ((one, other), (other, one)):
            self.happen(me, PeerUp(peer))

    def cut(self, one: NodeId, other: NodeId) -> None:
        """Until they are connected again; whoever listens goes on to listen."""
        self.severed.add(frozenset((one, other)))
        self._sever(one, other)

    def crash(self, number: int) -> None:
        """Its process ends; nobody listens there any more."""
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
                self.happen(me, PeerDown(peer))

    def _connectable(self) -> list[tuple[NodeId, NodeId]]:
        return [
            (me, peer)
            for me, peer in sorted(self.wants)
            if (me, peer) not in self.queues
            and peer not in self.crashed
            and not {me, peer} & self.frozen
            and frozenset((me, peer)) not in self.severed
        ]

    def ask(self, number: int, question: type[Look] | type[List], path: bytes) -> RequestId:
        request = self._request(number)
        self.happen(NodeId(number), question(request, Path(path)))
        return request

    def read(self, number: int, path: bytes, version: Version, offset: int = 0) -> RequestId:
        request = self._request(number)
        self.happen(NodeId(number), Read(request, Path(path), version, offset=offset))
        return request

    def call(self, number: int, operation: str, within_s: float = 10.0) -> RequestId:
        request = self._request(number)
        self.happen(NodeId(number), StartCall(request, operation, b"x", within_s))
        return request

    def clear(self, number: int) -> None:
        self.happen(NodeId(number), Clear())

    def answer(self, number: int, request: RequestId) -> Outcome:
        return self.daemons[number].answers[request]

    def run(self, steps: int = 1_000_000) -> None:
        """Until nothing is left to happen, in an order that the seed draws."""
        for _ in range(steps):
            if not self.move():
                return
        raise AssertionError("it does not come to an end")

    def move(self) -> bool:
        """One message arrives, or one fetch of the source ends."""
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
                self.happen(NodeId(chosen), Loaded(load.fetch, blob))
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
        """All that happens in so long."""
        for _ in range(round(seconds / step_s)):
            self.tick(step_s)
            self.run()

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for number in range(self.nodes):
            if number not in self.crashed | self.frozen:
                self.happen(NodeId(number), Tick())

    # --- what happens ----------------------------------------------------------------------------

    def _request(self, number: int) -> RequestId:
        return RequestId(self._number(number))

    def _number(self, number: int) -> int:
        self.daemons[number].next += 1
        return self.daemons[number].next

    def happen(self, number: NodeId, event: Event) -> None:
        node = self.daemons[number].node
        actions = node.step(self.now, event)
        node.check_invariants()
        for action in actions:
            self._perform(number, action)

    def _perform(self, number: NodeId, action: Action) -> None:
        daemon = self.daemons[number]
        match action:
            case ScanSource() | LookSource() | ReadSource() | OpenSource() | ReadChunk():
                daemon.fetches.append(action)
            case LoadChunk():
                daemon.loads.append(action)
            case StoreChunk(key, blob):
                assert key not in daemon.disk
                daemon.disk[key] = bytes(daemon.blobs[blob])
                daemon.stored.append(key)
            case Send(peer, message, content):
                self._send(number, peer, message, content)
            case AnswerObject(request, _, blob) | AnswerChunk(request, _, blob):
                daemon.answers[request] = bytes(daemon.blobs[blob])
            case AnswerEntry() | AnswerListing() | AnswerHandle() | AnswerError():
                assert action.request not in daemon.answers
                daemon.answers[action.request] = action
            case ReleaseBlob(blob):
                del daemon.blobs[blob]
            case ReleaseHandle(handle):
                daemon.handles.remove(handle)
            case NewEpoch(epoch):
                daemon.epochs.append(epoch)
            case PerformCall(call, operation, argument):
                daemon.calls.append((call, operation, argument))
            case EndCall(_, asker, _, results):
                merged = b" ".join(sorted(b" ".join(results).split()))
                if isinstance(asker, PeerRequest):
                    self._send(number, asker.peer, Return(asker.number, merged), None)
                else:
                    daemon.called[asker] = merged
            case DropCall(call):
                daemon.calls = [each for each in daemon.calls if each[0] != call]
            case Connect(peer):
                self.wants.add((number, peer))
            case Disconnect(peer):
                self.wants.discard((number, peer))
                if (number, peer) in self.queues and (peer, number) not in self.wants:
                    self._sever(number, peer)
            case Probe(peer):
                daemon.probes.append(peer)
            case Happened():
                daemon.happened.append(action)
            case Evict() | LookAgain() | Publish():
                pass

    def _send(
        self,
        me: NodeId,
        peer: NodeId,
        message: Message,
        content: BlobId | Listing | tuple[BlobId | Listing, ...] | None,
    ) -> None:
        if (me, peer) not in self.queues:
            return
        self.sent[type(message).__name__] += 1
        if isinstance(message, Call):
            self.within_s.append(message.within_s)
        payload: bytes | None = None
        if isinstance(message, GivePart):
            assert content is not None
            assert not isinstance(content, tuple)
            start = message.index * PART_BYTES
            size = part_size(message.index, message.total_bytes)
            if isinstance(content, Listing):
                payload = content.packed[start : start + size]
            else:
                self.gave[me] += 1
                payload = bytes(self.daemons[me].blobs[content][start : start + size])
            assert len(payload) == size
            self.in_flight[me, peer] += size
            self.in_flight_max = max(self.in_flight_max, self.in_flight[me, peer])
        elif isinstance(message, Offer):
            assert isinstance(content, tuple)
            blobs = self.daemons[me].blobs
            payload = b"".join(
                each.packed if isinstance(each, Listing) else bytes(blobs[each]) for each in content
            )
            assert len(payload) == sum(item.length for item in message.items)
            self.in_flight[me, peer] += len(payload)
            self.in_flight_max = max(self.in_flight_max, self.in_flight[me, peer])
        elif isinstance(message, Batch):
            assert not isinstance(content, Listing | tuple)
            assert content is not None
            payload = bytes(self.daemons[me].blobs[content])
            self.in_flight[me, peer] += len(payload)
            self.in_flight_max = max(self.in_flight_max, self.in_flight[me, peer])
        elif isinstance(message, Credit):
            self.in_flight[peer, me] -= message.count_bytes
            assert self.in_flight[peer, me] >= 0
        self.queues[me, peer].append((message, payload))

    def _arrive(
        self, sender: NodeId, me: NodeId, message: Message, payload: bytes | Listing | None
    ) -> None:
        daemon = self.daemons[me]
        if isinstance(message, Batch | Offer):
            assert isinstance(payload, bytes)
            if isinstance(message, Offer):
                self.happen(me, OfferTaken(sender, len(payload), message.epoch))
            else:
                self._take_batch(sender, me, message, payload)
            at = 0
            for item in message.items:
                self._take_item(me, message, item, payload[at : at + item.length])
                at += item.length
            return
        if not isinstance(message, GivePart):
            self.happen(me, Heard(sender, message))
            return
        assert isinstance(payload, bytes)
        if self.spoil[me]:
            self.spoil[me] -= 1
            self.happen(me, PartSpoiled(sender, message))
            return
        wanted = daemon.node.wanted(sender, message)
        if wanted is None:
            self.happen(me, PartPassed(sender, message))
            return
        what, blob = wanted
        last = message.index + 1 == parts_in(message.total_bytes)
        if what is What.CHUNK:
            self.happen(me, PartTaken(sender, message, self._keep(me, payload)))
            return
        if what is What.OBJECT:
            if blob is None:
                blob = BlobId(self._number(me))
                daemon.blobs[blob] = bytearray()
            assert len(daemon.blobs[blob]) == message.index * PART_BYTES
            daemon.blobs[blob] += payload
            self.happen(me, PartTaken(sender, message, blob))
            return
        so_far = daemon.listings.pop((sender, message.number), b"") + payload
        if last:
            self.happen(me, ListingTaken(sender, message, Listing(so_far, message.directory)))
        else:
            daemon.listings[sender, message.number] = so_far
            self.happen(me, PartPassed(sender, message))

    def _take_batch(self, sender: NodeId, me: NodeId, batch: Batch, payload: bytes) -> None:
        daemon = self.daemons[me]
        taken = BlobId(self._number(me))
        daemon.blobs[taken] = bytearray(payload)
        daemon.batches.append(batch.sequence)
        self.happen(me, BatchTaken(sender, batch, taken, len(payload)))

    def _take_item(self, me: NodeId, batch: Batch | Offer, item: Item, data: bytes) -> None:
        """Only whole objects: how pieces become one is the daemon's."""
        assert item.length == item.total_bytes
        if item.what is What.LISTING:
            listing = Listing(data, item.version)
            left, offered = item.fresh_for_s, isinstance(batch, Offer)
            self.happen(me, PushedListing(item.path, listing, batch.epoch, left, offered))
            return
        assert item.version is not None
        blob = BlobId(self._number(me))
        self.daemons[me].blobs[blob] = bytearray(data)
        self.happen(me, Pushed(item.path, item.version, blob, isinstance(batch, Offer)))

    def push(self, number: int, tree: int, sequence: int, items: dict[Path, Version]) -> None:
        """One batch of these files, from the root of *tree*."""
        data = [content(path, wanted) for path, wanted in items.items()]
        shown = [
            Item(What.OBJECT, path, wanted, wanted.size, 0, wanted.size)
            for path, wanted in items.items()
        ]
        batch = Batch(1, tree, 1, sequence, tuple(shown))
        blob = BlobId(self._number(number))
        self.daemons[number].blobs[blob] = bytearray(b"".join(data))
        size = sum(map(len, data))
        self.happen(NodeId(number), PushBatch(batch, blob, size))

    def _read_source(self, number: int, fetch: AtSource) -> None:
        kind = type(fetch).__name__.removesuffix("Source").lower()
        self.tree.counts[kind, fetch.path] += 1
        if isinstance(fetch, ReadChunk):
            self.tree.chunk_reads[fetch.path, fetch.offset] += 1
        self.happen(NodeId(number), self._outcome(number, fetch))

    def _outcome(self, number: int, fetch: AtSource) -> Event:
        daemon, path = self.daemons[number], fetch.path
        failing = self.tree.failing.get(path)
        if failing is not None:
            return Failed(fetch.fetch, failing)
        found = self.tree.entry(path)
        match fetch:
            case LookSource():
                return Looked(fetch.fetch, found)
            case _ if found is None:
                return Failed(fetch.fetch, errno.ENOENT)
            case ScanSource():
                return Scanned(fetch.fetch, self.tree.listing(path))
            case ReadChunk(_, _, version, offset, length):
                if found.attributes.version != version:
                    return Failed(fetch.fetch, errno.ESTALE)
                data = self.tree.content(path, version)[offset : offset + length]
                assert len(data) == length
                return HaveRead(fetch.fetch, self._keep(number, data))
            case ReadSource(_, _, version) | OpenSource(_, _, version):
                if found.attributes.version != version:
                    return Failed(fetch.fetch, errno.ESTALE)
                if isinstance(fetch, OpenSource):
                    handle = HandleId(self._number(number))
                    daemon.handles.add(handle)
                    return Opened(fetch.fetch, handle)
                blob = BlobId(self._number(number))
                daemon.blobs[blob] = bytearray(self.tree.content(path, version))
                mentions = self.tree.mentions.get(path, set())
                looked_for = daemon.node.looks_for(fetch.fetch)
                there = tuple(each for each in looked_for if each in mentions)
                return HaveRead(FetchId(fetch.fetch), blob, there)
        raise AssertionError("unreachable")

    def _keep(self, number: int, data: bytes) -> BlobId:
        blob = BlobId(self._number(number))
        self.daemons[number].blobs[blob] = bytearray(data)
        return blob

    # --- what a test looks at --------------------------------------------------------------------

    def source_reads(self) -> Counter[tuple[str, Path]]:
        return self.tree.counts

    def check_at_rest(self) -> None:
        """When nothing is under way, nothing is kept that is not held."""
        for daemon in self.daemons:
            stats = daemon.node.statistics()
            assert stats.fetching == 0
            held = [key for key, _ in daemon.node.held() if hasattr(key, "version")]
            assert len(daemon.blobs) == len(held) + len(daemon.node.held_chunks())
            assert stats.reserved_bytes == 0


class Never(deque[Any]):
    """A queue whose messages stay in it."""

    def __bool__(self) -> bool:
        return False


def names(job: Job, path: bytes) -> list[bytes]:
    return [name for name, _ in job.tree.listing(Path(path)).rows()]
