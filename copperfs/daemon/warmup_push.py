"""Warmup push: the roots read a working set once, and it goes down to every node's memory.

A push takes an eighth of the CPU time of a request for each file. A tree's *root* reads listings
and files, packs them into batches of a megabyte, and sends them down the push tree, no faster than
its children take them. Every other node replies to the collective when it has the last one.

A node that loses the connection to its pusher, even for a moment, ends the push for its subtree,
which keeps what came until then. An idle root sends empty batches. So a node that receives nothing
for ``SILENCE_S`` knows that its push has ended.
"""

import errno
import logging
import time
from dataclasses import dataclass, field

import trio

from copperfs.daemon.collective_ops import Result
from copperfs.daemon.engine import Engine
from copperfs.daemon.warmup_walk import Directories, files_in, list_directory, listed
from copperfs.fuse.node_port import Answered, Content, SourceError
from copperfs.model.types import NodeId, Path, RequestId, Version
from copperfs.native.blob import Blob, new_blob
from copperfs.node.actions import AnswerObject
from copperfs.node.events import GrantsRevoked, PushBatch, ReadRequest
from copperfs.node.peer.messages import PART_BYTES, Batch, ContentKind, Item
from copperfs.node.peer.push_receiver import Push
from copperfs.node.routing.trees import Trees
from copperfs.wire.codec import ITEMS_MAX

log = logging.getLogger(__name__)

# A root reads this much ahead of the packing, ...
READS_AT_ONCE = 32
READING_BYTES_MAX = 16 << 20
# ... and stops packing while this much waits for its children.
BACKLOG_BYTES_MAX = 16 << 20
# See ``wire/codec.py``.
BATCH_PATH_BYTES_MAX = 512 << 10
# For empty batches while the source makes a root wait.
ALIVE_EVERY_S = 2.0
SILENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class _Content:
    what: ContentKind
    path: Path
    version: Version | None
    data: bytes | memoryview
    epoch: int
    fresh_for_s: float | None = None


@dataclass(slots=True)
class _Packed:
    items: list[Item] = field(default_factory=list)
    pieces: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0
    path_bytes: int = 0
    epoch: int | None = None
    """The earliest epoch of the content: a clear makes its listings stale."""

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


class _Ahead:
    """Only one task waits for room in it."""

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
class PushWarmup:
    engine: Engine
    alive_every_s: float = ALIVE_EVERY_S
    silence_s: float = SILENCE_S

    def watch(self, number: int) -> Push:
        return self.engine.node.pushes.watch(time.monotonic(), number)

    async def push(self, argument: Result) -> Result:
        """The root reads and sends, the others wait for the end."""
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
            self.engine.node.pushes.end(number)

    async def _spread(self, push: Push, number: int, tree: int, directories: Directories) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show_life, push, number, tree)
            last = await self._pack_all(push, number, tree, directories)
            await self._send(push, number, tree, last, last=True)
            nursery.cancel_scope.cancel()
        if self.engine.node.trees is None:
            self.engine.post(GrantsRevoked(tuple(each for each, _ in listed(directories))))

    async def _pack_all(
        self, push: Push, number: int, tree: int, directories: Directories
    ) -> _Packed:
        """Send all batches but the last. Without its own nursery the cancellation of the task that
        shows life would hide the error of the one that reads."""
        packed = _Packed()
        async with trio.open_nursery() as nursery:
            # Without a buffer: content that was sent is being packed.
            send, receive = trio.open_memory_channel[_Content](0)
            nursery.start_soon(self._read_all, push, directories, send)
            async for content in receive:
                for start in range(0, len(content.data), PART_BYTES):
                    packed.add(content, start)
                    if packed.is_full:
                        await self._send(push, number, tree, packed, last=False)
                        packed = _Packed()
                if content.what is ContentKind.OBJECT:
                    push.bytes += len(content.data)
        return packed

    async def _show_life(self, push: Push, number: int, tree: int) -> None:
        """Empty batches pass those that wait for a child's credit: other children must get them."""
        while True:
            await trio.sleep(self.alive_every_s)
            self._post(push, number, tree, _Packed(), last=False)

    async def _read_all(
        self, push: Push, directories: Directories, send: trio.MemorySendChannel[_Content]
    ) -> None:
        """Unreadable listings and files are left out."""
        ahead = _Ahead()
        async with send, trio.open_nursery() as nursery:
            for directory, names in listed(directories):
                try:
                    listing = await list_directory(self.engine, directory)
                except SourceError:
                    push.failed += 1
                    continue
                # As the source has it: each node applies its own policy.
                held = self.engine.node.held_listing(directory)
                epoch = self.engine.node.epoch
                if held is None:
                    push.failed += 1  # evicted already
                else:
                    listing, until = held
                    left = None if until is None else max(0.0, until - time.monotonic())
                    version = listing.directory
                    await send.send(
                        _Content(
                            ContentKind.LISTING, directory, version, listing.packed, epoch, left
                        )
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
            await send.send(_Content(ContentKind.OBJECT, path, version, blob.view, epoch))
        except SourceError:
            push.failed += 1
        finally:
            ahead.end(version.size)

    async def _object(self, path: Path, version: Version) -> Blob:
        def take(answer: Answered, content: Content, _: object) -> Blob:
            if not isinstance(answer, AnswerObject) or content is None or isinstance(content, int):
                raise SourceError(errno.EFBIG)
            return content

        def make_request(request: RequestId) -> ReadRequest:
            return ReadRequest(request, path, version, alone=True)

        return await self.engine.ask(make_request, take)

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
        handle = self.engine.blobs.keep_blob(packed.blob())
        self.engine.post(PushBatch(batch, handle, packed.size))

    def _push_parent(self, trees: Trees, tree: int) -> NodeId | None:
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
            await self.engine.wait_until(lambda: push.is_over)
            nursery.cancel_scope.cancel()
        if not push.is_over:
            await self._send(push, number, tree, _Packed(), last=True)

    async def _wait_silent(self, push: Push) -> None:
        """Backlog of this node's own children is no silence."""
        push.heard_at = max(push.heard_at, time.monotonic())
        while (left := push.heard_at + self.silence_s - time.monotonic()) > 0:
            await trio.sleep(left)
            if self.engine.node.flow.backlog_bytes:
                push.heard_at = time.monotonic()
