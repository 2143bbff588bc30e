"""Simulated blobs: the blob table of a simulated node; a blob is a list of pieces.

Use of a blob after its release is a KeyError.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from copperfs.lab.sim.payload_pieces import EMPTY, Piece, listing_piece, size_of
from copperfs.model.listing import Listing, checked_listing
from copperfs.model.types import BlobId, PayloadId, Version
from copperfs.node.peer.flow_control import part_size
from copperfs.node.peer.messages import Offer
from copperfs.node.peer.reassembly import Slice

Pieces = tuple[Piece, ...]


@dataclass(slots=True)
class SimulatedBlobs:
    with_bytes: bool = True
    held: dict[BlobId, Pieces] = field(default_factory=dict)
    _lent: dict[PayloadId, Pieces] = field(default_factory=dict)
    _held: set[PayloadId] = field(default_factory=set)
    _next: int = 0

    def keep_blob(self, pieces: Pieces) -> BlobId:
        self._next += 1
        number = BlobId(self._next)
        self.held[number] = pieces
        return number

    def content(self, blob: BlobId) -> Pieces:
        return self.held[blob]

    def release(self, blob: BlobId) -> None:
        del self.held[blob]

    def part(self, content: BlobId | Listing, index: int, total_bytes: int) -> Pieces:
        piece = self._piece(content, index)
        assert piece.size == part_size(index, total_bytes)
        return piece.alone

    def whole(self, blob: BlobId) -> Pieces:
        return self.held[blob]

    def offer(self, offer: Offer, contents: tuple[BlobId | Listing, ...]) -> tuple[Offer, Pieces]:
        pieces = tuple([self._piece(each, 0) for each in contents])
        if not self.with_bytes:
            return offer, pieces
        items = zip(offer.items, pieces, strict=True)
        shown = tuple(replace(item, digest=each.digest) for item, each in items)
        return replace(offer, items=shown), pieces

    def _piece(self, content: BlobId | Listing, index: int) -> Piece:
        if isinstance(content, Listing):
            return listing_piece(content, index, with_bytes=self.with_bytes)
        return self.held[content][index]

    # --- payloads --------------------------------------------------------------------------------

    def lend(self, pieces: Pieces) -> PayloadId:
        """Lend a payload to the event that names it, until ``take_back`` unless the node holds
        it."""
        self._next += 1
        number = PayloadId(self._next)
        self._lent[number] = pieces
        return number

    def take_back(self, number: PayloadId) -> None:
        if number not in self._held:
            del self._lent[number]

    def lent(self) -> int:
        return len(self._lent)

    def size(self, payload: PayloadId) -> int:
        return size_of(self._lent[payload])

    def hold(self, payload: PayloadId) -> None:
        self._held.add(payload)

    def drop(self, payload: PayloadId) -> None:
        self._held.discard(payload)
        del self._lent[payload]

    def take_part(
        self, payload: PayloadId, blob: BlobId | None, index: int, total_bytes: int
    ) -> BlobId:
        [piece] = self._lent[payload]
        if blob is None:
            assert index == 0, "parts come in order"
            return self.keep_blob(piece.alone)
        held = self.held[blob]
        assert len(held) == index, "parts come in order"
        self.held[blob] = (*held, piece)
        return blob

    def keep(self, payload: PayloadId) -> BlobId:
        return self.keep_blob(self._lent[payload])

    def empty(self) -> BlobId:
        return self.keep_blob(EMPTY.alone)

    def take_item(self, payload: PayloadId, where: Slice, blob: BlobId | None = None) -> BlobId:
        piece = self._lent[payload][where.number]
        if blob is None:
            return self.keep_blob(piece.alone)
        self.held[blob] = (*self.held[blob], piece)
        return blob

    def blob_listing(self, blob: BlobId, directory: Version | None) -> Listing:
        return listing_of(self.held[blob], directory)

    def is_item(self, payload: PayloadId, where: Slice) -> bool:
        piece = self._lent[payload][where.number]
        assert piece.size == where.item.length
        is_so = not self.with_bytes or where.item.digest == piece.digest
        assert is_so, "a corrupt message is found as a whole"
        return is_so

    def item_listing(self, payload: PayloadId, where: Slice) -> Listing:
        return listing_of(self._lent[payload][where.number].alone, where.item.version)

    def listing(
        self, payloads: Sequence[PayloadId], total_bytes: int, directory: Version | None
    ) -> Listing:
        return listing_of([piece for each in payloads for piece in self._lent[each]], directory)


def listing_of(pieces: Sequence[Piece], directory: Version | None) -> Listing:
    """Without bytes, the listing that the source gave."""
    if pieces[0].listing is not None:
        return pieces[0].listing
    packed = b"".join(each.data or b"" for each in pieces)
    return checked_listing(packed, directory, {n: each.digest for n, each in enumerate(pieces)})
