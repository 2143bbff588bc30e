"""Node: the decisions of one node, as a synchronous state machine without clock or I/O.

``step(now, event)`` is the only mutator. It takes a request or an outcome and returns the actions
that the caller performs: the daemon with threads and trio, the simulator in virtual time.

The node consists of parts, one module each, and only dispatches each event to its part. A part
knows those below it:

    Node              dispatches events, and keeps the deadline of the next tick
    Session           connections: hellos, peers with the same options, connected peers
    InodeNumbers      whether all nodes' clients of the source number files alike, by hellos
    Reassembly        turns messages with bytes into blobs and listings
    Pushes            does the same for the batches of a pushed working set
    PeerProtocol      inbound messages: requests of peers, and replies, which become outcomes
    RequestHandler    from a request to its reply: what to fetch, what an outcome means
    ImportPrefetcher  prefetch of files that a directory or an import needs next
    ReplyBuilder      replies to an application of this node, or to a peer
    Collectives       operations of all nodes together
    FetchTable        fetches in flight, the requests that wait on them, memory for them
    FetchMachine      drives one fetch: picks a peer or the source, hedges, retries, falls back
    Chunks            large files and datasets in chunks; read-ahead, redirects, hot files
    CopyKeeper        copies of chunks of protected paths on other nodes
    WriteBack         chunks that the disk has still to take, and what waits for that
    ChunkCache        the chunks in this node's memory
    Routing           the route of a fetch: a parent in a tree, or the owner of a chunk (Owners)
    Membership        the live members, and the peers to which this node stays connected
    SpeculativePush   offers to children, before they ask
    AccessHistory     the order of objects, and the peers that read in that order
    FlowControl       outstanding requests at each peer, and credit windows
    Cache             objects and listings, and how long a listing is valid
    BlobRefs          reference counts of blobs

``Policy``, ``Trees`` and ``Limits`` only hold facts, and any part may read them.

The cache or a fetch answers a request. A fetch goes to the source. In a job of several nodes, a
fetch of a shared path goes to this node's parent in the tree of its directory, and the root of that
tree reads the source. A request of a peer is handled like any other: it waits on the same fetches,
and a message answers it. Nodes exchange what the source returned, not what this mount shows of it.
A node that cannot reach its parent reads the source itself, and counts the read as a fallback.

Every fetch has a deadline. A reply never comes from a fetch of this node or of the front that began
before the last ``Clear``. Bytes of a version are the exception, because they are valid at any time.
A clear on one node is a clear on all: a node that learns of a later epoch clears as well.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from copperfs.model.listing import Listing
from copperfs.model.types import BlobId, ChunkKey, FetchId, NodeId, Path, Version
from copperfs.node.actions import Action, CacheKey, Evict, ListingKey, ObjectKey, Send
from copperfs.node.cache.blob_refs import BlobRefs
from copperfs.node.cache.chunk_cache import ChunkCache
from copperfs.node.cache.error_cache import FailedNames
from copperfs.node.cache.metadata_cache import Cache
from copperfs.node.cache.write_back import WriteBack
from copperfs.node.events import (
    CallPerformed,
    ChunkRequest,
    Clear,
    ConnectionLost,
    ConnectionMade,
    DiskLoaded,
    DiskRecovered,
    Event,
    Failed,
    FromPeer,
    FrontListed,
    FrontRead,
    GrantsRevoked,
    InodesCompared,
    InodesDiffer,
    InodesFound,
    InodesSampled,
    Leave,
    ListingTaken,
    ListRequest,
    LookupRequest,
    MessageCorrupt,
    MessageReceived,
    OfConnections,
    OfInodes,
    OfNode,
    PartCorrupt,
    PartReceived,
    PayloadConsumed,
    PeerDisagrees,
    PeerDown,
    PeerMessage,
    PeerUp,
    Pushed,
    PushedListing,
    ReadRequest,
    RefusedPathsChanged,
    Replaced,
    SourceListed,
    SourceLookedUp,
    SourceOpened,
    SourceRead,
    Start,
    StartCall,
    Stored,
    Tick,
    Used,
)
from copperfs.node.fetch.machine import FetchMachine
from copperfs.node.fetch.table import FetchTable
from copperfs.node.limits_and_counters import FetchKind, Limits, NodeStats
from copperfs.node.membership.failure_detector import Timeouts
from copperfs.node.membership.swim import Membership
from copperfs.node.peer.collectives import Collectives
from copperfs.node.peer.flow_control import FlowControl
from copperfs.node.peer.hello_exchange import Session
from copperfs.node.peer.inode_agreement import InodeNumbers
from copperfs.node.peer.messages import (
    Batch,
    ContentKind,
    DataReply,
    Echo,
    EchoReply,
    Hello,
    Message,
    Offer,
)
from copperfs.node.peer.protocol import PeerProtocol
from copperfs.node.peer.push_receiver import Pushes
from copperfs.node.peer.reassembly import Payloads, Reassembly
from copperfs.node.prefetch.access_history import AccessHistory
from copperfs.node.prefetch.python_imports import ImportPrefetcher
from copperfs.node.prefetch.speculative_push import SpeculativePush
from copperfs.node.requests.chunk_reads import Chunks
from copperfs.node.requests.copies import CopyKeeper
from copperfs.node.requests.file_class import FileClass, FileClassifier
from copperfs.node.requests.handler import RequestHandler
from copperfs.node.requests.path_policy import Policy
from copperfs.node.requests.replies import ReplyBuilder
from copperfs.node.routing.chunk_owners import Owners
from copperfs.node.routing.placement_order import Placement
from copperfs.node.routing.route import Routing
from copperfs.node.routing.trees import Trees


@dataclass(slots=True)
class Node:
    policy: Policy
    limits: Limits
    trees: Trees | None = None
    """None in a job of one node."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    random: Random = field(default_factory=lambda: Random(0))
    placement: Placement | None = None
    """None in a job of one node, or without a data tier."""
    domains: tuple[int, ...] = ()
    """The failure domain of each node; empty if each node is one by itself."""
    stats: NodeStats = field(default_factory=NodeStats)
    files: FileClassifier = field(init=False)
    flow: FlowControl = field(init=False)
    membership: Membership | None = field(init=False, default=None)
    """None in a job of one node."""
    session: Session | None = field(init=False, default=None)
    """None in a job of one node."""
    inode_numbers: InodeNumbers | None = field(init=False, default=None)
    """None in a job of one node."""
    reassembly: Reassembly | None = field(init=False, default=None)
    """None before ``attach``, and in a job of one node."""
    pushes: Pushes = field(init=False)
    _routing: Routing = field(init=False)
    _cache: Cache = field(init=False)
    _fetches: FetchTable = field(init=False)
    _collectives: Collectives = field(init=False)
    _replies: ReplyBuilder = field(init=False)
    _handler: RequestHandler = field(init=False)
    _prefetcher: ImportPrefetcher = field(init=False)
    _chunk_cache: ChunkCache | None = field(init=False)
    _copies: CopyKeeper | None = field(init=False)
    """None if no path is protected."""
    _offers: SpeculativePush = field(init=False)
    _protocol: PeerProtocol = field(init=False)

    def __post_init__(self) -> None:
        policy, limits, stats = self.policy, self.limits, self.stats
        # The node has a policy of its own, because the refused paths change. Without a data tier no
        # path belongs to the ring.
        self.policy = policy = replace(policy, ring=policy.ring if limits.chunk_bytes else ())
        self.files = files = FileClassifier(policy, limits)
        blob_refs = BlobRefs()
        flow = FlowControl(blob_refs)
        cache = Cache(policy, files, limits, stats, blob_refs)
        if self.trees is not None:
            self.session = session = Session(self.trees.me, stats)
            self.inode_numbers = session.numbers = InodeNumbers(
                self.trees.me, stats, self.gone, session.say_hello_again, self._begin_epoch
            )
            self.membership = Membership(self.trees, self.timeouts, stats, flow, self.random)
        owners = None
        if self.placement is not None and self.trees is not None:
            owners = Owners(self.placement, self.trees.me, limits.chunk_bytes, stats, self.domains)
        self._routing = routing = Routing(
            policy, self.trees, flow, self.membership, owners, limits.lost_from_source
        )
        machine = FetchMachine(limits, stats, flow, routing, self.random, self.timeouts.slow_s)
        chunk_cache = ChunkCache(limits, stats, blob_refs) if limits.chunk_bytes else None
        write_back = None if chunk_cache is None else WriteBack(limits, stats, chunk_cache)
        fetches = FetchTable(limits, stats, cache, flow, routing, machine, chunk_cache, write_back)
        # In a job of several nodes only the node can tell which requests are for the same file.
        grants = limits.allowance_bytes > 0 and self.trees is None
        replies = ReplyBuilder(policy, files, stats, flow, grants, limits.cut_through)
        prefetcher = ImportPrefetcher(
            policy, files, limits, stats, cache, fetches, routing, decides=not grants
        )
        self._offers = offers = SpeculativePush(stats, flow, cache, AccessHistory())
        failed_names = FailedNames(remembers=bool(self.trees))
        chunks = None
        copies = None
        if chunk_cache is not None and write_back is not None:
            if owners is not None and self.membership is not None and policy.protection:
                copies = CopyKeeper(
                    limits,
                    stats,
                    flow,
                    chunk_cache,
                    fetches,
                    replies,
                    routing,
                    write_back,
                    self.membership,
                    self.inode_numbers,
                )
            chunks = Chunks(
                policy,
                limits,
                stats,
                blob_refs,
                flow,
                chunk_cache,
                fetches,
                replies,
                routing,
                write_back,
                failed_names,
                copies,
            )
        handler = RequestHandler(
            policy,
            files,
            stats,
            blob_refs,
            cache,
            fetches,
            replies,
            offers if self.trees else None,
            prefetcher,
            failed_names,
            chunks,
        )
        if copies is not None:
            machine.without_copies = handler.without_copies
        collectives = Collectives(routing, self.random)
        self._protocol = PeerProtocol(
            policy,
            stats,
            flow,
            routing,
            cache,
            fetches,
            replies,
            handler,
            collectives,
            offers,
            self.membership,
            self.inode_numbers,
            copies,
        )
        self.flow, self._cache, self._fetches = flow, cache, fetches
        self._collectives, self._replies, self._handler = collectives, replies, handler
        self._prefetcher, self._chunk_cache = prefetcher, chunk_cache
        self._copies = copies
        self.pushes = Pushes(policy, limits, self.files, cache, self.trees)

    def attach(self, payloads: Payloads) -> None:
        """Call it before the first message arrives."""
        self.reassembly = Reassembly(self._protocol, self.stats, payloads)
        self.pushes.payloads = payloads

    # --- steps -----------------------------------------------------------------------------------

    def step(self, now: float, event: Event) -> list[Action]:
        if isinstance(event, MessageReceived):  # the most frequent event
            return self._receive(now, event)
        if isinstance(event, OfConnections):
            return self._converse(now, event)
        if isinstance(event, OfInodes):
            return self._of_inodes(now, event)
        if isinstance(event, RefusedPathsChanged):
            self.policy.refused = event.refused
            return []  # the caller performs no actions for this event
        return self._whole_step(now, event)

    def _whole_step(self, now: float, event: OfNode) -> list[Action]:
        """One step, then new connections and new routes of fetches."""
        actions = self._step(now, event)
        if self._copies is not None:
            actions += self._copies.go_on(now)
        return actions + self._protocol.reconsider(now)

    def _receive(self, now: float, received: MessageReceived) -> list[Action]:
        """One message may become several events, each a whole step."""
        session, peer, message = self.session, received.peer, received.message
        assert session is not None, "a job of one has no peers"
        if isinstance(message, Hello):
            return self._hear_hello(now, session, peer, message)
        if peer not in session.connected:
            return []  # the peer has not said hello, or has other options
        if isinstance(message, DataReply | Offer | Batch):
            assert self.reassembly is not None, "it is attached"
            assert received.payload is not None, "it may be empty"
            if isinstance(message, DataReply):
                return self._whole_step(now, self.reassembly.part(peer, message, received.payload))
            if isinstance(message, Batch):
                events = self.pushes.batch(now, peer, message, received.payload)
            else:
                is_followed = self.is_upstream(peer)
                events = self.reassembly.offer(
                    peer, message, received.payload, is_followed=is_followed
                )
            return [action for each in events for action in self._whole_step(now, each)]
        if isinstance(message, Echo):
            return [Send(peer, EchoReply(message.number))]
        return self._whole_step(now, PeerMessage(peer, message))

    def _converse(self, now: float, event: OfConnections) -> list[Action]:
        """The session decides when a peer is up or down."""
        session = self.session
        assert session is not None, "a job of one has no peers"
        match event:
            case ConnectionMade(peer):
                return session.made(peer, partial(self._lose, now))
            case ConnectionLost(peer):
                return session.lost(peer, partial(self._lose, now))
            case MessageCorrupt(peer, message):
                return self._drop_corrupt(now, session, peer, message)
            case PeerDisagrees(peer, sentence):
                return session.disagree(peer, sentence)
            case MessageReceived():
                return self._receive(now, event)

    def _hear_hello(self, now: float, session: Session, peer: NodeId, hello: Hello) -> list[Action]:
        """What it says of inode numbers counts before the rest: versions compare by it."""
        actions: list[Action] = []
        if self.inode_numbers is not None and session.differs(peer, hello) is None:
            actions += self.inode_numbers.hear(now, hello)
        begin = partial(self._begin, now)
        return actions + session.hear(peer, hello, partial(self._lose, now), begin)

    def _of_inodes(self, now: float, event: OfInodes) -> list[Action]:
        """A result of the comparison of inode numbers."""
        numbers = self.inode_numbers
        assert numbers is not None, "a job of one compares nothing"
        match event:
            case InodesFound(names):
                return numbers.found(names)
            case InodesSampled():
                return numbers.sampled()
            case InodesDiffer():
                return numbers.differ(now)
            case InodesCompared():
                numbers.compared()
                return []

    def _begin_epoch(self, now: float, epoch: int) -> list[Action]:
        return self._whole_step(now, Clear(epoch))

    def _begin(self, now: float, peer: NodeId, hello: Hello) -> list[Action]:
        """The hello of *peer* is its first message."""
        return self._whole_step(now, PeerUp(peer)) + self._whole_step(now, PeerMessage(peer, hello))

    def _lose(self, now: float, peer: NodeId) -> list[Action]:
        if self.reassembly is not None:
            self.reassembly.forget(peer)
        return self._whole_step(now, PeerDown(peer))

    def _drop_corrupt(
        self, now: float, session: Session, peer: NodeId, message: Message
    ) -> list[Action]:
        """A fetch that needs the content of a corrupt message asks again."""
        if not session.is_connected(peer):
            return []
        events: list[FromPeer] = []
        if isinstance(message, DataReply):
            events.append(PartCorrupt(peer, message))
        elif isinstance(message, Batch | Offer):
            # The credit returns as if the payload had been consumed.
            self.stats.spoiled += 1
            if isinstance(message, Batch):
                events += self.pushes.corrupt(now, peer, message)
            size = sum(item.length for item in message.items)
            events.append(PayloadConsumed(peer, size, message.epoch))
        return [action for each in events for action in self._whole_step(now, each)]

    def _step(self, now: float, event: OfNode) -> list[Action]:
        match event:
            case Pushed() | PushedListing() | PeerMessage() | PartReceived() | ListingTaken():
                return self._protocol.step(now, event)  # the most frequent events
            case LookupRequest() | ListRequest() | ReadRequest() | ChunkRequest():
                self.stats.questions += 1
                return self._handler.handle(now, event)
            case (
                SourceListed()
                | SourceLookedUp()
                | SourceRead()
                | SourceOpened()
                | Failed()
                | DiskLoaded()
            ):
                return self._handler.conclude(now, event)
            case Stored() | DiskRecovered():
                return self._handler.of_disk(now, event)
            case FrontRead():
                return self._take_fetched(event)
            case FrontListed(path, listing, epoch, ahead):
                if epoch != self.stats.epoch:
                    return []
                self.stats.listed_ahead += ahead
                return self._cache.take_listed(now, path, listing)
            case Replaced(path):
                return self._cache.forget_directory(now, path)
            case Used(keys):
                self._cache.used(keys)
                for key in keys:
                    self._prefetcher.used(key)
                    if self._chunk_cache is not None:
                        self._chunk_cache.used(key)
                return []
            case GrantsRevoked(directories):
                return self._take_back(self._replies.keep_from_front(directories))
            case Clear(epoch):
                return self._handler.clear(now, epoch or self.stats.epoch + 1)
            case StartCall(request, operation, argument, within_s):
                return self._collectives.start(now, request, operation, argument, within_s)
            case CallPerformed(call, result):
                return self._collectives.performed(call, result)
            case Tick():
                return self._tick(now)
            case Start():
                return self._start(now)
            case Leave():
                return [] if self.membership is None else self.membership.leave(now)
            case RefusedPathsChanged():
                raise AssertionError("done with")
            case _:
                return self._protocol.step(now, event)

    def _start(self, now: float) -> list[Action]:
        if self.membership is None:
            return []
        self.membership.start()
        return [] if self.inode_numbers is None else self.inode_numbers.sample_if_first()

    def _tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        due = self.deadline()
        late_s = 0.0 if due is None else max(0.0, now - due)
        if late_s > self.timeouts.nap_s:
            self._fetches.slept(late_s)
            if self._copies is not None:
                self._copies.slept(late_s)
        if self.membership is not None:
            self.membership.on_late_wakeup(now, late_s)
            actions += self.membership.tick(now)
        actions += self._fetches.machine.tick(now)
        actions += self._handler.expire(now) + self._collectives.expire(now)
        return actions + self._offers.flush(now)

    def _take_fetched(self, fetched: FrontRead) -> list[Action]:
        key = ObjectKey(fetched.path, fetched.version)
        self.stats.fetched_on_credit += 1
        if fetched.ahead:
            self._prefetcher.fetched(key, used=fetched.used)
        if self._prefetcher.is_unused(key):
            return self._cache.take_ahead(key, fetched.blob)
        return self._cache.take_fetched(key, fetched.blob)

    def _take_back(self, granted: set[Path]) -> list[Action]:
        """The front has published these listings as granted, and asks again after an eviction."""
        return [Evict(ListingKey(each)) for each in granted if self._cache.held_listing(each)]

    def deadline(self) -> float | None:
        """When the next ``Tick`` is due. The caller reads it after every step."""
        soonest = self._fetches.deadline()
        of_members = None if self.membership is None else self.membership.deadline()
        of_copies = None if self._copies is None else self._copies.deadline()
        others = (self._collectives.deadline(), self._offers.deadline(), of_members, of_copies)
        for each in others:
            if each is not None and (soonest is None or each < soonest):
                soonest = each
        return soonest

    @property
    def me(self) -> NodeId:
        return NodeId(0) if self.trees is None else self.trees.me

    def resume(self, epoch: int) -> None:
        """Before the first step: go on in the epoch of the daemon whose mount this one has taken
        over."""
        self.stats.epoch = epoch

    @property
    def epoch(self) -> int:
        return self.stats.epoch

    def statistics(self) -> NodeStats:
        self.stats.fetching = len(self._fetches)
        self._cache.count()
        if self._chunk_cache is not None:
            self._chunk_cache.count()
        if self._fetches.write_back is not None:
            self._fetches.write_back.count()
        if self._copies is not None:
            self._copies.count()
        return self.stats

    def reset_statistics(self) -> None:
        self.stats.reset()
        self._cache.reset_counts()
        if self._chunk_cache is not None:
            self._chunk_cache.reset_counts()

    def check_invariants(self) -> None:
        self.flow.check_invariants()
        if self.membership is not None:
            self.membership.check_invariants()
        self._fetches.check_invariants()
        self._cache.check_invariants(self._fetches.on_its_way_bytes)
        self._prefetcher.check_invariants()
        if self._copies is not None:
            self._copies.check_invariants()

    # --- queries between steps -------------------------------------------------------------------

    @property
    def left_bytes(self) -> int:
        """Bytes that ever left the caches, whatever was reset."""
        return self._cache.left_bytes

    def held_listing(self, directory: Path) -> tuple[Listing, float | None] | None:
        return self._cache.held_listing(directory)

    def ignore_inodes(self) -> None:
        """Before the start: leave inode numbers out of versions, by the setting."""
        if self.inode_numbers is not None:
            self.inode_numbers.ignoring = True

    def is_whole(self, path: Path, version: Version) -> bool:
        """Whether every node holds this file whole."""
        return self.files.is_pushed(path, version.size)

    def holds(self, path: Path, version: Version) -> bool:
        return self._cache.holds(path, version)

    def path_of(self, fetch: FetchId) -> Path | None:
        """None if *fetch* has ended."""
        running = self._fetches.get(fetch)
        return None if running is None else running.subject[1]

    def names_to_find(self, fetch: FetchId) -> tuple[bytes, ...]:
        """What to scan for in what *fetch* reads; ``SourceRead`` reports the names that occur."""
        running = self._fetches.get(fetch)
        if running is None or running.subject[0] is not FetchKind.OBJECT:
            return ()
        _, path, version = running.subject
        assert isinstance(version, Version)
        return self._prefetcher.names_to_find(ObjectKey(path, version))

    def held(self) -> list[tuple[CacheKey, int]]:
        return self._cache.held()

    def held_chunks(self) -> list[tuple[ChunkKey, int]]:
        return [] if self._chunk_cache is None else self._chunk_cache.held()

    def is_chunked(self, path: Path, version: Version) -> bool:
        return self.files.of(path, version.size) is FileClass.CHUNKED

    def owns_chunk(self, key: ChunkKey) -> bool:
        return self._chunk_cache is not None and self._routing.is_mine(key)

    def keeps_chunk(self, key: ChunkKey) -> bool:
        """Whether this node has the chunk in memory, as its owner."""
        return self._chunk_cache is not None and self._chunk_cache.owns(key)

    def chunks_budget_bytes(self) -> int:
        return 0 if self._chunk_cache is None else self._chunk_cache.owned_budget_bytes

    def gone(self) -> frozenset[NodeId]:
        """The nodes that are believed dead, or have left."""
        return frozenset() if self.membership is None else frozenset(self.membership.members.gone)

    def pushes_to(self, tree: int) -> list[NodeId]:
        return [] if self.trees is None else self._routing.push_children(tree)

    def is_back(self) -> bool:
        """Whether others had declared this node dead, and it has refuted that."""
        if self.membership is None:
            return False
        members = self.membership.members
        return members.incarnation(members.me) > 0

    def is_in_touch(self) -> bool:
        return self.membership is None or self.membership.is_in_touch()

    def is_drained(self) -> bool:
        """After ``Leave``: whether all nodes know, and no peer waits for the rest of a reply."""
        known = self.membership is None or self.membership.is_known_to_leave()
        return known and not self.flow.is_serving_any()

    def is_upstream(self, peer: NodeId) -> bool:
        """Whether this node may have to ask *peer*."""
        return self.membership is not None and self.membership.is_upstream(peer)

    def wanted(self, peer: NodeId, part: DataReply) -> tuple[ContentKind, BlobId | None] | None:
        return self._protocol.wanted(peer, part)
