"""Copy keeper: sees that as many nodes keep the chunks of protected paths as their class says.

``copy_holders.py`` says which nodes keep a chunk. The keeper of each node has a *ledger*: the
chunks of such paths that this node keeps, and for each the other nodes that have said that they
keep it, too. All follows from one rule, which a node applies to a chunk when it gets it, and to all
its chunks when the membership changes:

* the owner of a chunk offers it to the other nodes that should keep it;
* a node that is not its owner offers it to the owner.

``CopyOffer`` makes an offer. A node that keeps the chunk says so (``CopyReport``). One that does
not fetches it first, from the node that offered it or another that keeps it, and never from the
source.

So a chunk is copied after its first read. When a holder dies, the owner offers the chunk to the
next one in the order. When the owner dies, the others offer the chunk to the new owner, which then
does the same. A node that returns is offered what it owns, and keeps what it still has without a
transfer. A node whose connection was made anew may have been restarted, so it is asked again.

No reader waits for copies. A node has at most ``OFFERED_MAX`` offers without a report,
``OFFERED_EACH_MAX`` of them at one peer. It fetches ``PULLS_MAX`` chunks at the same time, only
while half of the room is free and its disk keeps up. A copy never displaces a chunk from memory:
without a disk that takes more, a node whose memory is full declines. When it evicts a copy, it
tells the owner. The owner offers such chunks again, ever more rarely.

ReStore makes copies of all data at once, at a moment that the application chooses, and makes them
anew for all after a failure. Here each chunk has its own moment.
"""

import errno
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from copperfs.model.types import ChunkKey, NodeId, PeerRequest
from copperfs.node.actions import Action, Send
from copperfs.node.cache.chunk_cache import ChunkCache, cost_of
from copperfs.node.cache.write_back import WriteBack
from copperfs.node.events import ChunkRequest
from copperfs.node.fetch.phases import Phase
from copperfs.node.fetch.table import FetchTable
from copperfs.node.limits_and_counters import FetchKind, Limits, NodeStats, Subject
from copperfs.node.membership.swim import Membership
from copperfs.node.peer.flow_control import FlowControl
from copperfs.node.peer.inode_agreement import InodeNumbers
from copperfs.node.peer.messages import ChunkAskMode, CopyOffer, CopyReport
from copperfs.node.prefetch.python_imports import NOBODY
from copperfs.node.requests.replies import ReplyBuilder
from copperfs.node.routing.route import Routing

LEDGER_MAX = 1 << 17
"""128 GiB in chunks of 1 MiB; some 60 MB of memory. Beyond it the ledger leaves out the chunk
that has been on the disk alone for longest, or else the new one, which then gets no further copies.
Both are counted."""
OFFERED_MAX = 16
OFFERED_EACH_MAX = 4
"""To one peer: a slow one delays its own copies and no others."""
PULLS_MAX = 4
PULLS_WAITING_MAX = 4096
"""A node declines further offers, and gets them again later."""
LOADS_MAX = 8
"""Chunks that are loaded from the disk at the same time for nodes that ask for a copy. They are in
no budget until they are there, so they never wait for other nodes."""
WAITING_LOADS_MAX = 1024
"""A node refuses further requests for copies that are to be loaded."""
EACH_STEP_MAX = 64
"""Chunks to which the rule is applied in one step: some 0.3 ms."""
SOON_S = 0.005
REPORT_WITHIN_S = 10.0
AGAIN_S, AGAIN_MAX_S = 1.0, 60.0

Offer = tuple[NodeId, ChunkKey]


