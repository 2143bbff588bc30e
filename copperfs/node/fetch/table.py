"""Fetch table: the fetches in flight, one for each subject, and the requests that wait on each.

Admission: a request for bytes reserves memory, or waits until some is free. Each tree has a budget
of its own, called a *room*, so waiting in one tree never blocks another. Within a tree a node waits
only for nodes nearer to the root, so there is no cycle. The data tier has two rooms
(``chunk_cache.py``), and in the one for owned chunks no fetch waits for another node.

A fetch whose chunk waits for its owner's disk waits *outside* of the room. Otherwise one slow disk
would delay the chunks of healthy nodes, on all nodes. The fetch takes no memory there: an arriving
chunk enters the cache in the step that reports it, and the credit of the connection bounds what
arrives at the same time. A fetch that has waited for this node's own disk takes room again, because
it then reads the source.

Invariants: a subject has one fetch at most; the cache has reserved what the fetches have reserved;
a request waits for room only while some fetch will free it; a fetch that asks a peer is the one
that ``FlowControl`` knows by this number.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import takewhile

from copperfs.model.types import ChunkKey, FetchId, NodeId, PeerRequest
from copperfs.node.actions import Action
from copperfs.node.cache.chunk_cache import ChunkCache, cost_of
from copperfs.node.cache.metadata_cache import Cache
from copperfs.node.cache.write_back import WriteBack
from copperfs.node.events import ChunkRequest, NodeRequest, ReadRequest, Requester
from copperfs.node.fetch.fetch import AskPlan, CopySearch, Fetch, Timers
from copperfs.node.fetch.machine import FetchMachine, is_of_copy
from copperfs.node.limits_and_counters import (
    OBJECT_OVERHEAD_BYTES,
    FetchKind,
    Limits,
    NodeStats,
    Subject,
)
from copperfs.node.peer.flow_control import OUTSTANDING_MAX, FlowControl
from copperfs.node.peer.messages import ChunkAskMode
from copperfs.node.routing.route import Routing

OfBytes = ReadRequest | ChunkRequest

OUTSIDE_MAX = OUTSTANDING_MAX
"""Further fetches keep their reservation."""


@dataclass(slots=True)
class FetchTable:
    limits: Limits
    stats: NodeStats
    cache: Cache
    flow: FlowControl
    routing: Routing
    machine: FetchMachine
    chunk_cache: ChunkCache | None = None
    write_back: WriteBack | None = None
    _running: dict[FetchId, Fetch] = field(default_factory=dict)
    _sooner: dict[FetchId, Fetch] = field(default_factory=dict)
    """Fetches with an earlier deadline than their order implies."""
    _by_subject: dict[Subject, Fetch] = field(default_factory=dict)
    _on_its_way: list[int] = field(init=False)
    """By room: first those of the trees, then the two of the tier."""
    _no_room: list[deque[OfBytes]] = field(init=False)
    """Requests that wait for memory, by room."""
    _room_by: dict[Requester, float] = field(default_factory=dict)
    """Until when each of them waits, oldest first."""
    _outside: dict[FetchId, Fetch] = field(default_factory=dict)
    """Fetches that wait for other nodes' disks, without a reservation."""
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
        """Without the rooms of the tier."""
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

    def of_request(self, peer: NodeId, number: int) -> Fetch | None:
        """The fetch that asks *peer* by this number; None if that attempt is over."""
        fetch = self.flow.fetch_of(peer, number)
        return None if fetch is None else self._running[fetch]

    def is_under_way(self, subject: Subject) -> bool:
        return subject in self._by_subject

    def of_subject(self, subject: Subject) -> Fetch | None:
        return self._by_subject.get(subject)

    def join(
        self, subject: Subject, request: NodeRequest, deadline: float | None = None
    ) -> Fetch | None:
        """*deadline*: of a request that has waited on another fetch. The fetch adopts an earlier
        one, so all its requests get their reply by then."""
        fetch = self._by_subject.get(subject)
        if fetch is not None:
            self.stats.joined += 1
            fetch.waiters.append(request)
            if deadline is not None and deadline < fetch.deadline:
                fetch.deadline = deadline
                self._sooner[fetch.number] = fetch
        return fetch

    def begin(
        self, now: float, subject: Subject, request: NodeRequest, by: float | None = None
    ) -> list[Action]:
        """The request may have to wait for room. *by*: the deadline of one that has waited on
        another fetch."""
        actions: list[Action] = []
        reserved, tree = 0, self.routing.tree_of(subject)
        room = self._room_of(subject, request, tree)
        # A fetch of a copy waits for no room, because it must not wait for nodes that may wait for
        # this one, and it displaces nothing. ``CopyKeeper`` bounds how many there are.
        is_free = subject[0] is FetchKind.HANDLE or is_of_copy(request)
        if isinstance(request, OfBytes) and not is_free:
            reserved = self._size_of(request)
            evicted = self._reserve(room, reserved)
            if evicted is None:
                # A fetch with a reservation frees memory when it ends.
                self.stats.waited_for_room += 1
                self._no_room[room].append(request)
                self._turned_away += 1
                self._room_by.setdefault(request.request, now + self.limits.fetch_deadline_s)
                return []
            actions += evicted
        number = FetchId(self._next_fetch)
        self._next_fetch += 1
        self.stats.fetches += 1
        deadline = now + self.limits.fetch_deadline_s
        timers = Timers(now, now + self.machine.slow_s)
        fetch = Fetch(number, subject, deadline, [request], timers, reserved, room, tree)
        if by is not None and by < deadline:
            fetch.deadline = by
            self._sooner[number] = fetch
        if isinstance(request, ChunkRequest):
            fetch.skipped.update(request.skipped)
            if request.likely:
                fetch.copies = CopySearch(request.likely)
            if request.how is ChunkAskMode.TREE:
                fetch.plan = AskPlan((ChunkAskMode.TREE, ChunkAskMode.ANY))
            of_peer = isinstance(request.request, PeerRequest)
            is_owner = of_peer and request.how.is_of_owner
            if is_owner and self.routing.is_owned_elsewhere(subject):
                fetch.timers = replace(timers, asked_as_owner_at=now)
        self._running[number] = self._by_subject[subject] = fetch
        return actions + self.machine.begin(now, fetch)

    def end(self, fetch: Fetch) -> list[Action]:
        """The fetch is over for this node, although replies to its attempts may still arrive."""
        del self._running[fetch.number]
        del self._by_subject[fetch.subject]
        self._sooner.pop(fetch.number, None)
        self.give_back_room(fetch)
        self._outside.pop(fetch.number, None)
        if self.write_back is not None:
            self.write_back.ended(fetch)
        return self.machine.end(fetch)

    def running(self) -> list[Fetch]:
        return list(self._running.values())

    def of_names(self) -> list[Fetch]:
        """A clear invalidates names, and not bytes of a version."""
        names = (FetchKind.LISTING, FetchKind.ENTRY)
        return [fetch for fetch in self._running.values() if fetch.subject[0] in names]

    # --- peers -----------------------------------------------------------------------------------

    def forget_requests_of(self, peer: NodeId) -> None:
        """A restarted peer numbers its requests from the beginning, and waits for no earlier
        one."""
        for fetch in self._running.values():
            fetch.waiters = [each for each in fetch.waiters if not _is_from(peer, each)]
            fetch.streams = [each for each in fetch.streams if each[0] != peer]
        for waiting in self._no_room:
            still = [each for each in waiting if not _is_from(peer, each)]
            waiting.clear()
            waiting.extend(still)
        for request in [each for each in self._room_by if _is_of(peer, each)]:
            del self._room_by[request]

    def forget_request(self, peer: NodeId, number: int) -> None:
        """The peer cancelled its request. Forgetting it keeps the number of waiting requests
        bounded: a peer that asks and cancels in turn would otherwise queue any number, since
        ``FlowControl`` counts only the unanswered ones."""
        request = PeerRequest(peer, number)
        for fetch in self._running.values():
            fetch.waiters = [each for each in fetch.waiters if each.request != request]
            fetch.streams = [each for each in fetch.streams if (each[0], each[1].number) != request]
        for waiting in self._no_room:
            for node_request in [each for each in waiting if each.request == request]:
                waiting.remove(node_request)
        self._room_by.pop(request, None)

    def lost(self, now: float, peer: NodeId, numbers: list[FetchId]) -> list[Action]:
        actions: list[Action] = []
        for number in numbers:
            actions += self.machine.lost(now, self._running[number], peer)
        return actions

    def reply_overdue(self, now: float, peer: NodeId) -> list[Action]:
        """*peer* keeps its fetches waiting, and was pinged."""
        actions: list[Action] = []
        for number in self.flow.fetches_of(peer):
            actions += self.machine.on_reply_overdue(now, self._running[number], peer)
        return actions

    # --- room ------------------------------------------------------------------------------------

    def _room_of(self, subject: Subject, request: NodeRequest, tree: int) -> int:
        key = subject[2]
        if not isinstance(key, ChunkKey):
            return tree
        if self.routing.is_mine(key):
            return self.owned_room
        # A fetch for a peer that asks this node as an owner should wait for as few others as
        # possible.
        assert isinstance(request, ChunkRequest)
        if request.how is ChunkAskMode.COPY:
            return self.owned_room
        served = isinstance(request.request, PeerRequest) and request.how is not ChunkAskMode.TREE
        return self.owned_room if served else self.guest_room

    def _size_of(self, request: OfBytes) -> int:
        if isinstance(request, ReadRequest):
            return request.version.size + OBJECT_OVERHEAD_BYTES
        assert self.chunk_cache is not None
        return cost_of(self.chunk_cache.size_of(request.key))

    def _reserve(self, room: int, size: int) -> list[Action] | None:
        if self.chunk_cache is not None and room >= self.owned_room:
            evicted = self.chunk_cache.reserve(size, owned=room == self.owned_room)
        else:
            most = (self.limits.memory_bytes - self.limits.allowance_bytes) // self.limits.trees
            if self._on_its_way[room] and self._on_its_way[room] + size > most:
                return None
            evicted = self.cache.reserve(size)
        if evicted is not None:
            self._on_its_way[room] += size
        return evicted

    def give_back_room(self, fetch: Fetch) -> None:
        if self.chunk_cache is None or fetch.room < self.owned_room:
            self.cache.unreserve(fetch.reserved_bytes)
        else:
            self.chunk_cache.unreserve(fetch.reserved_bytes, owned=fetch.room == self.owned_room)
        self._on_its_way[fetch.room] -= fetch.reserved_bytes
        fetch.reserved_bytes = 0

    def take_room(self, fetch: Fetch, key: ChunkKey) -> list[Action] | None:
        """None if there is no room now."""
        assert self.chunk_cache is not None
        assert not fetch.reserved_bytes
        size = cost_of(self.chunk_cache.size_of(key))
        evicted = self._reserve(fetch.room, size)
        if evicted is not None:
            fetch.reserved_bytes = size
            self._outside.pop(fetch.number, None)
        return evicted

    def wait_outside(self, fetch: Fetch) -> bool:
        """Returns whether memory became free."""
        if not fetch.reserved_bytes or len(self._outside) >= OUTSIDE_MAX:
            return False
        self._outside[fetch.number] = fetch
        self.give_back_room(fetch)
        return True

    def is_held_up(self, key: ChunkKey) -> bool:
        """Whether other fetches wait for the disk of this chunk's owner."""
        owners = self.routing.owners
        if not self._outside or owners is None:
            return False
        owner = owners.before_me(key, self.routing.gone())
        return any(owner in each.attempts for each in self._outside.values())

    def has_room(self, subject: Subject, size: int) -> bool:
        """Whether a request for *size* bytes would not wait."""
        room = (self.limits.memory_bytes - self.limits.allowance_bytes) // self.limits.trees
        return self._on_its_way[self.routing.tree_of(subject)] + size <= room

    def room_was_made(self, retry: Callable[[OfBytes], list[Action]]) -> list[Action]:
        """*retry* the requests that found no room; those that still find none queue at the
        end."""
        actions: list[Action] = []
        for waiting in self._no_room:
            for _ in range(len(waiting)):
                request = waiting.popleft()
                left, before = len(waiting), self._turned_away
                actions += retry(request)
                if self._turned_away == before:
                    del self._room_by[request.request]
                elif len(waiting) > left:
                    break  # unless it waits in another room now
        return actions

    # --- deadlines -------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        # All have the same time limit, so the oldest expires first, except those in ``_sooner``.
        soonest = self.machine.deadline()
        of_disk = None if self.write_back is None else self.write_back.deadline()
        if of_disk is not None and (soonest is None or of_disk < soonest):
            soonest = of_disk
        for oldest in self._running.values():
            soonest = oldest.deadline if soonest is None else min(oldest.deadline, soonest)
            break
        for fetch in self._sooner.values():
            soonest = fetch.deadline if soonest is None else min(fetch.deadline, soonest)
        for room_by in self._room_by.values():
            return room_by if soonest is None else min(room_by, soonest)
        return soonest

    def slept(self, seconds: float) -> None:
        """Replies may lie unread, so all deadlines move."""
        for fetch in self._running.values():
            fetch.deadline += seconds
        for request in self._room_by:
            self._room_by[request] += seconds
        if self.write_back is not None:
            self.write_back.slept(seconds)
        self.machine.slept(self._running.values(), seconds)

    def past_deadline(self, now: float) -> list[Fetch]:
        found = list(takewhile(lambda fetch: fetch.deadline <= now, self._running.values()))
        sooner = [fetch for fetch in self._sooner.values() if fetch.deadline <= now]
        return found + [fetch for fetch in sooner if fetch not in found]

    def found_no_room(self, now: float) -> list[OfBytes]:
        """Remove the requests that have waited too long."""
        expired = {request for request, by in self._room_by.items() if by <= now}
        found: list[OfBytes] = []
        for waiting in self._no_room if expired else ():
            found += [each for each in waiting if each.request in expired]
            still = [each for each in waiting if each.request not in expired]
            waiting.clear()
            waiting.extend(still)
        for request in expired:
            del self._room_by[request]
        return found

    def check_invariants(self) -> None:
        waiting = {request.request for each in self._no_room for request in each}
        assert waiting == set(self._room_by)
        reserved = [0] * len(self._on_its_way)
        for number, fetch in self._running.items():
            assert number == fetch.number
            reserved[fetch.room] += fetch.reserved_bytes
        assert reserved == self._on_its_way
        assert len(self._outside) <= OUTSIDE_MAX
        assert all(self._running[n] is each for n, each in self._outside.items())
        assert not any(each.reserved_bytes for each in self._outside.values())
        assert all(self._running[n] is each for n, each in self._sooner.items())
        assert set(self._by_subject.values()) == set(self._running.values())
        # a request waits for room only if some fetch will free it
        assert self.on_its_way_bytes or not any(self._no_room[: self.owned_room])
        for room in (self.owned_room, self.guest_room):
            assert self._on_its_way[room] or not self._no_room[room]
        if self.chunk_cache is not None:
            self.chunk_cache.check_invariants(*self._on_its_way[self.owned_room :])
        if self.write_back is not None:
            self.write_back.check_invariants()
            # a fetch waits for the disk only if the disk has work
            makes_some = self.write_back.unwritten_bytes or any(self._on_its_way[self.owned_room :])
            assert makes_some or not self.write_back.waiting()
        self.machine.check_invariants(self._running.values())


def _is_from(peer: NodeId, request: NodeRequest) -> bool:
    return _is_of(peer, request.request)


def _is_of(peer: NodeId, request: Requester) -> bool:
    return isinstance(request, PeerRequest) and request.peer == peer
