"""Messages with their pieces to the port, arrivals to the core: what ``runtime/peers.py`` does.

Both ends of a connection begin with a hello, and nothing else is said before it was heard: so a
node knows the other's epoch, and that it is of the same job, before the core hears of it. The core
only has handles for bytes; here a blob is the list of the pieces that have come of it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from copperfs.core.actions import Send
from copperfs.core.events import (
    BatchTaken,
    Event,
    Heard,
    ListingTaken,
    OfferTaken,
    PartPassed,
    PartSpoiled,
    PartTaken,
    PeerDown,
    PeerUp,
    Pushed,
    PushedListing,
)
from copperfs.core.links import WINDOW_BYTES, part_size, parts_in
from copperfs.core.listing import Listing, checked_listing
from copperfs.core.messages import (
    Batch,
    Credit,
    GivePart,
    Hello,
    Item,
    Message,
    Offer,
    Ping,
    Pong,
    What,
)
from copperfs.core.node import Node
from copperfs.sim.pieces import EMPTY, Piece, listing_piece, size_of
from copperfs.sim.port import Port
from copperfs.types import BlobId, NodeId, Version
from copperfs.wire.codec import PAYLOAD_BYTES_MAX

JOB, AGREEMENT = "simulated", b"agreed"


@dataclass(slots=True)
class Blobs:
    """What the core has handles for. One that is used after its release is a KeyError."""

    held: dict[BlobId, tuple[Piece, ...]] = field(default_factory=dict)
    _next: int = 0

    def keep(self, pieces: tuple[Piece, ...]) -> BlobId:
        self._next += 1
        number = BlobId(self._next)
        self.held[number] = pieces
        return number


@dataclass(slots=True, repr=False)
class Peers:
    port: Port
    node: Node
    blobs: Blobs
    post: Callable[[Event], None]
    post_all: Callable[[Sequence[Event]], None]
    """One after the other, at the same time."""
    with_bytes: bool = True
    connected: set[NodeId] = field(default_factory=set)
    met: set[NodeId] = field(default_factory=set)
    """With whom it ever spoke."""
    taken_bytes: int = 0
    """Of payloads, wanted or not."""
    given_bytes: Counter[NodeId] = field(default_factory=Counter)
    """Sent, and not yet credited."""
    _listings: dict[tuple[NodeId, int], list[Piece]] = field(default_factory=dict)
    """Of those that are too large for one message, what has come."""
    _unfinished: dict[int, tuple[Item, list[Piece]]] = field(default_factory=dict)
    """Of each push, the object of which more is to come."""

    # --- out -------------------------------------------------------------------------------------

    def send(self, action: Send) -> None:
        message, content = action.message, action.content
        if content is None:
            self.port.send(action.peer, message)
            return
        pieces: tuple[Piece, ...]
        if isinstance(message, GivePart):
            assert not isinstance(content, tuple)
            piece = self._piece(content, message.index)
            assert piece.size == part_size(message.index, message.total_bytes)
            pieces = piece.alone
        elif isinstance(message, Offer):
            assert isinstance(content, tuple)
            pieces = tuple([self._piece(each, 0) for each in content])
            if self.with_bytes:
                items = zip(message.items, pieces, strict=True)
                message = replace(
                    message, items=tuple(replace(item, digest=each.digest) for item, each in items)
                )
        else:
            assert not isinstance(content, Listing | tuple)
            pieces = self.blobs.held[content]
        if self.port.send(action.peer, message, pieces):
            given = self.given_bytes[action.peer] + size_of(pieces)
            self.given_bytes[action.peer] = given
            assert given <= WINDOW_BYTES + PAYLOAD_BYTES_MAX

    def _piece(self, content: BlobId | Listing, index: int) -> Piece:
        if isinstance(content, Listing):
            return listing_piece(content, index, with_bytes=self.with_bytes)
        return self.blobs.held[content][index]

    def say_hello(self, peer: NodeId, *, is_answer: bool) -> None:
        epoch = self.node.epoch
        self.port.send(peer, Hello(self.port.me, JOB, AGREEMENT, epoch, is_answer))

    # --- in --------------------------------------------------------------------------------------

    def connection(self, peer: NodeId) -> None:
        """There is a new one."""
        if peer in self.connected:
            self.lose(peer)
        self.say_hello(peer, is_answer=False)

    def lose(self, peer: NodeId) -> None:
        self.connected.discard(peer)
        for key in [each for each in self._listings if each[0] == peer]:
            del self._listings[key]
        self.post(PeerDown(peer))

    def take(self, peer: NodeId, message: Message, pieces: tuple[Piece, ...]) -> None:
        if isinstance(message, Hello):
            self._hear_hello(peer, message)
            return
        if peer not in self.connected:
            return  # it has not said hello
        if pieces:
            self.taken_bytes += size_of(pieces)
        if isinstance(message, GivePart):
            self._take_part(peer, message, pieces[0] if pieces else EMPTY)
        elif isinstance(message, Offer):
            if not self.node.looks_up_to(peer):
                if pieces:  # nobody else is followed; its credit goes back
                    self.post(OfferTaken(peer, size_of(pieces), message.epoch))
                return
            events: list[Event] = [OfferTaken(peer, size_of(pieces), message.epoch)]
            for item, piece in zip(message.items, pieces, strict=True):
                assert item.digest == piece.digest or not self.with_bytes
                events.append(self._item(message.epoch, item, piece.alone, offered=True))
            self.post_all(events)
        elif isinstance(message, Batch):
            self._take_batch(peer, message, pieces)
        elif isinstance(message, Ping):
            self.port.send(peer, Pong(message.number))
        elif not isinstance(message, Pong):
            if isinstance(message, Credit):
                self.given_bytes[peer] -= message.count_bytes
                assert self.given_bytes[peer] >= 0
            self.post(Heard(peer, message))

    def drop_spoiled(self, peer: NodeId, message: Message) -> None:
        if peer not in self.connected:
            return
        if isinstance(message, GivePart):
            self.post(PartSpoiled(peer, message))
        elif isinstance(message, Batch | Offer):
            self.node.stats.spoiled += 1
            size = sum(item.length for item in message.items)
            self.post(OfferTaken(peer, size, message.epoch))

    def _hear_hello(self, peer: NodeId, hello: Hello) -> None:
        if peer in self.connected:
            if hello.is_answer:
                return
            self.lose(peer)  # the other end has begun anew
        if not hello.is_answer:
            self.say_hello(peer, is_answer=True)
        self.connected.add(peer)
        self.met.add(peer)
        self.given_bytes[peer] = 0
        self.post(PeerUp(peer))
        self.post(Heard(peer, hello))

    def _take_part(self, peer: NodeId, part: GivePart, piece: Piece) -> None:
        wanted = self.node.wanted(peer, part)
        if wanted is None:
            self.post(PartPassed(peer, part))
            return
        what, blob = wanted
        last = part.index + 1 == parts_in(part.total_bytes)
        if what is not What.LISTING:
            if blob is None:
                assert part.index == 0, "parts come in order"
                blob = self.blobs.keep(piece.alone)
            else:
                held = self.blobs.held[blob]
                assert len(held) == part.index, "parts come in order"
                self.blobs.held[blob] = (*held, piece)
            self.post(PartTaken(peer, part, blob))
            return
        parts = [*self._listings.pop((peer, part.number), []), piece]
        if not last:
            for each in [each for each in self._listings if not self.node.expects(*each)]:
                del self._listings[each]
            self._listings[peer, part.number] = parts
            self.post(PartPassed(peer, part))
            return
        self.post(ListingTaken(peer, part, _listing_of(parts, part.directory)))

    # --- what was not asked for ------------------------------------------------------------------

    def _take_batch(self, peer: NodeId, batch: Batch, pieces: tuple[Piece, ...]) -> None:
        assert self.node.trees is not None
        self.post(BatchTaken(peer, batch, self.blobs.keep(pieces), size_of(pieces)))
        for item, piece in zip(batch.items, pieces, strict=True):
            if item.offset == 0:
                self._unfinished.pop(batch.push, None)
                if self.node.wants_pushed(item):
                    self._unfinished[batch.push] = (item, [])
            begun = self._unfinished.get(batch.push)
            if begun is None:
                continue  # not wanted
            first, so_far = begun
            goes_on = (first.path, first.version) == (item.path, item.version)
            if not goes_on or size_of(so_far) != item.offset:
                del self._unfinished[batch.push]
                continue
            so_far.append(piece)
            if item.offset + item.length == item.total_bytes:
                del self._unfinished[batch.push]
                self.post(self._item(batch.epoch, item, so_far, offered=False))
        if batch.last:
            self._unfinished.pop(batch.push, None)

    def _item(self, epoch: int, item: Item, pieces: Sequence[Piece], *, offered: bool) -> Event:
        """A whole listing or object."""
        if item.what is What.LISTING:
            listing = _listing_of(pieces, item.version)
            return PushedListing(item.path, listing, epoch, item.fresh_for_s, offered)
        assert item.version is not None
        return Pushed(item.path, item.version, self.blobs.keep(_shared(pieces)), offered)

    def kept_listings(self) -> int:
        return len(self._listings)


def _listing_of(pieces: Sequence[Piece], directory: Version | None) -> Listing:
    """Of its bytes; without bytes the listing itself came, which the source saw to."""
    if pieces[0].listing is not None:
        return pieces[0].listing
    packed = b"".join(each.data or b"" for each in pieces)
    return checked_listing(packed, directory, {n: each.digest for n, each in enumerate(pieces)})


def _shared(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    return pieces[0].alone if len(pieces) == 1 else tuple(pieces)
