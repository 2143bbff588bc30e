"""The engine: runs the core against the real world.

It feeds events to the core and performs its actions, on trio's thread, one event at a time. Fetches
go to the source's pool and come back as events; answers go to the handlers that asked; evictions go
to the board. Besides the core's own, it wakes the core when ``deadline()`` says so.

It keeps what the core only has handles for: blobs and open files.
"""

import errno
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, assert_never

import trio

from copperfs.blob import Blob
from copperfs.core.actions import (
    Action,
    AnswerChunk,
    AnswerEntry,
    AnswerError,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    CacheKey,
    Connect,
    Disconnect,
    DropCall,
    EndCall,
    Evict,
    Happened,
    ListingKey,
    LoadChunk,
    LookAgain,
    LookSource,
    NewEpoch,
    ObjectKey,
    OpenSource,
    PerformCall,
    Probe,
    Publish,
    ReadChunk,
    ReadSource,
    ReleaseBlob,
    ReleaseHandle,
    ScanSource,
    Send,
    StoreChunk,
)
from copperfs.core.events import (
    CallPerformed,
    Clear,
    Event,
    Fetched,
    HaveRead,
    Leave,
    Listed,
    Probed,
    Question,
    Replaced,
    Start,
    StartCall,
    Tick,
    Used,
)
from copperfs.core.listing import Listing
from copperfs.core.messages import Return
from copperfs.core.node import Node
from copperfs.fuse.answers import Answered, Content, Deliver, SourceError
from copperfs.runtime.notifications import Notifications
from copperfs.runtime.operations import Operations, Result, pack, unpack
from copperfs.runtime.peers import Blobs, Peers
from copperfs.runtime.tier import TierDisk
from copperfs.source.fetcher import Arrived, BlobRead, Fetcher
from copperfs.types import CallId, ChunkKey, HandleId, NodeId, Path, PeerRequest, RequestId

log = logging.getLogger(__name__)
T = TypeVar("T")

# How long a caller waits for the kernel to be told that a name has to be looked up again. It takes
# well below a millisecond, unless a slow lookup in the same directory is under way.
KERNEL_TOLD_S = 1.0
HOUSEKEEPING_S = 1.0
# For the other nodes to hear that this one ends, and to be given what they wait for.
LEAVES_WITHIN_S = 1.0


class Publications(Protocol):
    """Where answers were published to, and what the kernel was told."""

    def withdraw(self, key: CacheKey | ChunkKey) -> None:
        """This is no longer held."""

    def withdraw_all(self) -> None:
        """Nothing is held, and nothing is fresh."""

    def publish_object(self, key: ObjectKey, blob: Blob) -> None:
        """Answer with this who asks for it."""

    def publish_chunk(self, key: ChunkKey, chunk_bytes: int, blob: Blob) -> None:
        """Answer with this who reads on in a file of which others are published."""

    def publish_listing(self, path: Path, listing: Listing) -> None:
        """The same, for as long as the epoch."""

    def used(self) -> Sequence[CacheKey | ChunkKey]:
        """What was used without the core being asked."""
        ...

    def look_again(self, path: Path) -> Callable[[], object] | None:
        """What a worker thread is to do so that the kernel looks *path* up again."""
        ...

    def invalidate_all(self) -> tuple[int, Callable[[], int] | None]:
        """Have the kernel look everything up again; called in a worker thread. How many names it
        was told of, and what tells it of the rest, for which lookups under way have to end."""
        ...


@dataclass(slots=True)
class _Waiting:
    """A handler that waits for its answer. The answer is delivered while actions are performed,
    so that it is used before a later action evicts it."""

    deliver: Callable[[Answered, Content], object]
    answered: trio.Event | None = None
    outcome: object = None
    done: bool = False


