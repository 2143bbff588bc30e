"""Fetches by threads in Python, for a mount without the C extensions."""

import errno
from collections.abc import Callable
from dataclasses import dataclass

import trio

from copperfs.blob import FileBlob
from copperfs.core.actions import Fetch, LookSource, OpenSource, ReadChunk, ReadSource, ScanSource
from copperfs.core.events import Failed, Looked, Opened, Scanned
from copperfs.core.listing import Listing
from copperfs.source.fetcher import (
    COUNTED,
    Arrive,
    Arrived,
    BlobRead,
    PoolStats,
    close_aside,
    names_in,
    refused,
)
from copperfs.source.files import UNUSED_S
from copperfs.source.pool import Pool
from copperfs.source.posix import PosixSource
from copperfs.source.turns import Turns
from copperfs.types import Entry, FetchId, HandleId, Path


class ThreadFetcher:
    """The directory *root*, read by Python threads."""

    def __init__(
        self,
        root: bytes,
        *,
        listing_max: int,
        concurrency: int,
        deadline_s: float,
        untouchable: Callable[[], frozenset[Path]],
    ) -> None:
        self._source = PosixSource(root, listing_max=listing_max, deadline_s=deadline_s)
        self._deadline_s = deadline_s
        self._untouchable = untouchable
        self._trio = trio.lowlevel.current_trio_token()
        self._pool = Pool(
            concurrency,
            self._trio.run_sync_soon,
            make_room=lambda: self._source.files.close_unused(0.0),
            left_behind=self._source.watch.hanging,
        )
        self._source.watch.may_leave = self._pool.replaces
        self._turns = Turns(concurrency, deadline_s, self._submit, self._fail)
        self._arrive: Arrive | None = None
        self._early: list[Arrived] = []  # what arrived before anybody listened

    def start(self, fetch: Fetch, looked_for: tuple[bytes, ...] = ()) -> None:
        outcome = refused(fetch, self._untouchable())
        if outcome is not None:
            self._trio.run_sync_soon(self._hand_over, outcome)
        elif isinstance(fetch, ReadChunk):
            self._turns.start(fetch)
        else:
            self._submit(fetch, looked_for)

    def _fail(self, fetch: FetchId, error: int) -> None:
        self._trio.run_sync_soon(self._hand_over, Failed(fetch, error))

    def _submit(self, fetch: Fetch, looked_for: tuple[bytes, ...] = ()) -> None:
        source = self._source
        work: Callable[[], object]
        match fetch:
            case ScanSource(_, path):
                names = names_in(path, self._untouchable())
                work = lambda: source.scan(path, names)  # noqa: E731
            case LookSource(_, path):
                work = lambda: source.look(path)  # noqa: E731
            case ReadSource(_, path, version):
                work = lambda: _looked_through(source.read(path, version), looked_for)  # noqa: E731
            case OpenSource(_, path, version):
                work = lambda: source.open(path, version)  # noqa: E731
            case ReadChunk(_, path, version, offset, length):
                work = lambda: source.read_chunk(path, version, offset, length)  # noqa: E731
        self._pool.submit(work, lambda result: self._done(fetch.fetch, result), self._deadline_s)

    async def run(self, arrive: Arrive) -> None:
        self._arrive = arrive
        early, self._early = self._early, []
        for outcome in early:
            arrive(outcome)
        await trio.sleep_forever()

    def _done(self, fetch: FetchId, result: object) -> None:
        self._turns.ended(fetch)
        self._hand_over(_arrived(fetch, result))

    def _hand_over(self, outcome: Arrived) -> None:
        if self._arrive is None:
            self._early.append(outcome)
        else:
            self._arrive(outcome)

    def reader(self, own_device: int) -> None:
        return None

    def watch_mounts(self) -> bool:
        return False

    def trust_mounts(self) -> None:
        """Nothing is read without asking."""

    def close_handle(self, handle: HandleId) -> None:
        close_aside(handle)

    def ignore_inodes(self) -> None:
        self._source.filesystems.ignore_inodes()

    def replace_stuck(self) -> None:
        self._pool.replace_stuck()
        self._turns.give_up_on_stuck()

    def close_unused(self, for_s: float = UNUSED_S) -> None:
        for fd in self._source.files.take_unused(for_s):
            close_aside(HandleId(fd))

    def counts(self) -> dict[str, int]:
        return {kind: self._source.counts.counts[kind] for kind in COUNTED}

    def reset_counts(self) -> None:
        self._source.counts.reset()

    def statistics(self) -> PoolStats:
        return self._pool.statistics()

    def close(self) -> None:
        self._turns.close()
        self._pool.close()
        self.close_unused(0.0)


@dataclass(frozen=True, slots=True)
class _LookedThrough:
    blob: FileBlob
    mentioned: tuple[bytes, ...]


def _looked_through(blob: FileBlob, looked_for: tuple[bytes, ...]) -> _LookedThrough:
    return _LookedThrough(blob, blob.mentioned(looked_for) if looked_for else ())


def _arrived(fetch: FetchId, result: object) -> Arrived:
    match result:
        case OSError():
            return Failed(fetch, result.errno or errno.EIO)
        case Listing():
            return Scanned(fetch, result)
        case Entry() | None:
            return Looked(fetch, result)
        case int():
            return Opened(fetch, HandleId(result))
        case _LookedThrough(blob, mentioned):
            return BlobRead(fetch, blob, mentioned)
        case _:
            return BlobRead(fetch, result)  # type: ignore[arg-type]  # the rest are blobs
