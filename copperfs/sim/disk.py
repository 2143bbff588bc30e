"""The disk of the data tier, in virtual time: what ``store/`` does, as far as the core sees it.

Writes and reads queue for one device, first come first served. The budget is kept by evicting what
was used longest ago, which no other process fills up: of that ``is_full`` is the fault. Neither
side ever sees an error: a store that fails leaves the chunk out, a load that fails finds nothing.

A damaged chunk is found by its digest when it is loaded, and dropped. What is on the disk outlives
the process; what was still to be written does not.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from copperfs.sim.clock import Clock
from copperfs.sim.pieces import Piece, size_of
from copperfs.types import ChunkKey

MOVES_WITHIN_S = 2.0
"""A process that leaves waits this long at most for what is still to be written."""


@dataclass(frozen=True, slots=True)
class DiskCosts:
    """Of an NVMe drive of the middle class, with the check of what was read."""

    latency_s: float = 100e-6
    read_bytes_per_s: float = 3e9
    write_bytes_per_s: float = 1.5e9


@dataclass(slots=True, repr=False)
class Disk:
    clock: Clock
    costs: DiskCosts = field(default_factory=DiskCosts)
    budget_bytes: int = 1 << 40
    is_full: bool = False
    """Somebody else has filled it: nothing is taken any more, what is there is still read."""
    damaged: int = 0
    """How many chunks were found to be."""
    refused: int = 0
    """How many were not taken."""
    held_bytes: int = 0
    is_outgrown: bool = False
    """It had to evict what it was given since the process was started."""
    chunks: OrderedDict[ChunkKey, tuple[Piece, ...]] = field(default_factory=OrderedDict)
    _written_at: dict[ChunkKey, float] = field(default_factory=dict)
    """When each chunk that it was given since then is on the disk."""
    _free: float = 0.0

    def store(self, key: ChunkKey, pieces: tuple[Piece, ...]) -> float | None:
        """When it is written; None: it is not taken. A load before that finds it as well: the real
        store has it in its backlog. A chunk that is held stays as it is."""
        if key in self.chunks:
            return max(self.clock.now, self._written_at.get(key, 0.0))
        size = size_of(pieces)
        if self.is_full or size > self.budget_bytes:
            self.refused += 1
            return None
        while self.held_bytes + size > self.budget_bytes:
            self._evict()
        written_at = self._written_at[key] = self._take(size / self.costs.write_bytes_per_s)
        self.chunks[key] = pieces
        self.held_bytes += size
        return written_at

    def loaded_at(self, key: ChunkKey) -> float:
        """When it is known what the disk has of a chunk."""
        pieces = self.chunks.get(key)
        if pieces is None:
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
        """What it has not written within these seconds is lost. Another process may come."""
        for key, at in self._written_at.copy().items():
            if at > self.clock.now + within_s:
                self.drop(key)
        self._written_at.clear()
        self._free = self.clock.now
        self.is_outgrown = False

    def _evict(self) -> None:
        """The chunk goes that was used longest ago, of those that are written if there are any."""
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
        """Flip a bit of what lies there."""
        first, *others = self.chunks[key]
        self.chunks[key] = (first.spoiled(), *others)

    def _take(self, seconds: float) -> float:
        self._free = max(self._free, self.clock.now) + seconds
        return self._free
