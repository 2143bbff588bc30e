"""One node's decisions: a synchronous state machine without clock or I/O.

``step(now, event)`` is the only mutator. It takes a question or an outcome and returns what is to
be done. The daemon performs that with threads and trio, the simulator in virtual time.

The node is made of parts, one module each, and says only which event is for which of them. A part
knows those below it:

    Node            the verbs
    Peering         what peers say: asks become questions, what they give becomes outcomes
    Questions       from a question to its answer: what is fetched, what an outcome means
    Ahead           what is read before somebody asks for it
    Answers         to a request of this node, or back to a peer
    Calls           what all nodes do together
    Fetches         what is on its way, who waits for it, and the room for it
    Asking          whom a fetch asks, one after the other, and when it reads the source
    Chunks          large files and datasets, piece by piece; with Rows, Takers and Crowds
    WriteBack       what the disk has still to be given, and what waits for that
    Tier            the chunks that this node has in memory
    Routing         whom to ask: a parent, or by Owners the one who keeps a chunk
    Membership      who is there, and with whom this node keeps in touch
    Offers          what children are sent before they ask
    Trail           in which order things came, and who wants them in the same
    Links           what was asked of each peer and what each is being given, on credit
    Cache           what is held, and what of that is believed
    Pins            when a blob may be released

and those that only know, ``Policy``, ``Trees`` and ``Limits``, are asked by whoever needs them.

A question is answered by the cache or by a fetch. A fetch goes to the source, or, for what is
shared in a job of several nodes, to this node's parent in the tree of its directory; the root of
that tree reads the source. A peer's ask is a question like any other, waits on the same fetches,
and is answered by a message. What the source said travels, not what this mount shows of it. Without
its parent a node reads the source itself, and counts it.

Every fetch has a deadline. Answers never come from a fetch that began before the last ``Clear``,
also not from one of the front's, unless they are bytes of a version, which are true at any time.
A clear on one node is a clear on all: whoever hears of a later epoch clears as well.
"""

from dataclasses import dataclass, field, replace
from random import Random

from copperfs.core.actions import Action, CacheKey, Evict, ListingKey, ObjectKey
from copperfs.core.ahead import Ahead
from copperfs.core.answers import Answers
from copperfs.core.asking import Asking
from copperfs.core.cache import Cache
from copperfs.core.calls import Calls
from copperfs.core.chunks import Chunks
from copperfs.core.events import (
    CallPerformed,
    Clear,
    DiskRecovered,
    Event,
    Failed,
    Fetched,
    HaveRead,
    Heard,
    Leave,
    List,
    Listed,
    ListingTaken,
    Loaded,
    Look,
    Looked,
    MountsMoved,
    Opened,
    PartTaken,
    Pushed,
    PushedListing,
    Read,
    Replaced,
    Scanned,
    Start,
    StartCall,
    Stored,
    Tick,
    Used,
    WantChunk,
    WarmedUp,
)
from copperfs.core.fetches import Fetches
from copperfs.core.links import Links
from copperfs.core.listing import Listing
from copperfs.core.membership import Membership
from copperfs.core.messages import LISTING_MAX_BYTES, GivePart, Item, What
from copperfs.core.offers import Offers
from copperfs.core.owners import Owners
from copperfs.core.peering import Peering
from copperfs.core.pins import Pins
from copperfs.core.placement import Placement
from copperfs.core.policy import Place, Policy
from copperfs.core.questions import Questions
from copperfs.core.routing import Routing
from copperfs.core.sick_names import SickNames
from copperfs.core.state import Kind, Limits, NodeStats
from copperfs.core.suspicion import Patience
from copperfs.core.tier import Tier
from copperfs.core.trail import Trail
from copperfs.core.trees import Trees
from copperfs.core.writeback import WriteBack
from copperfs.types import BlobId, ChunkKey, FetchId, NodeId, Path, Version


