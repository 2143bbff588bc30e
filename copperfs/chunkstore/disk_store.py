"""Disk store: keeps chunks on the disk of this node.

All state is on trio's thread: the index (chunks on disk, in the order of use), the backlog (not
written yet), the doomed (to be deleted). Only calls to the disk run in threads: readers, and
one mover, which deletes before it writes, so that the disk never holds more than the budget.

A disk that fails causes no error elsewhere. After a write that fails, or takes too long, the store
is *degraded*: it drops its backlog and refuses chunks, but still reads. At intervals it probes
whether a chunk can be written, and opens the directory again if that is another by then, or gone.

A chunk that is being read is not evicted. ``_reading`` changes only when a thread has really ended
(``disk_threads.py``).
"""

import errno
import logging
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import trio

from copperfs.chunkstore.chunk_files import Directory, Found, Index, open_directory
from copperfs.chunkstore.disk_format import (
    ChunkPlace,
    Erasure,
    encoded,
    header_bytes,
    name_of,
    scope_of,
    unpacked,
)
from copperfs.chunkstore.disk_ops import Files, RealFiles
from copperfs.chunkstore.disk_threads import DiskThreads
from copperfs.chunkstore.rate_limit import RateLimit
from copperfs.chunkstore.store_interface import Chunk, Over, ScrubReport, StoreStats
from copperfs.model.errors import StoreError
from copperfs.model.types import ChunkKey

T = TypeVar("T")
log = logging.getLogger(__name__)

EVICT_AT_ONCE = 256
PROBE_BYTES = 1 << 20
BACKLOG_BYTES_MAX = 64 << 20
CLOSING_S = 2.0
"""For reads and writes under way when the store ends."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
# Errors of a read that are not the chunk's fault.
_OWN_TROUBLE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


class Inherited(NamedTuple):
    """By a store from its predecessor."""

    lock: int | None
    """The descriptor that the predecessor has locked. It is never closed: a thread may hang that
    uses it."""
    device: int | None
    """Of the predecessor's directory; None: another directory is used now, or it had none."""


@dataclass(frozen=True, slots=True)
class DiskLimits:
    budget_bytes: int
    backlog_bytes_max: int = BACKLOG_BYTES_MAX
    """On top of every other budget. The node hands over no more (``node/cache/write_back.py``)."""
    mover_rate_bytes_s: int = 0
    """0: as fast as the disk takes it."""
    free_bytes_min: int = 1 << 30
    """Left free for others; chunks are evicted for it, too."""
    readers: int = 4
    """Two keep a core busy with cached bytes; NVMe wants more."""
    deadline_s: float = 10.0
    """A slower write degrades the store; a disk may have to empty a cache."""
    read_deadline_s: float = 2.0
    """After it the source is asked. A peer turns away from a chunk owner after 10 s
    (``Timeouts.slow_s``)."""
    probe_min_s: float = 1.0
    probe_max_s: float = 30.0
    """Between probes; each pause is twice the one before."""


@dataclass(slots=True)
class _Waiting:
    encoded_key: bytes
    chunk: Chunk
    overs: list[Over]

    @property
    def size(self) -> int:
        return len(self.chunk.blob)

    def place(self, name: bytes, serial: int) -> ChunkPlace:
        return ChunkPlace(name, serial, header_bytes(self.encoded_key) + self.size)


class _NoRoom(OSError):
    """*missing* bytes below what must stay free after the write."""

    def __init__(self, missing: int) -> None:
        super().__init__(errno.ENOSPC, "others need what is left of its disk")
        self.missing = missing


