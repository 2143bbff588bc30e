"""Warming up: a working set is read once at the roots and pushed down to every node's memory.

An eighth of the CPU of asking for each file, and it happens before the job wants them. In four
steps:

1. *plan*: the node that was asked finds out which files the set has, by listing its directories
over the tree as any reader would, and how large it is; 2. it calls all nodes to push what is in
each tree; 3. a tree's *root* reads listings and files, packs them into batches of a megabyte, and
spreads them down the push tree, no faster than its children take them; 4. every other node unpacks
what comes, and answers the call when it has the last batch.

The core decides who gets what when; here bytes are packed and unpacked.
"""

import errno
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import trio

from copperfs.blob import Blob, new_blob
from copperfs.core.actions import AnswerListing, AnswerObject
from copperfs.core.events import BatchTaken, List, PushBatch, Pushed, PushedListing, Read
from copperfs.core.listing import Listing, MalformedListing
from copperfs.core.messages import PART_BYTES, Batch, Item, What
from copperfs.fuse.answers import Answered, Content, SourceError
from copperfs.runtime.engine import Engine
from copperfs.runtime.operations import Result
from copperfs.types import NodeId, Path, RequestId, Version, join
from copperfs.wire.codec import ITEMS_MAX
from copperfs.wire.payload import Payload

log = logging.getLogger(__name__)

# A root reads so many files at a time ...
READS_AT_ONCE = 32
# ... and stops reading while so much waits for its children.
BACKLOG_BYTES_MAX = 16 << 20
# A header has room for the paths of a batch; long paths need smaller batches.
BATCH_PATH_BYTES_MAX = 512 << 10
PUSHES_KEPT = 64

Directories = dict[str, list[str] | None]
"""What to warm up, by directory; None is all of its files."""


@dataclass(slots=True)
class _Packed:
    """A batch that is being filled."""

    items: list[Item] = field(default_factory=list)
    pieces: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0
    path_bytes: int = 0

    def add(self, item: Item, data: bytes | memoryview) -> None:
        self.items.append(item)
        self.pieces.append(data)
        self.size += item.length
        self.path_bytes += len(item.path)

    @property
    def is_full(self) -> bool:
        return (
            self.size >= PART_BYTES
            or len(self.items) >= ITEMS_MAX
            or self.path_bytes >= BATCH_PATH_BYTES_MAX
        )


@dataclass(slots=True)
class _Arriving:
    """A push as one of its receivers sees it."""

    objects: int = 0
    bytes: int = 0
    complete: trio.Event = field(default_factory=trio.Event)
    blobs: dict[tuple[Path, Version], Blob] = field(default_factory=dict)
    """Large objects of which pieces have come."""


