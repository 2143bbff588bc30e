"""Asking: how a fetch gets to what it is after, by whichever way there is.

A fetch asks the peer that ``Routing`` names. It asks another one *as well* when that peer falls
silent (hedging: a slow parent costs a moment, and never an error), and another one *instead* when
the connection to it is lost. The first answer counts, and the others are withdrawn; parts of an
object may come from several, since bytes of a version are the same everywhere, and each asks from
the first part that is missing. Where a peer lives and its source does not answer, the next one is
asked after ``slow_s``.

Chunks go the same way, to their owners instead of up a tree. One may name another node to ask in
its place (``redirected``): that one gives what it has, and if it has not, the owner is asked again.

The source is read by the root of a tree, by the owner of a chunk, and by any node in the place of
others when

- they are silent or lost, and the time in which they may yet answer is over, or
- one of them cannot give it (its own client of the filesystem may be sick), or keeps giving what is
  spoiled, or
- no answer came within ``ask_deadline_s``.

Each of these is counted as a fallback. What makes many nodes do so at once would be a storm for the
source: then at most ``fallbacks_max`` of them are under way on a node, each begun at a
random moment of ``fallback_jitter_s``.

Invariant: a fetch that goes on has somebody to wait for, or will be looked at again.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from random import Random

from copperfs.core.actions import (
    Action,
    LoadChunk,
    LookSource,
    OpenSource,
    ReadChunk,
    ReadSource,
    ScanSource,
    Send,
)
from copperfs.core.events import Question, Read
from copperfs.core.links import Links, Stream
from copperfs.core.messages import PASSED_MAX, Ask, How, What, Withdraw
from copperfs.core.routing import Routing, Way
from copperfs.core.state import Kind, Limits, NodeStats, Subject
from copperfs.types import BlobId, ChunkKey, FetchId, NodeId, Version

# So often a peer may give something spoiled for one fetch; then the source is read.
SPOILED_MAX = 3
# Beyond so many looks that are out of date the heap of them is made anew.
OUTDATED_MAX = 1024

# Peers that are found silent within this time of the first are waited for together.
SILENT_TOGETHER_S = 1.0

# So many owners of a chunk may refuse it; then the source is read.
REFUSING_MAX = 2

_WHAT = {Kind.SCAN: What.LISTING, Kind.LOOK: What.ENTRY, Kind.READ: What.OBJECT}


@dataclass(slots=True)
class Pending:
    """One ask under way."""

    number: int
    there: int = 0
    """Of a listing, how many parts have come; of an object the fetch knows."""
    how: How = How.ANY
    """Of a chunk."""


@dataclass(slots=True, eq=False)
class Fetch:
    """One attempt to obtain something; *asked* are the questions that wait on it."""

    number: FetchId
    subject: Subject
    deadline: float
    asked: list[Question]
    reserved_bytes: int = 0
    room: int = 0
    """Which of the rooms that is reserved in; see ``Fetches``."""
    tree: int = 0
    began: float = 0.0
    asks: dict[NodeId, Pending] = field(default_factory=dict)
    """Whom it asks."""
    passed: set[NodeId] = field(default_factory=set)
    """Whom it will not ask again: they live, and did not answer for long."""
    named: NodeId | None = None
    """The one that it asks for a chunk because its owner said so."""
    how: How = How.ANY
    """How the owner is asked."""
    goes_up: bool = False
    """It goes up the tree for a chunk, and not to its owner."""
    slow_at: float = 0.0
    """When those whom it asks have had their time."""
    look_at: float | None = None
    """When it is looked at next."""
    at_source: bool = False
    """The source is being read for it."""
    in_place: bool = False
    """In the place of others, or it is about to be."""
    takes_over: bool = False
    """It keeps what it reads there, as the next owner of a chunk."""
    is_late: bool = False
    """It has waited for others long enough, whether they live or not."""
    has_sounded: bool = False
    """Those who would be asked next were asked for a sign of life."""
    silent_at: float | None = None
    """When the first of those that it should ask was found silent, or lost."""
    is_doubted: bool = False
    """Somebody asks this node in the place of those before it in the order of the chunk."""
    falls_at: float | None = None
    """When it takes its turn for that."""
    is_over: bool = False
    blob: BlobId | None = None
    """What has come so far, and how many parts of it."""
    there: int = 0
    spoiled: int = 0
    witnesses: int = 0
    """Of the error that a look at a name came to: those above, and this node, if it has looked
    (``sick_names.py``)."""
    looked_error: int = 0
    """What it got then."""
    streams: list[tuple[NodeId, Stream]] = field(default_factory=list)
    """Those to whom it is passed on as it comes."""


@dataclass(slots=True)
class Asking:
    limits: Limits
    stats: NodeStats
    links: Links
    routing: Routing
    random: Random
    slow_s: float
    _looks: list[tuple[float, FetchId, Fetch]] = field(default_factory=list)
    """Fetches that are to be looked at again, and when; a heap."""
    _falling: set[FetchId] = field(default_factory=set)
    """Those that read the source in the place of others, while many might."""
    _turns: deque[Fetch] = field(default_factory=deque)
    """Those that wait until they may."""
    _looks_max: int = OUTDATED_MAX
    _next_ask: int = 1

    # --- its life --------------------------------------------------------------------------------

    def begin(self, now: float, fetch: Fetch) -> list[Action]:
        fetch.began, fetch.slow_at = now, now + self.slow_s
        return self._go(now, fetch)

    def end(self, fetch: Fetch) -> list[Action]:
        """Nothing more is wanted of anybody."""
        fetch.is_over = True
        actions: list[Action] = []
        for peer in list(fetch.asks):
            actions += self.withdraw(fetch, peer)
        return actions + self._stop_falling(fetch)

    def _stop_falling(self, fetch: Fetch) -> list[Action]:
        if fetch.number not in self._falling:
            return []
        self._falling.discard(fetch.number)
        return self._next_turns()

    def slept(self, fetches: Iterable[Fetch], seconds: float) -> None:
        """This node did nothing for so long: that is not what it waited for others."""
        for fetch in fetches:
            fetch.began += seconds
            fetch.slow_at += seconds

    # --- what becomes of an ask ------------------------------------------------------------------

    def answered(self, fetch: Fetch, peer: NodeId) -> list[Action]:
        """The whole answer of *peer* came, or none will."""
        return self.links.answered(peer, fetch.asks.pop(peer).number)

    def progressed(self, fetch: Fetch, peer: NodeId) -> list[Action]:
        """A part of an object came: who gives is not to be outrun by another."""
        if len(fetch.asks) == 1:
            return []
        others = [each for each in fetch.asks if each != peer]
        return [action for each in others for action in self.withdraw(fetch, each)]

    def withdraw(self, fetch: Fetch, peer: NodeId) -> list[Action]:
        """*peer* is told that nothing more is wanted: it would go on to give it."""
        number = fetch.asks[peer].number
        told = [Send(peer, Withdraw(number))] if self.links.was_sent(peer, number) else []
        return [*told, *self.answered(fetch, peer)]

    def lost(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action]:
        """What *peer* was asked is lost with a connection."""
        fetch.asks.pop(peer, None)
        if self._is_on_its_way(fetch):
            return []
        self.stats.resent += 1
        return self._go(now, fetch)

    def owed(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action]:
        """*peer* may be stuck, and so may those who would be asked in its place: they must not be
        found so one by one. For the trees ``Membership`` sees to it."""
        key = fetch.subject[2]
        if fetch.has_sounded or not isinstance(key, ChunkKey):
            return []
        fetch.has_sounded = True
        return self.routing.sound(now, key, {peer, *fetch.passed})

    def _sound(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action]:
        """*peer* is being asked in the place of others, and may be as they are."""
        actions = self.routing.sound_one(now, peer)
        key = fetch.subject[2]
        if isinstance(key, ChunkKey):
            actions += self.routing.sound(now, key, {*fetch.asks, *fetch.passed})
        return actions

    def spoiled(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action]:
        """What is asked again begins at the first part that is missing."""
        fetch.spoiled += 1
        actions = self.withdraw(fetch, peer)
        if fetch.spoiled >= SPOILED_MAX:
            return actions + self._fall(now, fetch, many_might=True)
        return actions + self._go(now, fetch)

    def refused(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action]:
        """*peer* said that it cannot give it, for a reason of its own."""
        how = fetch.asks[peer].how
        actions = self.answered(fetch, peer)
        if how is How.TREE:
            fetch.goes_up = False
            return actions + self._go(now, fetch)
        if how is How.HELD:
            if peer == fetch.named:
                fetch.named, fetch.how = None, How.DIRECT
            return actions + self._go(now, fetch)
        fetch.passed.add(peer)
        if fetch.subject[0] is Kind.CHUNK and len(fetch.passed) < REFUSING_MAX:
            return actions + self._go(now, fetch)
        if self._has_good_ask(fetch):
            return actions
        return actions + self._fall(now, fetch, many_might=True)

    def is_last_word(self, fetch: Fetch, peer: NodeId) -> bool:
        """Whether the look of this node has failed, *peer* cannot tell either, and no other peer is
        being asked: the node does not look again for this fetch."""
        others = (each for each in fetch.asks if each != peer)
        return bool(fetch.looked_error) and not any(map(self.routing.is_good, others))

    def redirected(self, now: float, fetch: Fetch, peer: NodeId, other: NodeId) -> list[Action]:
        """The owner *peer* says that *other* has the chunk, too, or is getting it."""
        if fetch.asks[peer].how is not How.ANY:
            # It was to give the chunk itself. Who says so again and again would be asked for ever.
            return self.refused(now, fetch, peer)
        actions = self.answered(fetch, peer)
        if fetch.named is None and fetch.how is How.ANY and other not in fetch.passed:
            self.stats.redirected += 1
            fetch.named = other
        else:
            fetch.how = How.DIRECT
        return actions + self._go(now, fetch)

    def delayed(self, now: float, fetch: Fetch, peer: NodeId) -> bool:
        """*peer* gives it as soon as its disk has room: it has its time from now on. If that never
        ends, another node still has to be asked in time. Whether there is nothing but to wait."""
        if now >= fetch.deadline - self.limits.fetch_deadline_s / 3:
            return False
        if self.routing.owners is not None and fetch.asks[peer].how.is_of_owner:
            self.routing.owners.gave(peer)
        if fetch.at_source:
            return False
        fetch.began, fetch.slow_at = now, now + self.slow_s
        return True

    def asked_as_owner(
        self, now: float, fetch: Fetch, passed: tuple[NodeId, ...] = ()
    ) -> list[Action]:
        """Somebody takes this node for the owner of a chunk. Whoever is asked as such waits for
        nobody but those before itself, the one that was named to it may be waiting for it; and not
        for those who did not answer the asker (*passed*)."""
        if fetch.at_source:
            return []
        fetch.is_doubted = fetch.is_doubted or self.routing.is_asked_in_place(fetch.subject)
        waits_for = [peer for peer, each in fetch.asks.items() if not each.how.is_of_owner]
        if not waits_for and fetch.named is None and not fetch.goes_up and not passed:
            return [] if self._has_good_ask(fetch) else self._go(now, fetch)
        actions: list[Action] = []
        for peer in waits_for:
            actions += self.withdraw(fetch, peer)
        if fetch.named is not None or fetch.goes_up:
            fetch.named, fetch.how, fetch.goes_up = None, How.DIRECT, False
        fetch.passed.update(passed)
        return actions + self._go(now, fetch)

    def source_failed(self, now: float, fetch: Fetch) -> list[Action] | None:
        """The source could not be read in the place of others. None if that is the last word:
        nobody else was asked, or can be."""
        if not fetch.in_place:
            return None
        way = Way()
        if not self._has_good_ask(fetch):
            way = self._way(now, fetch)
            if way.peer is None and not fetch.asks:
                return None
        fetch.at_source = fetch.in_place = False
        actions = self._stop_falling(fetch)
        if way.peer is not None:
            actions += self._ask(now, fetch, way.peer, goes_up=way.goes_up)
        self._look_by(fetch, self._patient_until(now, fetch))
        return actions

    # --- somebody changed, or time passed --------------------------------------------------------

    def reconsider(self, now: float, fetches: Iterable[Fetch]) -> list[Action]:
        """Whom to ask may be another one now."""
        actions: list[Action] = []
        for fetch in list(fetches):
            if not fetch.is_over and not self._is_on_its_way(fetch):
                actions += self._go(now, fetch)
        return actions

    def deadline(self) -> float | None:
        while self._looks and _is_outdated(self._looks[0]):
            heappop(self._looks)
        return self._looks[0][0] if self._looks else None

    def tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while (at := self.deadline()) is not None and at <= now:
            fetch = heappop(self._looks)[2]
            fetch.look_at = None
            actions += self._look(now, fetch)
        return actions

    def _look(self, now: float, fetch: Fetch) -> list[Action]:
        if fetch.at_source and not fetch.in_place:
            return []
        actions: list[Action] = []
        if fetch.falls_at is not None and now >= fetch.falls_at:
            actions += self._take_turn(fetch)
        if now >= fetch.slow_at:
            self._pass_over(now, fetch)
            fetch.slow_at = now + self.slow_s
        elif self._has_good_ask(fetch) and not self._is_late(now, fetch):
            self._look_by(fetch, self._patient_until(now, fetch))
            return actions
        if self._is_late(now, fetch):
            fetch.is_late = True
            left_s = fetch.deadline - now
            actions += self._fall(now, fetch, many_might=True, within_s=max(0.0, left_s / 2))
        return actions + self._go(now, fetch)

    def _pass_over(self, now: float, fetch: Fetch) -> None:
        """Those whom it asks have had their time."""
        if fetch.goes_up:
            fetch.goes_up = False  # to the owner, then, who may be one of them
            return
        # One that was named, or is above in the tree, has no chunk to give: it waits itself.
        as_owners = [peer for peer, each in fetch.asks.items() if each.how.is_of_owner]
        fetch.passed.update(as_owners)
        if fetch.subject[0] is not Kind.CHUNK or self.routing.owners is None:
            return
        if fetch.named is not None:
            fetch.named, fetch.how = None, How.DIRECT
        for peer in as_owners:
            self.routing.owners.timed_out(now, peer)

    # --- whom to ask -----------------------------------------------------------------------------

    def _is_on_its_way(self, fetch: Fetch) -> bool:
        """It waits for somebody who is likely to answer."""
        return (fetch.at_source and not fetch.in_place) or self._has_good_ask(fetch)

    def _has_good_ask(self, fetch: Fetch) -> bool:
        for peer, each in fetch.asks.items():
            # One that was named, and is still asked beside the owner, may itself be waiting.
            counts = each.how is not How.HELD or peer == fetch.named
            if counts and self.routing.is_good(peer):
                return True
        return False

    def _is_late(self, now: float, fetch: Fetch) -> bool:
        """It has waited for others long enough."""
        late = now >= fetch.began + self.limits.ask_deadline_s
        return late and self.limits.fallbacks_max > 0 and not fetch.in_place

    def _go(self, now: float, fetch: Fetch) -> list[Action]:
        """Ask whom there is to ask, or the source."""
        fetch.takes_over = False
        if fetch.named is not None:
            actions = self._ask_named(now, fetch, fetch.named)
            if actions is not None:
                return actions
        way = self._way(now, fetch)
        if way.skips and (fetch.silent_at is None or now >= fetch.silent_at + SILENT_TOGETHER_S):
            fetch.silent_at = now
            way = self._way(now, fetch)
        fetch.takes_over = way.takes_over
        if way.peer is None and not way.in_place and not fetch.in_place:
            return self._read_source(fetch)
        self._look_by(fetch, self._patient_until(now, fetch))
        if way.peer is not None:
            pending = fetch.asks.get(way.peer)
            if pending is not None and pending.how is not How.HELD:
                return []
            # It was named by another, and is the owner now.
            withdrawn = [] if pending is None else self.withdraw(fetch, way.peer)
            sounded = self._sound(now, fetch, way.peer) if way.skips or fetch.is_doubted else []
            return withdrawn + sounded + self._ask(now, fetch, way.peer, goes_up=way.goes_up)
        if fetch.in_place:
            return []
        if fetch.passed and way.many_might:
            # Those whom it asked live, and may be waiting for a source that is slow for everybody.
            return []
        if now >= way.not_before:
            return self._fall(now, fetch, many_might=way.many_might)
        self._look_by(fetch, way.not_before)
        if way.meanwhile is not None and not fetch.asks:
            return self._ask(now, fetch, way.meanwhile)
        return []

    def _way(self, now: float, fetch: Fetch) -> Way:
        return self.routing.way(
            now,
            fetch.subject,
            fetch.tree,
            fetch.passed,
            goes_up=fetch.goes_up,
            silent_at=fetch.silent_at,
            is_doubted=fetch.is_doubted,
        )

    def _ask_named(self, now: float, fetch: Fetch, peer: NodeId) -> list[Action] | None:
        """None: it cannot be asked, so the owner is to give the chunk itself."""
        connects_until = self.routing.reaches(now, peer)
        if self.routing.is_good(peer):
            self._look_by(fetch, self._patient_until(now, fetch))
            return [] if peer in fetch.asks else self._ask(now, fetch, peer)
        if connects_until is not None:
            self._look_by(fetch, connects_until)
            return []
        fetch.named, fetch.how = None, How.DIRECT
        return None

    def _ask(
        self, now: float, fetch: Fetch, peer: NodeId, *, goes_up: bool = False
    ) -> list[Action]:
        kind, path, version = fetch.subject
        number = self._next_ask
        self._next_ask += 1
        self.stats.asks += 1
        self.stats.hedges += bool(fetch.asks)
        if not self._has_good_ask(fetch):
            # It has its time from now on, however long others had theirs before they were lost.
            fetch.slow_at = now + self.slow_s
        pending = fetch.asks[peer] = Pending(number)
        self.routing.owes(now, peer)
        if isinstance(version, ChunkKey):
            how = How.HELD if peer == fetch.named else How.TREE if goes_up else fetch.how
            pending.how = how
            passed = tuple(sorted(self.routing.not_asked(now, version, fetch.passed)))[:PASSED_MAX]
            message = Ask(
                number,
                self.stats.epoch,
                What.CHUNK,
                path,
                version.version,
                version.index,
                how,
                passed,
            )
        else:
            wanted = version if isinstance(version, Version) else None
            message = Ask(number, self.stats.epoch, _WHAT[kind], path, wanted, fetch.there)
        return self.links.ask(peer, message, fetch.number)

    # --- the source ------------------------------------------------------------------------------

    def _fall(
        self, now: float, fetch: Fetch, *, many_might: bool, within_s: float | None = None
    ) -> list[Action]:
        """Read the source in the place of others, perhaps after a while."""
        if fetch.at_source or fetch.in_place:
            return []
        if many_might and not self.limits.fallbacks_max:
            # It is not wanted, so there is only waiting for the others.
            self._look_by(fetch, now + self.slow_s)
            return []
        fetch.in_place = True
        self._look_by(fetch, self._patient_until(now, fetch))
        if not many_might:
            return self._read_source(fetch)
        if within_s is None or not self.limits.fallback_jitter_s:
            within_s = self.limits.fallback_jitter_s
        if not within_s:
            return self._take_turn(fetch)
        fetch.falls_at = now + self.random.uniform(0, within_s)
        self._look_by(fetch, fetch.falls_at)
        return []

    def _take_turn(self, fetch: Fetch) -> list[Action]:
        fetch.falls_at = None
        self._turns.append(fetch)
        return self._next_turns()

    def _next_turns(self) -> list[Action]:
        actions: list[Action] = []
        while self._turns and len(self._falling) < self.limits.fallbacks_max:
            fetch = self._turns.popleft()
            if fetch.is_over:
                continue
            if self._has_good_ask(fetch) and not fetch.is_late:
                fetch.in_place = False  # the others are back
                continue
            self._falling.add(fetch.number)
            actions += self._read_source(fetch)
        return actions

    def _read_source(self, fetch: Fetch) -> list[Action]:
        assert not fetch.at_source
        self.stats.fallbacks += fetch.in_place
        fetch.at_source = True
        if isinstance(fetch.subject[2], ChunkKey) and self.limits.tier_has_disk:
            return [LoadChunk(fetch.number, fetch.subject[2])]
        return [self.from_source(fetch)]

    def from_source(self, fetch: Fetch) -> Action:
        """What reads it there."""
        kind, path, version = fetch.subject
        match kind, version:
            case Kind.SCAN, _:
                return ScanSource(fetch.number, path)
            case Kind.LOOK, _:
                return LookSource(fetch.number, path)
            case Kind.READ, Version():
                return ReadSource(fetch.number, path, version)
            case Kind.CHUNK, ChunkKey():
                offset = version.index * self.limits.chunk_bytes
                length = min(self.limits.chunk_bytes, version.version.size - offset)
                return ReadChunk(fetch.number, path, version.version, offset, length)
            case _:
                question = fetch.asked[0]
                assert isinstance(question, Read)
                return OpenSource(fetch.number, path, question.version)

    # --- when to look again ----------------------------------------------------------------------

    def _patient_until(self, now: float, fetch: Fetch) -> float:
        """When those whom it asks have had their time."""
        late_at = fetch.began + self.limits.ask_deadline_s
        waits_for_others = self.limits.fallbacks_max > 0 and not fetch.in_place
        if waits_for_others and late_at > now:
            return min(fetch.slow_at, late_at)
        return max(fetch.slow_at, now)

    def _look_by(self, fetch: Fetch, at: float) -> None:
        if fetch.look_at is not None and fetch.look_at <= at:
            return
        fetch.look_at = at
        if len(self._looks) >= self._looks_max:
            self._looks = [each for each in self._looks if not _is_outdated(each)]
            heapify(self._looks)
            self._looks_max = max(OUTDATED_MAX, 2 * len(self._looks))
        heappush(self._looks, (at, fetch.number, fetch))

    def check_invariants(self, fetches: Iterable[Fetch]) -> None:
        looked_at = {look[1] for look in self._looks if not _is_outdated(look)}
        running = set()
        for fetch in fetches:
            running.add(fetch.number)
            assert not fetch.is_over
            assert (fetch.at_source and not fetch.in_place) or fetch.number in looked_at, fetch
            assert fetch.at_source or fetch.number not in self._falling
            for peer, pending in fetch.asks.items():
                assert self.links.asked(peer, pending.number) == fetch.number
        assert self._falling <= running
        assert len(self._falling) <= max(1, self.limits.fallbacks_max)


def _is_outdated(look: tuple[float, FetchId, Fetch]) -> bool:
    at, _, fetch = look
    return fetch.is_over or fetch.look_at != at
