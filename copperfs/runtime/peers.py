"""The engine's side of the overlay: messages with their bytes to the transport, arrivals to the
core.

The core says what to send and only has handles for bytes. Here the part of a blob or listing that a
message speaks of is found, with its digest, and handed over without a copy. What arrives is copied
once, into the blob that it is a part of, where the front will read it and from which it is passed
on. What arrives in one large piece, as chunks do, is not copied: the message itself becomes the
blob (0.1 ms less for a chunk).

A digest is taken once, where the source was read, when a part is first sent; what came from a peer
keeps the digest that it came with. So what is checked on arrival is what the reader of the source
saw, however many nodes it came through.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import trio

from copperfs.blob import Blob, adopted, new_blob
from copperfs.core.actions import Send
from copperfs.core.events import (
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
from copperfs.core.links import parts_in
from copperfs.core.listing import Listing, MalformedListing, checked_listing
from copperfs.core.messages import (
    PART_BYTES,
    Batch,
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
from copperfs.core.trail import ITEM_BYTES_MAX
from copperfs.errors import MountError
from copperfs.net.transport import (
    Arrival,
    Connected,
    Corrupt,
    Foreign,
    Lost,
    Received,
    Transport,
)
from copperfs.runtime.agreement import agreed_flags, difference
from copperfs.runtime.comparison import Comparison
from copperfs.types import BlobId, NodeId
from copperfs.wire.fields import Malformed
from copperfs.wire.greeting import versions_differ
from copperfs.wire.payload import Payload, digest, size_of

log = logging.getLogger(__name__)

PING_WITHIN_S = 2.0
ADOPTED_BYTES_MIN = 64 << 10
"""What is smaller was copied out of its frame by the transport, or is in one with other things."""


@dataclass(slots=True)
class Blobs:
    """The bytes that the core has handles for, and the digests of their parts."""

    held: dict[BlobId, Blob] = field(default_factory=dict)
    _digests: dict[BlobId, dict[int, bytes]] = field(default_factory=dict)
    _next: int = 0

    def keep(self, blob: Blob, known: bytes | None = None) -> BlobId:
        """*known* is its digest, if it is of one part and came with one."""
        self._next += 1
        number = BlobId(self._next)
        self.held[number] = blob
        if known is not None:
            self._digests[number] = {0: known}
        return number

    def keep_frame(self, payload: Payload) -> BlobId:
        """A payload as it came, to be passed on."""
        return self.keep(adopted(memoryview(payload.data)), payload.digest)

    def whole(self, number: BlobId) -> Payload:
        """In one piece, whatever its size: a batch."""
        return _with_digest(self.held[number].view, 0, self._digests.setdefault(number, {}))

    def release(self, number: BlobId) -> None:
        del self.held[number]
        self._digests.pop(number, None)

    def part(self, number: BlobId, index: int, total_bytes: int) -> Payload:
        data = self.held[number].view[:total_bytes]
        return _part(data, index, self._digests.setdefault(number, {}))

    def fill(self, number: BlobId, index: int, payload: Payload) -> None:
        start = index * PART_BYTES
        blob = self.held[number]
        blob.view[start : start + len(payload.data)] = payload.data
        self._digests.setdefault(number, {})[index] = payload.digest


@dataclass(slots=True)
class Peers:
    """What the engine needs to take part in a job of several nodes."""

    transport: Transport
    node: Node
    blobs: Blobs
    post: Callable[[Event], None]
    job: str
    agreement: bytes
    """Digest of what all nodes have to agree on; who does not is not listened to."""
    connected: set[NodeId] = field(default_factory=set)
    disagreeing: dict[NodeId, str] = field(default_factory=dict)
    """Who does not, and in which sentence."""
    take_batch: Callable[[NodeId, Batch, Payload], None] = lambda _peer, _batch, _payload: None
    """Unpacks what is pushed; see ``warmup.py``."""
    comparison: Comparison | None = None
    """Of inode numbers with those of other nodes."""
    _losses: Counter[NodeId] = field(default_factory=Counter)
    taken_bytes: int = 0
    """Of listings and files that came from parents; without what messages take beside them."""
    given_bytes: int = 0
    """The same, to children."""
    _changed: trio.Event = field(default_factory=trio.Event)
    _pings: dict[int, trio.Event] = field(default_factory=dict)
    _next_ping: int = 0
    places: bytes = b""
    """What is shared here, to be compared (``agreement.py``)."""
    _listings: dict[tuple[NodeId, int], list[Payload]] = field(default_factory=dict)
    """Of listings that are too large for one message, what has come."""

    async def wait_in_touch(self) -> None:
        """Until all whom this node asks can be talked to. MountError if one was started
        otherwise."""
        while not self.node.is_in_touch():
            wrong = [each for each in self.disagreeing if self.node.looks_up_to(each)]
            if wrong:
                raise MountError(self.disagreeing[min(wrong)])
            await self._changed.wait()
        if self.comparison is not None:
            await self.comparison.wait()

    async def wait_disagreement(self) -> str:
        """Until any node was found to be started otherwise; in a sentence."""
        while not self.disagreeing:
            await self._changed.wait()
        return self.disagreeing[min(self.disagreeing)]

    async def wait_lost(self, peer: NodeId) -> None:
        """Until what passes from *peer* is interrupted; at once if there is no connection."""
        losses = self._losses[peer]
        while peer in self.connected and self._losses[peer] == losses:
            await self._changed.wait()

    async def ping(self, peer: NodeId) -> float | None:
        """Seconds until *peer* answered; None if it cannot be talked to."""
        self._next_ping += 1
        number = self._next_ping
        self._pings[number] = trio.Event()
        started = trio.current_time()
        try:
            if peer not in self.connected or not self.transport.send(peer, Ping(number)):
                return None
            with trio.move_on_after(PING_WITHIN_S):
                await self._pings[number].wait()
                return trio.current_time() - started
            return None
        finally:
            del self._pings[number]

    async def ping_all(self, peers: Collection[NodeId]) -> dict[NodeId, float | None]:
        """All at once, so that those who do not answer are waited for once."""
        found: dict[NodeId, float | None] = {}

        async def ping(peer: NodeId) -> None:
            found[peer] = await self.ping(peer)

        async with trio.open_nursery() as nursery:
            for each in peers:
                nursery.start_soon(ping, each)
        return found

    def reset_statistics(self) -> None:
        self.taken_bytes = self.given_bytes = 0
        self.transport.reset_statistics()

    # --- out -------------------------------------------------------------------------------------

    def send(self, action: Send) -> None:
        message, content = action.message, action.content
        payload = None
        if isinstance(message, GivePart):
            assert content is not None
            assert not isinstance(content, tuple)
            if isinstance(content, Listing):
                payload = _listing_part(content, message.index)
            else:
                payload = self.blobs.part(content, message.index, message.total_bytes)
        elif isinstance(message, Offer):
            assert isinstance(content, tuple)
            message, payload = self._offer_payload(message, content)
        elif isinstance(message, Batch):
            assert content is not None
            assert not isinstance(content, Listing | tuple)
            payload = self.blobs.whole(content)
        # If it cannot be sent, the transport says Lost, and the core asks elsewhere.
        try:
            sent = self.transport.send(action.peer, message, payload)
        except Malformed:
            log.exception("a bug: no node would take this message to node %d", action.peer)
            return
        if sent and payload is not None:
            self.given_bytes += len(payload.data)

    # --- in --------------------------------------------------------------------------------------

    def arrived(self, arrival: Arrival) -> None:
        """What one peer says must not end the daemon, whatever it is."""
        try:
            self._take(arrival)
        except Exception:
            log.exception("a bug: what node %d said could not be handled", arrival.peer)

    def _take(self, arrival: Arrival) -> None:
        match arrival:
            case Connected(peer):
                self._greet(peer)
            case Lost(peer):
                self._lose(peer)
            case Foreign(peer, version, release):
                assert self.node.trees is not None
                me = f"this node, {self.node.trees.me},"
                self._disagree(peer, versions_differ(f"node {peer}", version, release, me))
            case Corrupt(peer, message):
                log.info("node %d gave bytes that are not what their digest says", peer)
                if peer in self.connected:
                    self._drop_spoiled(peer, message)
            case Received(peer, Hello() as message, _):
                self._hear_hello(peer, message)
            case Received(peer, message, payload):
                if peer not in self.connected:
                    return  # it has not said hello, or does not agree
                if payload is not None:
                    self.taken_bytes += len(payload.data)
                if isinstance(message, GivePart):
                    self._take_part(peer, message, payload or Payload(b"", b""))
                elif isinstance(message, Offer):
                    if self.node.looks_up_to(peer):
                        self._take_offer(peer, message, payload or Payload(b"", b""))
                    elif payload is not None:  # nobody else is followed; its credit goes back
                        self.post(OfferTaken(peer, len(payload.data), message.epoch))
                elif isinstance(message, Batch):
                    self.take_batch(peer, message, payload or Payload(b"", b""))
                elif isinstance(message, Ping):
                    self.transport.send(peer, Pong(message.number))
                elif isinstance(message, Pong):
                    if message.number in self._pings:
                        self._pings[message.number].set()
                else:
                    self.post(Heard(peer, message))

    def _drop_spoiled(self, peer: NodeId, message: Message) -> None:
        if isinstance(message, GivePart):
            self.post(PartSpoiled(peer, message))
        elif isinstance(message, Batch | Offer):
            # Who wants it asks for it; the credit goes back as if it had been taken.
            self.node.stats.spoiled += 1
            if isinstance(message, Batch) and message.last:
                # What was in it is missing; that it was the last one is to be known all the same.
                self.take_batch(peer, replace(message, items=()), Payload(b"", digest(b"")))
            size = sum(item.length for item in message.items)
            self.post(OfferTaken(peer, size, message.epoch))

    def _greet(self, peer: NodeId) -> None:
        """Both ends begin with a hello; nothing else is said before it was heard."""
        if peer in self.connected:
            self._lose(peer)
        self._say_hello(peer, is_answer=False)

    def say_hello_again(self, epoch: int) -> None:
        """Tell all who are connected what this node knows by now; nobody answers."""
        for peer in self.connected:
            self._say_hello(peer, is_answer=True, epoch=epoch)

    def _say_hello(self, peer: NodeId, *, is_answer: bool, epoch: int | None = None) -> None:
        assert self.node.trees is not None
        hello = Hello(
            self.node.trees.me,
            self.job,
            self.agreement,
            self.node.epoch if epoch is None else epoch,
            is_answer,
            places=self.places,
        )
        if self.comparison is not None:
            hello = replace(
                hello,
                ignores_inodes=self.comparison.ignoring,
                sample=self.comparison.sample,
                is_sampled=self.comparison.is_sampled,
            )
        try:
            self.transport.send(peer, hello)
        except Malformed:
            log.exception("a bug: no node would take this greeting to node %d", peer)

    def _lose(self, peer: NodeId) -> None:
        self.connected.discard(peer)
        self._losses[peer] += 1
        self._forget(peer)
        self.post(PeerDown(peer))
        self.changed()

    def _hear_hello(self, peer: NodeId, hello: Hello) -> None:
        if (wrong := self._difference(peer, hello)) is not None:
            self._disagree(peer, wrong)
            return
        self.disagreeing.pop(peer, None)
        if self.comparison is not None:
            self.comparison.hear(hello)
        if peer in self.connected:
            if hello.is_answer:
                return
            self._lose(peer)  # the other end has begun anew
        if not hello.is_answer:
            self._say_hello(peer, is_answer=True)
        self.connected.add(peer)
        self.post(PeerUp(peer))
        self.post(Heard(peer, hello))
        self.changed()

    def _difference(self, peer: NodeId, hello: Hello) -> str | None:
        if hello.job != self.job or hello.agreement != self.agreement:
            return (
                f"node {peer} was started with other settings: give all nodes the same "
                f"{agreed_flags()}"
            )
        assert self.node.trees is not None
        return difference(self.node.trees.me, self.places, peer, hello.places)

    def _disagree(self, peer: NodeId, sentence: str) -> None:
        if self.disagreeing.get(peer) == sentence:
            return
        self.disagreeing[peer] = sentence
        self.changed()
        log.error("%s (it is not talked to)", sentence)

    def _take_part(self, peer: NodeId, part: GivePart, payload: Payload) -> None:
        wanted = self.node.wanted(peer, part)
        if wanted is None:
            self.post(PartPassed(peer, part))
            return
        what, blob = wanted
        if what is What.LISTING:
            self._take_listing_part(peer, part, payload)
            return
        size = size_of(payload.data)
        if blob is None and size == part.total_bytes and size >= ADOPTED_BYTES_MIN:
            blob = self.blobs.keep_frame(payload)
        else:
            if blob is None:
                blob = self.blobs.keep(new_blob(part.total_bytes))
            self.blobs.fill(blob, part.index, payload)
            if part.index + 1 == parts_in(part.total_bytes):
                self.blobs.held[blob].seal(part.total_bytes)
        self.post(PartTaken(peer, part, blob))

    # --- offers ----------------------------------------------------------------------------------

    def _offer_payload(
        self, offer: Offer, contents: tuple[BlobId | Listing, ...]
    ) -> tuple[Offer, Payload]:
        """All of it in one piece; each item keeps the digest that it has from the source."""
        items, pieces = [], []
        for item, content in zip(offer.items, contents, strict=True):
            if isinstance(content, Listing):
                piece = _listing_part(content, 0)
            else:
                piece = self.blobs.part(content, 0, item.total_bytes)
            items.append(replace(item, digest=piece.digest))
            pieces.append(piece.data)
        whole = b"".join(pieces)
        return replace(offer, items=tuple(items)), Payload(whole, digest(whole))

    def _take_offer(self, peer: NodeId, offer: Offer, payload: Payload) -> None:
        view, at = memoryview(payload.data), 0
        self.post(OfferTaken(peer, len(view), offer.epoch))
        for item in offer.items:
            data = view[at : at + item.length]
            at += item.length
            if item.length > ITEM_BYTES_MAX:
                continue
            if item.length != item.total_bytes or digest(data) != item.digest:
                log.info("node %d offered bytes that are not what their digest says", peer)
                self.node.stats.spoiled += 1
                continue
            if item.what is What.LISTING:
                self._take_offered_listing(peer, offer.epoch, item, bytes(data))
            elif item.version is not None and item.version.size == item.length:
                blob = new_blob(item.length)
                blob.view[: item.length] = data
                blob.seal(item.length)
                number = self.blobs.keep(blob, item.digest)
                self.post(Pushed(item.path, item.version, number, offered=True))

    def _take_offered_listing(self, peer: NodeId, epoch: int, item: Item, packed: bytes) -> None:
        try:
            listing = checked_listing(packed, item.version, {0: item.digest})
        except MalformedListing as error:
            log.info("node %d offered a malformed listing: %s", peer, error)
            return
        self.post(PushedListing(item.path, listing, epoch, item.fresh_for_s, offered=True))

    def _take_listing_part(self, peer: NodeId, part: GivePart, payload: Payload) -> None:
        key = (peer, part.number)
        parts = [*self._listings.pop(key, []), Payload(bytes(payload.data), payload.digest)]
        if part.index + 1 < parts_in(part.total_bytes):
            # The core does not say when it gives one up.
            for each in [each for each in self._listings if not self.node.expects(*each)]:
                del self._listings[each]
            self._listings[key] = parts
            self.post(PartPassed(peer, part))
            return
        packed = b"".join(bytes(each.data) for each in parts)
        digests = {index: each.digest for index, each in enumerate(parts)}
        try:
            if len(packed) != part.total_bytes:
                raise MalformedListing("its parts are not of one whole")
            listing = checked_listing(packed, part.directory, digests)
        except MalformedListing as error:
            log.info("node %d gave a malformed listing: %s", peer, error)
            self.post(PartSpoiled(peer, part))
            return
        self.post(ListingTaken(peer, part, listing))

    def kept_listing_bytes(self) -> int:
        """Of listings that have not come whole."""
        return sum(len(each.data) for parts in self._listings.values() for each in parts)

    def changed(self) -> None:
        """Somebody can be talked to, or not any more, or another one is to be asked."""
        self._changed.set()
        self._changed = trio.Event()
        if self.comparison is not None:
            self.comparison.wake()

    def _forget(self, peer: NodeId) -> None:
        for key in [each for each in self._listings if each[0] == peer]:
            del self._listings[key]


def _part(data: memoryview, index: int, digests: dict[int, bytes]) -> Payload:
    start = index * PART_BYTES
    return _with_digest(data[start : start + PART_BYTES], index, digests)


def _with_digest(data: memoryview, index: int, digests: dict[int, bytes]) -> Payload:
    """It is taken once, and remembered in *digests*."""
    if index not in digests:
        digests[index] = digest(data)
    return Payload(data, digests[index])


def _listing_part(listing: Listing, index: int) -> Payload:
    return _part(memoryview(listing.packed), index, listing.digests)
