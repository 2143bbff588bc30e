"""Payload pieces: bytes in the simulator, as pieces that all nodes share.

A piece is what one message carries of an object or a listing. It is made once, where the source is
read, with its digest. So a held part costs one reference, and a mix of two versions shows as a
piece that is not the source's.

With *bytes* a piece has the real ones, and every arrival checks their digest. Without, for the
largest runs, it has only its size, and a digest that names its file, version and part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from copperfs.model.listing import Listing
from copperfs.model.types import Path, Version
from copperfs.node.peer.flow_control import part_size, parts_in
from copperfs.node.peer.messages import PART_BYTES
from copperfs.wire.payload import DIGEST_BYTES, digest

_DIFFERENT_BYTES = 256


@dataclass(slots=True, eq=False)
class Piece:
    size: int
    digest: bytes
    data: bytes | None = None
    listing: Listing | None = None
    """Where only sizes are simulated: the listing of which this is a part."""
    _alone: "tuple[Piece, ...]" = ()

    @property
    def alone(self) -> "tuple[Piece, ...]":
        """Always the same tuple: a holder needs only a reference."""
        if not self._alone:
            self._alone = (self,)
        return self._alone

    @property
    def is_sound(self) -> bool:
        if self.data is None:
            return self.digest is not _SPOILED
        return digest(self.data) == self.digest

    def spoiled(self) -> "Piece":
        """The piece with one bit flipped and its digest unchanged; without bytes it is marked
        corrupt."""
        if self.data is None:
            return Piece(self.size, _SPOILED)
        return Piece(self.size, self.digest, bytes((self.data[0] ^ 1,)) + self.data[1:])


_SPOILED = b"\0" * DIGEST_BYTES
EMPTY = Piece(0, digest(b""), b"")


def piece_of(data: bytes) -> Piece:
    return Piece(len(data), digest(data), data)


def content_of(path: Path, version: Version, *, with_bytes: bool) -> tuple[Piece, ...]:
    """Every part of every file is different."""
    made = []
    for index in range(parts_in(version.size)):
        size = part_size(index, version.size)
        name = b"%d %s %s" % (index, repr(tuple(version)).encode(), path)
        seed = digest(name)
        if with_bytes:
            # These bytes are enough to differ; more would cost memory bandwidth.
            head = b"".join(digest(seed + bytes((n,))) for n in range(_DIFFERENT_BYTES // 16))
            made.append(piece_of(head[:size].ljust(size, seed[:1])))
        else:
            made.append(Piece(size, seed))
    return tuple(made)


def chunk_of(path: Path, version: Version, offset: int, length: int, *, with_bytes: bool) -> Piece:
    """One piece, since it travels in one message."""
    seed = digest(b"chunk %d %s %s" % (offset, repr(tuple(version)).encode(), path))
    return piece_of(seed[:length].ljust(length, seed[:1])) if with_bytes else Piece(length, seed)


def listing_piece(listing: Listing, index: int, *, with_bytes: bool) -> Piece:
    """Its digest is kept with the listing, as in the daemon. Without bytes the listing itself goes
    from node to node, since the node reads it."""
    start = index * PART_BYTES
    if not with_bytes:
        return Piece(part_size(index, len(listing.packed)), b"", listing=listing)
    data = listing.packed
    if start or len(data) > PART_BYTES:
        data = data[start : start + PART_BYTES]
    known = listing.digests.get(index)
    if known is None:
        known = listing.digests[index] = digest(data)
    return Piece(len(data), known, data)


def size_of(pieces: Sequence[Piece]) -> int:
    if len(pieces) == 1:
        return pieces[0].size
    return sum([each.size for each in pieces])


def same(some: Sequence[Piece], others: Sequence[Piece]) -> bool:
    return len(some) == len(others) and all(
        one is other or (one.digest == other.digest and one.data == other.data)
        for one, other in zip(some, others, strict=True)
    )
