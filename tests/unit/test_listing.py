"""Listings: what is packed comes out again, and bytes from elsewhere can do no harm."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.core.listing import (
    NAME_MAX,
    Listing,
    MalformedListing,
    index_slots,
    pack_listing,
)
from copperfs.core.state import SLOT_BYTES
from copperfs.types import ATTRIBUTES_BYTES, Attributes, Entry
from tests.unit.core_lab import directory, file, files, link

names = st.binary(min_size=1, max_size=NAME_MAX)
entries = st.builds(
    Entry,
    st.builds(Attributes, st.binary(min_size=ATTRIBUTES_BYTES, max_size=ATTRIBUTES_BYTES)),
    st.binary(max_size=300),
)
directories = st.dictionaries(names, entries, max_size=20)


@given(directories, st.booleans())
def test_what_is_packed_comes_out_again(rows: dict[bytes, Entry], bare: bool) -> None:
    listing = Listing(pack_listing(rows.items(), bare=bare).packed)
    assert list(listing.rows()) == list(rows.items())
    assert listing.count == len(rows)
    assert listing.bare is bare
    assert {name: listing.find(name) for name in rows} == rows
    assert listing.absolute_symlinks == sum(e.target.startswith(b"/") for e in rows.values())


@given(directories, names)
def test_a_name_is_in_it_or_not(rows: dict[bytes, Entry], name: bytes) -> None:
    listing = pack_listing(rows.items())
    assert (name in listing) is (name in rows)
    assert listing.find(name) == rows.get(name)


def test_an_empty_directory_has_a_listing() -> None:
    listing = files()
    assert list(listing.rows()) == []
    assert listing.find(b"a") is None


def test_the_longest_name_and_target_fit() -> None:
    rows = [(b"n" * NAME_MAX, link(b"t" * 4095)), (b"after", file())]
    assert list(pack_listing(rows).rows()) == rows


def test_looking_for_a_name_adds_no_more_than_is_charged_for_it() -> None:
    names = [b"name%05d" % number for number in range(10_000)]
    listing = files(*names)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        assert all(name in listing for name in names)
        assert b"name" not in listing
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= SLOT_BYTES * index_slots(len(names)) + 1024
    assert SLOT_BYTES * index_slots(len(names)) <= 16 * len(names)


def test_of_a_name_that_is_given_twice_the_first_one_counts() -> None:
    listing = pack_listing([(b"a", file(1)), (b"a", file(2))])
    assert listing.find(b"a") == file(1)
    with pytest.raises(MalformedListing, match="twice"):
        listing.check()


def test_rows_begin_at_multiples_of_eight_bytes() -> None:
    for length in range(1, 20):
        assert len(files(b"n" * length).packed) % 8 == 0


def examine(packed: bytes) -> None:
    """Everything that a reader of a listing does."""
    listing = Listing(packed)
    for name, entry in listing.rows():
        assert 1 <= len(name) <= NAME_MAX
        assert len(entry.attributes.packed) == ATTRIBUTES_BYTES
        assert listing.find(name) is not None
    assert b"missing" not in listing or listing.find(b"missing") is not None
    assert listing.count >= 0
    assert listing.absolute_symlinks >= 0
    assert listing.bare in (False, True)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_listing_or_malformed(packed: bytes) -> None:
    try:
        examine(packed)
    except MalformedListing:
        return


GOOD = pack_listing([(b"name", file(5)), (b"link", link(b"/target")), (b"d", directory())]).packed


@given(st.data())
def test_damage_is_harmless_or_noticed(data: st.DataObject) -> None:
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        examine(bytes(damaged))
    except MalformedListing:
        return


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_a_listing_cut_short_is_noticed(length: int) -> None:
    with pytest.raises(MalformedListing):
        list(Listing(GOOD[:length]).rows())


@pytest.mark.parametrize("length", range(16))
def test_a_header_cut_short_is_noticed_whatever_is_asked_first(length: int) -> None:
    listing = Listing(GOOD[:length])
    for ask in (
        lambda: listing.count,
        lambda: listing.bare,
        lambda: listing.absolute_symlinks,
        lambda: listing.find(b"a"),
    ):
        with pytest.raises(MalformedListing):
            ask()


HEADER_BYTES = 16


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        (0, "<I", 0),  # magic
        (4, "<I", 4),  # more rows than there are
        (4, "<I", 0xFFFF_FFFF),
        (HEADER_BYTES, "<I", 0),  # a row of no length
        (HEADER_BYTES, "<I", 7),  # not a multiple of 8
        (HEADER_BYTES, "<I", 0xFFFF_FFF8),  # beyond the end
        (HEADER_BYTES + 4, "<H", 0),  # no name
        (HEADER_BYTES + 4, "<H", NAME_MAX + 1),  # too long
        (HEADER_BYTES + 6, "<H", 0xFFFF),  # a target beyond the row
    ],
)
def test_impossible_lengths_are_noticed(at: int, layout: str, value: int) -> None:
    damaged = bytearray(GOOD)
    struct.pack_into(layout, damaged, at, value)
    with pytest.raises(MalformedListing):
        list(Listing(bytes(damaged)).rows())