@dataclass(slots=True)
class Warmup:
    engine: Engine
    _arriving: dict[int, _Arriving] = field(default_factory=dict)

    # --- the root --------------------------------------------------------------------------------

    async def push(self, argument: Result) -> Result:
        """This node's part of a push: the root reads and spreads, the others wait for it."""
        number, tree = int(argument["push"]), int(argument["tree"])
        trees = self.engine.node.trees
        if trees is None or trees.me == trees.root(tree):
            return await self._spread(number, tree, argument["directories"])
        arriving = self._push(number)
        await arriving.complete.wait()
        del self._arriving[number]
        return {"nodes": 1, "objects": arriving.objects, "bytes": arriving.bytes}

    async def _spread(self, number: int, tree: int, directories: Directories) -> Result:
        packed, sequence = _Packed(), 0
        done = {"nodes": 1, "objects": 0, "bytes": 0, "failed": 0}
        async with trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[tuple[Item, bytes | memoryview]](64)
            nursery.start_soon(self._read_all, directories, send, done)
            async for item, data in receive:
                packed.add(item, data)
                if packed.is_full:
                    await self._send(number, tree, sequence, packed, last=False)
                    packed, sequence = _Packed(), sequence + 1
        await self._send(number, tree, sequence, packed, last=True)
        return done

    async def _read_all(
        self,
        directories: Directories,
        send: trio.MemorySendChannel[tuple[Item, bytes | memoryview]],
        done: Result,
    ) -> None:
        """Listings and files of *directories*; a file that cannot be read is left out."""
        limiter = trio.CapacityLimiter(READS_AT_ONCE)
        whole_max = self.engine.node.limits.whole_max_bytes
        async with send, trio.open_nursery() as nursery:
            for name, names in directories.items():
                directory = Path(name.encode("utf-8", "surrogateescape"))
                try:
                    listing, fresh_until = await self._listing(directory)
                except SourceError:
                    done["failed"] += 1
                    continue
                left = None if fresh_until is None else max(0.0, fresh_until - time.monotonic())
                for item, data in _listing_items(directory, listing, left):
                    await send.send((item, data))
                wanted = None if names is None else set(names)
                for path, version in files_in(directory, listing, wanted):
                    if not 0 < version.size <= whole_max:
                        continue
                    await limiter.acquire_on_behalf_of(path)
                    nursery.start_soon(self._read_one, path, version, send, limiter, done)

    async def _read_one(
        self,
        path: Path,
        version: Version,
        send: trio.MemorySendChannel[tuple[Item, bytes | memoryview]],
        limiter: trio.CapacityLimiter,
        done: Result,
    ) -> None:
        try:
            blob = await self._object(path, version)
            done["objects"] += 1
            done["bytes"] += version.size
            for start in range(0, version.size, PART_BYTES):
                data = blob.view[start : start + PART_BYTES]
                item = Item(What.OBJECT, path, version, version.size, start, len(data))
                await send.send((item, data))
        except SourceError:
            done["failed"] += 1
        finally:
            limiter.release_on_behalf_of(path)

    async def _listing(self, directory: Path) -> tuple[Listing, float | None]:
        def take(answer: Answered, _: Content, __: object) -> Listing:
            assert isinstance(answer, AnswerListing)
            return answer.listing

        shown = await self.engine.ask(lambda request: List(request, directory), take)
        # as the source has it: each node shows it in its own way
        held = self.engine.node.held_listing(directory)
        return (shown, None) if held is None else held

    async def _object(self, path: Path, version: Version) -> Blob:
        def take(answer: Answered, content: Content, _: object) -> Blob:
            if not isinstance(answer, AnswerObject) or content is None or isinstance(content, int):
                raise SourceError(errno.EFBIG)
            return content

        def question(request: RequestId) -> Read:
            return Read(request, path, version)

        return await self.engine.ask(question, take)

    async def _send(
        self, number: int, tree: int, sequence: int, packed: _Packed, *, last: bool
    ) -> None:
        await self.engine.wait_backlog_below(BACKLOG_BYTES_MAX)
        epoch = self.engine.node.statistics().epoch
        batch = Batch(number, tree, epoch, sequence, tuple(packed.items), last)
        blob = new_blob(packed.size)
        at = 0
        for piece in packed.pieces:
            blob.view[at : at + len(piece)] = piece
            at += len(piece)
        blob.seal(packed.size)
        if self.engine.node.trees is not None:
            handle = self.engine.blobs.keep(blob)
            self.engine.post(PushBatch(batch, handle, packed.size))

    # --- the others ------------------------------------------------------------------------------

    def take_batch(self, peer: NodeId, batch: Batch, payload: Payload) -> None:
        """Unpack what came, and have the core pass it on."""
        arriving = self._push(batch.push)
        view, at = memoryview(payload.data), 0
        for item in batch.items:
            self._take_item(arriving, batch.epoch, item, view[at : at + item.length])
            at += item.length
        frame = self.engine.blobs.keep_frame(payload)
        self.engine.post(BatchTaken(peer, batch, frame, len(view)))
        if batch.last:
            arriving.complete.set()

    def _take_item(self, arriving: _Arriving, epoch: int, item: Item, data: memoryview) -> None:
        if item.version is None or item.what is What.LISTING:
            if item.length == item.total_bytes:
                self._take_listing(epoch, item, bytes(data))
            return
        key = (item.path, item.version)
        if item.offset == 0:
            if item.total_bytes > self.engine.node.limits.whole_max_bytes:
                return
            arriving.blobs[key] = new_blob(item.total_bytes)
        blob = arriving.blobs.get(key)
        if blob is None:
            return  # it did not begin here, or is too large for this node
        arriving.bytes += item.length
        blob.view[item.offset : item.offset + item.length] = data
        if item.offset + item.length == item.total_bytes:
            del arriving.blobs[key]
            blob.seal(item.total_bytes)
            arriving.objects += 1
            self.engine.post(Pushed(item.path, item.version, self.engine.blobs.keep(blob)))

    def _take_listing(self, epoch: int, item: Item, packed: bytes) -> None:
        listing = Listing(packed, item.version)
        try:
            listing.check()
        except MalformedListing as error:
            log.info("a malformed listing was pushed: %s", error)
            return
        self.engine.post(PushedListing(item.path, listing, epoch, item.fresh_for_s))

    def _push(self, number: int) -> _Arriving:
        if number not in self._arriving:
            while len(self._arriving) >= PUSHES_KEPT:  # of callers that never came for them
                del self._arriving[next(iter(self._arriving))]
            self._arriving[number] = _Arriving()
        return self._arriving[number]


def files_in(
    directory: Path, listing: Listing, wanted: set[str] | None
) -> Iterator[tuple[Path, Version]]:
    """The regular files of a listing that are wanted, with their versions."""
    for name, entry in listing.rows():
        if wanted is not None and name.decode("utf-8", "surrogateescape") not in wanted:
            continue
        if entry.attributes.is_file():
            yield join(directory, name), entry.attributes.version


def _listing_items(
    directory: Path, listing: Listing, fresh_for_s: float | None
) -> Iterator[tuple[Item, bytes]]:
    """A listing that fits into a batch; a larger one is asked for by who needs it."""
    size = len(listing.packed)
    if size <= PART_BYTES:
        item = Item(What.LISTING, directory, listing.directory, size, 0, size, fresh_for_s)
        yield item, listing.packed
