"""Flow control: credit windows and outstanding requests of each peer.

Flow control lives here, not in sockets. A node sends a peer payload only on *credit*. The peer
starts with a window, each part spends some of it, and the peer returns credit once it has consumed
the part. So a slow peer delays its own data and no other. Requests are bounded as well: above
``OUTSTANDING_MAX`` outstanding at one peer they queue here.

It cannot deadlock. A node reserves memory for an object before it requests it, so it can always
consume what arrives. A node waits only for nodes nearer to the root of its tree, and each tree has
its own share of the memory (see ``fetch/table.py``).

A large object is forwarded while it arrives (cut-through). An ``OutgoingStream`` is the rest of one
reply, and knows how many of its parts are here.

Content must not be released while it is being sent: a stream holds a reference on its blob
(``blob_refs.py``).
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from copperfs.model.listing import Listing
from copperfs.model.types import BlobId, FetchId, NodeId
from copperfs.node.actions import Action, ReleaseBlob, Send
from copperfs.node.cache.blob_refs import BlobRefs
from copperfs.node.peer.messages import PART_BYTES, Batch, Credit, DataReply, Offer, Request

WINDOW_BYTES = 8 << 20
# One message returns the credit for several parts.
CREDIT_LUMP_BYTES = WINDOW_BYTES // 4
# With 64 in flight a request costs a fifth of the CPU of one by one; more only queue at the root.
OUTSTANDING_MAX = 256
# Above this a peer is refused, or its requests would fill this node's memory.
SERVING_MAX = 4 * OUTSTANDING_MAX


def parts_in(total_bytes: int) -> int:
    """An empty object is one empty part."""
    return max(1, -(-total_bytes // PART_BYTES))


def part_size(index: int, total_bytes: int) -> int:
    return max(0, min(PART_BYTES, total_bytes - index * PART_BYTES))


@dataclass(slots=True, eq=False)
class OutgoingStream:
    number: int
    content: BlobId | Listing
    total_bytes: int
    next: int
    """The next part to send."""
    there: int
    fresh_until: float | None = None
    is_over: bool = False
    """Sent or cancelled; it holds no reference any more."""

    @property
    def is_done(self) -> bool:
        return self.next >= parts_in(self.total_bytes)


@dataclass(slots=True, eq=False)
class PushForward:
    """A batch on its way to this node's children. Its sender gets the credit back when it
    has left."""

    batch: Batch
    blob: BlobId
    size: int
    sender: NodeId | None
    """None at the root, or when the sender is gone."""
    children: int


@dataclass(slots=True)
class PeerWindow:
    up: bool = False
    credit_bytes: int = WINDOW_BYTES
    unreturned_credit_bytes: int = 0
    """Credit for consumed parts, not returned yet."""
    streams: deque[OutgoingStream] = field(default_factory=deque)
    batches: deque[PushForward] = field(default_factory=deque)
    """Replies go first."""
    outstanding: dict[int, FetchId] = field(default_factory=dict)
    queued: dict[int, Request] = field(default_factory=dict)
    """Requests beyond the limit, not sent yet; these are in *outstanding* as well."""
    serving: set[int] = field(default_factory=set)
    """Requests without a complete reply."""


@dataclass(slots=True)
class FlowControl:
    blob_refs: BlobRefs
    backlog_bytes: int = 0
    """The batches that wait for credit."""
    _windows: dict[NodeId, PeerWindow] = field(default_factory=dict)

    def __getitem__(self, peer: NodeId) -> PeerWindow:
        window = self._windows.get(peer)
        if window is None:  # setdefault would create a PeerWindow for each message
            window = self._windows[peer] = PeerWindow()
        return window

    def is_up(self, peer: NodeId) -> bool:
        window = self._windows.get(peer)
        return window is not None and window.up

    # --- requests --------------------------------------------------------------------------------

    def request(self, peer: NodeId, message: Request, fetch: FetchId) -> list[Action]:
        window = self[peer]
        window.outstanding[message.number] = fetch
        if len(window.outstanding) - len(window.queued) > OUTSTANDING_MAX:
            window.queued[message.number] = message
            return []
        return [Send(peer, message)]

    def fetch_of(self, peer: NodeId, number: int) -> FetchId | None:
        window = self._windows.get(peer)
        return window.outstanding.get(number) if window is not None else None

    def fetches_of(self, peer: NodeId) -> list[FetchId]:
        """Oldest first."""
        window = self._windows.get(peer)
        return [] if window is None else list(window.outstanding.values())

    def outstanding_count(self) -> int:
        return sum(len(window.outstanding) for window in self._windows.values())

    def settle_request(self, peer: NodeId, number: int) -> list[Action]:
        window = self[peer]
        if window.outstanding.pop(number, None) is None:
            return []
        if window.queued.pop(number, None) is not None or not window.queued:
            return []
        return [Send(peer, window.queued.pop(next(iter(window.queued))))]

    def was_sent(self, peer: NodeId, number: int) -> bool:
        return number not in self[peer].queued

    # --- replies ---------------------------------------------------------------------------------

    def serve(self, peer: NodeId, number: int) -> bool:
        """False if *peer* has too many requests, or repeats one."""
        window = self[peer]
        if len(window.serving) >= SERVING_MAX or number in window.serving:
            return False
        window.serving.add(number)
        return True

    def is_serving(self, peer: NodeId, number: int) -> bool:
        window = self._windows.get(peer)
        return window is not None and number in window.serving

    def is_serving_any(self) -> bool:
        return any(window.streams or window.serving for window in self._windows.values())

    def served(self, peer: NodeId, number: int) -> None:
        self[peer].serving.discard(number)

    def give(self, now: float, epoch: int, peer: NodeId, stream: OutgoingStream) -> list[Action]:
        self._pin(stream.content)
        self[peer].streams.append(stream)
        return self.pump(now, epoch, peer)

    def pump(self, now: float, epoch: int, peer: NodeId) -> list[Action]:
        """One part of each reply in turn, while credit is left."""
        window = self[peer]
        actions: list[Action] = []
        idle = 0
        while window.streams and window.credit_bytes > 0 and idle < len(window.streams):
            stream = window.streams.popleft()
            if stream.next >= stream.there:
                idle += 1
                window.streams.append(stream)
                continue
            idle = 0
            window.credit_bytes -= part_size(stream.next, stream.total_bytes)
            actions.append(Send(peer, self._part(now, epoch, stream), stream.content))
            stream.next += 1
            if stream.is_done:
                window.serving.discard(stream.number)
                actions += self._finish(stream)
            else:
                window.streams.append(stream)
        while window.batches and window.credit_bytes > 0:
            forward = window.batches.popleft()
            window.credit_bytes -= forward.size
            actions.append(Send(peer, forward.batch, forward.blob))
            actions += self._forwarded(forward)
        return actions

    @staticmethod
    def _part(now: float, epoch: int, stream: OutgoingStream) -> DataReply:
        left = None if stream.fresh_until is None else max(0.0, stream.fresh_until - now)
        directory = stream.content.directory if isinstance(stream.content, Listing) else None
        return DataReply(stream.number, epoch, stream.next, stream.total_bytes, directory, left)

    def offer(
        self, peer: NodeId, offer: Offer, contents: tuple[BlobId | Listing, ...]
    ) -> list[Action]:
        size = sum(item.length for item in offer.items)
        self[peer].credit_bytes -= size
        return [Send(peer, offer, contents)]

    def may_offer(self, peer: NodeId) -> bool:
        """Only when nothing else waits for the credit."""
        window = self[peer]
        return window.credit_bytes > WINDOW_BYTES // 2 and not window.batches

    def spread(
        self, now: float, epoch: int, children: list[NodeId], forward: PushForward
    ) -> list[Action]:
        """The batch's blob is released when it has gone to all connected *children*."""
        up = [child for child in children if self.is_up(child)]
        forward.children = len(up) + 1  # one more, so that it does not finish while it starts
        actions: list[Action] = []
        for child in up:
            self._windows[child].batches.append(forward)
            self.backlog_bytes += forward.size
            actions += self.pump(now, epoch, child)
        return actions + self._forwarded(forward, begun=True)

    def _forwarded(self, forward: PushForward, *, begun: bool = False) -> list[Action]:
        if not begun:
            self.backlog_bytes -= forward.size
        forward.children -= 1
        if forward.children:
            return []
        actions: list[Action] = [ReleaseBlob(forward.blob)]
        if forward.sender is not None and self.is_up(forward.sender):
            actions += self.took(forward.sender, forward.size)
        return actions

    def more(self, stream: OutgoingStream, content: BlobId, there: int) -> list[Action]:
        """More of a reply is here, perhaps in another blob with the same bytes."""
        actions: list[Action] = []
        if stream.is_over:
            return actions
        if content != stream.content:
            self._pin(content)
            actions = self._unpin(stream.content)
            stream.content = content
        stream.there = there
        return actions

    def stop(self, peer: NodeId, number: int) -> list[Action]:
        window = self[peer]
        window.serving.discard(number)
        for stream in window.streams:
            if stream.number == number:
                window.streams.remove(stream)
                return self._finish(stream)
        return []

    # --- credit ----------------------------------------------------------------------------------

    def took(self, peer: NodeId, count_bytes: int) -> list[Action]:
        """The peer may send as much again."""
        window = self[peer]
        window.unreturned_credit_bytes += count_bytes
        if window.unreturned_credit_bytes < CREDIT_LUMP_BYTES:
            return []
        consumed_bytes, window.unreturned_credit_bytes = window.unreturned_credit_bytes, 0
        return [Send(peer, Credit(consumed_bytes))]

    def credited(self, now: float, epoch: int, peer: NodeId, count_bytes: int) -> list[Action]:
        window = self[peer]
        # The peer may claim more.
        window.credit_bytes = min(WINDOW_BYTES, window.credit_bytes + count_bytes)
        return self.pump(now, epoch, peer)

    # --- connections -----------------------------------------------------------------------------

    def up(self, peer: NodeId) -> None:
        """``down`` was called before."""
        window = self[peer]
        assert not window.outstanding
        assert not window.streams
        window.up, window.credit_bytes, window.unreturned_credit_bytes = True, WINDOW_BYTES, 0

    def down(self, peer: NodeId) -> tuple[list[Action], list[FetchId]]:
        """Returns the fetches that waited for the peer."""
        window = self[peer]
        fetches = list(window.outstanding.values())
        window.up = False
        window.outstanding.clear()
        window.queued.clear()
        window.serving.clear()
        actions: list[Action] = []
        while window.streams:
            actions += self._finish(window.streams.popleft())
        while window.batches:
            actions += self._forwarded(window.batches.popleft())
        # Mostly no push is under way, and there may be thousands of windows.
        for other in self._windows.values() if self.backlog_bytes else ():
            for forward in other.batches:
                if forward.sender == peer:
                    forward.sender = None  # a new connection starts with a full window
        return actions, fetches

    def _finish(self, stream: OutgoingStream) -> list[Action]:
        stream.is_over = True
        return self._unpin(stream.content)

    # A listing is no blob: it lives as long as something refers to it.

    def _pin(self, content: BlobId | Listing) -> None:
        if not isinstance(content, Listing):
            self.blob_refs.pin(content)

    def _unpin(self, content: BlobId | Listing) -> list[Action]:
        return [] if isinstance(content, Listing) else self.blob_refs.unpin(content)

    def check_invariants(self) -> None:
        pinned: Counter[BlobId] = Counter()
        waiting_bytes = 0
        for window in self._windows.values():
            assert window.credit_bytes <= WINDOW_BYTES
            assert len(window.serving) <= SERVING_MAX
            if window.queued:
                assert window.queued.keys() <= window.outstanding.keys()
            for stream in window.streams:
                assert stream.number in window.serving
                if not isinstance(stream.content, Listing):
                    pinned[stream.content] += 1
            for forward in window.batches:
                waiting_bytes += forward.size
        assert self.backlog_bytes == waiting_bytes
        self.blob_refs.check_invariants(pinned)
