"""What is on its way: one *fetch* for each subject, and the questions that wait on it.

A fetch asks one peer, or reads the source; whom to ask, ``Routing`` says. It may ask several times:
again after a part was spoiled or a connection renewed, each time by a fresh number, from the first
part that is missing. Once it reads the source it never asks again. Whatever happens, it ends once,
by its outcome or at its deadline, and what its questions are told is for others to say.

Bytes that are asked for have their room reserved, or they wait, as questions, until some is made.
The room is divided among the trees, so that a node that waits in one tree never keeps another from
being served: in each tree for itself, who waits is always further from the root than whom it waits
for.

Invariants: a subject has one fetch at most; what is reserved on the shelf is what the fetches have
reserved; nobody waits for room unless somebody is left who will make some; a fetch that asks is the
one that its link knows by this number.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from copperfs.core.actions import (
    Action,
    LookSource,
    OpenSource,
    ReadSource,
    ScanSource,
    Send,
)
from copperfs.core.cache import Cache
from copperfs.core.events import Question, Read
from copperfs.core.links import Links, Stream
from copperfs.core.messages import Ask, What, Withdraw
from copperfs.core.routing import Routing
from copperfs.core.state import OBJECT_OVERHEAD_BYTES, Kind, Limits, NodeStats, Subject
from copperfs.types import BlobId, FetchId, NodeId, PeerRequest, Version

# So often a peer may give something spoiled for one fetch; then the source is read.
SPOILED_MAX = 3

_WHAT = {Kind.SCAN: What.LISTING, Kind.LOOK: What.ENTRY, Kind.READ: What.OBJECT}


@dataclass(slots=True, eq=False)
class Fetch:
    """One attempt to obtain something; *asked* are the questions that wait on it."""

    number: FetchId
    subject: Subject
    deadline: float
    asked: list[Question]
    reserved_bytes: int = 0
    tree: int = 0
    ask: tuple[NodeId, int] | None = None
    """Whom it asks, and by which number; None if it reads the source."""
    blob: BlobId | None = None
    """What has come so far, and how many parts of it."""
    there: int = 0
    spoiled: int = 0
    streams: list[tuple[NodeId, Stream]] = field(default_factory=list)
    """Those to whom it is passed on as it comes."""


@dataclass(slots=True)
class Fetches:
    limits: Limits
    stats: NodeStats
    cache: Cache
    links: Links
    routing: Routing
    _running: dict[FetchId, Fetch] = field(default_factory=dict)
    _by_subject: dict[Subject, Fetch] = field(default_factory=dict)
    _on_its_way: list[int] = field(init=False)
    """Bytes reserved, by tree."""
    _no_room: list[deque[Read]] = field(init=False)
    """Those who wait for some, by tree."""
    _next_fetch: int = 1
    _next_ask: int = 1

    def __post_init__(self) -> None:
        self._on_its_way = [0] * self.limits.trees
        self._no_room = [deque() for _ in range(self.limits.trees)]

    def __len__(self) -> int:
        return len(self._running)

    @property
    def on_its_way_bytes(self) -> int:
        return sum(self._on_its_way)

    # --- the table -------------------------------------------------------------------------------

    def get(self, number: FetchId) -> Fetch | None:
        return self._running.get(number)

    def asking(self, peer: NodeId, number: int) -> Fetch | None:
        """The fetch that asks *peer* by this number; None if nothing is expected any more."""
        fetch = self.links.asked(peer, number)
        return None if fetch is None else self._running[fetch]

    def is_under_way(self, subject: Subject) -> bool:
        return subject in self._by_subject

    def join(self, subject: Subject, question: Question) -> Fetch | None:
        """Wait on the fetch that is under way for this, if there is one."""
        fetch = self._by_subject.get(subject)
        if fetch is not None:
            self.stats.joined += 1
            fetch.asked.append(question)
        return fetch

    def begin(self, now: float, subject: Subject, question: Question) -> list[Action]:
        actions: list[Action] = []
        reserved, tree = 0, self.routing.tree_of(subject)
        if subject[0] is Kind.READ:
            assert isinstance(question, Read)
            reserved = question.version.size + OBJECT_OVERHEAD_BYTES
            evicted = self._reserve(tree, reserved)
            if evicted is None:
                # Room comes when one of those ends for whom it is reserved.
                self.stats.waited_for_room += 1
                self._no_room[tree].append(question)
                return []
            actions += evicted
        number = FetchId(self._next_fetch)
        self._next_fetch += 1
        self.stats.fetches += 1
        deadline = now + self.limits.fetch_deadline_s
        fetch = Fetch(number, subject, deadline, [question], reserved, tree)
        self._running[number] = self._by_subject[subject] = fetch
        return actions + self._attempt(fetch)

    def end(self, fetch: Fetch) -> list[Action]:
        """It is over, as far as the node is concerned; what it asked for may still come."""
        del self._running[fetch.number]
        del self._by_subject[fetch.subject]
        self.cache.unreserve(fetch.reserved_bytes)
        self._on_its_way[fetch.tree] -= fetch.reserved_bytes
        return self._expect_nothing(fetch)

    def give_up(self, fetch: Fetch) -> list[Action]:
        """End it without an outcome."""
        return self._withdraw(fetch) + self.end(fetch)

    def of_names(self) -> list[Fetch]:
        """Those after what a clear makes doubtful. Bytes of a version are not."""
        names = (Kind.SCAN, Kind.LOOK)
        return [fetch for fetch in self._running.values() if fetch.subject[0] in names]

    # --- whom it asks ----------------------------------------------------------------------------

    def _attempt(self, fetch: Fetch) -> list[Action]:
        """Ask whom there is to ask, or the source."""
        peer = self.routing.whom(fetch.subject, fetch.tree)
        if peer is None:
            return [_at_source(fetch)]
        kind, path, version = fetch.subject
        number = self._next_ask
        self._next_ask += 1
        self.stats.asks += 1
        fetch.ask = (peer, number)
        wanted = version if isinstance(version, Version) else None
        message = Ask(number, self.stats.epoch, _WHAT[kind], path, wanted, fetch.there)
        return self.links.ask(peer, message, fetch.number)

    def fall_back(self, fetch: Fetch) -> list[Action]:
        """Read the source, because who was asked said that it cannot give it."""
        assert fetch.ask is not None
        return self._expect_nothing(fetch) + self._turn_to_source(fetch)

    def ask_again(self, fetch: Fetch) -> list[Action]:
        """A part was spoiled: what is asked again begins at the first part that is missing."""
        assert fetch.ask is not None
        fetch.spoiled += 1
        if fetch.subject[0] is Kind.SCAN:
            fetch.there = 0
        actions = self._withdraw(fetch)
        if fetch.spoiled >= SPOILED_MAX:
            return actions + self._turn_to_source(fetch)
        return actions + self._attempt(fetch)

    def forget_questions_of(self, peer: NodeId) -> None:
        """One that was started anew counts from the beginning, and wants nothing of before."""
        for fetch in self._running.values():
            fetch.asked = [each for each in fetch.asked if not _is_from(peer, each)]
            fetch.streams = [each for each in fetch.streams if each[0] != peer]
        for waiting in self._no_room:
            still = [each for each in waiting if not _is_from(peer, each)]
            waiting.clear()
            waiting.extend(still)

    def resume(self, lost: list[FetchId]) -> list[Action]:
        """What these asked for is lost with a connection: ask the same peer anew, or another."""
        actions: list[Action] = []
        for number in lost:
            fetch = self._running[number]
            fetch.ask = None
            fetch.there = 0 if fetch.subject[0] is Kind.SCAN else fetch.there
            actions += self._attempt(fetch)
        return actions

    def _turn_to_source(self, fetch: Fetch) -> list[Action]:
        self.stats.fallbacks += 1
        return [_at_source(fetch)]

    def _withdraw(self, fetch: Fetch) -> list[Action]:
        """Whom it asks is told that nothing more is wanted: it would go on to give it."""
        if fetch.ask is None:
            return []
        peer, number = fetch.ask
        told = [Send(peer, Withdraw(number))] if self.links.was_sent(peer, number) else []
        return [*told, *self._expect_nothing(fetch)]

    def _expect_nothing(self, fetch: Fetch) -> list[Action]:
        if fetch.ask is None:
            return []
        peer, number = fetch.ask
        fetch.ask = None
        return self.links.answered(peer, number)

    # --- room ------------------------------------------------------------------------------------

    def _reserve(self, tree: int, size: int) -> list[Action] | None:
        room = (self.limits.memory_bytes - self.limits.credit_bytes) // self.limits.trees
        if self._on_its_way[tree] and self._on_its_way[tree] + size > room:
            return None
        evicted = self.cache.reserve(size)
        if evicted is not None:
            self._on_its_way[tree] += size
        return evicted

    def has_room(self, subject: Subject, size: int) -> bool:
        """Whether *size* bytes more could be on their way, nobody having to wait for it."""
        room = (self.limits.memory_bytes - self.limits.credit_bytes) // self.limits.trees
        return self._on_its_way[self.routing.tree_of(subject)] + size <= room

    def room_was_made(self, ask: Callable[[Read], list[Action]]) -> list[Action]:
        """*ask* again for those who found no room; who still finds none goes to the end."""
        actions: list[Action] = []
        for waiting in self._no_room:
            for _ in range(len(waiting)):
                question = waiting.popleft()
                left = len(waiting)
                actions += ask(question)
                if len(waiting) > left:
                    break
        return actions

    # --- deadlines -------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        # All fetches wait equally long, so the oldest is the first to expire.
        return next((fetch.deadline for fetch in self._running.values()), None)

    def overdue(self, now: float) -> list[Fetch]:
        return list(takewhile(lambda fetch: fetch.deadline <= now, self._running.values()))

    def check_invariants(self) -> None:
        assert set(self._by_subject.values()) == set(self._running.values())
        for tree in range(self.limits.trees):
            fetching = [f.reserved_bytes for f in self._running.values() if f.tree == tree]
            assert sum(fetching) == self._on_its_way[tree]
        # nobody waits for room that nothing will make
        assert self.on_its_way_bytes or not any(self._no_room)
        for number, fetch in self._running.items():
            assert number == fetch.number
            assert fetch.ask is None or self.links.asked(*fetch.ask) == number


def _at_source(fetch: Fetch) -> Action:
    kind, path, version = fetch.subject
    match kind:
        case Kind.SCAN:
            return ScanSource(fetch.number, path)
        case Kind.LOOK:
            return LookSource(fetch.number, path)
        case Kind.READ:
            assert isinstance(version, Version)
            return ReadSource(fetch.number, path, version)
        case Kind.OPEN:
            question = fetch.asked[0]
            assert isinstance(question, Read)
            return OpenSource(fetch.number, path, question.version)


def _is_from(peer: NodeId, question: Question) -> bool:
    return isinstance(question.request, PeerRequest) and question.request.peer == peer