@dataclass(slots=True)
class Node:
    policy: Policy
    limits: Limits
    trees: Trees | None = None
    """None for a node that is a job by itself."""
    patience: Patience = field(default_factory=Patience)
    random: Random = field(default_factory=lambda: Random(0))
    placement: Placement | None = None
    """Who owns which chunks; None where there is no other node, or no data tier."""
    stats: NodeStats = field(default_factory=NodeStats)
    links: Links = field(init=False)
    membership: Membership | None = field(init=False, default=None)
    """None for a node that is a job by itself."""
    _routing: Routing = field(init=False)
    _cache: Cache = field(init=False)
    _fetches: Fetches = field(init=False)
    _calls: Calls = field(init=False)
    _answers: Answers = field(init=False)
    _questions: Questions = field(init=False)
    _ahead: Ahead = field(init=False)
    _tier: Tier | None = field(init=False)
    _offers: Offers = field(init=False)
    _peering: Peering = field(init=False)

    def __post_init__(self) -> None:
        policy, limits, stats = self.policy, self.limits, self.stats
        # Its own: what it refuses changes. Without a data tier nothing goes there.
        self.policy = policy = replace(policy, ring=policy.ring if limits.chunk_bytes else ())
        pins = Pins()
        links = Links(pins)
        cache = Cache(policy, limits, stats, pins)
        if self.trees is not None:
            self.membership = Membership(self.trees, self.patience, stats, links, self.random)
        owners = None
        if self.placement is not None and self.trees is not None:
            owners = Owners(
                self.placement, self.trees.me, limits.chunk_bytes, stats, limits.lost_from_source
            )
        self._routing = routing = Routing(policy, self.trees, links, self.membership, owners)
        asking = Asking(limits, stats, links, routing, self.random, self.patience.slow_s)
        tier = Tier(limits, stats, pins) if limits.chunk_bytes else None
        disk = None if tier is None else WriteBack(limits, stats, tier)
        fetches = Fetches(limits, stats, cache, links, routing, asking, tier, disk)
        # In a job of several nodes only the node can tell which questions are for the same file.
        grants = limits.credit_bytes > 0 and self.trees is None
        answers = Answers(policy, stats, links, grants, limits.cut_through)
        ahead = Ahead(policy, limits, stats, cache, fetches, routing, decides=not grants)
        self._offers = offers = Offers(stats, links, cache, Trail())
        chunks = None
        if tier is not None and disk is not None:
            chunks = Chunks(
                policy, limits, stats, pins, links, tier, fetches, answers, routing, disk
            )
        questions = Questions(
            policy,
            limits,
            stats,
            pins,
            cache,
            fetches,
            answers,
            offers if self.trees else None,
            ahead,
            SickNames(remembers=bool(self.trees)),
            chunks,
        )
        calls = Calls(routing, self.random)
        self._peering = Peering(
            policy,
            stats,
            links,
            routing,
            cache,
            fetches,
            answers,
            questions,
            calls,
            offers,
            self.membership,
        )
        self.links, self._cache, self._fetches = links, cache, fetches
        self._calls, self._answers, self._questions = calls, answers, questions
        self._ahead, self._tier = ahead, tier

    # --- the four verbs --------------------------------------------------------------------------

    def step(self, now: float, event: Event) -> list[Action]:
        if isinstance(event, MountsMoved):
            self.policy.refused = event.refused
            return []  # who says so performs nothing
        return self._step(now, event) + self._peering.reconsider(now)

    def _step(self, now: float, event: Event) -> list[Action]:
        match event:
            case Pushed() | PushedListing() | Heard() | PartTaken() | ListingTaken():
                return self._peering.step(now, event)  # most of what happens
            case Look() | List() | Read() | WantChunk():
                self.stats.questions += 1
                return self._questions.ask(now, event)
            case Scanned() | Looked() | HaveRead() | Opened() | Failed() | Loaded():
                return self._questions.conclude(now, event)
            case Stored() | DiskRecovered():
                return self._questions.of_disk(now, event)
            case Fetched():
                return self._take_fetched(event)
            case Listed(path, listing, epoch, ahead):
                if epoch != self.stats.epoch:
                    return []
                self.stats.listed_ahead += ahead
                return self._cache.take_listed(now, path, listing)
            case Replaced(path):
                return self._cache.forget_directory(now, path)
            case Used(keys):
                self._cache.used(keys)
                for key in keys:
                    self._ahead.used(key)
                    if self._tier is not None:
                        self._tier.used(key)
                return []
            case WarmedUp(directories):
                return self._take_back(self._answers.keep_from_front(directories))
            case Clear(epoch):
                return self._questions.clear(now, epoch or self.stats.epoch + 1)
            case StartCall(request, operation, argument, within_s):
                return self._calls.start(now, request, operation, argument, within_s)
            case CallPerformed(call, result):
                return self._calls.performed(call, result)
            case Tick():
                return self._tick(now)
            case Start():
                return self._start(now)
            case Leave():
                return [] if self.membership is None else self.membership.leave(now)
            case MountsMoved():
                raise AssertionError("done with")
            case _:
                return self._peering.step(now, event)

    def _start(self, now: float) -> list[Action]:
        if self.membership is None:
            return []
        self.membership.start()
        return []

    def _tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        due = self.deadline()
        late_s = 0.0 if due is None else max(0.0, now - due)
        if late_s > self.patience.nap_s:
            self._fetches.slept(late_s)
        if self.membership is not None:
            self.membership.woke(now, late_s)
            actions += self.membership.tick(now)
        actions += self._fetches.asking.tick(now)
        actions += self._questions.expire(now) + self._calls.expire(now)
        return actions + self._offers.flush(now)

    def _take_fetched(self, fetched: Fetched) -> list[Action]:
        key = ObjectKey(fetched.path, fetched.version)
        self.stats.fetched_on_credit += 1
        if fetched.ahead:
            self._ahead.fetched(key, used=fetched.used)
        if self._ahead.is_unused(key):
            return self._cache.take_ahead(key, fetched.blob)
        return self._cache.take_fetched(key, fetched.blob)

    def _take_back(self, granted: set[Path]) -> list[Action]:
        """What was published as granted is to be asked for again."""
        return [Evict(ListingKey(each)) for each in granted if self._cache.held_listing(each)]

    def deadline(self) -> float | None:
        """Asked after every step."""
        soonest = self._fetches.deadline()
        of_members = None if self.membership is None else self.membership.deadline()
        for each in (self._calls.deadline(), self._offers.deadline(), of_members):
            if each is not None and (soonest is None or each < soonest):
                soonest = each
        return soonest

    @property
    def epoch(self) -> int:
        return self.stats.epoch

    def statistics(self) -> NodeStats:
        self.stats.fetching = len(self._fetches)
        self._cache.count()
        if self._tier is not None:
            self._tier.count()
        if self._fetches.disk is not None:
            self._fetches.disk.count()
        return self.stats

    def reset_statistics(self) -> None:
        """Counts begin anew; the epoch does not."""
        self.stats.reset()
        self._cache.reset_counts()
        if self._tier is not None:
            self._tier.reset_counts()

    def check_invariants(self) -> None:
        self.links.check_invariants()
        if self.membership is not None:
            self.membership.check_invariants()
        self._fetches.check_invariants()
        self._cache.check_invariants(self._fetches.on_its_way_bytes)
        self._ahead.check_invariants()

    # --- what is asked between steps -------------------------------------------------------------

    @property
    def left_bytes(self) -> int:
        """The size of all that ever left the caches; a reset of the statistics leaves it alone."""
        return self._cache.left_bytes

    def held_listing(self, directory: Path) -> tuple[Listing, float | None] | None:
        """As the source has it, and until when it may be believed."""
        return self._cache.held_listing(directory)

    def wants_pushed(self, item: Item) -> bool:
        """Whether to take in what is pushed: not what is held, is no place of all nodes, is too
        large for this one, or cannot be what it says it is."""
        if self.policy.place(item.path) is not Place.SHARED:
            return False
        if item.what is What.LISTING:
            return item.total_bytes <= LISTING_MAX_BYTES
        if item.version is None or item.version.size != item.total_bytes:
            return False
        fits = item.total_bytes > 0 and self.is_whole(item.path, item.version)
        return fits and not self.holds(item.path, item.version)

    def is_whole(self, path: Path, version: Version) -> bool:
        """Whether a file is held whole, and by every node: others are read in chunks or by handle,
        and are not pushed."""
        return version.size <= self.limits.whole_max_bytes and not self.policy.is_ring(path)

    def holds(self, path: Path, version: Version) -> bool:
        return self._cache.holds(path, version)

    def looks_for(self, fetch: FetchId) -> tuple[bytes, ...]:
        """Which names to look for in what is to be read for this; ``HaveRead`` is to have those
        that are mentioned there."""
        running = self._fetches.get(fetch)
        if running is None or running.subject[0] is not Kind.READ:
            return ()
        _, path, version = running.subject
        assert isinstance(version, Version)
        return self._ahead.looks_for(ObjectKey(path, version))

    def held(self) -> list[tuple[CacheKey, int]]:
        """All that is on the shelf, oldest first, with its size."""
        return self._cache.held()

    def held_chunks(self) -> list[tuple[ChunkKey, int]]:
        """All chunks in memory, with their sizes."""
        return [] if self._tier is None else self._tier.held()

    def is_chunked(self, path: Path, version: Version) -> bool:
        """Whether a file of this version is read in chunks."""
        chunks = self._questions.chunks
        return chunks is not None and chunks.is_chunked(path, version)

    def owns_chunk(self, key: ChunkKey) -> bool:
        """Whether this node is the one to keep it."""
        return self._tier is not None and self._routing.is_mine(key)

    def keeps_chunk(self, key: ChunkKey) -> bool:
        """Whether it does, in memory."""
        return self._tier is not None and self._tier.owns(key)

    def chunks_budget_bytes(self) -> int:
        """What there is of memory for the chunks that this node owns."""
        return 0 if self._tier is None else self._tier.owned_budget_bytes

    def expects(self, peer: NodeId, number: int) -> bool:
        """Whether anything is still to come for this ask."""
        return self._fetches.of_ask(peer, number) is not None

    def gone(self) -> frozenset[NodeId]:
        """Those that this node believes to be gone."""
        return frozenset() if self.membership is None else frozenset(self.membership.view.gone)

    def pushes_to(self, tree: int) -> list[NodeId]:
        """To whom it passes on what is pushed."""
        return [] if self.trees is None else self._routing.push_children(tree)

    def is_back(self) -> bool:
        """Whether others had taken this node for gone, and it has said that it is not."""
        if self.membership is None:
            return False
        view = self.membership.view
        return view.incarnation(view.me) > 0

    def is_in_touch(self) -> bool:
        """Whether all whom this node asks, or is pushed to by, can be talked to."""
        return self.membership is None or self.membership.is_in_touch()

    def may_go(self) -> bool:
        """After ``Leave``: everybody knows, and nobody is waiting for the rest of an answer."""
        known = self.membership is None or self.membership.is_known_to_leave()
        return known and not self.links.is_serving_any()

    def looks_up_to(self, peer: NodeId) -> bool:
        """Whether *peer* is one of those whom this node may have to ask."""
        return self.membership is not None and self.membership.is_wanted(peer)

    def wanted(self, peer: NodeId, part: GivePart) -> tuple[What, BlobId | None] | None:
        """Whether to keep the bytes of *part*, and where; see ``Peering``."""
        return self._peering.wanted(peer, part)
