"""The edge of the data tier: what the core is told of it at the start, and its disk.

The core keeps chunks in memory and decides everything; here is what it cannot do: make the
placement from the roster, and carry chunks between the blobs of the engine and the store on the
disk of this node. A chunk that is loaded comes with the digest that was taken where the source was
read, and goes on to other nodes with it.

The store begins before the mount answers, because what it finds is not read from the source again.
A disk that does not answer by then is not waited for: the store is degraded, and may come back.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from copperfs.bootstrap.launch import Launch
from copperfs.config import Settings
from copperfs.core.actions import AtDisk, LoadChunk, StoreChunk
from copperfs.core.events import DiskRecovered, Event, Loaded, Stored
from copperfs.core.placement import Placement, weights_of
from copperfs.core.rendezvous_hashing import RendezvousHashing
from copperfs.core.ring import VNODES, Ring
from copperfs.errors import MountError, StoreError
from copperfs.runtime.peers import Blobs
from copperfs.store.contract import Chunk
from copperfs.store.disk import DiskLimits, DiskStore, open_store
from copperfs.types import BlobId, ChunkKey

log = logging.getLogger(__name__)

BEGINS_WITHIN_S = 15.0
"""A million chunks are found in 3 s. The store gives up on its disk before that."""
MOVES_WITHIN_S = 2.0
"""What is still to be written when the daemon ends. At most 64 MiB wait."""
# More share the chunks out more evenly, and cost nothing where the ring stays small.
VNODES_MAX = 500
POINTS_MAX = 1_000_000


def chunk_bytes_of(settings: Settings, launch: Launch | None) -> int:
    """The size of chunks; 0 if no node of the job keeps any."""
    if launch is None:
        has_tier = settings.tier_dir is not None
    else:
        has_tier = any(each.tier_bytes for each in launch.roster.members)
    return settings.chunk_size_bytes if has_tier else 0


def placement_of(settings: Settings, launch: Launch | None) -> Placement | None:
    """Who keeps what; None if there is nobody else, or nothing is kept."""
    if launch is None or not chunk_bytes_of(settings, launch):
        return None
    members = launch.roster.members
    names = [each.name for each in members]
    weights = weights_of([each.tier_bytes for each in members])
    if settings.placement == "rendezvous":
        return RendezvousHashing(names, weights)
    return Ring(names, weights, settings.vnodes or vnodes_for(len(members)))


def vnodes_for(nodes: int) -> int:
    return max(VNODES, min(VNODES_MAX, POINTS_MAX // nodes))


async def open_tier_store(settings: Settings, source_root: bytes) -> DiskStore | None:
    """The store of this node; None if it has none. MountError if its directory cannot be one."""
    if settings.tier_dir is None:
        return None
    limits = DiskLimits(
        budget_bytes=settings.tier_size_bytes or 0, mover_rate_bytes_s=settings.mover_rate_bytes
    )
    try:
        return await open_store(
            settings.tier_dir, limits, source=source_root, chunk_bytes=settings.chunk_size_bytes
        )
    except StoreError as error:
        raise MountError(str(error)) from error


@dataclass(slots=True)
class TierDisk:
    """Performs what the core wants of the disk."""

    store: DiskStore
    blobs: Blobs
    post: Callable[[Event], None]
    _nursery: trio.Nursery | None = None
    _begun: trio.Event = field(default_factory=trio.Event)
    _over: deque[tuple[ChunkKey, bool] | None] = field(default_factory=deque)
    """What became of chunks that were stored, and the core has not heard of; it bounds them. None:
    the disk takes chunks again, which is no news of before those that are told first."""
    _news: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.store.recovered = self._recovered

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._run_telling)
            await nursery.start(self.store.run)
            self._begun.set()

    async def wait_begun(self) -> None:
        """Until it is known what lies on the disk; for a while at most."""
        with trio.move_on_after(BEGINS_WITHIN_S):
            await self._begun.wait()

    async def wait_moved(self) -> None:
        """Until what was taken is written; for a moment at most."""
        with trio.move_on_after(MOVES_WITHIN_S):
            await self.store.wait_moved()

    def perform(self, action: AtDisk) -> None:
        match action:
            case LoadChunk():
                assert self._nursery is not None, "chunks are asked for while it runs"
                self._nursery.start_soon(self._load, action)
            case StoreChunk(key, blob):
                over = partial(self._is_over, key)
                if not self.store.put_nowait(key, self._chunk(blob), over):
                    over(False)

    def _is_over(self, key: ChunkKey, written: bool) -> None:  # as the store says
        """The core is told later: it is in the middle of a step, perhaps."""
        self._over.append((key, written))
        self._news.set()

    async def _run_telling(self) -> None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._over:
                over, stats = self._over.popleft(), self.store.statistics()
                is_degraded = stats.degraded_since is not None
                if over is not None:
                    key, written = over
                    self.post(Stored(key, written, is_degraded, stats.is_outgrown))
                elif not is_degraded:
                    self.post(DiskRecovered())
                await trio.lowlevel.checkpoint()

    def _recovered(self) -> None:
        self._over.append(None)
        self._news.set()

    async def _load(self, action: LoadChunk) -> None:
        chunk = await self.store.read(action.key)
        blob = None if chunk is None else self.blobs.keep(chunk.blob, chunk.digest)
        self.post(Loaded(action.fetch, blob))

    def _chunk(self, blob: BlobId) -> Chunk:
        return Chunk(self.blobs.held[blob], self.blobs.whole(blob).digest)