@dataclass(slots=True, eq=False)
class DiskStore:
    """Made by ``open_store``. For trio's thread only."""

    path: str
    scope: bytes
    limits: DiskLimits
    files: Files
    _directory: Directory | None
    _trouble: OSError | None
    recovered: Callable[[], object] = lambda: None
    """Called each time that the disk takes chunks again."""
    opened: Callable[[], object] = lambda: None
    """Called each time that another directory is used."""
    inherited_lock: int | None = None
    """A descriptor of the predecessor."""
    _index: Index = field(default_factory=OrderedDict)
    _index_bytes: int = 0
    _backlog: OrderedDict[bytes, _Waiting] = field(default_factory=OrderedDict)
    _doomed: deque[ChunkPlace] = field(default_factory=deque)
    _doomed_bytes: int = 0
    _writing_bytes: int = 0
    _reading: Counter[bytes] = field(default_factory=Counter)
    _serial: int = 1
    _first_serial: int = 1
    """Chunks from here on were written since the directory was opened."""
    _device: int | None = None
    _known: bool = False
    """Whether the index is that of the directory."""
    _probe_pause_s: float = 0.0
    _ended: bool = False
    _stats: StoreStats = field(default_factory=StoreStats)
    _news: trio.Event = field(default_factory=trio.Event)
    _moved: trio.Event = field(default_factory=trio.Event)
    _pace: RateLimit = field(init=False)
    _readers: DiskThreads = field(init=False)
    _mover: DiskThreads = field(init=False)

    def __post_init__(self) -> None:
        self._pace = RateLimit(self.limits.mover_rate_bytes_s)
        self._readers = DiskThreads(self.limits.readers, "copperfs-store")
        self._mover = DiskThreads(1, "copperfs-mover")

    # --- requests --------------------------------------------------------------------------------

    def holds(self, key: ChunkKey) -> bool:
        name = name_of(encoded(self.scope, key))
        return name in self._backlog or name in self._index

    def touch(self, key: ChunkKey) -> bool:
        name = name_of(encoded(self.scope, key))
        if name in self._index:
            self._index.move_to_end(name)
            return True
        return name in self._backlog

    def put_nowait(self, key: ChunkKey, chunk: Chunk, over: Over = lambda _: None) -> bool:
        encoded_key = encoded(self.scope, key)
        name = name_of(encoded_key)
        if name in self._index:
            over(True)
            return True
        if name in self._backlog:
            self._backlog[name].overs.append(over)
            return True
        waiting = _Waiting(encoded_key, chunk, [over])
        if (
            self._ended
            or self._stats.degraded_since is not None
            or waiting.place(name, 0).cost > self.limits.budget_bytes
            or self._stats.backlog_bytes + waiting.size > self.limits.backlog_bytes_max
        ):
            self._stats.refused += 1
            return False
        self._backlog[name] = waiting
        self._stats.backlog_bytes += waiting.size
        self._news.set()
        return True

    async def read(self, key: ChunkKey) -> Chunk | None:
        encoded_key = encoded(self.scope, key)
        name = name_of(encoded_key)
        waiting = self._backlog.get(name)
        packed = self._index.get(name)
        found: Chunk | Erasure | None
        if waiting is not None or packed is None or self._directory is None:
            await trio.lowlevel.checkpoint()
            found = waiting.chunk if waiting else None
        else:
            self._index.move_to_end(name)
            place = unpacked(name, packed)
            found = await self._attempt(place, partial(self._directory.load, place, encoded_key))
        if isinstance(found, Chunk):
            self._stats.hits += 1
            return found
        self._stats.misses += 1
        return None

    def drop(self, key: ChunkKey) -> bool:
        name = name_of(encoded(self.scope, key))
        waiting = self._forget_waiting(name, written=True)  # the write has lost its purpose
        return self._doom(name) or waiting

    async def scrub(
        self, rate_bytes_s: int = 0, so_far: Callable[[ScrubReport], object] = lambda _: None
    ) -> ScrubReport:
        pace = RateLimit(rate_bytes_s)
        chunks = size = erasures = 0
        for name, packed in list(self._index.items()):
            await trio.sleep(pace.delay_s(trio.current_time()))
            if self._index.get(name) != packed or self._directory is None:
                continue
            place = unpacked(name, packed)
            pace.spend(trio.current_time(), place.size)
            found = await self._attempt(place, partial(self._directory.check, place))
            if found is not None:
                chunks += 1
                size += place.size
                erasures += isinstance(found, Erasure)
                so_far(ScrubReport(chunks, size, erasures))
        return ScrubReport(chunks, size, erasures)

    async def wait_moved(self) -> None:
        await trio.lowlevel.checkpoint()
        while self._has_work():
            if self._moved.is_set():
                self._moved = trio.Event()
            await self._moved.wait()

    @property
    def lock_fd(self) -> int | None:
        """By which a successor uses the directory, while this process may still hold it."""
        return self.inherited_lock if self._directory is None else self._directory.lock

    @property
    def device(self) -> int | None:
        """Of the filesystem that has the directory, also while it is not mounted."""
        return self._device

    def statistics(self) -> StoreStats:
        held = self._index_bytes + self._doomed_bytes + self._writing_bytes
        return replace(
            self._stats,
            held_bytes=held,
            held_chunks=len(self._index),
            backlog_chunks=len(self._backlog),
        )

    def reset_counts(self) -> None:
        kept = StoreStats(
            backlog_bytes=self._stats.backlog_bytes,
            degraded_since=self._stats.degraded_since,
            is_outgrown=self._stats.is_outgrown,
        )
        self._stats = kept

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            await self._begin()
            task_status.started()
            while True:
                await trio.lowlevel.checkpoint()
                if self._stats.degraded_since is not None:
                    await self._recover()
                elif self._has_work():
                    await self._work()
                else:
                    self._moved.set()
                    await self._news.wait()
                    self._news = trio.Event()
        finally:
            with trio.CancelScope(shield=True):
                await self._close()

    # --- reading ---------------------------------------------------------------------------------

    async def _attempt(self, place: ChunkPlace, work: Callable[[], T]) -> T | Erasure | None:
        """An Erasure if the chunk was at fault, and dropped; None if neither."""
        self._reading[place.name] += 1
        over = partial(self._has_read, place.name)
        try:
            return await self._readers.run(work, self.limits.read_deadline_s, over)
        except Erasure as error:
            return self._erased(place, error)
        except TimeoutError:
            self._stats.late += 1
        except OSError as error:
            if error.errno not in _OWN_TROUBLE:
                return self._erased(place, Erasure(error.strerror))
        except MemoryError:
            log.info("no memory to read a chunk into")
        return None

    def _has_read(self, name: bytes) -> None:
        self._reading[name] -= 1
        if not self._reading[name]:
            del self._reading[name]

    def _erased(self, place: ChunkPlace, erasure: Erasure) -> Erasure | None:
        if self._index.get(place.name) != place.packed:
            return None  # it was dropped during the read
        log.info("the chunk in %s/chunks/%s is lost: %s", self.path, place.path, erasure)
        self._stats.erasures += 1
        self._doom(place.name)
        return erasure

    # --- the mover -------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        degraded = self._stats.degraded_since is not None
        over = self._index_bytes > self.limits.budget_bytes
        return not degraded and bool(self._doomed or self._backlog or over)

    async def _work(self) -> None:
        if self._doomed:
            await self._delete_doomed()
        elif self._index_bytes > self.limits.budget_bytes:  # larger before the restart
            self._evict(self._index_bytes - self.limits.budget_bytes)
        else:
            await trio.sleep(self._pace.delay_s(trio.current_time()))
            if self._backlog and not self._doomed:
                await self._write(*next(iter(self._backlog.items())))

    async def _delete_doomed(self) -> None:
        directory = self._directory
        assert directory is not None
        doomed = list(islice(self._doomed, EVICT_AT_ONCE))
        try:
            await self._patiently(partial(_delete, directory, doomed))
        except OSError as error:
            self._degrade(error)
        else:
            for place in doomed:
                self._doomed.popleft()
                self._doomed_bytes -= place.cost

    async def _write(self, name: bytes, waiting: _Waiting) -> None:
        directory = self._directory
        assert directory is not None
        place = waiting.place(name, self._serial)
        missing = self._index_bytes + place.cost - self.limits.budget_bytes
        if name in self._index:
            self._forget_waiting(name, written=True)  # a restart found it
            return
        if missing > 0:
            if not self._evict(missing):
                self._refuse(name)  # all are being read
            return
        self._serial += 1
        self._writing_bytes = place.cost
        self._pace.spend(trio.current_time(), place.size)
        free_min = self.limits.free_bytes_min

        def work() -> None:
            missing = free_min + place.cost - directory.free_bytes()
            if missing > 0:
                raise _NoRoom(missing)
            directory.write(place, waiting.encoded_key, waiting.chunk)

        try:
            await self._patiently(work)
        except OSError as error:
            missing = error.missing if isinstance(error, _NoRoom) else place.cost
            if error.errno not in _FULL or not self._evict(missing):
                self._degrade(error)
        else:
            self._written(place, waiting)
        finally:
            self._writing_bytes = 0

    def _written(self, place: ChunkPlace, waiting: _Waiting) -> None:
        self._stats.writes += 1
        self._stats.written_bytes += waiting.size
        wanted = self._backlog.get(place.name) is waiting
        self._index[place.name] = place.packed
        self._index_bytes += place.cost
        if wanted:
            self._forget_waiting(place.name, written=True)
        else:  # it was dropped during the write
            self._doom(place.name)

    async def _patiently(self, work: Callable[[], T]) -> T:
        """A timeout degrades the store, but the disk's answer tells the result."""
        job = self._mover.start(work)
        with trio.move_on_after(self.limits.deadline_s):
            return await job.wait()
        self._degrade(TimeoutError(errno.ETIMEDOUT, "it does not answer"))
        return await job.wait()

    def _evict(self, wanted: int) -> int:
        """Return how many bytes, which may be fewer."""
        victims: list[bytes] = []
        got = 0
        for name, packed in self._index.items():
            if got >= wanted or len(victims) >= EVICT_AT_ONCE:
                break
            if name not in self._reading:
                place = unpacked(name, packed)
                victims.append(name)
                got += place.cost
                self._outgrow(place)
        for name in victims:
            self._doom(name)
        self._stats.evictions += len(victims)
        self._stats.evicted_bytes += got
        return got

    def _outgrow(self, victim: ChunkPlace) -> None:
        if victim.serial >= self._first_serial and not self._stats.is_outgrown:
            self._stats.is_outgrown = True
            log.info("%s does not hold all chunks: what was used longest ago goes", self.path)

    def _doom(self, name: bytes) -> bool:
        """False: there was no such chunk."""
        packed = self._index.pop(name, None)
        if packed is None:
            return False
        place = unpacked(name, packed)
        self._index_bytes -= place.cost
        self._doomed.append(place)
        self._doomed_bytes += place.cost
        self._news.set()
        return True

    def _forget_waiting(self, name: bytes, *, written: bool) -> bool:
        waiting = self._backlog.pop(name, None)
        if waiting is None:
            return False
        self._stats.backlog_bytes -= waiting.size
        for over in waiting.overs:
            over(written)
        return True

    def _refuse(self, name: bytes) -> None:
        self._forget_waiting(name, written=False)
        self._stats.refused += 1

    # --- beginning, failing, ending --------------------------------------------------------------

    async def _begin(self) -> None:
        directory = self._directory
        try:
            if self._trouble is not None:
                raise self._trouble
            assert directory is not None
            self._install(directory, await self._patiently(lambda: _look_through(directory)))
        except OSError as error:
            self._degrade(error)

    def _install(self, directory: Directory, found: Found) -> None:
        self._directory, self._device, self._known = directory, directory.device, True
        self._index, self._index_bytes = found.index, found.bytes
        self._doomed = deque(found.superseded)
        self._doomed_bytes = sum(place.cost for place in found.superseded)
        self._serial = self._first_serial = found.serial
        self._stats.is_outgrown = False
        self.opened()

    def _degrade(self, error: OSError) -> None:
        while self._backlog:
            self._refuse(next(iter(self._backlog)))
        self._moved.set()
        if self._stats.degraded_since is None:
            self._stats.degraded_since = trio.current_time()
            self._stats.degradations += 1
            self._probe_pause_s = self.limits.probe_min_s
            log.warning("nothing more is written to %s for now: %s", self.path, error.strerror)

    async def _recover(self) -> None:
        await trio.sleep(self._probe_pause_s)
        self._probe_pause_s = min(2 * self._probe_pause_s, self.limits.probe_max_s)
        try:
            fresh = await self._patiently(self._probe)
        except (OSError, StoreError) as error:
            log.debug("%s still takes nothing: %s", self.path, error)
            return
        if fresh is not None:
            self._install(*fresh)
        self._stats.degraded_since = None
        log.info("%s takes chunks again", self.path)
        self.recovered()

    def _probe(self) -> tuple[Directory, Found] | None:
        """In the mover's thread. Return the directory's content if it was opened anew."""
        directory, found = self._directory, None
        if directory is None or not directory.is_there():
            directory = open_directory(self.path, self.files, self._device, self.inherited_lock)
        try:
            if directory is not self._directory or not self._known:
                found = _look_through(directory)
            else:
                directory.sweep()
            free_bytes = directory.free_bytes() - self.limits.free_bytes_min
            if free_bytes < PROBE_BYTES and not (found.index if found else self._index):
                raise _NoRoom(PROBE_BYTES - free_bytes)
            directory.try_to_write(PROBE_BYTES)
        except BaseException:
            if directory is not self._directory:
                directory.close()
            raise
        return None if found is None else (directory, found)

    async def _close(self) -> None:
        """A disk that hangs keeps its directory, and the lock."""
        self._ended = True
        self._backlog.clear()
        self._stats.backlog_bytes = 0
        self._moved.set()
        self._readers.close()
        self._mover.close()
        directory, self._directory = self._directory, None
        with trio.move_on_after(CLOSING_S):
            await self._readers.wait_idle()
            await self._mover.wait_idle()
            if directory is not None:
                directory.unlock()
                directory.close()


