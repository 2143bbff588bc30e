"""The blob table of the daemon: bytes outside the Python heap, and the digests of their parts.

An arriving part is copied once, into its blob. A large message in one piece becomes the blob itself
(0.1 ms less for a chunk).

The node that reads the source takes the digest once. Every other node keeps the digest that came
with the part, so that each arrival is checked against it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from copperfs.model.listing import Listing, MalformedListing, checked_listing
from copperfs.model.types import BlobId, PayloadId, Version
from copperfs.native.blob import Blob, adopted, new_blob
from copperfs.node.peer.flow_control import parts_in
from copperfs.node.peer.messages import PART_BYTES, Offer
from copperfs.node.peer.reassembly import Slice
from copperfs.wire.payload import Payload, digest, size_of

log = logging.getLogger(__name__)

ADOPTED_BYTES_MIN = 64 << 10
"""The transport copied a smaller payload out of its frame, or its frame also holds other data."""


@dataclass(slots=True)
class DaemonBlobs:
    held: dict[BlobId, Blob] = field(default_factory=dict)
    _digests: dict[BlobId, dict[int, bytes]] = field(default_factory=dict)
    _lent: dict[PayloadId, Payload] = field(default_factory=dict)
    _held: set[PayloadId] = field(default_factory=set)
    """The lent payloads that outlive an event."""
    _next: int = 0

    def keep_blob(self, blob: Blob, known: bytes | None = None) -> BlobId:
        """*known*: the digest of a blob of one part."""
        self._next += 1
        number = BlobId(self._next)
        self.held[number] = blob
        if known is not None:
            self._digests[number] = {0: known}
        return number

    def keep(self, payload: PayloadId) -> BlobId:
        return self._keep_frame(self._lent[payload])

    def _keep_frame(self, payload: Payload) -> BlobId:
        return self.keep_blob(adopted(memoryview(payload.data)), payload.digest)

    def whole(self, number: BlobId) -> Payload:
        """The blob in one piece, for a batch."""
        return _with_digest(self.held[number].view, 0, self._digests.setdefault(number, {}))

    def release(self, number: BlobId) -> None:
        del self.held[number]
        self._digests.pop(number, None)

    def content(self, number: BlobId) -> Blob:
        return self.held[number]

    def part(self, content: BlobId | Listing, index: int, total_bytes: int) -> Payload:
        if isinstance(content, Listing):
            return _part(memoryview(content.packed), index, content.digests)
        data = self.held[content].view[:total_bytes]
        return _part(data, index, self._digests.setdefault(content, {}))

    def offer(self, offer: Offer, contents: tuple[BlobId | Listing, ...]) -> tuple[Offer, Payload]:
        """Each item keeps the digest it has from the source."""
        items, pieces = [], []
        for item, content in zip(offer.items, contents, strict=True):
            piece = self.part(content, 0, item.total_bytes)
            items.append(replace(item, digest=piece.digest))
            pieces.append(piece.data)
        whole = b"".join(pieces)
        return replace(offer, items=tuple(items)), Payload(whole, digest(whole))

    def fill(self, number: BlobId, index: int, payload: Payload) -> None:
        start = index * PART_BYTES
        blob = self.held[number]
        blob.view[start : start + len(payload.data)] = payload.data
        self._digests.setdefault(number, {})[index] = payload.digest

    def lend(self, payload: Payload) -> PayloadId:
        """Lend a payload to an event until ``take_back``, or longer if the node holds it."""
        self._next += 1
        number = PayloadId(self._next)
        self._lent[number] = payload
        return number

    def take_back(self, number: PayloadId) -> None:
        if number not in self._held:
            del self._lent[number]

    def size(self, payload: PayloadId) -> int:
        return size_of(self._lent[payload].data)

    def hold(self, payload: PayloadId) -> None:
        lent = self._lent[payload]
        # the transport may reuse its frame
        self._lent[payload] = Payload(bytes(lent.data), lent.digest)
        self._held.add(payload)

    def drop(self, payload: PayloadId) -> None:
        self._held.discard(payload)
        del self._lent[payload]

    def held_bytes(self) -> int:
        """The bytes of listing parts whose listings are still incomplete."""
        return sum(size_of(self._lent[each].data) for each in self._held)

    def take_part(
        self, payload: PayloadId, blob: BlobId | None, index: int, total_bytes: int
    ) -> BlobId:
        lent = self._lent[payload]
        size = size_of(lent.data)
        if blob is None and size == total_bytes and size >= ADOPTED_BYTES_MIN:
            return self._keep_frame(lent)
        if blob is None:
            blob = self.keep_blob(new_blob(total_bytes))
        self.fill(blob, index, lent)
        if index + 1 == parts_in(total_bytes):
            self.held[blob].seal(total_bytes)
        return blob

    def take_item(self, payload: PayloadId, where: Slice, blob: BlobId | None = None) -> BlobId:
        item = where.item
        if blob is None:
            blob = self.keep_blob(new_blob(item.total_bytes), item.digest or None)
        held, end = self.held[blob], item.offset + item.length
        held.view[item.offset : end] = self._piece(payload, where)
        if end == item.total_bytes:
            held.seal(end)
        return blob

    def blob_listing(self, blob: BlobId, directory: Version | None) -> Listing | None:
        return _listing(bytes(self.held[blob].view), directory, {})

    def empty(self) -> BlobId:
        return self._keep_frame(Payload(b"", digest(b"")))

    def is_item(self, payload: PayloadId, where: Slice) -> bool:
        is_so = digest(self._piece(payload, where)) == where.item.digest
        if not is_so:
            log.info("bytes were offered that are not what their digest says")
        return is_so

    def item_listing(self, payload: PayloadId, where: Slice) -> Listing | None:
        packed = bytes(self._piece(payload, where))
        return _listing(
            packed, where.item.version, {0: where.item.digest} if where.item.digest else {}
        )

    def listing(
        self, payloads: Sequence[PayloadId], total_bytes: int, directory: Version | None
    ) -> Listing | None:
        parts = [self._lent[each] for each in payloads]
        packed = b"".join(bytes(each.data) for each in parts)
        if len(packed) != total_bytes:
            log.info("the parts of a listing are not of one whole")
            return None
        return _listing(packed, directory, {n: each.digest for n, each in enumerate(parts)})

    def _piece(self, payload: PayloadId, where: Slice) -> memoryview:
        return memoryview(self._lent[payload].data)[where.start : where.start + where.item.length]


def _listing(packed: bytes, directory: Version | None, digests: dict[int, bytes]) -> Listing | None:
    try:
        return checked_listing(packed, directory, digests)
    except MalformedListing as error:
        log.info("a node gave a malformed listing: %s", error)
        return None


def _part(data: memoryview, index: int, digests: dict[int, bytes]) -> Payload:
    start = index * PART_BYTES
    return _with_digest(data[start : start + PART_BYTES], index, digests)


def _with_digest(data: memoryview, index: int, digests: dict[int, bytes]) -> Payload:
    if index not in digests:
        digests[index] = digest(data)
    return Payload(data, digests[index])
