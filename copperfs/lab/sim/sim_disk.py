"""Simulated disk of the data tier: what ``chunkstore/`` does, as far as the node sees it.

Writes and reads queue for one device, first come first served. Neither call ever returns an error:
a store that fails leaves the chunk out, a load that fails finds nothing.

A disk that *hangs* answers nothing for a while. A read is given up after ``READ_WITHIN_S``, and at
once when a few have been. A write that takes ``WRITE_WITHIN_S`` *degrades* the store: it drops what
waits to be written, and takes nothing until it has recovered.

A load drops a chunk whose digest differs. Only chunks on the disk outlive the process.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from copperfs.lab.sim.payload_pieces import Piece, size_of
from copperfs.lab.sim.virtual_clock import VirtualClock
from copperfs.model.types import ChunkKey

READ_WITHIN_S, WRITE_WITHIN_S, READERS = 2.0, 10.0, 4
"""The store's (``DiskLimits``)."""
RECOVERS_IN_S = 1.0
MOVES_WITHIN_S = 2.0
"""How long a leaving process waits for its writes."""


@dataclass(frozen=True, slots=True)
class DiskCosts:
    """A middle-class NVMe drive, with the computation of digests."""

    latency_s: float = 100e-6
    read_bytes_per_s: float = 3e9
    write_bytes_per_s: float = 1.5e9


@dataclass(slots=True, repr=False)
class Disk:
    clock: VirtualClock
    costs: DiskCosts = field(default_factory=DiskCosts)
    budget_bytes: int = 1 << 40
    is_full: bool = False
    """Another process has filled it: it takes no more chunks, and still reads its own."""
    is_degraded: bool = False
    hung_until: float = 0.0
    late: int = 0
    damaged: int = 0
    refused: int = 0
    held_bytes: int = 0
    is_outgrown: bool = False
    """It had to evict since the process started."""
    chunks: OrderedDict[ChunkKey, tuple[Piece, ...]] = field(default_factory=OrderedDict)
    _written_at: dict[ChunkKey, float] = field(default_factory=dict)
    """When each chunk stored since then is on the disk."""
    _free: float = 0.0

    @property
    def takes_nothing(self) -> bool:
        return self.is_full or self.is_degraded

    @property
    def hangs(self) -> bool:
        return self.hung_until > self.clock.now

    @property
    def is_given_up(self) -> bool:
        return self.late >= READERS

    def hang(self, seconds: float) -> None:
        now = self.clock.now
        longer_s = now + seconds - max(now, self.hung_until)
        if longer_s <= 0:
            return
        if not self.hangs:
            self.late = 0
        self.hung_until = now + seconds
        self._free = max(self._free, now) + longer_s
        for key, at in self._written_at.items():
            if at > now:
                self._written_at[key] = at + longer_s

    def degrade(self) -> bool:
        """Returns whether anything was dropped."""
        unwritten = [key for key, at in self._written_at.items() if at > self.clock.now]
        for key in unwritten:
            self.drop(key)
        self.is_degraded = bool(unwritten)
        return self.is_degraded

    def written_at(self, key: ChunkKey) -> float | None:
        """None if it was dropped meanwhile."""
        return self._written_at.get(key)

    def store(self, key: ChunkKey, pieces: tuple[Piece, ...]) -> float | None:
        """When it is written; None: it is not taken. An earlier load finds it in the backlog."""
        if key in self.chunks:
            return max(self.clock.now, self._written_at.get(key, 0.0))
        size = size_of(pieces)
        if self.takes_nothing or size > self.budget_bytes:
            self.refused += 1
            return None
        while self.held_bytes + size > self.budget_bytes:
            self._evict()
        written_at = self._written_at[key] = self._take(size / self.costs.write_bytes_per_s)
        self.chunks[key] = pieces
        self.held_bytes += size
        return written_at

    def loaded_at(self, key: ChunkKey) -> float:
        pieces = self.chunks.get(key)
        if pieces is None or self.hangs:
            return self.clock.now  # the index is in memory
        return self._take(self.costs.latency_s + size_of(pieces) / self.costs.read_bytes_per_s)

    def load(self, key: ChunkKey) -> tuple[Piece, ...] | None:
        pieces = self.chunks.get(key)
        if pieces is None:
            return None
        if not all(each.is_sound for each in pieces):
            self.damaged += 1
            self.drop(key)
            return None
        self.chunks.move_to_end(key)
        return pieces

    def process_ended(self, within_s: float = 0.0) -> None:
        """Lose what is not written within these seconds."""
        for key, at in self._written_at.copy().items():
            if at > self.clock.now + within_s:
                self.drop(key)
        self._written_at.clear()
        self._free = max(self.clock.now, self.hung_until)
        self.is_degraded = False
        self.is_outgrown = False

    def _evict(self) -> None:
        """A written one, if there is any."""
        now, written_at = self.clock.now, self._written_at
        written = (key for key in self.chunks if written_at.get(key, now) <= now)
        victim = next(written, next(iter(self.chunks)))
        self.is_outgrown = self.is_outgrown or victim in written_at
        self.drop(victim)

    def drop(self, key: ChunkKey) -> None:
        self._written_at.pop(key, None)
        pieces = self.chunks.pop(key, None)
        if pieces is not None:
            self.held_bytes -= size_of(pieces)

    def damage(self, key: ChunkKey) -> None:
        first, *others = self.chunks[key]
        self.chunks[key] = (first.spoiled(), *others)

    def _take(self, seconds: float) -> float:
        self._free = max(self._free, self.clock.now) + seconds
        return self._free
