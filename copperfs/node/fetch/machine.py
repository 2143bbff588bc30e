"""Fetch machine: drives one fetch to a peer or to the source, hedges, retries and falls back.

A fetch asks the peer that ``Routing`` names. It asks another peer *as well* when the first one
falls silent (a hedged request): a slow parent costs a moment, and never an error. It asks another
peer *instead* when the connection to the first one is lost. The first reply counts, and the fetch
cancels the other attempts. Parts of an object may come from several peers, since bytes of a version
are the same everywhere, and each attempt begins at the first missing part. If a peer lives and does
not answer within ``slow_s``, its source may hang, and the fetch asks the next one.

Chunks go the same way, to their owners instead of up a tree. An owner may redirect a fetch to
another node (``redirected``). If that node does not have the chunk, the fetch asks the owner again.

A chunk of a protected path may have *copies* on other nodes (``copy_holders.py``). Before it reads
the source for such a chunk, in whatever role, a fetch asks them one after the other
(``ask_copies``). These reply at once, and wait for nobody, so no cycle can form. What to do when
none has it, ``Chunks`` decides (``without_copies``).

The root of a tree and the owner of a chunk read the source. Any other node reads it as a fallback
when

- the nodes that it should ask are silent or lost, and their time to answer is over, or
- one of them cannot give it (its own client of the filesystem may fail), or gives corrupt parts
  again and again, or
- no answer came within ``ask_deadline_s``.

``NodeStats`` counts each of these as a fallback. It counts a read as taken over if this node is the
root or the owner only because others are dead or excluded. So every read that a failure costs the
source is in one of the two counts. Many nodes that fall back at once would overload the source. So
a node has at most ``fallbacks_max`` such reads under way, and each begins at a random moment of
``fallback_jitter_s``.

``phases.py`` has the phases of a fetch and their order. Invariant: a fetch that waits for other
nodes has a timer.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from random import Random

from copperfs.model.types import ChunkKey, FetchId, NodeId, PeerRequest, Version
from copperfs.node.actions import (
    Action,
    ListSource,
    LoadChunk,
    LookupSource,
    OpenForBypass,
    ReadChunk,
    ReadSource,
    Send,
)
from copperfs.node.events import ChunkRequest, NodeRequest, ReadRequest
from copperfs.node.fetch.fetch import AskPlan, Attempt, Fetch
from copperfs.node.fetch.phases import Phase, Trigger
from copperfs.node.limits_and_counters import FetchKind, Limits, NodeStats
from copperfs.node.peer.flow_control import FlowControl
from copperfs.node.peer.messages import SKIPPED_MAX, Cancel, ChunkAskMode, ContentKind, Request
from copperfs.node.routing.route import SOURCE_ROUTE, Role, Route, Routing

# A fetch falls back after this many corrupt parts.
SPOILED_MAX = 3
# The heap of timers is rebuilt at this size, without outdated entries.
OUTDATED_MAX = 1024

# The fetch waits together for all peers found silent within this time of the first.
SILENT_TOGETHER_S = 1.0

# A fetch falls back after this many owners have refused it a chunk.
REFUSING_MAX = 2

_WHAT = {
    FetchKind.LISTING: ContentKind.LISTING,
    FetchKind.ENTRY: ContentKind.ENTRY,
    FetchKind.OBJECT: ContentKind.OBJECT,
}


@dataclass(slots=True)
class FetchMachine:
    limits: Limits
    stats: NodeStats
    flow: FlowControl
    routing: Routing
    random: Random
    slow_s: float
    without_copies: Callable[[float, Fetch], list[Action]] | None = None
    """No copy can be had. None: there are none of any chunk."""
    read_unless_disk_is_behind: Callable[[float, Fetch], list[Action]] | None = None
    """The owner's disk lacks the chunk."""
    _timers: list[tuple[float, FetchId, Fetch]] = field(default_factory=list)
    """A heap. An entry is outdated if ``_timer_of`` has another time for its fetch."""
    _timer_of: dict[FetchId, float] = field(default_factory=dict)
    _fallbacks: set[FetchId] = field(default_factory=set)
    """Fallbacks that read the source, where many nodes might do so."""
    _queue: deque[Fetch] = field(default_factory=deque)
    """Fallbacks that wait for their turn."""
    _timers_max: int = OUTDATED_MAX
    _next_number: int = 1

    def begin(self, now: float, fetch: Fetch) -> list[Action]:
        if self._looks_on_disk_first(fetch):
            return self._read_disk(fetch)
        return self.go_on(now, fetch)

    def go_on(self, now: float, fetch: Fetch) -> list[Action]:
        """It has just begun, or has looked for copies."""
        if self.without_copies is None or fetch.copies.is_over or not fetch.waiters:
            return self._dispatch(now, fetch)
        if all(map(is_for_copy_alone, fetch.waiters)):
            return self.ask_copies(now, fetch)
        return self._dispatch(now, fetch)

    def end(self, fetch: Fetch) -> list[Action]:
        """The fetch is over: cancel its attempts."""
        actions: list[Action] = []
        for peer in list(fetch.attempts):
            actions += self.withdraw(fetch, peer)
        fetch.move(Trigger.END)
        self._timer_of.pop(fetch.number, None)
        return actions + self._end_fallback(fetch)

    def _end_fallback(self, fetch: Fetch) -> list[Action]:
        """After a fallback that many nodes might make, the next one may begin."""
        if fetch.number not in self._fallbacks:
            return []
        self._fallbacks.discard(fetch.number)
        return self._begin_queued()

    def slept(self, fetches: Iterable[Fetch], seconds: float) -> None:
        """This node did not run for *seconds*, so it did not wait for others."""
        for fetch in fetches:
            timers = fetch.timers
            began, slow_at = timers.began + seconds, timers.slow_at + seconds
            fetch.timers = replace(timers, began=began, slow_at=slow_at)

    # --- outcomes of an attempt ------------------------------------------------------------------

    def settle_attempt(self, fetch: Fetch, peer: NodeId) -> list[Action]:
        return self.flow.settle_request(peer, fetch.attempts.pop(peer).number)

    def progressed(self, fetch: Fetch, peer: NodeId) -> list[Action]:
        """A part of an object came from *peer*: cancel the attempts at other peers, which must not
        overtake it."""
        if len(fetch.attempts) == 1:
            return []
        others = [each for each in fetch.attempts if each != peer]
        return [action for each in others for action in self.withdraw(fetch, each)]

    def withdraw(self, fetch: Fetch, peer: NodeId) -> list[Action]:
        """Cancel the attempt at *peer*, which would otherwise still send the reply."""
        number = fetch.attempts[peer].number
        told = [Send(peer, Cancel(number))] if self.flow.was_sent(peer, number) else []
        return [*told, *self.settle_attempt(fetch, peer)]

    def lost(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action]:
        """A lost connection has lost the attempt at *peer*."""
        fetch.attempts.pop(peer, None)
        if self._is_on_its_way(fetch):
            return []
        self.stats.resent += 1
        return self._dispatch(now, fetch)

    def on_reply_overdue(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action]:
        """*peer* may be stuck, and so may the owners after it: ping all at once. For the trees
        ``Membership`` does so."""
        key = fetch.subject[2]
        if fetch.timers.pinged_next_at is not None or not isinstance(key, ChunkKey):
            return []
        fetch.timers = replace(fetch.timers, pinged_next_at=now)
        return self.routing.ping_next(now, key, {peer, *fetch.skipped})

    def _ping(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action]:
        """*peer* is asked because others are silent, and may be silent, too."""
        actions = self.routing.ping(now, peer)
        key = fetch.subject[2]
        if isinstance(key, ChunkKey):
            actions += self.routing.ping_next(now, key, {*fetch.attempts, *fetch.skipped})
        return actions

    def spoiled(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action]:
        """*peer* gave a corrupt part. The next attempt begins at the first missing part."""
        fetch.spoiled += 1
        if fetch.attempts[peer].how is ChunkAskMode.COPY:
            fetch.copies = fetch.copies.without(peer)
        actions = self.withdraw(fetch, peer)
        if fetch.spoiled >= SPOILED_MAX:
            return actions + self._start_fallback(now, fetch, many_might=True)
        return actions + self._dispatch(now, fetch)

    def refused(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action]:
        """*peer* cannot give it, for a reason of its own."""
        how = fetch.attempts[peer].how
        actions = self.settle_attempt(fetch, peer)
        if how is ChunkAskMode.COPY:
            fetch.copies = fetch.copies.without(peer)
            return actions + self._dispatch(now, fetch)
        if how is ChunkAskMode.TREE:
            fetch.plan = fetch.plan.without_tree()
            return actions + self._dispatch(now, fetch)
        if how is ChunkAskMode.HELD:
            if peer == fetch.plan.redirected_to:
                fetch.plan = fetch.plan.not_redirected()
            return actions + self._dispatch(now, fetch)
        fetch.skipped.add(peer)
        if fetch.subject[0] is FetchKind.CHUNK and len(fetch.skipped) < REFUSING_MAX:
            return actions + self._dispatch(now, fetch)
        if self._has_good_attempt(fetch):
            return actions
        return actions + self._start_fallback(now, fetch, many_might=True)

    def is_last_word(self, fetch: Fetch, peer: NodeId) -> bool:
        """Whether an error of *peer* ends the fetch: this node has failed itself, and no other peer
        is asked. For a chunk there are other owners."""
        if fetch.subject[0] is FetchKind.CHUNK:
            return False
        others = (each for each in fetch.attempts if each != peer)
        has_tried = bool(fetch.witnesses.own_error)
        return has_tried and not any(map(self.routing.is_good, others))

    def redirected(self, now: float, fetch: Fetch, peer: NodeId, other: NodeId) -> list[Action]:
        """*other* has the chunk, too, or is getting it."""
        if fetch.attempts[peer].how is not ChunkAskMode.ANY:
            # The request was for the chunk itself. A peer that always redirects would be asked
            # without end.
            return self.refused(now, fetch, peer)
        actions = self.settle_attempt(fetch, peer)
        plan = fetch.plan
        is_first = plan.redirected_to is None and plan.of_owner is ChunkAskMode.ANY
        # A peer that asked this node as the owner may be the one that the other waits for.
        is_owner = fetch.timers.asked_as_owner_at is not None
        if is_first and not is_owner and other not in fetch.skipped:
            self.stats.redirected += 1
            fetch.plan = plan.redirected(other)
        else:
            fetch.plan = plan.directly()
        return actions + self._dispatch(now, fetch)

    def delayed(self, now: float, fetch: Fetch, peer: NodeId) -> bool:
        """*peer* gives the chunk as soon as its disk has room, so its time to answer begins now.
        Near the deadline the fetch must still ask another node in time. Returns whether the fetch
        can only wait."""
        if now >= fetch.deadline - self.limits.fetch_deadline_s / 3:
            return False
        if self.routing.owners is not None and fetch.attempts[peer].how.is_of_owner:
            self.routing.owners.gave(peer)
        if fetch.phase.is_reading:
            return False
        fetch.timers = replace(fetch.timers, began=now, slow_at=now + self.slow_s)
        return True

    def requested_as_owner(
        self, now: float, fetch: Fetch, skipped: tuple[NodeId, ...] = ()
    ) -> list[Action]:
        """A peer asks this node as the owner of a chunk. Such a node waits only for owners before
        itself: a node to which the fetch was redirected may wait for this one. It does not wait for
        owners that did not answer the peer (*skipped*), either."""
        if fetch.phase.is_reading:
            return []
        if fetch.timers.asked_as_owner_at is None and self.routing.is_owned_elsewhere(
            fetch.subject
        ):
            fetch.timers = replace(fetch.timers, asked_as_owner_at=now)
        if fetch.phase is Phase.ASKING_COPIES:
            return []
        waits_for = [peer for peer, each in fetch.attempts.items() if not each.how.is_of_owner]
        is_of_owner = fetch.plan.redirected_to is None and not fetch.plan.chunk_up_tree
        if not waits_for and is_of_owner and not skipped:
            return [] if self._has_good_attempt(fetch) else self._dispatch(now, fetch)
        actions: list[Action] = []
        for peer in waits_for:
            actions += self.withdraw(fetch, peer)
        if not is_of_owner:
            fetch.plan = AskPlan((ChunkAskMode.DIRECT,))
        fetch.skipped.update(skipped)
        return actions + self._dispatch(now, fetch)

    def source_failed(self, now: float, fetch: Fetch) -> list[Action] | None:
        """None if the failure ends the fetch, because no other node is asked or can be."""
        if not fetch.phase.is_fallback:
            return None
        route = SOURCE_ROUTE
        if not self._has_good_attempt(fetch):
            route = self._find_route(now, fetch)
            if route.peer is None and not fetch.attempts:
                return None
        fetch.move(Trigger.SOURCE_FAILED)
        actions = self._end_fallback(fetch)
        if route.peer is not None:
            actions += self._give_up_otherwise(fetch, route.peer, chunk_up_tree=route.chunk_up_tree)
            if route.peer not in fetch.attempts:
                actions += self._send_request(
                    now, fetch, route.peer, chunk_up_tree=route.chunk_up_tree
                )
        self._set_timer(fetch, self._patient_until(now, fetch))
        return actions

    # --- a peer's state changed, or a timer expired ----------------------------------------------

    def reconsider(self, now: float, fetches: Iterable[Fetch]) -> list[Action]:
        actions: list[Action] = []
        for fetch in list(fetches):
            if fetch.phase is not Phase.DONE and not self._is_on_its_way(fetch):
                actions += self._dispatch(now, fetch)
        return actions

    def deadline(self) -> float | None:
        while self._timers and self._is_outdated(self._timers[0]):
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while (at := self.deadline()) is not None and at <= now:
            fetch = heappop(self._timers)[2]
            del self._timer_of[fetch.number]
            actions += self._on_timer(now, fetch)
        return actions

    def _on_timer(self, now: float, fetch: Fetch) -> list[Action]:
        if fetch.phase.is_own_read:
            return []
        if fetch.phase is Phase.ASKING_COPIES:
            return self._copies_overdue(now, fetch)
        actions: list[Action] = []
        if fetch.phase is Phase.FALLBACK_DELAYED:
            fallback_at = fetch.timers.fallback_at
            assert fallback_at is not None
            if now >= fallback_at:
                fetch.move(Trigger.QUEUE_FALLBACK)
                fetch.timers = replace(fetch.timers, fallback_at=None)
                actions += self._queue_fallback(fetch)
        if now >= fetch.timers.slow_at:
            self._skip_slow_peers(now, fetch)
            fetch.timers = replace(fetch.timers, slow_at=now + self.slow_s)
        elif self._has_good_attempt(fetch) and not self._is_past_ask_deadline(now, fetch):
            self._set_timer(fetch, self._patient_until(now, fetch))
            return actions
        if self._is_past_ask_deadline(now, fetch):
            fetch.timers = replace(fetch.timers, past_ask_deadline_at=now)
            within_s = max(0.0, (fetch.deadline - now) / 2)
            actions += self._start_fallback(now, fetch, many_might=True, within_s=within_s)
        return actions + self._dispatch(now, fetch)

    def _skip_slow_peers(self, now: float, fetch: Fetch) -> None:
        if fetch.plan.chunk_up_tree:
            fetch.plan = fetch.plan.without_tree()  # ask the owner next, which may be one of them
            return
        # A peer that an owner named, or that is above in the tree, may itself be waiting.
        as_owners = [peer for peer, each in fetch.attempts.items() if each.how.is_of_owner]
        fetch.skipped.update(as_owners)
        if fetch.subject[0] is not FetchKind.CHUNK or self.routing.owners is None:
            return
        if fetch.plan.redirected_to is not None:
            fetch.plan = fetch.plan.not_redirected()
        for peer in as_owners:
            self.routing.owners.timed_out(now, peer)

    # --- which peer ------------------------------------------------------------------------------

    def _is_on_its_way(self, fetch: Fetch) -> bool:
        """Whether the fetch waits for the source, or for a peer that is likely to answer."""
        return fetch.phase.is_own_read or self._has_good_attempt(fetch)

    def _has_good_attempt(self, fetch: Fetch) -> bool:
        for peer, each in fetch.attempts.items():
            # A peer that an owner named, or that is above in the tree, may itself be waiting. When
            # its time is over it does not count, although the attempt stays open beside that at the
            # owner.
            if each.how is ChunkAskMode.HELD:
                counts = peer == fetch.plan.redirected_to
            elif each.how is ChunkAskMode.COPY:
                counts = fetch.phase is Phase.ASKING_COPIES and peer not in fetch.copies.tried
            else:
                counts = fetch.plan.chunk_up_tree or each.how is not ChunkAskMode.TREE
            if counts and self.routing.is_good(peer):
                return True
        return False

    def _is_past_ask_deadline(self, now: float, fetch: Fetch) -> bool:
        is_past = now >= fetch.timers.began + self.limits.ask_deadline_s
        return is_past and self.limits.fallbacks_max > 0 and not fetch.phase.is_fallback

    def _dispatch(self, now: float, fetch: Fetch) -> list[Action]:
        if fetch.phase.is_own_read:
            # This node became the root or the owner while it waited for peers, which then could not
            # give the content. Its own read continues.
            return []
        if fetch.phase is Phase.ASKING_COPIES and not fetch.copies.is_over:
            return self.ask_copies(now, fetch)
        fetch.route = SOURCE_ROUTE
        if fetch.plan.redirected_to is not None:
            actions = self._ask_redirected(now, fetch, fetch.plan.redirected_to)
            if actions is not None:
                return actions
        route = self._find_route(now, fetch)
        silent_at = fetch.timers.silent_at
        if route.skips_suspects and (silent_at is None or now >= silent_at + SILENT_TOGETHER_S):
            fetch.timers = replace(fetch.timers, silent_at=now)
            route = self._find_route(now, fetch)
        fetch.route = route
        if route.peer is not None:
            return self._dispatch_to(now, fetch, route, route.peer)
        if fetch.phase.is_fallback:
            self._set_timer(fetch, self._patient_until(now, fetch))
            return []
        if not route.role.is_fallback:
            return self._read_as_owner(now, fetch)
        return self._dispatch_around(now, fetch, route)

    def _dispatch_to(self, now: float, fetch: Fetch, route: Route, peer: NodeId) -> list[Action]:
        fetch.move(Trigger.ASK_PEER)
        self._set_timer(fetch, self._patient_until(now, fetch))
        actions = self._give_up_otherwise(fetch, peer, chunk_up_tree=route.chunk_up_tree)
        if peer in fetch.attempts:
            return actions
        if route.skips_suspects or fetch.timers.asked_as_owner_at is not None:
            actions += self._ping(now, fetch, peer)
        self.stats.detours += route.skips_suspects and not fetch.attempts
        return actions + self._send_request(now, fetch, peer, chunk_up_tree=route.chunk_up_tree)

    def _dispatch_around(self, now: float, fetch: Fetch, route: Route) -> list[Action]:
        """Other nodes than this one should read the source."""
        if not route.is_connecting and self._may_ask_copies(fetch):
            return self.ask_copies(now, fetch)
        self._set_timer(fetch, self._patient_until(now, fetch))
        many_might = route.role is Role.ONE_OF_MANY
        if fetch.skipped and many_might:
            # The asked peers live, and may wait for a source that is slow for all nodes.
            fetch.move(Trigger.BE_PATIENT)
            return []
        if now >= route.wait_until:
            return self._start_fallback(now, fetch, many_might=many_might)
        fetch.move(Trigger.CONNECT if route.is_connecting else Trigger.DOUBT)
        self._set_timer(fetch, route.wait_until)
        if route.ask_meanwhile is not None and not fetch.attempts:
            return self._send_request(now, fetch, route.ask_meanwhile)
        return []

    def _find_route(self, now: float, fetch: Fetch) -> Route:
        """Connects to the peers of the route."""
        route = self.routing.route(
            now,
            fetch.subject,
            fetch.tree,
            fetch.skipped,
            chunk_up_tree=fetch.plan.chunk_up_tree,
            silent_at=fetch.timers.silent_at,
            is_second_opinion=fetch.timers.asked_as_owner_at is not None,
        )
        self.routing.reach(now, route.connect_to)
        return route

    def _ask_redirected(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action] | None:
        """None if *peer*, which an owner named, cannot be asked: the owner must give the chunk."""
        self.routing.reach(now, (peer,))
        connects_until = self.routing.connects_until(now, peer)
        if self.routing.is_good(peer):
            fetch.move(Trigger.ASK_PEER)
            self._set_timer(fetch, self._patient_until(now, fetch))
            return [] if peer in fetch.attempts else self._send_request(now, fetch, peer)
        if connects_until is not None:
            fetch.move(Trigger.CONNECT)
            self._set_timer(fetch, connects_until)
            return []
        fetch.plan = fetch.plan.not_redirected()
        return None

    def _give_up_otherwise(
        self, fetch: Fetch, peer: NodeId, *, chunk_up_tree: bool
    ) -> list[Action]:
        """Cancel an attempt at *peer* in another role. *peer* is the owner now; before, an owner
        had named it, or it was above in the tree."""
        attempt = fetch.attempts.get(peer)
        if attempt is None or chunk_up_tree or attempt.how.is_of_owner:
            return []
        return self.withdraw(fetch, peer)

    def _send_request(
        self,
        now: float,
        fetch: Fetch,
        peer: NodeId,
        *,
        chunk_up_tree: bool = False,
        of_copy: bool = False,
    ) -> list[Action]:
        kind, path, detail = fetch.subject
        number = self._next_number
        self._next_number += 1
        self.stats.asks += 1
        self.stats.hedges += bool(fetch.attempts)
        slow_at = now + self.slow_s
        if fetch.timers.slow_at != slow_at and not self._has_good_attempt(fetch):
            # The peer gets its full time, whatever others used before they were lost.
            fetch.timers = replace(fetch.timers, slow_at=slow_at)
        attempt = fetch.attempts[peer] = Attempt(number)
        self.routing.await_reply(now, peer)
        if isinstance(detail, ChunkKey):
            plan = fetch.plan
            how = ChunkAskMode.TREE if chunk_up_tree else plan.of_owner
            how = ChunkAskMode.HELD if peer == plan.redirected_to else how
            attempt.how = how = ChunkAskMode.COPY if of_copy else how
            skipped = sorted(self.routing.skipped_owners(now, detail, fetch.skipped))[:SKIPPED_MAX]
            message = Request(
                number,
                self.stats.epoch,
                ContentKind.CHUNK,
                path,
                detail.version,
                detail.index,
                how,
                tuple(skipped),
            )
        else:
            wanted = detail if isinstance(detail, Version) else None
            first = fetch.received.parts
            message = Request(number, self.stats.epoch, _WHAT[kind], path, wanted, first)
        return self.flow.request(peer, message, fetch.number)

    # --- the source ------------------------------------------------------------------------------

    def _start_fallback(
        self, now: float, fetch: Fetch, *, many_might: bool, within_s: float | None = None
    ) -> list[Action]:
        if fetch.phase.is_own_read or fetch.phase.is_fallback:
            return []
        if self._may_ask_copies(fetch):
            return self.ask_copies(now, fetch)
        if many_might and not self.limits.fallbacks_max:
            # Fallbacks are switched off.
            fetch.move(Trigger.BE_PATIENT)
            self._set_timer(fetch, now + self.slow_s)
            return []
        if within_s is None or not self.limits.fallback_jitter_s:
            within_s = self.limits.fallback_jitter_s
        is_delayed = many_might and within_s > 0
        fetch.move(Trigger.DELAY_FALLBACK if is_delayed else Trigger.QUEUE_FALLBACK)
        self._set_timer(fetch, self._patient_until(now, fetch))
        if not many_might:
            return self._read_source(fetch)
        if not is_delayed:
            return self._queue_fallback(fetch)
        fallback_at = now + self.random.uniform(0, within_s)
        fetch.timers = replace(fetch.timers, fallback_at=fallback_at)
        self._set_timer(fetch, fallback_at)
        return []

    def _queue_fallback(self, fetch: Fetch) -> list[Action]:
        self._queue.append(fetch)
        return self._begin_queued()

    def _begin_queued(self) -> list[Action]:
        """A fetch whose peer is good again leaves the queue, unless it is late."""
        actions: list[Action] = []
        while self._queue and len(self._fallbacks) < self.limits.fallbacks_max:
            fetch = self._queue.popleft()
            if fetch.phase is Phase.DONE:
                continue
            if self._has_good_attempt(fetch) and fetch.timers.past_ask_deadline_at is None:
                fetch.move(Trigger.PEERS_RETURN)
                continue
            self._fallbacks.add(fetch.number)
            actions += self._read_source(fetch)
        return actions

    def _read_as_owner(self, now: float, fetch: Fetch) -> list[Action]:
        has_looked = fetch.copies.disk_lacks_it or not self.limits.tier_has_disk
        if has_looked and self._may_ask_copies(fetch):
            return self.ask_copies(now, fetch)
        if fetch.copies.disk_lacks_it:
            assert self.read_unless_disk_is_behind is not None, "there are copies"
            return self.read_unless_disk_is_behind(now, fetch)
        return self._read_source(fetch)

    def _read_source(self, fetch: Fetch) -> list[Action]:
        """A chunk may be on this node's disk."""
        self.stats.fallbacks += fetch.phase.is_fallback
        if isinstance(fetch.subject[2], ChunkKey) and self.limits.tier_has_disk:
            return self._read_disk(fetch)
        return [self.from_source(fetch)]

    def _read_disk(self, fetch: Fetch) -> list[Action]:
        key = fetch.subject[2]
        assert isinstance(key, ChunkKey)
        fetch.move(Trigger.READ_DISK)
        return [LoadChunk(fetch.number, key)]

    def wait_for_disk(self, fetch: Fetch) -> None:
        fetch.move(Trigger.DISK_IS_BEHIND)

    def from_source(self, fetch: Fetch) -> Action:
        fetch.move(Trigger.READ_SOURCE)
        kind, path, version = fetch.subject
        if not fetch.phase.is_fallback and self.routing.is_takeover(fetch.subject, fetch.tree):
            self.stats.took_over += 1
        match kind, version:
            case FetchKind.LISTING, _:
                return ListSource(fetch.number, path)
            case FetchKind.ENTRY, _:
                return LookupSource(fetch.number, path)
            case FetchKind.OBJECT, Version():
                return ReadSource(fetch.number, path, version)
            case FetchKind.CHUNK, ChunkKey():
                layout = self.limits.chunk_layout(version.version.size)
                offset, size = layout.offset_of(version.index), layout.size_of(version.index)
                return ReadChunk(fetch.number, path, version.version, offset, size)
            case _:
                request = fetch.waiters[0]
                assert isinstance(request, ReadRequest)
                return OpenForBypass(fetch.number, path, request.version)

    # --- copies ----------------------------------------------------------------------------------

    def _looks_on_disk_first(self, fetch: Fetch) -> bool:
        """A node that should keep a copy has it there, or nearer than any other node's."""
        if self.without_copies is None or not self.limits.tier_has_disk:
            return False
        return self.routing.is_copy_holder(fetch.subject) or any(map(is_of_copy, fetch.waiters))

    def _may_ask_copies(self, fetch: Fetch) -> bool:
        if self.without_copies is None or fetch.copies.is_over:
            return False
        return self.routing.has_copies(fetch.subject)

    def ask_copies(self, now: float, fetch: Fetch) -> list[Action]:
        """Ask the next node that may keep a copy, if none is being asked. Nodes that are being
        connected to come last. A connection that broke a moment ago is made anew when a daemon is
        taken over."""
        assert self.without_copies is not None
        fetch.move(Trigger.ASK_COPIES)
        likely = fetch.copies.likely
        peers = dict.fromkeys((*likely, *self.routing.copy_holders(fetch.subject)))
        untried = [peer for peer in peers if peer not in fetch.copies.tried]
        self.routing.reach(now, untried)
        for peer in untried:
            attempt = fetch.attempts.get(peer)
            if self.routing.is_good(peer) and (attempt is None or attempt.how is ChunkAskMode.COPY):
                return self._ask_copy(now, fetch, peer)
        returns_until = {
            peer: until
            for peer in untried
            if peer not in fetch.attempts
            and (until := self.routing.returns_until(now, peer)) is not None
        }
        fetch.copies = fetch.copies.without(
            *(each for each in untried if each not in returns_until)
        )
        if returns_until:
            self._set_timer(fetch, min(returns_until.values()))
            return []
        fetch.copies = replace(fetch.copies, over_at=now)
        return self.without_copies(now, fetch)

    def _ask_copy(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action]:
        """It may be asked already."""
        actions: list[Action] = []
        if peer not in fetch.attempts:
            fetch.timers = replace(fetch.timers, slow_at=now + self.slow_s)
            actions = self._send_request(now, fetch, peer, of_copy=True)
        self._set_timer(fetch, max(now, fetch.timers.slow_at))
        return actions

    def _copies_overdue(self, now: float, fetch: Fetch) -> list[Action]:
        if now >= fetch.timers.slow_at:
            asked = (p for p, each in fetch.attempts.items() if each.how is ChunkAskMode.COPY)
            fetch.copies = fetch.copies.without(*asked)
        return self.ask_copies(now, fetch)

    # --- timers ----------------------------------------------------------------------------------

    def _patient_until(self, now: float, fetch: Fetch) -> float:
        """When the time to answer ends for the asked peers."""
        ask_until = fetch.timers.began + self.limits.ask_deadline_s
        waits_for_others = self.limits.fallbacks_max > 0 and not fetch.phase.is_fallback
        if waits_for_others and ask_until > now:
            return min(fetch.timers.slow_at, ask_until)
        return max(fetch.timers.slow_at, now)

    def _set_timer(self, fetch: Fetch, at: float) -> None:
        """An earlier timer stays."""
        before = self._timer_of.get(fetch.number)
        if before is not None and before <= at:
            return
        self._timer_of[fetch.number] = at
        if len(self._timers) >= self._timers_max:
            self._timers = [each for each in self._timers if not self._is_outdated(each)]
            heapify(self._timers)
            self._timers_max = max(OUTDATED_MAX, 2 * len(self._timers))
        heappush(self._timers, (at, fetch.number, fetch))

    def _is_outdated(self, timer: tuple[float, FetchId, Fetch]) -> bool:
        return self._timer_of.get(timer[1]) != timer[0]

    def check_invariants(self, fetches: Iterable[Fetch]) -> None:
        set_timers = {each[1] for each in self._timers if not self._is_outdated(each)}
        assert set_timers == set(self._timer_of)
        running: dict[FetchId, Fetch] = {}
        attempts = 0
        for fetch in fetches:
            running[fetch.number] = fetch
            attempts += len(fetch.attempts)
            fetch.check_invariants()
            assert fetch.phase is not Phase.DONE
            assert fetch.phase.is_own_read or fetch.number in set_timers, fetch
            for peer, attempt in fetch.attempts.items():
                assert self.flow.fetch_of(peer, attempt.number) == fetch.number
        assert attempts == self.flow.outstanding_count(), "a peer is asked for what is over"
        assert set_timers <= set(running), "a timer of what is over"
        queued = {each for each in self._queue if each.phase is not Phase.DONE}
        assert queued == {f for f in running.values() if f.phase is Phase.FALLBACK_QUEUED}
        assert all(running[each].phase.is_reading for each in self._fallbacks)
        assert all(running[each].phase.is_fallback for each in self._fallbacks)
        assert len(self._fallbacks) <= max(1, self.limits.fallbacks_max)


def is_of_copy(request: NodeRequest) -> bool:
    """A peer asks for a copy, or this node is to keep one."""
    return isinstance(request, ChunkRequest) and request.how is ChunkAskMode.COPY


def is_for_copy_alone(request: NodeRequest) -> bool:
    """This node is to keep a copy, and no reader waits for it."""
    return is_of_copy(request) and not isinstance(request.request, PeerRequest)
