"""The links to the peers: what was asked of each, and what each is being given.

Flow control lives here, not in sockets. A node gives a peer bytes only on *credit*: it starts with
a window, every part spends some of it, and the peer returns it when it has taken the part in. So a
slow peer holds up what is for itself and nothing else. Asks are bounded as well: beyond so many
under way at one peer they wait here.

It never deadlocks: a node reserves room for an object before it asks, so it always takes in what
arrives, and what it waits for is always nearer to the root of its tree (each tree has a part of the
room of its own; see ``Node``).

A large object is passed on while it arrives (cut-through): a *stream* is what is left to give of
one answer, and knows how many of its parts are there.

What is being given must not be released: a stream pins its blob (``pins.py``).
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from copperfs.core.actions import Action, ReleaseBlob, Send
from copperfs.core.listing import Listing
from copperfs.core.messages import PART_BYTES, Ask, Batch, Credit, GivePart, Offer
from copperfs.core.pins import Pins
from copperfs.types import BlobId, FetchId, NodeId

WINDOW_BYTES = 8 << 20
# Credit is returned in lumps: one message for several parts.
CREDIT_LUMP_BYTES = WINDOW_BYTES // 4
# 64 in flight already cost a fifth of the CPU of one by one; more only queue at the root.
ASKS_MAX = 256
# Who asks for more than it should is refused, or it would fill this node's memory.
SERVING_MAX = 4 * ASKS_MAX


def parts_in(total_bytes: int) -> int:
    """Into how many parts an object of this size goes; an empty one is one empty part."""
    return max(1, -(-total_bytes // PART_BYTES))


def part_size(index: int, total_bytes: int) -> int:
    return max(0, min(PART_BYTES, total_bytes - index * PART_BYTES))


@dataclass(slots=True, eq=False)
class Stream:
    """What is left to give of one answer."""

    number: int
    content: BlobId | Listing
    total_bytes: int
    next: int
    """The part that goes next."""
    there: int
    """How many parts are here; more may come."""
    fresh_until: float | None = None
    is_over: bool = False
    """Given, or not wanted any more; its blob is not pinned."""

    @property
    def is_done(self) -> bool:
        return self.next >= parts_in(self.total_bytes)


@dataclass(slots=True, eq=False)
class Passing:
    """A batch on its way to this node's children. Its sender may send more when it has gone on: so
    a slow node holds up those before it, and nobody collects what others cannot take."""

    batch: Batch
    blob: BlobId
    size: int
    sender: NodeId | None
    """None at the root, or when it is gone."""
    children: int
    """To how many it has yet to go."""


@dataclass(slots=True)
class Link:
    """One peer."""

    up: bool = False
    credit_bytes: int = WINDOW_BYTES
    owed_bytes: int = 0
    """Taken in, and not yet told."""
    streams: deque[Stream] = field(default_factory=deque)
    batches: deque[Passing] = field(default_factory=deque)
    """On their way to it; single answers go first."""
    asked: dict[int, FetchId] = field(default_factory=dict)
    """Under way at this peer, by the number of the ask."""
    queued: dict[int, Ask] = field(default_factory=dict)
    """No place yet; these are in *asked* as well."""
    serving: set[int] = field(default_factory=set)
    """Its asks that have no whole answer yet."""


@dataclass(slots=True)
class Links:
    """All peers that this node has heard of."""

    pins: Pins
    backlog_bytes: int = 0
    """Of batches that wait for credit."""
    _links: dict[NodeId, Link] = field(default_factory=dict)

    def __getitem__(self, peer: NodeId) -> Link:
        link = self._links.get(peer)
        if link is None:  # not by setdefault, which would make one in vain for each message
            link = self._links[peer] = Link()
        return link

    def is_up(self, peer: NodeId) -> bool:
        link = self._links.get(peer)
        return link is not None and link.up

    # --- asking ----------------------------------------------------------------------------------

    def ask(self, peer: NodeId, ask: Ask, fetch: FetchId) -> list[Action]:
        link = self[peer]
        link.asked[ask.number] = fetch
        if len(link.asked) - len(link.queued) > ASKS_MAX:
            link.queued[ask.number] = ask
            return []
        return [Send(peer, ask)]

    def asked(self, peer: NodeId, number: int) -> FetchId | None:
        """The fetch that asked *peer* this."""
        link = self._links.get(peer)
        return link.asked.get(number) if link is not None else None

    def fetches_of(self, peer: NodeId) -> list[FetchId]:
        """Those that wait for it, the oldest first."""
        link = self._links.get(peer)
        return [] if link is None else list(link.asked.values())

    def answered(self, peer: NodeId, number: int) -> list[Action]:
        """Nothing more is expected for this ask; the next one may go."""
        link = self[peer]
        if link.asked.pop(number, None) is None:
            return []
        if link.queued.pop(number, None) is not None or not link.queued:
            return []
        return [Send(peer, link.queued.pop(next(iter(link.queued))))]

    def was_sent(self, peer: NodeId, number: int) -> bool:
        return number not in self[peer].queued

    # --- giving ----------------------------------------------------------------------------------

    def serve(self, peer: NodeId, number: int) -> bool:
        """Note an ask of *peer*; False if it asks for too much, or the same again."""
        link = self[peer]
        if len(link.serving) >= SERVING_MAX or number in link.serving:
            return False
        link.serving.add(number)
        return True

    def is_serving(self, peer: NodeId, number: int) -> bool:
        link = self._links.get(peer)
        return link is not None and number in link.serving

    def is_serving_any(self) -> bool:
        return any(link.streams or link.serving for link in self._links.values())

    def served(self, peer: NodeId, number: int) -> None:
        self[peer].serving.discard(number)

    def give(self, now: float, epoch: int, peer: NodeId, stream: Stream) -> list[Action]:
        """Begin to give an answer in parts."""
        self._pin(stream.content)
        self[peer].streams.append(stream)
        return self.pump(now, epoch, peer)

    def pump(self, now: float, epoch: int, peer: NodeId) -> list[Action]:
        """Send what is there, one part of each answer in turn, as far as the credit goes."""
        link = self[peer]
        actions: list[Action] = []
        idle = 0
        while link.streams and link.credit_bytes > 0 and idle < len(link.streams):
            stream = link.streams.popleft()
            if stream.next >= stream.there:
                idle += 1
                link.streams.append(stream)
                continue
            idle = 0
            link.credit_bytes -= part_size(stream.next, stream.total_bytes)
            actions.append(Send(peer, self._part(now, epoch, stream), stream.content))
            stream.next += 1
            if stream.is_done:
                link.serving.discard(stream.number)
                actions += self._finish(stream)
            else:
                link.streams.append(stream)
        while link.batches and link.credit_bytes > 0:
            passing = link.batches.popleft()
            link.credit_bytes -= passing.size
            actions.append(Send(peer, passing.batch, passing.blob))
            actions += self._passed(passing)
        return actions

    @staticmethod
    def _part(now: float, epoch: int, stream: Stream) -> GivePart:
        left = None if stream.fresh_until is None else max(0.0, stream.fresh_until - now)
        directory = stream.content.directory if isinstance(stream.content, Listing) else None
        return GivePart(stream.number, epoch, stream.next, stream.total_bytes, directory, left)

    def offer(
        self, peer: NodeId, offer: Offer, contents: tuple[BlobId | Listing, ...]
    ) -> list[Action]:
        size = sum(item.length for item in offer.items)
        self[peer].credit_bytes -= size
        return [Send(peer, offer, contents)]

    def may_offer(self, peer: NodeId) -> bool:
        """Only when nothing else waits for the credit."""
        link = self[peer]
        return link.credit_bytes > WINDOW_BYTES // 2 and not link.batches

    def spread(
        self, now: float, epoch: int, children: list[NodeId], passing: Passing
    ) -> list[Action]:
        """Pass a batch on to all *children* that can be talked to. Its blob is released when it has
        gone to all of them."""
        up = [child for child in children if self.is_up(child)]
        passing.children = len(up) + 1  # it is not over while it is being begun
        actions: list[Action] = []
        for child in up:
            self._links[child].batches.append(passing)
            self.backlog_bytes += passing.size
            actions += self.pump(now, epoch, child)
        return actions + self._passed(passing, begun=True)

    def _passed(self, passing: Passing, *, begun: bool = False) -> list[Action]:
        if not begun:
            self.backlog_bytes -= passing.size
        passing.children -= 1
        if passing.children:
            return []
        actions: list[Action] = [ReleaseBlob(passing.blob)]
        if passing.sender is not None and self.is_up(passing.sender):
            actions += self.took(passing.sender, passing.size)
        return actions

    def more(self, stream: Stream, content: BlobId, there: int) -> list[Action]:
        """More of an answer is there; perhaps in another blob of the same bytes."""
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
        """Give no more of this answer."""
        link = self[peer]
        link.serving.discard(number)
        for stream in link.streams:
            if stream.number == number:
                link.streams.remove(stream)
                return self._finish(stream)
        return []

    # --- credit ----------------------------------------------------------------------------------

    def took(self, peer: NodeId, count_bytes: int) -> list[Action]:
        """A part was taken in: its peer may send as much again."""
        link = self[peer]
        link.owed_bytes += count_bytes
        if link.owed_bytes < CREDIT_LUMP_BYTES:
            return []
        owed, link.owed_bytes = link.owed_bytes, 0
        return [Send(peer, Credit(owed))]

    def credited(self, now: float, epoch: int, peer: NodeId, count_bytes: int) -> list[Action]:
        link = self[peer]
        # Not more than a window, whatever it says.
        link.credit_bytes = min(WINDOW_BYTES, link.credit_bytes + count_bytes)
        return self.pump(now, epoch, peer)

    # --- up and down -----------------------------------------------------------------------------

    def up(self, peer: NodeId) -> None:
        """A new connection, with a window of its own; ``down`` was said before."""
        link = self[peer]
        assert not link.asked
        assert not link.streams
        link.up, link.credit_bytes, link.owed_bytes = True, WINDOW_BYTES, 0

    def down(self, peer: NodeId) -> tuple[list[Action], list[FetchId]]:
        """The peer is gone; the fetches that waited for it."""
        link = self[peer]
        fetches = list(link.asked.values())
        link.up = False
        link.asked.clear()
        link.queued.clear()
        link.serving.clear()
        actions: list[Action] = []
        while link.streams:
            actions += self._finish(link.streams.popleft())
        while link.batches:
            actions += self._passed(link.batches.popleft())
        # Mostly no working set is on its way; there may be thousands of links.
        for other in self._links.values() if self.backlog_bytes else ():
            for passing in other.batches:
                if passing.sender == peer:
                    passing.sender = None  # a new connection begins with a whole window
        return actions, fetches

    def _finish(self, stream: Stream) -> list[Action]:
        stream.is_over = True
        return self._unpin(stream.content)

    # A listing is no blob: it is there for as long as somebody refers to it.

    def _pin(self, content: BlobId | Listing) -> None:
        if not isinstance(content, Listing):
            self.pins.pin(content)

    def _unpin(self, content: BlobId | Listing) -> list[Action]:
        return [] if isinstance(content, Listing) else self.pins.unpin(content)

    def check_invariants(self) -> None:
        pinned: Counter[BlobId] = Counter()
        waiting_bytes = 0
        for link in self._links.values():  # most of which are idle
            assert link.credit_bytes <= WINDOW_BYTES
            assert len(link.serving) <= SERVING_MAX
            if link.queued:
                assert link.queued.keys() <= link.asked.keys()
            for stream in link.streams:
                assert stream.number in link.serving
                if not isinstance(stream.content, Listing):
                    pinned[stream.content] += 1
            for passing in link.batches:
                waiting_bytes += passing.size
        assert self.backlog_bytes == waiting_bytes
        self.pins.check_invariants(pinned)