def _look_through(directory: Directory) -> Found:
    directory.sweep()
    return directory.scan()


def _delete(directory: Directory, doomed: list[ChunkPlace]) -> None:
    for place in doomed:
        directory.delete(place)


async def open_store(
    path: str,
    limits: DiskLimits,
    *,
    source: bytes,
    chunk_bytes: int,
    files: Files | None = None,
    inherited: Inherited | None = None,
    opens_within_s: float | None = None,
) -> DiskStore:
    """StoreError for a directory that must not be used; a failing disk gives a degraded store. With
    *inherited* any directory does: a mount in use does not end for its disk."""
    path, files = os.path.abspath(path), files or RealFiles()  # noqa: ASYNC240  # asks no disk
    lock, device = (None, None) if inherited is None else inherited
    directory: Directory | None = None
    trouble: OSError | None = None
    try:
        with trio.fail_after(opens_within_s or limits.deadline_s):
            # A caller that gives up on it releases what it opens later.
            directory = await trio.to_thread.run_sync(
                open_directory, path, files, device, lock, abandon_on_cancel=True
            )
    except trio.TooSlowError:
        trouble = TimeoutError(errno.ETIMEDOUT, "it does not answer")
    except OSError as error:
        trouble = error
    except StoreError as error:
        if inherited is None:
            raise
        trouble = OSError(errno.EINVAL, str(error))
    scope = scope_of(source, chunk_bytes)
    return DiskStore(
        path,
        scope,
        limits,
        files,
        directory,
        trouble,
        inherited_lock=lock,
        _device=device,
    )
