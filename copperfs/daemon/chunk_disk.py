"""Chunk disk: connects the node's chunk cache to the disk store, and makes the placement.

A chunk loaded from disk keeps the digest that was taken where the source was read.

The store starts before the mount is ready, so that the node does not read its content from the
source again. If the disk does not answer by then, the store is degraded, and may recover.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from copperfs.chunkstore.disk_ops import RealFiles
from copperfs.chunkstore.disk_store import DiskLimits, DiskStore, Inherited, open_store
from copperfs.chunkstore.store_interface import Chunk
from copperfs.config.settings import Settings
from copperfs.daemon.daemon_blobs import DaemonBlobs
from copperfs.daemon.handover import TIER_LOCK, Handover
from copperfs.launch.launch_method import Launch
from copperfs.model.errors import MountError, StoreError
from copperfs.model.types import BlobId, ChunkKey, FetchId
from copperfs.node.events import DiskLoaded, DiskRecovered, Event, Stored
from copperfs.node.routing.hash_ring import VNODES, Ring
from copperfs.node.routing.placement_order import Placement, weights_of

log = logging.getLogger(__name__)

BEGINS_WITHIN_S = 15.0
"""The store finds a million chunks in 3 s. It gives up on its disk before this deadline."""
OPENS_WITHIN_S = 0.5
"""In a successor, which applications wait for. The store tries again later."""
MOVES_WITHIN_S = 2.0
"""For at most 64 MiB of writes that are pending when the daemon ends."""
# More virtual nodes spread the chunks more evenly.
VNODES_MAX = 500
POINTS_MAX = 1_000_000


def chunk_bytes_of(settings: Settings, launch: Launch | None) -> int:
    if launch is None:
        has_tier = settings.tier_dir is not None
    else:
        has_tier = any(each.tier_bytes for each in launch.roster.members)
    return settings.chunk_size_bytes if has_tier else 0


def placement_of(settings: Settings, launch: Launch | None) -> Placement | None:
    if launch is None or not chunk_bytes_of(settings, launch):
        return None
    members = launch.roster.members
    names = [each.name for each in members]
    weights = weights_of([each.tier_bytes for each in members])
    return Ring(names, weights, settings.vnodes or vnodes_for(len(members)))


def vnodes_for(nodes: int) -> int:
    return max(VNODES, min(VNODES_MAX, POINTS_MAX // nodes))


async def open_tier_store(
    settings: Settings, source_root: bytes, before: Handover | None = None
) -> DiskStore | None:
    """MountError if the directory is unusable, and there was no daemon *before*."""
    inherited = None if before is None else _inherited(before)
    if settings.tier_dir is None:
        if inherited is not None and inherited.lock is not None:
            RealFiles().unlock(inherited.lock)
        return None
    limits = DiskLimits(
        budget_bytes=settings.tier_size_bytes or 0, mover_rate_bytes_s=settings.mover_rate_bytes
    )
    try:
        return await open_store(
            settings.tier_dir,
            limits,
            source=source_root,
            chunk_bytes=settings.chunk_size_bytes,
            inherited=inherited,
            opens_within_s=None if inherited is None else OPENS_WITHIN_S,
        )
    except StoreError as error:
        raise MountError(str(error)) from error


def _inherited(before: Handover) -> Inherited:
    device = None if "tier_dir" in before.changes else before.tier_device
    return Inherited(before.exclusives.get(TIER_LOCK), device)


@dataclass(slots=True)
class ChunkDisk:
    """The driver's port to the disk of the chunk cache."""

    store: DiskStore
    blobs: DaemonBlobs
    post: Callable[[Event], None]
    _nursery: trio.Nursery | None = None
    _begun: trio.Event = field(default_factory=trio.Event)
    _over: deque[tuple[ChunkKey, bool] | None] = field(default_factory=deque)
    """Outcomes of writes that the node has not been told yet; the node bounds their number. None
    means that the disk accepts chunks again."""
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
        with trio.move_on_after(BEGINS_WITHIN_S):
            await self._begun.wait()

    async def wait_moved(self) -> None:
        with trio.move_on_after(MOVES_WITHIN_S):
            await self.store.wait_moved()

    def load(self, fetch: FetchId, key: ChunkKey) -> None:
        assert self._nursery is not None, "chunks are asked for while it runs"
        self._nursery.start_soon(self._load, fetch, key)

    def save(self, key: ChunkKey, blob: BlobId) -> None:
        over = partial(self._is_over, key)
        if not self.store.put_nowait(key, self._chunk(blob), over):
            over(False)

    def _is_over(self, key: ChunkKey, written: bool) -> None:
        """The store may call this in the middle of a step of the node, so it only queues."""
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

    async def _load(self, fetch: FetchId, key: ChunkKey) -> None:
        chunk = await self.store.read(key)
        blob = None if chunk is None else self.blobs.keep_blob(chunk.blob, chunk.digest)
        self.post(DiskLoaded(fetch, blob))

    def _chunk(self, blob: BlobId) -> Chunk:
        return Chunk(self.blobs.held[blob], self.blobs.whole(blob).digest)
