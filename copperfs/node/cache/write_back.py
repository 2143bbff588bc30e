"""Write-back: which chunks the disk of this node has still to take, and what waits for that.

As in the kernel's page cache (``balance_dirty_pages``), readers that bring in more than the disk
takes are slowed to its speed. A chunk that this node owns is *unwritten* from the start of its read
from the source until the store reports it as written. At most ``tier_backlog_bytes`` are unwritten.

With ``tier_waits`` (the default) a read of the source waits while there is no room for its chunk.
So the source gives each chunk once, however slow the disk is. Chunks on the disk or in memory never
wait: a fetch comes here when both have been asked, and it reserves no memory while it waits. Peers
that asked for such a chunk get ``Delayed``, so they do not read the source themselves.

Without ``tier_waits`` a chunk for which there is no room becomes a *debt*. The store gets it later,
from memory while memory holds it, or by another read of the source in the background.

A disk never delays a fetch for long. These reads do not wait, and may leave debts behind in both
modes:

- all, while the disk takes nothing (it is full, broken or gone);
- all, from when the disk is *outgrown*: it had to evict what this mount has written, and would only
  evict more. The node keeps no debts from then on;
- fallbacks, because an owner is silent;
- those that have waited for half of what their deadline had left. A fetch without a waiting request
  is ended instead: read-ahead is no reason to read the source twice.

docs/decisions/0087 has the rejected ways.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from copperfs.model.types import BlobId, ChunkKey, FetchId
from copperfs.node.actions import Action, StoreChunk
from copperfs.node.cache.chunk_cache import ChunkCache
from copperfs.node.fetch.fetch import Fetch
from copperfs.node.fetch.phases import Phase
from copperfs.node.limits_and_counters import Limits, NodeStats

DEBTS_MAX = 1 << 16
"""64 GiB in chunks of 1 MiB; some 20 MB of memory. Older debts are forgotten, and counted."""
PAYS_AT_ONCE = 2
"""Chunks that are read again at the same time, for the disk alone."""
TELLS_EACH_S = 4.0
"""Peers ask another node after ``Timeouts.slow_s``: two of these messages may be late."""


@dataclass(slots=True)
class WriteBack:
    limits: Limits
    stats: NodeStats
    chunk_cache: ChunkCache
    _storing: dict[ChunkKey, int] = field(default_factory=dict)
    """Chunks whose outcome the store has not reported, with their sizes."""
    _reading: dict[FetchId, int] = field(default_factory=dict)
    """Reads of the source whose chunks have room on the disk."""
    _unwritten_bytes: int = 0
    _waiting: dict[FetchId, tuple[Fetch, float]] = field(default_factory=dict)
    """Reads that wait for the disk, and until when."""
    _order: list[tuple[float, FetchId]] = field(default_factory=list)
    """The numbers in ``_waiting``, in the order of their times."""
    _done_waiting: OrderedDict[FetchId, Fetch] = field(default_factory=OrderedDict)
    """Reads that have waited long enough, and now wait for room in memory."""
    _held: OrderedDict[ChunkKey, None] = field(default_factory=OrderedDict)
    """Debts in memory, the oldest first."""
    _lost: OrderedDict[ChunkKey, None] = field(default_factory=OrderedDict)
    """Debts that memory has evicted."""
    _debt_bytes: int = 0
    _tells_at: float | None = None
    takes: bool = True
    _pays: bool = True
    """Whether the disk took the last chunk."""
    is_outgrown: bool = False

    def __post_init__(self) -> None:
        self.chunk_cache.evicted = self._evicted

    def may_read(self, now: float, fetch: Fetch, key: ChunkKey) -> bool:
        """False: the fetch waits until ``next_to_read`` returns it."""
        if not self._holds_up or fetch.phase.is_fallback:
            return True
        size = self.chunk_cache.size_of(key)
        if not self._waiting and not self._done_waiting and self._has_room(size):
            self._begin(fetch, size)
            return True
        self.stats.tier_waited += 1
        # The fetch may have waited before, for memory or for another node.
        most_s = self.limits.fetch_deadline_s / 2
        until = now + min(most_s, (fetch.deadline - now) / 2)
        self._waiting[fetch.number] = (fetch, until)
        insort(self._order, (until, fetch.number))
        if self._tells_at is None:
            self._tells_at = now + TELLS_EACH_S
        return False

    def may_read_ahead(self, size: int) -> bool:
        if not self._holds_up:
            return True
        return not self._waiting and not self._done_waiting and self._has_room(size)

    def next_to_read(self, is_wanted: Callable[[Fetch], bool]) -> Fetch | None:
        """A waiting fetch that may continue; *wanted* ones go first. The caller confirms with
        ``begin``."""
        if self._done_waiting:
            return next(iter(self._done_waiting.values()))
        if not self._waiting:
            return None
        in_order = (self._waiting[number][0] for _, number in self._order)
        fetch = next(filter(is_wanted, in_order), self._waiting[self._order[0][1]][0])
        key = fetch.subject[2]
        assert isinstance(key, ChunkKey)
        return (
            fetch if not self._holds_up or self._has_room(self.chunk_cache.size_of(key)) else None
        )

    def begin(self, fetch: Fetch) -> None:
        key = fetch.subject[2]
        assert isinstance(key, ChunkKey)
        if self._done_waiting.pop(fetch.number, None) is None:
            self._waits_no_longer(fetch)
            if self._holds_up:
                self._begin(fetch, self.chunk_cache.size_of(key))

    def _waits_no_longer(self, fetch: Fetch) -> None:
        waiting = self._waiting.pop(fetch.number, None)
        if waiting is not None:
            del self._order[bisect_left(self._order, (waiting[1], fetch.number))]

    def _begin(self, fetch: Fetch, size: int) -> None:
        self._reading[fetch.number] = size
        self._unwritten_bytes += size

    def ended(self, fetch: Fetch) -> None:
        self._waits_no_longer(fetch)
        self._done_waiting.pop(fetch.number, None)
        self._unwritten_bytes -= self._reading.pop(fetch.number, 0)

    def is_waiting(self, fetch: Fetch) -> bool:
        return fetch.number in self._waiting or fetch.number in self._done_waiting

    def waiting(self) -> list[Fetch]:
        in_order = (self._waiting[number][0] for _, number in self._order)
        return [*self._done_waiting.values(), *in_order]

    @property
    def unwritten_bytes(self) -> int:
        return self._unwritten_bytes

    @property
    def _holds_up(self) -> bool:
        return self.limits.tier_waits and self.takes and not self.is_outgrown

    def _has_room(self, size: int) -> bool:
        """One chunk at a time always fits, however large."""
        most = self.limits.tier_backlog_bytes
        return not self._unwritten_bytes or self._unwritten_bytes + size <= most

    def store(self, key: ChunkKey, blob: BlobId) -> list[Action]:
        if not self.limits.tier_has_disk or key in self._storing:
            return []
        self._forget(key)
        size = self.chunk_cache.size_of(key)
        if self._has_room(size):
            return [self._hand_over(key, blob, size)]
        self._remember(self._held, key)
        return []

    def stored(self, key: ChunkKey, *, written: bool, is_degraded: bool, is_outgrown: bool) -> None:
        """A store that is not degraded refuses a chunk, too, when all chunks that it could evict
        are being read. The node then pays no debt until the store has written something, since
        otherwise it would offer the debts without end."""
        self._unwritten_bytes -= self._storing.pop(key, 0)
        self.takes, self._pays = not is_degraded, written
        if is_outgrown and not self.is_outgrown:
            self.is_outgrown = True
            self._held.clear()
            self._lost.clear()
            self._debt_bytes = 0
        if not written:
            self._remember(self._held if key in self.chunk_cache else self._lost, key)

    def recovered(self) -> None:
        self.takes = self._pays = True

    def pay_from_memory(self) -> list[Action]:
        """Give the store debts, as far as there is room."""
        actions: list[Action] = []
        while self._held and self.takes and self._pays:
            key = next(iter(self._held))
            size, blob = self.chunk_cache.size_of(key), self.chunk_cache.peek(key)
            if not self._has_room(size):
                break
            assert blob is not None, "what memory lets go of is told"
            self._forget(key)
            actions.append(self._hand_over(key, blob, size))
        return actions

    def debt_to_read(self, under_way: int) -> ChunkKey | None:
        """A chunk to read again now, for the disk alone. *under_way* counts such reads."""
        if self.limits.tier_waits or under_way >= PAYS_AT_ONCE:
            return None
        if not self.takes or not self._pays:
            return None
        keeps_up = self._unwritten_bytes <= self.limits.tier_backlog_bytes // 2
        return next(iter(self._lost), None) if keeps_up else None

    def is_debt(self, key: ChunkKey) -> bool:
        """Whether the chunk was read from the source before, and is on no disk."""
        return key in self._held or key in self._lost

    def settled(self, key: ChunkKey) -> None:
        self._forget(key)

    def _hand_over(self, key: ChunkKey, blob: BlobId, size: int) -> Action:
        self._storing[key] = size
        self._unwritten_bytes += size
        return StoreChunk(key, blob)

    def _remember(self, debts: OrderedDict[ChunkKey, None], key: ChunkKey) -> None:
        if self.is_outgrown:
            return
        self._forget(key)
        if len(self._held) + len(self._lost) >= DEBTS_MAX:
            self._forget(next(iter(self._lost or self._held)))
            self.stats.tier_forgotten += 1
        debts[key] = None
        self._debt_bytes += self.chunk_cache.size_of(key)

    def _forget(self, key: ChunkKey) -> None:
        for debts in (self._held, self._lost):
            if key in debts:
                del debts[key]
                self._debt_bytes -= self.chunk_cache.size_of(key)

    def _evicted(self, key: ChunkKey) -> None:
        if key in self._held:
            self._remember(self._lost, key)

    def deadline(self) -> float | None:
        if not self._order:
            return self._tells_at
        assert self._tells_at is not None
        return min(self._order[0][0], self._tells_at)

    def slept(self, seconds: float) -> None:
        """The clock jumped, and the disk may have written meanwhile."""
        self._order = [(until + seconds, number) for until, number in self._order]
        for until, number in self._order:
            self._waiting[number] = (self._waiting[number][0], until)
        if self._tells_at is not None:
            self._tells_at += seconds

    def have_waited(self, now: float) -> list[Fetch]:
        """The caller lets these reads ``go_on``, or ends them."""
        due = takewhile(lambda each: each[0] <= now, self._order)
        return [self._waiting[number][0] for _, number in due]

    def go_on(self, fetch: Fetch) -> None:
        self._waits_no_longer(fetch)
        self._done_waiting[fetch.number] = fetch

    def tick(self, now: float) -> bool:
        """Whether to tell the waiting peers again of the delay."""
        if self._tells_at is None or self._tells_at > now:
            return False
        waits = bool(self._waiting or self._done_waiting)
        self._tells_at = now + TELLS_EACH_S if waits else None
        return waits

    def count(self) -> None:
        self.stats.tier_waiting = len(self._waiting) + len(self._done_waiting)
        self.stats.tier_owed = len(self._held) + len(self._lost)
        self.stats.tier_owed_bytes = self._debt_bytes

    def check_invariants(self) -> None:
        counted = sum(self._storing.values()) + sum(self._reading.values())
        assert self._unwritten_bytes == counted
        more_than_one = len(self._storing) + len(self._reading) > 1
        assert counted <= self.limits.tier_backlog_bytes or not more_than_one
        debts = [*self._held, *self._lost]
        assert self._debt_bytes == sum(map(self.chunk_cache.size_of, debts))
        assert len(debts) == len({*debts, *self._storing}) - len(self._storing)
        assert all(key in self.chunk_cache for key in self._held)
        assert not any(key in self.chunk_cache for key in self._lost)
        assert self._order == sorted((at, n) for n, (_, at) in self._waiting.items())
        for fetch in self.waiting():
            assert fetch.phase is Phase.WAITING_FOR_DISK
