"""Reassembly: makes blobs and listings of the payloads of messages.

The node never sees the bytes; the driver's blob table moves them (``Payloads``). A part of an
object goes into the object's blob at once, where the front reads it and from which it is forwarded.
A listing is needed as a whole: its payloads are held until the last one arrives. A part that is not
wanted, or does not fit, is reported, so that its credit goes back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from copperfs.model.listing import Listing
from copperfs.model.types import BlobId, NodeId, PayloadId, Version
from copperfs.node.events import (
    FromPeer,
    ListingTaken,
    PartCorrupt,
    PartReceived,
    PartSkipped,
    PayloadConsumed,
    Pushed,
    PushedListing,
)
from copperfs.node.limits_and_counters import NodeStats
from copperfs.node.peer.flow_control import parts_in
from copperfs.node.peer.messages import ContentKind, DataReply, Item, Offer
from copperfs.node.peer.protocol import PeerProtocol
from copperfs.node.prefetch.access_history import ITEM_BYTES_MAX


class Slice(NamedTuple):
    """Where an item is in a payload."""

    number: int
    start: int
    item: Item


class Payloads(Protocol):
    """A payload exists during the event that reported it, or, if it is held, until it is
    dropped."""

    def size(self, payload: PayloadId) -> int: ...
    def hold(self, payload: PayloadId) -> None: ...
    def drop(self, payload: PayloadId) -> None: ...

    def take_part(
        self, payload: PayloadId, blob: BlobId | None, index: int, total_bytes: int
    ) -> BlobId:
        """The first part creates the blob."""
        ...

    def keep(self, payload: PayloadId) -> BlobId:
        """To be forwarded as it came."""
        ...

    def empty(self) -> BlobId: ...

    def release(self, blob: BlobId) -> None: ...

    def take_item(self, payload: PayloadId, where: Slice, blob: BlobId | None = None) -> BlobId:
        """The first piece creates the blob."""
        ...

    def blob_listing(self, blob: BlobId, directory: Version | None) -> Listing | None:
        """None if it is none."""
        ...

    def is_item(self, payload: PayloadId, where: Slice) -> bool:
        """Whether these bytes match the item's digest."""
        ...

    def item_listing(self, payload: PayloadId, where: Slice) -> Listing | None:
        """None if these bytes are none."""
        ...

    def listing(
        self, payloads: Sequence[PayloadId], total_bytes: int, directory: Version | None
    ) -> Listing | None:
        """None if the parts make none."""
        ...


@dataclass(slots=True)
class Reassembly:
    protocol: PeerProtocol
    stats: NodeStats
    payloads: Payloads
    _listings: dict[tuple[NodeId, int], list[PayloadId]] = field(default_factory=dict)
    """Listings that are too large for one message."""

    def part(self, peer: NodeId, part: DataReply, payload: PayloadId) -> FromPeer:
        wanted = self.protocol.wanted(peer, part)
        if wanted is None:
            return PartSkipped(peer, part)
        what, blob = wanted
        if what is ContentKind.LISTING:
            return self._listing_part(peer, part, payload)
        taken = self.payloads.take_part(payload, blob, part.index, part.total_bytes)
        return PartReceived(peer, part, taken)

    def _listing_part(self, peer: NodeId, part: DataReply, payload: PayloadId) -> FromPeer:
        key = (peer, part.number)
        if part.index + 1 < parts_in(part.total_bytes):
            # A fetch that gives up a listing does not report it.
            for each in [each for each in self._listings if not self._expects(*each)]:
                self._drop(each)
            self.payloads.hold(payload)
            self._listings.setdefault(key, []).append(payload)
            return PartSkipped(peer, part)
        parts = [*self._listings.get(key, ()), payload]
        listing = self.payloads.listing(parts, part.total_bytes, part.directory)
        self._drop(key)
        if listing is None:
            return PartCorrupt(peer, part)
        return ListingTaken(peer, part, listing)

    def offer(
        self, peer: NodeId, offer: Offer, payload: PayloadId, *, is_followed: bool
    ) -> Iterator[FromPeer]:
        """Each blob is made once all before it have been admitted. Only the offer of a peer that
        this node may ask is used."""
        size = self.payloads.size(payload)
        if is_followed or size:  # returns its credit
            yield PayloadConsumed(peer, size, offer.epoch)
        if not is_followed:
            return
        at = 0
        for number, item in enumerate(offer.items):
            where = Slice(number, at, item)
            at += item.length
            if item.length > ITEM_BYTES_MAX:
                continue
            if item.length != item.total_bytes or not self.payloads.is_item(payload, where):
                self.stats.spoiled += 1
            elif item.what is ContentKind.LISTING:
                listing = self.payloads.item_listing(payload, where)
                if listing is not None:
                    yield PushedListing(
                        item.path, listing, offer.epoch, item.fresh_for_s, offered=True
                    )
            elif item.version is not None and item.version.size == item.length:
                blob = self.payloads.take_item(payload, where)
                yield Pushed(item.path, item.version, blob, offered=True)

    def forget(self, peer: NodeId) -> None:
        for key in [each for each in self._listings if each[0] == peer]:
            self._drop(key)

    def held(self) -> list[PayloadId]:
        return [each for parts in self._listings.values() for each in parts]

    def _expects(self, peer: NodeId, number: int) -> bool:
        return self.protocol.fetches.of_request(peer, number) is not None

    def _drop(self, key: tuple[NodeId, int]) -> None:
        for each in self._listings.pop(key, ()):
            self.payloads.drop(each)
