"""What is on its way: one *fetch* for each subject, and the questions that wait on it.

How a fetch gets there is for ``Asking``. Whatever happens, it ends once, by its outcome or at its
deadline, and what its questions are told is for others to say.

Bytes that are asked for have their room reserved, or they wait, as questions, until some is made.
Each tree has a room of its own, so that a node that waits in one tree never keeps another from
being served: in each tree for itself, who waits is always further from the root than whom it waits
for. The data tier has two (``tier.py``): in the one for owned chunks nobody waits for another node.

A chunk whose owner waits for its disk may take half a minute to come. It waits *outside* of the
room, or one slow disk would hold up what healthy nodes give, on all nodes. It takes no memory
there: what comes goes on the shelf in the step in which it is told to be there, and what comes at
the same time is bounded by the credit of its link. What has waited for this node's own disk takes
its room again, because then the source is read.

Invariants: a subject has one fetch at most; what is reserved on the shelf is what the fetches have
reserved; nobody waits for room unless somebody is left who will make some; a fetch that asks is the
one that its link knows by this number.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from copperfs.core.actions import Action
from copperfs.core.asking import Asking, Fetch
from copperfs.core.cache import Cache
from copperfs.core.events import Asker, Question, Read, WantChunk
from copperfs.core.links import ASKS_MAX, Links
from copperfs.core.messages import How
from copperfs.core.routing import Routing
from copperfs.core.state import OBJECT_OVERHEAD_BYTES, Kind, Limits, NodeStats, Subject
from copperfs.core.tier import Tier, cost_of
from copperfs.core.writeback import WriteBack
from copperfs.types import ChunkKey, FetchId, NodeId, PeerRequest

OfBytes = Read | WantChunk

OUTSIDE_MAX = ASKS_MAX
"""At most this many fetches wait outside of the room; others keep their part of it."""


@dataclass(slots=True)
class Fetches:
    limits: Limits
    stats: NodeStats
    cache: Cache
    links: Links
    routing: Routing
    asking: Asking
    tier: Tier | None = None
    disk: WriteBack | None = None
    """Where there is a tier."""
    _running: dict[FetchId, Fetch] = field(default_factory=dict)
    _by_subject: dict[Subject, Fetch] = field(default_factory=dict)
    _on_its_way: list[int] = field(init=False)
    """Bytes reserved, by room: first those of the trees, then the two of the tier."""
    _no_room: list[deque[OfBytes]] = field(init=False)
    """Those who wait for some, by room."""
    _room_by: dict[Asker, float] = field(default_factory=dict)
    """Until when they do, the longest waiting first."""
    _outside: dict[FetchId, Fetch] = field(default_factory=dict)
    """These wait for the disks of other nodes, and have given their room back."""
    _turned_away: int = 0
    _next_fetch: int = 1

    def __post_init__(self) -> None:
        rooms = self.limits.trees + 2
        self._on_its_way = [0] * rooms
        self._no_room = [deque() for _ in range(rooms)]

    def __len__(self) -> int:
        return len(self._running)

    @property
    def on_its_way_bytes(self) -> int:
        """To the cache."""
        return sum(self._on_its_way[: self.limits.trees])

    @property
    def owned_room(self) -> int:
        return self.limits.trees

    @property
    def guest_room(self) -> int:
        return self.limits.trees + 1

    # --- the table -------------------------------------------------------------------------------

    def get(self, number: FetchId) -> Fetch | None:
        return self._running.get(number)

    def of_ask(self, peer: NodeId, number: int) -> Fetch | None:
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
        room = self._room_of(subject, question, tree)
        if isinstance(question, OfBytes) and subject[0] is not Kind.OPEN:
            reserved = self._size_of(question)
            evicted = self._reserve(room, reserved)
            if evicted is None:
                # Room comes when one of those ends for whom it is reserved.
                self.stats.waited_for_room += 1
                self._no_room[room].append(question)
                self._turned_away += 1
                self._room_by.setdefault(question.request, now + self.limits.fetch_deadline_s)
                return []
            actions += evicted
        number = FetchId(self._next_fetch)
        self._next_fetch += 1
        self.stats.fetches += 1
        deadline = now + self.limits.fetch_deadline_s
        fetch = Fetch(number, subject, deadline, [question], reserved, room, tree)
        if isinstance(question, WantChunk):
            fetch.passed.update(question.passed)
            fetch.goes_up = question.how is How.TREE
            if isinstance(question.request, PeerRequest) and question.how.is_of_owner:
                fetch.is_doubted = self.routing.is_asked_in_place(subject)
        self._running[number] = self._by_subject[subject] = fetch
        return actions + self.asking.begin(now, fetch)

    def end(self, fetch: Fetch) -> list[Action]:
        """It is over, as far as the node is concerned; what it asked for may still come."""
        del self._running[fetch.number]
        del self._by_subject[fetch.subject]
        self.give_back_room(fetch)
        self._outside.pop(fetch.number, None)
        if self.disk is not None:
            self.disk.ended(fetch)
        return self.asking.end(fetch)

    def running(self) -> list[Fetch]:
        return list(self._running.values())

    def of_names(self) -> list[Fetch]:
        """Those after what a clear makes doubtful. Bytes of a version are not."""
        names = (Kind.SCAN, Kind.LOOK)
        return [fetch for fetch in self._running.values() if fetch.subject[0] in names]

    # --- peers -----------------------------------------------------------------------------------

    def forget_questions_of(self, peer: NodeId) -> None:
        """One that was started anew counts from the beginning, and wants nothing of before."""
        for fetch in self._running.values():
            fetch.asked = [each for each in fetch.asked if not _is_from(peer, each)]
            fetch.streams = [each for each in fetch.streams if each[0] != peer]
        for waiting in self._no_room:
            still = [each for each in waiting if not _is_from(peer, each)]
            waiting.clear()
            waiting.extend(still)
        for request in [each for each in self._room_by if _is_of(peer, each)]:
            del self._room_by[request]

    def forget_question(self, peer: NodeId, number: int) -> None:
        """It was withdrawn. Who asks and withdraws in turn would otherwise have as many questions
        wait here as it likes: the link counts only those that are still to be answered."""
        request = PeerRequest(peer, number)
        for fetch in self._running.values():
            fetch.asked = [each for each in fetch.asked if each.request != request]
            fetch.streams = [each for each in fetch.streams if (each[0], each[1].number) != request]
        for waiting in self._no_room:
            for question in [each for each in waiting if each.request == request]:
                waiting.remove(question)
        self._room_by.pop(request, None)

    def lost(self, now: float, peer: NodeId, numbers: list[FetchId]) -> list[Action]:
        """What these asked of *peer* is lost with a connection."""
        actions: list[Action] = []
        for number in numbers:
            actions += self.asking.lost(now, self._running[number], peer)
        return actions

    def owed_by(self, now: float, peer: NodeId) -> list[Action]:
        """*peer* has let them wait, and was asked for a sign of life."""
        actions: list[Action] = []
        for number in self.links.fetches_of(peer):
            actions += self.asking.owed(now, self._running[number], peer)
        return actions

    # --- room ------------------------------------------------------------------------------------

    def _room_of(self, subject: Subject, question: Question, tree: int) -> int:
        key = subject[2]
        if not isinstance(key, ChunkKey):
            return tree
        if self.routing.is_mine(key):
            return self.owned_room
        # Who is asked as an owner is to wait for as few others as possible, though it is none.
        assert isinstance(question, WantChunk)
        served = isinstance(question.request, PeerRequest) and question.how is not How.TREE
        return self.owned_room if served else self.guest_room

    def _size_of(self, question: OfBytes) -> int:
        if isinstance(question, Read):
            return question.version.size + OBJECT_OVERHEAD_BYTES
        assert self.tier is not None
        return cost_of(self.tier.size_of(question.key))

    def _reserve(self, room: int, size: int) -> list[Action] | None:
        if self.tier is not None and room >= self.owned_room:
            evicted = self.tier.reserve(size, owned=room == self.owned_room)
        else:
            most = (self.limits.memory_bytes - self.limits.credit_bytes) // self.limits.trees
            if self._on_its_way[room] and self._on_its_way[room] + size > most:
                return None
            evicted = self.cache.reserve(size)
        if evicted is not None:
            self._on_its_way[room] += size
        return evicted

    def give_back_room(self, fetch: Fetch) -> None:
        """It is over, or waits for something else first."""
        if self.tier is None or fetch.room < self.owned_room:
            self.cache.unreserve(fetch.reserved_bytes)
        else:
            self.tier.unreserve(fetch.reserved_bytes, owned=fetch.room == self.owned_room)
        self._on_its_way[fetch.room] -= fetch.reserved_bytes
        fetch.reserved_bytes = 0

    def take_room(self, fetch: Fetch, key: ChunkKey) -> list[Action] | None:
        """It is on its way again; None: there is no room now."""
        assert self.tier is not None
        assert not fetch.reserved_bytes
        size = cost_of(self.tier.size_of(key))
        evicted = self._reserve(fetch.room, size)
        if evicted is not None:
            fetch.reserved_bytes = size
            self._outside.pop(fetch.number, None)
        return evicted

    def wait_outside(self, fetch: Fetch) -> bool:
        """It waits for the disk of another node; whether there is room for others now."""
        if not fetch.reserved_bytes or len(self._outside) >= OUTSIDE_MAX:
            return False
        self._outside[fetch.number] = fetch
        self.give_back_room(fetch)
        return True

    def is_held_up(self, key: ChunkKey) -> bool:
        """Whether others wait for the disk of its owner."""
        owners = self.routing.owners
        if not self._outside or owners is None:
            return False
        owner = owners.before_me(key, self.routing.gone())
        return any(owner in each.asks for each in self._outside.values())

    def has_room(self, subject: Subject, size: int) -> bool:
        """Whether *size* bytes more could be on their way, nobody having to wait for it."""
        room = (self.limits.memory_bytes - self.limits.credit_bytes) // self.limits.trees
        return self._on_its_way[self.routing.tree_of(subject)] + size <= room

    def room_was_made(self, ask: Callable[[OfBytes], list[Action]]) -> list[Action]:
        """*ask* again for those who found no room; who still finds none goes to the end."""
        actions: list[Action] = []
        for waiting in self._no_room:
            for _ in range(len(waiting)):
                question = waiting.popleft()
                left, before = len(waiting), self._turned_away
                actions += ask(question)
                if self._turned_away == before:
                    del self._room_by[question.request]
                elif len(waiting) > left:
                    break  # or it waits in another room now
        return actions

    # --- deadlines -------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        # All wait equally long, so the oldest is the first to expire.
        soonest = self.asking.deadline()
        of_disk = None if self.disk is None else self.disk.deadline()
        if of_disk is not None and (soonest is None or of_disk < soonest):
            soonest = of_disk
        for oldest in self._running.values():
            soonest = oldest.deadline if soonest is None else min(oldest.deadline, soonest)
            break
        for room_by in self._room_by.values():
            return room_by if soonest is None else min(room_by, soonest)
        return soonest

    def slept(self, seconds: float) -> None:
        """This node did nothing for so long: answers may lie unread."""
        for fetch in self._running.values():
            fetch.deadline += seconds
        for request in self._room_by:
            self._room_by[request] += seconds
        if self.disk is not None:
            self.disk.slept(seconds)
        self.asking.slept(self._running.values(), seconds)

    def overdue(self, now: float) -> list[Fetch]:
        return list(takewhile(lambda fetch: fetch.deadline <= now, self._running.values()))

    def found_no_room(self, now: float) -> list[OfBytes]:
        """Those who waited for it for too long; they do not any more."""
        overdue = {request for request, by in self._room_by.items() if by <= now}
        found: list[OfBytes] = []
        for waiting in self._no_room if overdue else ():
            found += [each for each in waiting if each.request in overdue]
            still = [each for each in waiting if each.request not in overdue]
            waiting.clear()
            waiting.extend(still)
        for request in overdue:
            del self._room_by[request]
        return found

    def check_invariants(self) -> None:
        waiting = {question.request for each in self._no_room for question in each}
        assert waiting == set(self._room_by)
        reserved = [0] * len(self._on_its_way)
        for number, fetch in self._running.items():
            assert number == fetch.number
            reserved[fetch.room] += fetch.reserved_bytes
        assert reserved == self._on_its_way
        assert len(self._outside) <= OUTSIDE_MAX
        assert all(self._running[n] is each for n, each in self._outside.items())
        assert not any(each.reserved_bytes for each in self._outside.values())
        assert set(self._by_subject.values()) == set(self._running.values())
        # nobody waits for room that nothing will make
        assert self.on_its_way_bytes or not any(self._no_room[: self.owned_room])
        for room in (self.owned_room, self.guest_room):
            assert self._on_its_way[room] or not self._no_room[room]
        if self.tier is not None:
            self.tier.check_invariants(*self._on_its_way[self.owned_room :])
        if self.disk is not None:
            self.disk.check_invariants()
            # nor for a disk that has nothing to do
            makes_some = self.disk.unwritten_bytes or any(self._on_its_way[self.owned_room :])
            assert makes_some or not self.disk.waiting()
        self.asking.check_invariants(self._running.values())


def _is_from(peer: NodeId, question: Question) -> bool:
    return _is_of(peer, question.request)


def _is_of(peer: NodeId, request: Asker) -> bool:
    return isinstance(request, PeerRequest) and request.peer == peer