@dataclass(slots=True)
class Engine:
    node: Node
    fetcher: Fetcher
    publications: Publications
    blobs: Blobs = field(default_factory=Blobs)
    peers: Peers | None = None
    """Set before ``run`` in a job of several nodes."""
    tier: TierDisk | None = None
    """Set before ``run`` where chunks are kept on a disk."""
    _waiting: dict[RequestId, _Waiting] = field(default_factory=dict)
    _next: int = 1
    _clearing: bool = False
    """Whoever clears tells the kernel, and waits for it."""
    _wake: trio.Event = field(default_factory=trio.Event)
    """Set when the core wants to be woken earlier than it said."""
    _wakes_at: float = math.inf
    _stepped: trio.Event = field(default_factory=trio.Event)
    nursery: trio.Nursery | None = None
    """Of what was begun here and goes on for longer than a request; while it runs."""
    happened: Callable[[Happened], object] = lambda _: None
    """Told of what a failure can be retold from; see ``chronicle.py``."""
    notifications: Notifications = field(default_factory=Notifications)
    operations: Operations = field(default_factory=lambda: Operations({}))
    _calls: dict[RequestId, Callable[[bytes], object]] = field(default_factory=dict)
    _doing: dict[CallId, trio.CancelScope] = field(default_factory=dict)
    """Our parts of calls; stopped when nobody waits for them any more."""
    _to_do: trio.MemorySendChannel[PerformCall] = field(init=False)
    _to_do_from: trio.MemoryReceiveChannel[PerformCall] = field(init=False)

    def __post_init__(self) -> None:
        self._to_do, self._to_do_from = trio.open_memory_channel(math.inf)

    # --- for the handlers ------------------------------------------------------------------------

    async def ask(self, question: Callable[[RequestId], Question], deliver: Deliver[T]) -> T:
        """Put a question to the core; what *deliver* made of its answer."""
        request = RequestId(self._number())
        waiting = _Waiting(lambda answer, content: deliver(answer, content, self._remaining))
        self._waiting[request] = waiting
        try:
            self.post(question(request))
            if not waiting.done:
                waiting.answered = trio.Event()
                await waiting.answered.wait()
        finally:
            self._waiting.pop(request, None)
        if isinstance(waiting.outcome, SourceError):
            raise waiting.outcome
        return waiting.outcome  # type: ignore[return-value]  # what deliver returned

    async def wait_kernel_told(self, path: Path) -> None:
        """Until the kernel knows that it has to look *path* up again; for a moment at most."""
        await self.notifications.wait_told(path, KERNEL_TOLD_S)

    async def call(self, operation: str, argument: Result, within_s: float) -> Result:
        """Have all nodes do something; what it came to for those that answered in time."""
        request = RequestId(self._number())
        ended = trio.Event()
        results = []

        def end(result: bytes) -> None:
            results.append(result)
            ended.set()

        self._calls[request] = end
        try:
            packed = pack(argument) if argument else b""
            self.post(StartCall(request, operation, packed, within_s))
            await ended.wait()  # the core sees to the deadline
        finally:
            del self._calls[request]
        return unpack(results[0]) if results[0] else {}

    async def wait_backlog_below(self, size: int) -> None:
        """Until less than *size* bytes of batches wait for the credit of children."""
        await self.wait_until(lambda: self.node.links.backlog_bytes < size)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until a step of the core has made *condition* true."""
        while not condition():
            if self._stepped.is_set():  # else others wait for it already
                self._stepped = trio.Event()
            await self._stepped.wait()

    # --- for the daemon --------------------------------------------------------------------------

    async def run(self) -> None:
        """Wake the core when it wants to be; tell it what is in use; tell the kernel things."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.fetcher.run, self._arrived)
            nursery.start_soon(self._run_clock)
            nursery.start_soon(self._run_housekeeping)
            nursery.start_soon(self.notifications.run)
            nursery.start_soon(self._run_calls)
            self.nursery = nursery
            if self.tier is not None:
                nursery.start_soon(self.tier.run)
            if self.peers is not None:
                self.post(Start())
                self.peers.changed()  # the root is in touch with all whom it asks
                if self.peers.comparison is not None:
                    nursery.start_soon(self.peers.comparison.run)
                nursery.start_soon(self.peers.transport.run, self.peers.arrived)

    async def leave(self) -> None:
        """Tell the other nodes that this one ends, and give those who ask it what they wait for;
        for a moment at most."""
        if self.peers is None:
            return
        with trio.move_on_after(LEAVES_WITHIN_S):
            for _ in range(2):  # the second time to know that the last parts have arrived
                self.post(Leave())
                await self.wait_until(self.node.may_go)

    async def clear(self, epoch: int | None = None) -> int:
        """Forget everything, the kernel too; how many names it was told to look up again. The
        epoch is the next one unless it is given."""
        self._clearing = True
        self.post(Clear(epoch))
        self._clearing = False
        told, tell_rest = await trio.to_thread.run_sync(
            self.publications.invalidate_all, abandon_on_cancel=True
        )
        if tell_rest is not None:
            told += await trio.to_thread.run_sync(tell_rest, abandon_on_cancel=True)
        return told

    def take(self, key: ObjectKey, blob: Blob, *, ahead: bool, used: bool) -> None:
        """A file that was read without the core being asked."""
        self.post(Fetched(key.path, key.version, self.blobs.keep(blob), ahead, used))

    def take_listing(self, path: Path, listing: Listing, epoch: int, *, ahead: bool) -> None:
        """A directory that was listed without the core being asked."""
        self.post(Listed(path, listing, epoch, ahead))

    def replaced(self, path: Path) -> None:
        """The kernel knows another directory by that path than the one that was listed."""
        self.post(Replaced(path))

    def post(self, event: Event) -> None:
        """Let the core take one step, and do what it wants."""
        for action in self.node.step(self._now(), event):
            self._perform(action)
        if not self._wake.is_set():
            deadline = self.node.deadline()
            if deadline is not None and deadline < self._wakes_at:
                self._wake.set()
        if not self._stepped.is_set():
            self._stepped.set()

    # --- performing actions ----------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case ReadSource():
                self.fetcher.start(action, self.node.looks_for(action.fetch))
            case ScanSource() | LookSource() | OpenSource() | ReadChunk():
                self.fetcher.start(action)
            case LoadChunk() | StoreChunk():
                assert self.tier is not None, "the core was told that there is a disk"
                self.tier.perform(action)
            case AnswerEntry() | AnswerListing():
                self._answer(action.request, action, None)
            case AnswerObject(request, _, blob) | AnswerChunk(request, _, blob, _):
                self._answer(request, action, self.blobs.held[blob])
            case AnswerHandle(request, handle):
                self._answer_handle(request, action, handle)
            case AnswerError(request, error):
                self._finish(request, SourceError(error))
            case Publish():
                self._publish(action)
            case Evict(key):
                self.publications.withdraw(key)
            case ReleaseBlob(blob):
                self.blobs.release(blob)
            case ReleaseHandle(handle):
                self.fetcher.close_handle(handle)
            case LookAgain(path):
                self._look_again(path)
            case Send():
                assert self.peers is not None, "a job of one has no peers"
                self.peers.send(action)
            case Connect() | Disconnect() | Probe():
                assert self.peers is not None, "a job of one has no peers"
                self._keep_in_touch(self.peers, action)
            case Happened():
                self.happened(action)
                if self.peers is not None:
                    self.peers.changed()
            case PerformCall():
                self._doing[action.call] = trio.CancelScope()
                self._to_do.send_nowait(action)  # the core has a bound on them
            case EndCall():
                self._stop_doing(action.call)
                self._end_call(action)
            case DropCall(call):
                self._stop_doing(call)
            case NewEpoch():
                self._begin_epoch()
            case _:
                assert_never(action)

    def _keep_in_touch(self, peers: Peers, action: Connect | Disconnect | Probe) -> None:
        match action:
            case Connect(peer):
                peers.transport.connect(peer)
            case Disconnect(peer):
                peers.transport.disconnect(peer)
            case Probe(peer):
                assert self.nursery is not None, "peers are heard of while it runs"
                self.nursery.start_soon(self._probe, peers, peer)

    async def _probe(self, peers: Peers, peer: NodeId) -> None:
        self.post(Probed(peer, await peers.transport.refuses(peer)))

    def _publish(self, action: Publish) -> None:
        match action:
            case Publish(ObjectKey() as key, int() as blob):
                self.publications.publish_object(key, self.blobs.held[blob])
            case Publish(ChunkKey() as key, int() as blob):
                chunk_bytes = self.node.limits.chunk_bytes
                self.publications.publish_chunk(key, chunk_bytes, self.blobs.held[blob])
            case Publish(ListingKey() as key, Listing() as listing):
                self.publications.publish_listing(key.path, listing)

    def _answer(self, request: RequestId, answer: Answered, content: Content) -> None:
        waiting = self._waiting.get(request)
        if waiting is None:
            return
        try:
            self._finish(request, waiting.deliver(answer, content))
        except Exception:
            log.exception("a bug: an answer could not be delivered")
            self._finish(request, SourceError(errno.EIO))

    def _answer_handle(self, request: RequestId, answer: AnswerHandle, handle: HandleId) -> None:
        if request in self._waiting:
            self._answer(request, answer, int(handle))
        else:
            self.fetcher.close_handle(handle)

    def _finish(self, request: RequestId, outcome: object) -> None:
        waiting = self._waiting.get(request)
        if waiting is None:
            return
        waiting.outcome, waiting.done = outcome, True
        if waiting.answered is not None:
            waiting.answered.set()

    # --- the source ------------------------------------------------------------------------------

    def _arrived(self, outcome: Arrived) -> None:
        if isinstance(outcome, BlobRead):
            blob = self.blobs.keep(outcome.blob)
            outcome = HaveRead(outcome.fetch, blob, outcome.mentioned)
        self.post(outcome)

    # --- background ------------------------------------------------------------------------------

    async def _run_clock(self) -> None:
        while True:
            deadline = self.node.deadline()
            self._wakes_at = math.inf if deadline is None else deadline
            self._wake = trio.Event()
            left_s = self._wakes_at - self._now()
            with trio.move_on_after(max(0.0, left_s)) as sleep:
                await self._wake.wait()
            if sleep.cancelled_caught:
                self.post(Tick())

    async def _run_housekeeping(self) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING_S)
            self.fetcher.replace_stuck()
            self.fetcher.close_unused()
            used = self.publications.used()
            if used:
                self.post(Used(tuple(used)))

    def _look_again(self, path: Path) -> None:
        tell = self.publications.look_again(path)
        if tell is not None:
            self.notifications.add(path, tell)

    # --- calls -----------------------------------------------------------------------------------

    async def _run_calls(self) -> None:
        async with trio.open_nursery() as nursery:
            async for action in self._to_do_from:
                nursery.start_soon(self._do_our_part, action)

    async def _do_our_part(self, action: PerformCall) -> None:
        scope = self._doing[action.call]
        try:
            with scope:
                result = await self.operations.perform(action.operation, action.argument)
        finally:
            del self._doing[action.call]
        if not scope.cancelled_caught:
            self.post(CallPerformed(action.call, result))

    def _stop_doing(self, call: CallId) -> None:
        if call in self._doing:
            self._doing[call].cancel()

    def _end_call(self, action: EndCall) -> None:
        merged = self.operations.merge(action.results)
        if isinstance(action.asker, PeerRequest):
            assert self.peers is not None
            self.peers.send(Send(action.asker.peer, Return(action.asker.number, merged)))
        elif action.asker in self._calls:
            self._calls[action.asker](merged)

    def _begin_epoch(self) -> None:
        """Nothing is published any more, and the kernel is told, in its own time."""
        self.publications.withdraw_all()
        if self._clearing:
            return
        self.notifications.add_everything(lambda: self.publications.invalidate_all()[1])

    # --- odds and ends ---------------------------------------------------------------------------

    def _number(self) -> int:
        self._next += 1
        return self._next

    @staticmethod
    def _now() -> float:
        return time.monotonic()

    def _remaining(self, until: float | None) -> float | None:
        return None if until is None else until - self._now()

    def blob_bytes(self) -> int:
        """Bytes of all blobs that are held."""
        return sum(len(blob) for blob in self.blobs.held.values())
