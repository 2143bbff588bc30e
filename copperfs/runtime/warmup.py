"""Pushes: a working set is read once, at the roots, and goes down to every node's memory.

An eighth of the CPU of asking for each file, and it happens before the job wants them. A tree's
*root* reads listings and files, packs them into batches of a megabyte, and spreads them down the
push tree, no faster than its children take them. Every other node passes a batch on and unpacks it,
and answers the call when it has the last one. ``workingset.py`` says what is pushed, and the core
who gets it next; here bytes are packed and unpacked.

The pieces of one listing or object come one after the other in a push, so that a node has one
unfinished thing of each push at most; what does not follow on what came before is dropped, and so
is what the core does not want. A push ends with a batch that says so. Who loses the node that
pushes to it, be it for a moment, ends the push for those below it in the same way: they have what
came until then. A root that has nothing to send sends empty batches, so that who hears nothing for
``SILENCE_S`` knows that its push has ended: the call never reached the root, or the root has failed
in a way that it could not tell.
"""

import errno
import logging
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import trio

from copperfs.blob import Blob, new_blob
from copperfs.core.actions import AnswerListing, AnswerObject
from copperfs.core.events import (
    BatchTaken,
    List,
    OfferTaken,
    PushBatch,
    Pushed,
    PushedListing,
    Read,
    WarmedUp,
)
from copperfs.core.listing import Listing, MalformedListing, checked_listing
from copperfs.core.messages import PART_BYTES, PATH_BYTES_MAX, Batch, Item, What
from copperfs.core.trees import Trees
from copperfs.fuse.answers import Answered, Content, SourceError
from copperfs.runtime.engine import Engine
from copperfs.runtime.operations import Result
from copperfs.types import Attributes, NodeId, Path, RequestId, Version, join
from copperfs.wire.codec import ITEMS_MAX
from copperfs.wire.payload import Payload

log = logging.getLogger(__name__)

# A root reads so much ahead of what it packs, be it many files or one large one ...
READS_AT_ONCE = 32
READING_BYTES_MAX = 16 << 20
# ... and stops packing while so much waits for its children.
BACKLOG_BYTES_MAX = 16 << 20
# A header has room for so much: see ``wire/codec.py``.
BATCH_PATH_BYTES_MAX = 512 << 10
# So often a root shows that it is at it, while the source keeps it waiting ...
ALIVE_EVERY_S = 2.0
# ... and who heard nothing for so long does not wait any more.
SILENCE_S = 10.0
# Pushes of which something came, and for which no call did.
UNCALLED_MAX = 64
# What is unfinished in all pushes together may take this share of the memory.
UNFINISHED_SHARE = 8

Directories = dict[str, list[str] | None]
"""What to push, by directory: its listing, and these of its files; None is all of them."""


@dataclass(frozen=True, slots=True)
class _Content:
    """A listing or an object, to be packed."""

    what: What
    path: Path
    version: Version | None
    data: bytes | memoryview
    epoch: int
    fresh_for_s: float | None = None


@dataclass(slots=True)
class _Packed:
    """A batch that is being filled."""

    items: list[Item] = field(default_factory=list)
    pieces: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0
    path_bytes: int = 0
    epoch: int | None = None
    """The earliest in which something of it was had: a clear meanwhile makes its listings old."""

    def add(self, content: _Content, start: int) -> None:
        self.epoch = content.epoch if self.epoch is None else min(self.epoch, content.epoch)
        piece = content.data[start : start + PART_BYTES]
        self.items.append(
            Item(
                content.what,
                content.path,
                content.version,
                len(content.data),
                start,
                len(piece),
                content.fresh_for_s,
            )
        )
        self.pieces.append(piece)
        self.size += len(piece)
        self.path_bytes += len(content.path)

    @property
    def is_full(self) -> bool:
        return (
            self.size >= PART_BYTES
            or len(self.items) >= ITEMS_MAX
            or self.path_bytes >= BATCH_PATH_BYTES_MAX
        )

    def blob(self) -> Blob:
        blob, at = new_blob(self.size), 0
        for piece in self.pieces:
            blob.view[at : at + len(piece)] = piece
            at += len(piece)
        blob.seal(self.size)
        return blob


@dataclass(slots=True)
class _Unfinished:
    """A listing or an object of which the first pieces have come."""

    first: Item
    blob: Blob
    there: int = 0

    def goes_on_with(self, item: Item) -> bool:
        return (
            item.offset == self.there
            and item.total_bytes == self.first.total_bytes
            and (item.what, item.path, item.version)
            == (self.first.what, self.first.path, self.first.version)
        )


