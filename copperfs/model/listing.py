"""Listing: a directory's names with their entries, as one flat buffer (decision 5).

The scanner produces it, the front answers from it, and nodes send it to each other.
``native/listing.h`` has the same format in C::

    header  magic "CLS1", count, flags, number of absolute symlinks        4 x u32
    row     length (multiple of 8; one more: *unknown*), name length,
            target length                                                  u32, 2 x u16
            attributes as in types.py                                      88 bytes
            name, target, padding

A *bare* listing has names, types and inode numbers only: of a very large directory, or of one whose
entries may not be looked up. An *unknown* row is the same for one name, for which the source
returned no attributes. It has no target. A reader that needs more looks the name up singly
(``has_to_be_looked_up``).

A walk gets the names in the order of their *cookies*, which follow from the names alone (decision
83). ``native/front/readdir_cookies.c`` has another hash, and no mount uses both.
"""

import stat
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import xxhash

from copperfs.model.types import ATTRIBUTES_BYTES, Attributes, Entry, Version

_HEADER = struct.Struct("<IIII")
_ROW = struct.Struct("<IHH")
_ROW_BYTES = _ROW.size + ATTRIBUTES_BYTES
_MAGIC = 0x31534C43
_BARE = 1
_UNKNOWN = 1
NAME_MAX = 255
# Lower: a walk's start, "." and ".."; higher: room for names that move up.
_COOKIE_MIN = 3
_COOKIE_MAX = 2**63 - 1 - 2**32


def cookie_of(name: bytes) -> int:
    return max(_COOKIE_MIN, (xxhash.xxh3_64_intdigest(name) >> 1) % _COOKIE_MAX)


def ending_of(name: bytes) -> bytes:
    """From the last dot; empty without a dot, or with only one at the beginning."""
    dot = name.rfind(b".")
    return name[dot:] if dot > 0 else b""


class MalformedListing(ValueError):
    """Bytes that are not a listing; the sender is at fault."""