@dataclass(slots=True)
class CopyKeeper:
    limits: Limits
    stats: NodeStats
    flow: FlowControl
    chunk_cache: ChunkCache
    fetches: FetchTable
    replies: ReplyBuilder
    routing: Routing
    write_back: WriteBack
    membership: Membership
    inode_numbers: InodeNumbers | None = None
    ledger: dict[ChunkKey, set[NodeId]] = field(default_factory=dict)
    """The chunks that this node keeps, and the other nodes that keep them."""
    _kept_at: dict[NodeId, dict[ChunkKey, None]] = field(default_factory=dict)
    """The ledger by node; in order, because that of a set of paths differs between processes."""
    _incarnations: dict[NodeId, int] = field(default_factory=dict)
    _to_check: OrderedDict[ChunkKey, None] = field(default_factory=OrderedDict)
    """Chunks to which the rule is to be applied."""
    _offers: OrderedDict[NodeId, dict[ChunkKey, None]] = field(default_factory=OrderedDict)
    """To be made to each peer."""
    _offered: dict[Offer, float] = field(default_factory=dict)
    """Without a report, and until when one is awaited."""
    _again: dict[Offer, tuple[float, float]] = field(default_factory=dict)
    """Declined: when to offer it again, and for how long it waited the last time. When the peer
    keeps it after all: when to forget that, because the peer may evict it in a moment."""
    _to_pull: OrderedDict[ChunkKey, set[NodeId]] = field(default_factory=OrderedDict)
    """Chunks that this node is to keep and does not, and the nodes that await a report."""
    _pulling: dict[ChunkKey, set[NodeId]] = field(default_factory=dict)
    """Those that are being fetched."""
    _on_disk: set[ChunkKey] = field(default_factory=set)
    """Chunks of the ledger that the disk has taken, or given."""
    _on_disk_alone: OrderedDict[ChunkKey, None] = field(default_factory=OrderedDict)
    """Those of them that memory has evicted, the oldest first; some may be in memory again."""
    _due: set[ChunkKey] = field(default_factory=set)
    """Chunks that fewer nodes keep than should."""
    _to_tell: list[Offer] = field(default_factory=list)
    """Chunks that this node keeps no longer, and nodes that count on it."""
    _loads: set[ChunkKey] = field(default_factory=set)
    _waiting_loads: deque[ChunkRequest] = field(default_factory=deque)
    _members_seen: int = 0
    _numbers_count: bool = True
    """False once inode numbers are left out of versions."""
    _wake_at: float | None = None
    _look_at: float = float("-inf")
    """When to look again for offers that are due."""

    def __post_init__(self) -> None:
        before = self.chunk_cache.evicted

        def evicted(key: ChunkKey) -> None:
            before(key)
            self._let_go(key)

        self.chunk_cache.evicted = evicted

    # --- what this node keeps --------------------------------------------------------------------

    def is_holder(self, key: ChunkKey) -> bool:
        return self.routing.is_copy_holder(_subject(key))

    def keeps(self, key: ChunkKey, *, is_copy: bool = False) -> None:
        """This node has got a chunk that it should keep. *is_copy*: from another node."""
        if key.version.inode and not self._numbers_count:
            return
        if key not in self.ledger:
            if len(self.ledger) >= LEDGER_MAX:
                self.stats.copies_untracked += 1
                if not self._leave_oldest_out():
                    return
            self.ledger[key] = set()
            if is_copy:
                self.stats.copies_made += 1
                self.stats.copied_bytes += self.chunk_cache.size_of(key)
        self._to_check[key] = None

    def may_admit(self, key: ChunkKey) -> bool:
        """Whether the copy displaces nothing from memory."""
        return self.chunk_cache.owns(key) or self.chunk_cache.has_free(
            cost_of(self.chunk_cache.size_of(key))
        )

    def has_place(self, key: ChunkKey) -> bool:
        """Whether this node can keep a copy."""
        disk_takes = self.limits.tier_has_disk and self.write_back.takes
        return disk_takes or self.may_admit(key)

    def stored(self, key: ChunkKey) -> None:
        if key in self.ledger:
            self._on_disk.add(key)

    def is_on_disk(self, key: ChunkKey) -> bool:
        return key in self._on_disk

    def _let_go(self, key: ChunkKey) -> None:
        """Memory has evicted the chunk. The disk may still have it; when it evicts one, the next
        node that asks for it finds out."""
        if key in self._on_disk:
            self._on_disk_alone[key] = None
            self._on_disk_alone.move_to_end(key)
        elif key in self.ledger:
            self._evicted(key)

    def not_on_disk(self, key: ChunkKey) -> None:
        """The disk was asked for the chunk, and has evicted it."""
        if key not in self._on_disk:
            return
        self._on_disk.discard(key)
        self._on_disk_alone.pop(key, None)
        if key not in self.chunk_cache:
            self._evicted(key)

    def _evicted(self, key: ChunkKey) -> None:
        self._forget(key)
        self._to_tell += [(each, key) for each in self._targets(self.routing.holders(key))]

    def _targets(self, holders: list[NodeId]) -> list[NodeId]:
        """The nodes to which the rule has this one offer a chunk."""
        is_owner = holders[:1] == [self.membership.members.me]
        return holders[1:] if is_owner else holders[:1]

    def _leave_oldest_out(self) -> bool:
        """Other nodes are not told: the disk may have the chunk, and gives it as before."""
        while self._on_disk_alone:
            key = next(iter(self._on_disk_alone))
            if key not in self.chunk_cache:
                self._forget(key)
                return True
            del self._on_disk_alone[key]
        return False

    def _forget(self, key: ChunkKey) -> None:
        for peer in self.ledger.pop(key, ()):
            self._kept_at[peer].pop(key, None)
        self._to_check.pop(key, None)
        self._due.discard(key)
        self._on_disk.discard(key)
        self._on_disk_alone.pop(key, None)
        for peer in self.routing.copy_holders(_subject(key)):
            self._offers.get(peer, {}).pop(key, None)
            self._again.pop((peer, key), None)

    def _is_kept_at(self, peer: NodeId, key: ChunkKey) -> None:
        if key in self.ledger:
            self.ledger[key].add(peer)
            self._kept_at.setdefault(peer, {})[key] = None
            self._incarnations.setdefault(peer, self.membership.members.incarnation(peer))
            self._to_check[key] = None

    def _is_not_kept_at(self, peer: NodeId, key: ChunkKey) -> None:
        if key in self.ledger:
            self.ledger[key].discard(peer)
            self._kept_at.get(peer, {}).pop(key, None)
            self._to_check[key] = None

    def _leave_out_numbers(self) -> None:
        """No node asks for chunks of versions with inode numbers any more."""
        self._numbers_count = False
        for key in [each for each in self.ledger if each.version.inode]:
            self._forget(key)
        for key in [each for each in self._to_pull if each.version.inode]:
            del self._to_pull[key]

    # --- other nodes -----------------------------------------------------------------------------

    def connection_changed(self, peer: NodeId, *, up: bool) -> None:
        """A peer that was connected to anew may have lost its memory, and may number its requests
        from the beginning."""
        self._drop_waiting(lambda request: request.peer == peer)
        for offer in [each for each in self._offered if each[0] == peer]:
            del self._offered[offer]
            self._to_check[offer[1]] = None
        if up:
            self._keeps_no_more(peer)

    def forget_request(self, request: PeerRequest) -> None:
        """The peer cancelled it."""
        self._drop_waiting(lambda each: each == request)

    def _drop_waiting(self, is_over: Callable[[PeerRequest], bool]) -> None:
        self._waiting_loads = deque(
            each
            for each in self._waiting_loads
            if not (isinstance(each.request, PeerRequest) and is_over(each.request))
        )

    def _keeps_no_more(self, peer: NodeId) -> None:
        self._incarnations.pop(peer, None)
        for key in self._kept_at.pop(peer, ()):
            self._again.pop((peer, key), None)
            self.ledger[key].discard(peer)
            self._to_check[key] = None

    def _members_changed(self) -> None:
        members = self.membership.members
        for peer, incarnation in list(self._incarnations.items()):
            if peer in members.gone or members.incarnation(peer) != incarnation:
                self._keeps_no_more(peer)
        for peer in members.gone & self._offers.keys():
            del self._offers[peer]
        for waiting in (self._again, self._offered):
            for offer in [each for each in waiting if each[0] in members.gone]:
                del waiting[offer]
        self._to_check.update(dict.fromkeys(self.ledger))

    def hear_offer(self, now: float, peer: NodeId, key: ChunkKey) -> list[Action]:
        size = self.chunk_cache.size_of(key)
        if size <= 0 or not self.routing.has_copies(_subject(key)):
            return [_report(peer, key, is_kept=False)]
        if key in self.chunk_cache and not self.chunk_cache.owns(key) and self.may_admit(key):
            actions = self.chunk_cache.keep(key)
            blob = self.chunk_cache.peek(key)
            assert blob is not None
            self.keeps(key, is_copy=True)
            return [*actions, *self.write_back.store(key, blob), *self._hold(peer, key)]
        if key in self.ledger or self.chunk_cache.owns(key):
            self.keeps(key)
            return self._hold(peer, key)
        offered_by = self._pulling.get(key) or self._to_pull.get(key)
        if offered_by is not None:
            offered_by.add(peer)
        elif not self.has_place(key) or len(self._to_pull) >= PULLS_WAITING_MAX:
            return [_report(peer, key, is_kept=False)]
        else:
            self._to_pull[key] = {peer}
        return []

    def _hold(self, peer: NodeId, key: ChunkKey) -> list[Action]:
        self._is_kept_at(peer, key)
        return [_report(peer, key, is_kept=key in self.ledger)]

    def hear_report(self, now: float, peer: NodeId, report: CopyReport) -> list[Action]:
        key = ChunkKey(report.path, report.version, report.index)
        offer = (peer, key)
        self._offered.pop(offer, None)
        if report.is_kept:
            if offer in self._again:
                self._again[offer] = (now + AGAIN_MAX_S, self._again[offer][1])
            self._is_kept_at(peer, key)
        elif key in self.ledger:
            self._is_not_kept_at(peer, key)
            self._offer_later(now, offer)
        return []

    def _offer_later(self, now: float, offer: Offer) -> None:
        if self._is_to_be_made(offer):
            before = self._again.get(offer, (0.0, AGAIN_S / 2))[1]
            waits_s = min(2 * before, AGAIN_MAX_S)
            self._again[offer] = (now + waits_s, waits_s)

    def serve(self, now: float, request: ChunkRequest) -> list[Action]:
        """A peer asks for a copy. It gets it at once, from memory or the disk, or a refusal."""
        key = request.key
        blob = self.chunk_cache.blob(key)
        if blob is not None:
            self.stats.copies_served += 1
            size = self.chunk_cache.size_of(key)
            return self.replies.with_chunk(now, request, blob, size, self.limits.chunk_bytes)
        running = self.fetches.of_subject(_subject(key))
        if running is not None and running.phase is Phase.READING_DISK:
            running.waiters.append(request)
            return []
        if running is not None or not self.limits.tier_has_disk:
            return self.replies.with_error(request, errno.EAGAIN)
        if len(self._loads) >= LOADS_MAX:
            if len(self._waiting_loads) >= WAITING_LOADS_MAX:
                return self.replies.with_error(request, errno.EAGAIN)
            self._waiting_loads.append(request)
            return []
        self._loads.add(key)
        return self.fetches.begin(now, _subject(key), request)

    # --- steps -----------------------------------------------------------------------------------

    def go_on(self, now: float) -> list[Action]:
        """After each step of the node."""
        members = self.membership.members
        if self._numbers_count and self.inode_numbers is not None and self.inode_numbers.ignoring:
            self._leave_out_numbers()
        if self._members_seen != members.number:
            self._members_seen = members.number
            self._members_changed()
        actions = self._load_more(now) if self._loads else []
        actions += self._pull(now) if self._to_pull or self._pulling else []
        self._check_some()
        actions += self._tell() if self._to_tell else []
        if now >= self._look_at:
            self._take_due(now)
        actions += self._make_offers(now) if self._offers else []
        self._wake_at = self._next_wake(now)
        return actions

    def _load_more(self, now: float) -> list[Action]:
        actions: list[Action] = []
        self._loads = set(filter(self._is_under_way, self._loads))
        while self._waiting_loads and len(self._loads) < LOADS_MAX:
            request = self._waiting_loads.popleft()
            actions += self.serve(now, request)
        return actions

    def _tell(self) -> list[Action]:
        reports = [
            _report(*each, is_kept=False) for each in self._to_tell if self.flow.is_up(each[0])
        ]
        self._to_tell.clear()
        return reports

    def _pull(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for key in [each for each in self._pulling if not self._is_under_way(each)]:
            actions += self._pulled(key, self._pulling.pop(key))
        while self._to_pull and len(self._pulling) < PULLS_MAX:
            key = next(iter(self._to_pull))
            if not self._has_room(cost_of(self.chunk_cache.size_of(key))):
                break
            offered_by = self._pulling[key] = self._to_pull.pop(key)
            actions += self._begin_pull(now, key, offered_by)
        return actions

    def _is_under_way(self, key: ChunkKey) -> bool:
        return self.fetches.is_under_way(_subject(key))

    def _has_room(self, size: int) -> bool:
        return self.chunk_cache.has_room(size, owned=True) and self.write_back.may_read_ahead(size)

    def _begin_pull(self, now: float, key: ChunkKey, offered_by: set[NodeId]) -> list[Action]:
        request = ChunkRequest(NOBODY, key, ChunkAskMode.COPY, likely=tuple(sorted(offered_by)))
        if self.fetches.join(_subject(key), request) is not None:
            return []
        return self.fetches.begin(now, _subject(key), request)

    def _pulled(self, key: ChunkKey, offered_by: set[NodeId]) -> list[Action]:
        is_kept = key in self.ledger
        if is_kept:
            for peer in sorted(offered_by):
                self._is_kept_at(peer, key)
        up = [each for each in sorted(offered_by) if self.flow.is_up(each)]
        return [_report(each, key, is_kept=is_kept) for each in up]

    def _check_some(self) -> None:
        for _ in range(min(EACH_STEP_MAX, len(self._to_check))):
            self._check(self._to_check.popitem(last=False)[0])

    def _check(self, key: ChunkKey) -> None:
        """Apply the rule."""
        kept_at = self.ledger.get(key)
        if kept_at is None:
            return
        me, holders = self.membership.members.me, self.routing.holders(key)
        if not holders:
            return
        counted_on_me = sorted(kept_at)
        for peer in kept_at.difference(holders):
            # It forgets the chunk once the holders keep it.
            kept_at.discard(peer)
            self._kept_at[peer].pop(key, None)
        missing = [each for each in self._targets(holders) if each not in kept_at]
        for peer in missing:
            offer = (peer, key)
            if offer not in self._offered and offer not in self._again:
                self._offers.setdefault(peer, {})[key] = None
        copies = self.routing.copies_of(_subject(key))
        too_few = holders[0] == me and len(holders) < copies
        if missing or too_few:
            self._due.add(key)
            return
        self._due.discard(key)
        if me not in holders:
            # The nodes that should keep it do; memory evicts it in time. One that offered it knows
            # perhaps of a loss of which this node does not know yet, and offers it again.
            self._forget(key)
            self._to_tell += [(each, key) for each in counted_on_me]

    def _take_due(self, now: float) -> None:
        self._look_at = now + AGAIN_S / 2
        for offer in [each for each, until in self._offered.items() if until <= now]:
            del self._offered[offer]
            self._offer_later(now, offer)
        for offer, (at, waited_s) in list(self._again.items()):
            if at <= now:
                # The wait stays known until a report comes.
                self._again[offer] = (now + 2 * waited_s, waited_s)
                if self._is_to_be_made(offer):
                    self._offers.setdefault(offer[0], {})[offer[1]] = None
                else:
                    del self._again[offer]

    def _make_offers(self, now: float) -> list[Action]:
        """To each peer in turn."""
        actions: list[Action] = []
        outstanding = Counter(peer for peer, _ in self._offered)
        for peer in list(islice(self._offers, 2 * OFFERED_MAX)):
            if len(self._offered) >= OFFERED_MAX:
                break
            actions += self._offer_to(now, peer, OFFERED_EACH_MAX - outstanding[peer])
            self._offers.move_to_end(peer)
            if not self._offers[peer]:
                del self._offers[peer]
        return actions

    def _offer_to(self, now: float, peer: NodeId, most: int) -> list[Action]:
        actions: list[Action] = []
        keys = self._offers[peer]
        for key in list(islice(keys, 2 * OFFERED_EACH_MAX)):
            if len(actions) >= most or len(self._offered) >= OFFERED_MAX:
                break
            if not self._is_to_be_made((peer, key)):
                del keys[key]
                self._again.pop((peer, key), None)
                continue
            if not self.flow.is_up(peer):
                self.routing.reach(now, (peer,))
                break
            del keys[key]
            self._offered[peer, key] = now + REPORT_WITHIN_S
            actions.append(Send(peer, CopyOffer(key.path, key.version, key.index)))
        return actions

    def _is_to_be_made(self, offer: Offer) -> bool:
        """This node keeps the chunk, and the other one should and does not."""
        peer, key = offer
        kept_at = self.ledger.get(key)
        return kept_at is not None and peer not in kept_at and peer in self.routing.holders(key)

    # --- time ------------------------------------------------------------------------------------

    def _next_wake(self, now: float) -> float | None:
        if self._to_check or (self._waiting_loads and not self._loads):
            return now + SOON_S
        if self._offered or self._again:
            return max(now + SOON_S, self._look_at)
        # Connections and ends of fetches are steps of their own, and room may be made by others.
        return now + AGAIN_S if self._to_pull or self._offers else None

    def deadline(self) -> float | None:
        return self._wake_at

    def slept(self, seconds: float) -> None:
        self._offered = {offer: until + seconds for offer, until in self._offered.items()}

    def count(self) -> None:
        self.stats.copies_due = len(self._due)

    def check_invariants(self) -> None:
        kept = {(peer, key) for key, peers in self.ledger.items() for peer in peers}
        assert kept == {(peer, key) for peer, keys in self._kept_at.items() for key in keys}
        assert len(self.ledger) <= LEDGER_MAX
        assert len(self._offered) <= OFFERED_MAX
        assert all(n <= OFFERED_EACH_MAX for n in Counter(p for p, _ in self._offered).values())
        assert len(self._pulling) <= PULLS_MAX
        assert len(self._waiting_loads) <= WAITING_LOADS_MAX
        for request in self._waiting_loads:
            assert isinstance(request.request, PeerRequest)
            assert self.flow.is_serving(*request.request)
        assert self._on_disk <= self.ledger.keys()
        assert self._on_disk_alone.keys() <= self._on_disk
        assert self._due <= self.ledger.keys()
        for key in self.ledger.keys() - self._on_disk:
            assert key in self.chunk_cache


def _report(peer: NodeId, key: ChunkKey, *, is_kept: bool) -> Action:
    return Send(peer, CopyReport(key.path, key.version, key.index, is_kept))


def _subject(key: ChunkKey) -> Subject:
    return (FetchKind.CHUNK, key.path, key)
