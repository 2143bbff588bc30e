"""Listings: unpacking restores what was packed, and bytes from elsewhere do no harm."""

import random
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.model.listing import (
    NAME_MAX,
    Listing,
    MalformedListing,
    checked_listing,
    cookie_of,
    index_slots,
    pack_listing,
)
from copperfs.model.types import ATTRIBUTES_BYTES, Attributes, Entry
from copperfs.node.limits_and_counters import SLOT_BYTES
from tests.unit.node_lab import directory, file, files, link, unknown

names = st.binary(min_size=1, max_size=NAME_MAX)
entries = st.builds(
    Entry,
    st.builds(Attributes, st.binary(min_size=ATTRIBUTES_BYTES, max_size=ATTRIBUTES_BYTES)),
    st.binary(max_size=300),
    st.booleans(),
)
directories = st.dictionaries(names, entries, max_size=20)


@given(directories, st.booleans())
def test_what_is_packed_comes_out_again(rows: dict[bytes, Entry], bare: bool) -> None:
    listing = Listing(pack_listing(rows.items(), bare=bare).packed)
    assert list(listing.rows()) == list(rows.items())
    assert listing.count == len(rows)
    assert listing.bare is bare
    assert {name: listing.find(name) for name in rows} == rows
    for name, entry in rows.items():
        assert listing.has_to_be_looked_up(name) is (bare or entry.unknown)
    assert listing.absolute_symlinks == sum(e.target.startswith(b"/") for e in rows.values())


@given(directories, names)
def test_a_name_is_in_it_or_not(rows: dict[bytes, Entry], name: bytes) -> None:
    listing = pack_listing(rows.items())
    assert (name in listing) is (name in rows)
    assert listing.find(name) == rows.get(name)


def test_a_name_that_is_not_there_is_not_looked_up() -> None:
    assert not files(b"a", bare=True).has_to_be_looked_up(b"b")


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


@pytest.mark.parametrize("told", [0, 2])
def test_a_wrong_count_of_absolute_links_is_noticed(told: int) -> None:
    """The count decides whether links have to be rewritten to lead into the mount."""
    packed = bytearray(pack_listing([(b"a", link(b"/t")), (b"b", link(b"t"))]).packed)
    Listing(bytes(packed)).check()
    struct.pack_into("<I", packed, 12, told)
    with pytest.raises(MalformedListing, match="absolute links"):
        Listing(bytes(packed)).check()


def test_rows_begin_at_multiples_of_eight_bytes() -> None:
    for length in range(1, 20):
        assert len(files(b"n" * length).packed) % 8 == 0


# ---- walks ---------------------------------------------------------------------------------------

NATURAL: Callable[[bytes], int] = cookie_of
HASHES = {
    "63 bits": NATURAL,
    "3 bits": lambda name: max(3, NATURAL(name) % 8),
    "none": lambda _: 2**62,
}


@pytest.mark.parametrize("hashes", HASHES)
@given(rows=directories, twice=st.booleans())
def test_a_walk_in_pieces_gives_every_name_once(
    hashes: str, rows: dict[bytes, Entry], twice: bool
) -> None:
    listing = pack_listing([*rows.items(), *(rows.items() if twice else ())])
    found: list[tuple[bytes, Entry]] = []
    cookie = 0
    while more := next(listing.after(cookie, HASHES[hashes]), None):
        assert cookie < more[0] < 2**63
        cookie = more[0]
        found.append(more[1:])
    assert dict(found) == rows
    assert len(found) == len(rows)


@given(directories, st.sets(names), st.integers(0, 20), st.randoms())
def test_a_walk_goes_on_in_another_listing_with_what_both_have(
    rows: dict[bytes, Entry], added: set[bytes], pieces: int, rng: random.Random
) -> None:
    before = list(pack_listing(rows.items()).after(0))[:pieces]
    others = [(name, rows.get(name, file())) for name in added | set(rows) if rng.random() < 0.7]
    rng.shuffle(others)
    rest = pack_listing(others).after(before[-1][0] if before else 0)
    found = [name for _, name, _ in (*before, *rest)]
    assert len(found) == len(set(found))
    assert set(rows) & {name for name, _ in others} <= set(found)


def examine(packed: bytes) -> None:
    listing = Listing(packed)
    for name, entry in listing.rows():
        assert 1 <= len(name) <= NAME_MAX
        assert len(entry.attributes.packed) == ATTRIBUTES_BYTES
        assert listing.find(name) is not None
    assert (listing.find(b"missing") is not None) is (b"missing" in dict(listing.rows()))
    assert listing.count == len(list(listing.rows()))
    listing.check()
    absolute = sum(entry.target.startswith(b"/") for _, entry in listing.rows())
    assert listing.absolute_symlinks == absolute
    for _, entry in listing.rows():
        assert not entry.unknown or (entry.attributes.size, entry.target) == (0, b"")


@given(st.binary(max_size=400))
def test_any_bytes_are_a_listing_or_malformed(packed: bytes) -> None:
    try:
        examine(packed)
    except MalformedListing:
        return


GOOD = pack_listing(
    [
        (b"name", file(5)),
        (b"link", link(b"/target")),
        (b"sick", unknown(file(5))),
        (b"d", directory()),
    ]
).packed


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
        (4, "<I", 5),  # more rows than there are
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


@pytest.mark.parametrize(
    ("entry", "bare"),
    [
        (replace(file(5), unknown=True), False),  # it has a size
        (replace(link(b"target"), unknown=True), False),
        (Entry(unknown(link(b"t")).attributes, b"target", unknown=True), False),
        (unknown(file(5)), True),  # a bare listing has no use for such a row
    ],
    ids=["a size", "a link", "a target", "twice"],
)
def test_a_row_that_is_unknown_and_tells_something_is_noticed(entry: Entry, bare: bool) -> None:
    listing = pack_listing([(b"name", entry)], bare=bare)
    with pytest.raises(MalformedListing):
        checked_listing(listing.packed, None)


def test_a_row_that_tells_nothing_is_sound() -> None:
    rows = [(b"sick", unknown(file(5))), (b"well", file(5))]
    assert list(checked_listing(pack_listing(rows).packed, None).rows()) == rows
