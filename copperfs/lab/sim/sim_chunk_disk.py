"""Disk port: the driver's port to the data tier's disk, as ``daemon/chunk_disk.py`` in the daemon.

It tells the node when the disk (``sim_disk.py``) has read or written a chunk, and gives up a disk
that hangs until it comes back.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.lab.sim.process_state import Process
from copperfs.lab.sim.sim_blobs import SimulatedBlobs
from copperfs.lab.sim.sim_disk import READ_WITHIN_S, RECOVERS_IN_S, WRITE_WITHIN_S, Disk
from copperfs.lab.sim.virtual_clock import VirtualClock
from copperfs.model.types import BlobId, ChunkKey, FetchId
from copperfs.node.events import DiskLoaded, DiskRecovered, Event, Stored


@dataclass(slots=True)
class DiskPort:
    disk: Disk
    clock: VirtualClock
    process: Process
    blobs: SimulatedBlobs
    post: Callable[[Event], None]
    holds: bool = False
    """Writes that have ended wait in ``held`` until ``let_go``: the disk does not report them."""
    held: deque[ChunkKey] = field(default_factory=deque)
    _storing: set[ChunkKey] = field(default_factory=set)
    """Chunks whose outcome the disk has not reported yet."""

    def load(self, fetch: FetchId, key: ChunkKey) -> None:
        begun, at = self.clock.now, self.disk.loaded_at(key)
        self.clock.at(at, self.process.take, self._load, fetch, key, begun)

    def save(self, key: ChunkKey, blob: BlobId) -> None:
        written_at = self.disk.store(key, self.blobs.content(blob))
        self._storing.add(key)
        at = self.clock.now if written_at is None else written_at
        written = written_at is not None
        self.clock.at(at, self.process.take, self._stored, key, written)
        if self.disk.hangs:
            self.watch()

    def _load(self, fetch: FetchId, key: ChunkKey, begun: float) -> None:
        disk = self.disk
        if disk.hangs and not disk.is_given_up:
            gives_up_at = begun + READ_WITHIN_S
            if self.clock.now < gives_up_at:
                at = min(gives_up_at, disk.hung_until)
                self.clock.at(at, self.process.take, self._load, fetch, key, begun)
                return
            disk.late += 1
        pieces = None if disk.hangs else disk.load(key)
        self.post(DiskLoaded(fetch, None if pieces is None else self.blobs.keep_blob(pieces)))

    def _stored(self, key: ChunkKey, written: bool) -> None:
        if key not in self._storing:
            return  # it was dropped when the disk was given up
        at = self.disk.written_at(key)
        if written and at is not None and at > self.clock.now:
            self.clock.at(at, self.process.take, self._stored, key, written)
            return
        if self.holds and written:
            self.held.append(key)
            return
        self._storing.remove(key)
        self.post(Stored(key, written, self.disk.takes_nothing, self.disk.is_outgrown))

    def let_go(self) -> None:
        self.holds = False
        while self.held:
            self._stored(self.held.popleft(), True)

    def watch(self) -> None:
        self.process.after(WRITE_WITHIN_S, self._give_up, self.disk.hung_until)

    def _give_up(self, until: float) -> None:
        disk = self.disk
        if disk.hung_until != until or not disk.hangs or disk.is_degraded or not disk.degrade():
            return
        self.clock.at(until + RECOVERS_IN_S, self.process.take, self._recover)
        lost = [key for key in self._storing if disk.written_at(key) is None]
        self._storing.difference_update(lost)
        for key in sorted(lost, key=lambda each: (each.path, each.version, each.index)):
            self.post(Stored(key, False, True, disk.is_outgrown))

    def _recover(self) -> None:
        if self.disk.is_degraded and not self.disk.hangs:
            self.disk.is_degraded = False
            if not self.disk.is_full:
                self.post(DiskRecovered())

    def set_full(self, is_full: bool) -> None:
        recovered, self.disk.is_full = self.disk.is_full and not is_full, is_full
        if recovered:
            self.process.take(self.post, DiskRecovered())