@dataclass(slots=True)
class Listing:
    """Immutable; ``find`` builds an index the first time."""

    packed: bytes
    directory: Version | None = field(default=None, compare=False)
    """The directory's own, from before its names were read. It identifies the content; the time of
    reading does not."""
    digests: dict[int, bytes] = field(default_factory=dict, repr=False, compare=False)
    _offsets: "array[int] | None" = field(default=None, repr=False, compare=False)
    """Where the row of a name begins, by the name's hash; 0 is a free slot. A dict of the names
    took 170 bytes for each."""
    _by_ending: "array[int] | None" = field(default=None, repr=False, compare=False)
    """The offsets of all rows, by the names' endings."""
    _order: "_Order | None" = field(default=None, repr=False, compare=False)

    @property
    def count(self) -> int:
        return self._header()[1]

    @property
    def bare(self) -> bool:
        return bool(self._header()[2] & _BARE)

    @property
    def absolute_symlinks(self) -> int:
        """How many rows the mount may have to show differently."""
        return self._header()[3]

    def check(self) -> None:
        """Raise MalformedListing unless every row is whole, each name occurs once, and there is no
        other data."""
        names = dict(self._walk())
        if len(names) != self.count:
            raise MalformedListing("a name twice")
        if any(name in (b".", b"..") or b"/" in name or b"\0" in name for name in names):
            raise MalformedListing("a name that no directory has")
        if any(self._is_unknown(at) and not self._is_bare(at) for at in names.values()):
            raise MalformedListing("more than is known of a name")
        absolute = sum(self._target(at).startswith(b"/") for at in names.values())
        if absolute != self.absolute_symlinks:
            raise MalformedListing("a wrong count of absolute links")

    def __contains__(self, name: bytes) -> bool:
        return self._offset_of(name) is not None

    def find(self, name: bytes) -> Entry | None:
        at = self._offset_of(name)
        return None if at is None else self._entry(at)

    def has_to_be_looked_up(self, name: bytes) -> bool:
        """Only number and type of the name are known."""
        at = self._offset_of(name)
        return at is not None and (self.bare or self._is_unknown(at))

    def rows(self) -> Iterator[tuple[bytes, Entry]]:
        for name, at in self._walk():
            yield name, self._entry(at)

    def rows_ending(self, ending: bytes) -> Iterator[tuple[bytes, Entry]]:
        if self._by_ending is None:
            endings = sorted((ending_of(name), at) for name, at in self._walk())
            self._by_ending = array("I", [at for _, at in endings])
        found = self._by_ending
        first = bisect_left(found, ending, key=lambda at: ending_of(self._name(at)))
        for number in range(first, len(found)):
            at = found[number]
            name = self._name(at)
            if ending_of(name) != ending:
                return
            yield name, self._entry(at)

    def after(
        self, cookie: int, cookie_of: Callable[[bytes], int] = cookie_of
    ) -> Iterator[tuple[int, bytes, Entry]]:
        """The names of a walk after *cookie* (0 at its start), each once."""
        if self._order is None:
            self._order = _in_order(self._walk(), cookie_of)
        order = self._order
        for place in range(bisect_right(order.cookies, cookie), len(order.cookies)):
            at = order.offsets[place]
            yield order.cookies[place], self._name(at), self._entry(at)

    def _offset_of(self, name: bytes) -> int | None:
        offsets = self._offsets
        if offsets is None:
            offsets = self._offsets = self._index()
        slot = _slot_of(name, offsets)
        while at := offsets[slot]:
            if self._name(at) == name:
                return at
            slot = (slot + 1) % len(offsets)
        return None

    def _index(self) -> "array[int]":
        # Limit the count to the possible one; the walk finds a wrong count.
        count = min(self.count, len(self.packed) // _ROW_BYTES)
        offsets = array("I", [0]) * index_slots(count)  # this allocates only its own size
        for name, at in self._walk():
            slot = _slot_of(name, offsets)
            while offsets[slot]:
                slot = (slot + 1) % len(offsets)
            offsets[slot] = at
        return offsets

    def _header(self) -> tuple[int, int, int, int]:
        if len(self.packed) < _HEADER.size:
            raise MalformedListing("shorter than its header")
        magic, count, flags, absolute = _HEADER.unpack_from(self.packed)
        return magic, count, flags, absolute

    def _walk(self) -> Iterator[tuple[bytes, int]]:
        magic, count, _, _ = self._header()
        if magic != _MAGIC:
            raise MalformedListing("no listing at all")
        at, end = _HEADER.size, len(self.packed)
        for _ in range(count):
            if end - at < _ROW_BYTES:
                raise MalformedListing("a row beyond the end")
            length, name_length, target_length = _ROW.unpack_from(self.packed, at)
            length &= ~_UNKNOWN
            if (
                length % 8
                or length > end - at
                or not 1 <= name_length <= NAME_MAX
                or _ROW_BYTES + name_length + target_length > length
            ):
                raise MalformedListing("a row with impossible lengths")
            yield self._name(at), at
            at += length

    def _entry(self, at: int) -> Entry:
        return Entry(self._attributes(at), self._target(at), self._is_unknown(at))

    def _attributes(self, at: int) -> Attributes:
        return Attributes(self.packed[at + _ROW.size : at + _ROW_BYTES])

    def _is_unknown(self, at: int) -> bool:
        return bool(self.packed[at] & _UNKNOWN)  # the lowest byte of its length

    def _is_bare(self, at: int) -> bool:
        """Only number and type, in a listing that has more."""
        attributes = self._attributes(at)
        bare = Attributes.bare(attributes.inode, stat.S_IFMT(attributes.mode))
        return not self.bare and attributes == bare and not self._target(at)

    def _name(self, at: int) -> bytes:
        start = at + _ROW_BYTES
        return self.packed[start : start + _ROW.unpack_from(self.packed, at)[1]]

    def _target(self, at: int) -> bytes:
        _, name_length, target_length = _ROW.unpack_from(self.packed, at)
        start = at + _ROW_BYTES + name_length
        return self.packed[start : start + target_length]


@dataclass(frozen=True, slots=True)
class _Order:
    cookies: "array[int]"
    offsets: "array[int]"


def _in_order(rows: Iterable[tuple[bytes, int]], cookie_of: Callable[[bytes], int]) -> _Order:
    order = _Order(array("Q"), array("Q"))
    last, before = _COOKIE_MIN - 1, b""
    for cookie, name, at in sorted((cookie_of(name), name, at) for name, at in rows):
        if name == before:
            continue
        # Of names with equal cookies, the second one gets the next number.
        last, before = max(cookie, last + 1), name
        order.cookies.append(last)
        order.offsets.append(at)
    return order


def index_slots(count: int) -> int:
    """Here and in ``native/front/tables.c``: a power of two, at most half of it used."""
    slots = 4
    while slots < 2 * count:
        slots *= 2
    return slots


def _slot_of(name: bytes, offsets: "array[int]") -> int:
    return hash(name) % len(offsets)


def checked_listing(
    packed: bytes, directory: Version | None, digests: dict[int, bytes] | None = None
) -> Listing:
    """From another process or node; raises MalformedListing."""
    listing = Listing(packed, directory, {} if digests is None else digests)
    listing.check()
    return listing


def pack_listing(rows: Iterable[tuple[bytes, Entry]], *, bare: bool = False) -> Listing:
    parts, absolute = [b""], 0
    for name, entry in rows:
        content = name + entry.target
        length = (_ROW_BYTES + len(content) + 7) & ~7
        parts.append(
            _ROW.pack(length | (_UNKNOWN if entry.unknown else 0), len(name), len(entry.target))
            + entry.attributes.packed
            + content.ljust(length - _ROW_BYTES, b"\0")
        )
        absolute += entry.target.startswith(b"/")
    parts[0] = _HEADER.pack(_MAGIC, len(parts) - 1, _BARE if bare else 0, absolute)
    return Listing(b"".join(parts))
