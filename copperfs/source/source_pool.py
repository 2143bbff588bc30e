"""Source fetches by a pool of C threads, without the GIL: one wake-up serves many outcomes
(decision 8).
"""

import os
from collections.abc import Callable
from itertools import compress
from typing import TYPE_CHECKING

import trio

from copperfs.model.listing import NAME_MAX, Listing
from copperfs.model.types import Attributes, Entry, FetchId, HandleId, Path
from copperfs.native import SourcePool
from copperfs.node.actions import (
    ListSource,
    LookupSource,
    OpenForBypass,
    ReadChunk,
    ReadSource,
    SourceAction,
)
from copperfs.node.events import Failed, Outcome, SourceListed, SourceLookedUp, SourceOpened
from copperfs.source.per_file_limit import Turns
from copperfs.source.source_interface import (
    Arrive,
    Arrived,
    BlobRead,
    PoolStats,
    close_aside,
    names_in,
    refused,
)

if TYPE_CHECKING:
    from copperfs.native import Result

_NO_VERSION = (0, 0, 0, 0)
UNUSED_S = 5.0
"""How long a file stays open after a chunk; a reader asks again within it, or has left."""


class PoolFetcher:
    def __init__(
        self,
        root: bytes,
        *,
        listing_max: int,
        concurrency: int,
        deadline_s: float,
        untouchable: Callable[[], frozenset[Path]],
        device: int | None = None,
    ) -> None:
        """*device* is that of the root, if it is known; else the source is asked."""
        prefix = root.rstrip(b"/") + b"/"
        self._untouchable = untouchable
        if device is None:
            device = os.stat(root).st_dev
        self._pool = SourcePool(prefix, concurrency, device, listing_max, deadline_s)
        self._started: dict[int, type[SourceAction]] = {}
        self._names_to_find: dict[int, tuple[bytes, ...]] = {}
        self._refused: list[Outcome] = []
        self._woken = trio.Event()
        self._turns = Turns(concurrency, deadline_s, self._submit, self._fail)

    def start(self, fetch: SourceAction, names_to_find: tuple[bytes, ...] = ()) -> None:
        if (outcome := refused(fetch, self._untouchable())) is not None:
            self._refuse(outcome)
        elif isinstance(fetch, ReadChunk):
            self._turns.start(fetch)
        else:
            self._submit(fetch, names_to_find)

    def _refuse(self, outcome: Outcome) -> None:
        self._refused.append(outcome)
        self._woken.set()

    def _fail(self, fetch: FetchId, error: int) -> None:
        self._refuse(Failed(fetch, error))

    def _submit(self, fetch: SourceAction, names_to_find: tuple[bytes, ...] = ()) -> None:
        kind, version = SourcePool.LOOK, _NO_VERSION
        names: tuple[bytes, ...] = ()
        offset = length = 0
        match fetch:
            case ListSource():
                kind, names = SourcePool.SCAN, names_in(fetch.path, self._untouchable())
            case ReadSource():
                kind, version = SourcePool.READ, fetch.version
            case OpenForBypass():
                kind, version = SourcePool.OPEN, fetch.version
            case ReadChunk():
                kind, version = SourcePool.CHUNK, fetch.version
                offset, length = fetch.offset, fetch.length
            case LookupSource():
                pass
        self._started[fetch.fetch] = type(fetch)
        packed = b""
        if names_to_find:
            names_to_find = tuple(name for name in names_to_find if 0 < len(name) <= NAME_MAX)
            packed = b"".join(bytes((len(name),)) + name for name in names_to_find) + b"\0"
            self._names_to_find[fetch.fetch] = names_to_find
        self._pool.submit(fetch.fetch, kind, fetch.path, version, names, offset, length, packed)

    async def run(self, arrive: Arrive) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_refusals, arrive)
            while True:
                await trio.lowlevel.wait_readable(self._pool.fileno())
                for number, error, result in self._pool.drain():
                    self._turns.ended(FetchId(number))
                    arrive(self._arrived(FetchId(number), error, result))

    async def _run_refusals(self, arrive: Arrive) -> None:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            waiting, self._refused = self._refused, []
            for outcome in waiting:
                arrive(outcome)

    def _arrived(self, fetch: FetchId, error: int, result: "Result") -> Arrived:
        kind = self._started.pop(fetch)
        names_to_find = self._names_to_find.pop(fetch, ())
        if error:
            return Failed(fetch, error)
        match result:
            case None:
                return SourceLookedUp(fetch, None)
            case (bytes(attributes), packed) if kind is ListSource:
                listing = Listing(packed, Attributes(attributes).version)
                if not listing.bare:
                    self._pool.count_stats(listing.count)
                return SourceListed(fetch, listing)
            case (bytes(attributes), target):
                return SourceLookedUp(fetch, Entry(Attributes(attributes), target))
            case (blob, mentioned):
                return BlobRead(fetch, blob, tuple(compress(names_to_find, mentioned)))
            case int():
                return SourceOpened(fetch, HandleId(result))
            case _:
                assert kind is ReadChunk
                return BlobRead(fetch, result)

    def close_handle(self, handle: HandleId) -> None:
        close_aside(handle)

    def reader(self, own_device: int) -> object:
        return self._pool.reader(own_device)

    def watch_mounts(self) -> bool:
        return self._pool.watch_mounts()

    def trust_mounts(self) -> None:
        self._pool.trust_mounts()

    def ignore_inodes(self) -> None:
        self._pool.ignore_inodes()

    def replace_stuck(self) -> None:
        self._pool.replace_stuck()
        self._turns.give_up_on_stuck()

    def close_unused(self, for_s: float = UNUSED_S) -> None:
        self._pool.close_unused(for_s)

    def counts(self) -> dict[str, int]:
        return self._pool.counts()

    def reset_counts(self) -> None:
        self._pool.reset_counts()

    def statistics(self) -> PoolStats:
        return PoolStats(*self._pool.statistics())

    def close(self) -> None:
        self._turns.close()
        self._pool.close()