@dataclass(slots=True, eq=False)
class Push:
    """A push as one node sees it."""

    bytes: int = 0
    """Of files that were packed here, or came."""
    failed: int = 0
    """What the root could not read."""
    is_called: bool = False
    sequence: int = 0
    """Of the next batch that is sent here."""
    heard_at: float = field(default_factory=time.monotonic)
    """When a batch came, at last."""
    is_over: trio.Event = field(default_factory=trio.Event)
    unfinished: _Unfinished | None = None
    sequences: set[int] = field(default_factory=set)
    """Numbers of the batches that have come."""


class _Ahead:
    """What a root has begun to read and not packed. One task waits for room in it."""

    def __init__(self) -> None:
        self._files = self._bytes = 0
        self._less = trio.Event()

    async def begin(self, size: int) -> None:
        while self._files and (
            self._files >= READS_AT_ONCE or self._bytes + size > READING_BYTES_MAX
        ):
            self._less = trio.Event()
            await self._less.wait()
        self._files += 1
        self._bytes += size

    def end(self, size: int) -> None:
        self._files -= 1
        self._bytes -= size
        self._less.set()


@dataclass(slots=True)
class Warmup:
    engine: Engine
    alive_every_s: float = ALIVE_EVERY_S
    silence_s: float = SILENCE_S
    _pushes: dict[int, Push] = field(default_factory=dict)

    def watch(self, number: int) -> Push:
        """A push that is about to begin, to see how far it is on this node."""
        push = self._push(number)
        push.is_called = True
        return push

    async def push(self, argument: Result) -> Result:
        """This node's part of a push: the root reads and spreads, the others wait for it."""
        number, tree = int(argument["push"]), int(argument["tree"])
        trees = self.engine.node.trees
        if not 0 <= tree < (1 if trees is None else trees.count):
            raise ValueError(f"there is no tree {tree}")
        push = self.watch(number)
        try:
            if trees is None or self._push_parent(trees, tree) is None:
                try:
                    await self._spread(push, number, tree, argument["directories"])
                except BaseException:
                    self._post(push, number, tree, _Packed(), last=True)
                    raise
                return {"read": 1, "failed": push.failed}
            await self._wait_over(push, number, tree)
            return {}
        finally:
            push.unfinished = None
            self._pushes.pop(number, None)

    # --- the root --------------------------------------------------------------------------------

    async def _spread(self, push: Push, number: int, tree: int, directories: Directories) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show_life, push, number, tree)
            last = await self._pack_all(push, number, tree, directories)
            await self._send(push, number, tree, last, last=True)
            nursery.cancel_scope.cancel()
        if self.engine.node.trees is None:
            self.engine.post(WarmedUp(tuple(Path(octets(each)) for each in directories)))

    async def _pack_all(
        self, push: Push, number: int, tree: int, directories: Directories
    ) -> _Packed:
        """Send all batches but the last. In a nursery of its own: the cancellation of who shows
        life would hide the error of who reads."""
        packed = _Packed()
        async with trio.open_nursery() as nursery:
            # Without a buffer: what was sent is being packed.
            send, receive = trio.open_memory_channel[_Content](0)
            nursery.start_soon(self._read_all, push, directories, send)
            async for content in receive:
                for start in range(0, len(content.data), PART_BYTES):
                    packed.add(content, start)
                    if packed.is_full:
                        await self._send(push, number, tree, packed, last=False)
                        packed = _Packed()
                if content.what is What.OBJECT:
                    push.bytes += len(content.data)
        return packed

    async def _show_life(self, push: Push, number: int, tree: int) -> None:
        """Past what waits for the credit of a child: the others have to hear it."""
        while True:
            await trio.sleep(self.alive_every_s)
            self._post(push, number, tree, _Packed(), last=False)

    async def _read_all(
        self, push: Push, directories: Directories, send: trio.MemorySendChannel[_Content]
    ) -> None:
        """Listings and files of *directories*; what cannot be read is left out."""
        ahead = _Ahead()
        async with send, trio.open_nursery() as nursery:
            for name, names in directories.items():
                directory = path_of(name)
                try:
                    listing = await list_directory(self.engine, directory)
                except SourceError:
                    push.failed += 1
                    continue
                # As the source has it: each node shows it in its own way.
                held = self.engine.node.held_listing(directory)
                epoch = self.engine.node.epoch
                if held is None:
                    push.failed += 1  # evicted already
                else:
                    listing, until = held
                    left = None if until is None else max(0.0, until - time.monotonic())
                    version = listing.directory
                    await send.send(
                        _Content(What.LISTING, directory, version, listing.packed, epoch, left)
                    )
                for path, version in files_in(directory, listing, names):
                    if self.engine.node.is_whole(path, version):
                        await ahead.begin(version.size)
                        nursery.start_soon(self._read_one, push, path, version, send, ahead)

    async def _read_one(
        self,
        push: Push,
        path: Path,
        version: Version,
        send: trio.MemorySendChannel[_Content],
        ahead: _Ahead,
    ) -> None:
        try:
            blob = await self._object(path, version)
            epoch = self.engine.node.epoch
            await send.send(_Content(What.OBJECT, path, version, blob.view, epoch))
        except SourceError:
            push.failed += 1
        finally:
            ahead.end(version.size)

    async def _object(self, path: Path, version: Version) -> Blob:
        def take(answer: Answered, content: Content, _: object) -> Blob:
            if not isinstance(answer, AnswerObject) or content is None or isinstance(content, int):
                raise SourceError(errno.EFBIG)
            return content

        def question(request: RequestId) -> Read:
            return Read(request, path, version, alone=True)

        return await self.engine.ask(question, take)

    async def _send(
        self, push: Push, number: int, tree: int, packed: _Packed, *, last: bool
    ) -> None:
        await self.engine.wait_backlog_below(BACKLOG_BYTES_MAX)
        self._post(push, number, tree, packed, last=last)

    def _post(self, push: Push, number: int, tree: int, packed: _Packed, *, last: bool) -> None:
        if not self.engine.node.pushes_to(tree):
            return
        epoch = self.engine.node.epoch if packed.epoch is None else packed.epoch
        batch = Batch(number, tree, epoch, push.sequence, tuple(packed.items), last)
        push.sequence += 1
        handle = self.engine.blobs.keep(packed.blob())
        self.engine.post(PushBatch(batch, handle, packed.size))

    # --- the others ------------------------------------------------------------------------------

    def _push_parent(self, trees: Trees, tree: int) -> NodeId | None:
        """Who pushes to this node, as it believes now."""
        return trees.push_parent(tree, self.engine.node.gone())

    async def _wait_over(self, push: Push, number: int, tree: int) -> None:
        trees, peers = self.engine.node.trees, self.engine.peers
        assert trees is not None
        assert peers is not None
        parent = self._push_parent(trees, tree)
        assert parent is not None, "not the root"
        async with trio.open_nursery() as nursery:

            async def wait_lost() -> None:
                await peers.wait_lost(parent)
                log.info("node %d is gone, and with it the rest of a push", parent)
                nursery.cancel_scope.cancel()

            async def wait_silent() -> None:
                await self._wait_silent(push)
                log.info("of a push nothing came for %g s; not waiting for it", self.silence_s)
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait_lost)
            nursery.start_soon(wait_silent)
            await push.is_over.wait()
            nursery.cancel_scope.cancel()
        if not push.is_over.is_set():
            await self._send(push, number, tree, _Packed(), last=True)

    async def _wait_silent(self, push: Push) -> None:
        """Until nothing came for too long. What cannot come because this node's own children hold
        it up is no silence."""
        push.heard_at = max(push.heard_at, time.monotonic())
        while (left := push.heard_at + self.silence_s - time.monotonic()) > 0:
            await trio.sleep(left)
            if self.engine.node.links.backlog_bytes:
                push.heard_at = time.monotonic()

    def take_batch(self, peer: NodeId, batch: Batch, payload: Payload) -> None:
        """Have the core pass on what came, and unpack it."""
        trees = self.engine.node.trees
        if trees is None or batch.tree >= trees.count or not trees.is_before(peer, batch.tree):
            log.info("node %d pushed something, and is not the one to do so", peer)
            self.engine.post(OfferTaken(peer, len(payload.data), batch.epoch))  # its credit
            return
        push = self._push(batch.push)
        if batch.sequence in push.sequences and not batch.last:
            # From another one as well: who pushes to whom has changed meanwhile.
            self.engine.post(OfferTaken(peer, len(payload.data), batch.epoch))
            return
        push.sequences.add(batch.sequence)
        push.heard_at = time.monotonic()
        view, at = memoryview(payload.data), 0
        frame = self.engine.blobs.keep_frame(payload)
        self.engine.post(BatchTaken(peer, batch, frame, len(view)))
        for item in batch.items:
            self._take_item(push, batch.epoch, item, view[at : at + item.length])
            at += item.length
        if batch.last:
            push.unfinished = None
            push.is_over.set()

    def _take_item(self, push: Push, epoch: int, item: Item, data: memoryview) -> None:
        if item.what is What.OBJECT:
            push.bytes += item.length
        if item.offset == 0:
            push.unfinished = None
            if not self.engine.node.wants_pushed(item) or not self._make_room(item.total_bytes):
                return
            push.unfinished = _Unfinished(item, new_blob(item.total_bytes))
        coming = push.unfinished
        if coming is None:
            return  # not wanted
        if not coming.goes_on_with(item):
            push.unfinished = None
            return
        coming.blob.view[item.offset : item.offset + item.length] = data
        coming.there += item.length
        if coming.there == item.total_bytes:
            push.unfinished = None
            coming.blob.seal(item.total_bytes)
            self._take_whole(epoch, item, coming.blob)

    def _take_whole(self, epoch: int, item: Item, blob: Blob) -> None:
        if item.what is What.OBJECT:
            assert item.version is not None
            self.engine.post(Pushed(item.path, item.version, self.engine.blobs.keep(blob)))
            return
        try:
            listing = checked_listing(bytes(blob.view), item.version)
        except MalformedListing as error:
            log.info("a malformed listing was pushed: %s", error)
            return
        self.engine.post(PushedListing(item.path, listing, epoch, item.fresh_for_s))

    def _make_room(self, size: int) -> bool:
        """For one more that is unfinished; of those there are, the oldest are given up on."""
        limits = self.engine.node.limits
        most = max(limits.whole_max_bytes, limits.memory_bytes // UNFINISHED_SHARE)
        begun = [push for push in self._pushes.values() if push.unfinished is not None]
        total = size + sum(p.unfinished.first.total_bytes for p in begun if p.unfinished)
        for push in begun:
            if total <= most:
                break
            assert push.unfinished is not None
            total -= push.unfinished.first.total_bytes
            push.unfinished = None
        return total <= most

    def _push(self, number: int) -> Push:
        if number not in self._pushes:
            uncalled = [each for each, push in self._pushes.items() if not push.is_called]
            for each in uncalled[: max(0, len(uncalled) - UNCALLED_MAX + 1)]:
                del self._pushes[each]
            self._pushes[number] = Push()
        return self._pushes[number]


# --- what a push is of ----------------------------------------------------------------------------


def files_in(
    directory: Path, listing: Listing, names: list[str] | None
) -> Iterator[tuple[Path, Version]]:
    """Those files of a listing that have something to push, of *names* or all."""
    wanted = None if names is None else {octets(name) for name in names}
    for name, entry in listing.rows():
        attributes = entry.attributes
        if (wanted is None or name in wanted) and attributes.size and is_readable(attributes):
            path = join(directory, name)
            if len(path) <= PATH_BYTES_MAX:
                yield path, attributes.version


def is_readable(attributes: Attributes) -> bool:
    """Whether it is a file that the user of this daemon may read, as far as its mode tells."""
    if not attributes.is_file():
        return False
    _, uid, gid = attributes.unpack()[10:13]
    me = os.getuid()
    if me == 0:
        return True
    if uid == me:
        return bool(attributes.mode & stat.S_IRUSR)
    mine = gid == os.getgid() or gid in os.getgroups()
    return bool(attributes.mode & (stat.S_IRGRP if mine else stat.S_IROTH))


async def list_directory(engine: Engine, directory: Path) -> Listing:
    """As this mount shows it, over the tree, like any reader."""

    def take(answer: Answered, _: Content, __: object) -> Listing:
        assert isinstance(answer, AnswerListing)
        return answer.listing

    return await engine.ask(lambda request: List(request, directory), take)


def text(path: bytes) -> str:
    """For JSON; bytes that are not UTF-8 become surrogates."""
    return path.decode("utf-8", "surrogateescape")


def octets(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def path_of(shown: str) -> Path:
    """A path that came from elsewhere; ValueError if it leads out of the source."""
    path = octets(shown)
    parts = path.split(b"/")
    if path and (b"\0" in path or {b"", b".", b".."} & set(parts) or len(path) > PATH_BYTES_MAX):
        raise ValueError("no path below the source")
    return Path(path)
