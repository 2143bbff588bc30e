"""Node: what it answers, fetches, holds and releases, with one path of each kind of request.

``test_node_machine.py`` drives it at random; ``test_scenarios.py`` has longer stories.
"""

import errno
from dataclasses import asdict

import pytest

from copperfs.model.listing import Listing, index_slots, pack_listing
from copperfs.model.types import BlobId, Entry, FetchId, HandleId, Path, RequestId
from copperfs.node.actions import (
    Action,
    AnswerEntry,
    AnswerError,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    EntryKey,
    Evict,
    InvalidateName,
    ListingKey,
    ListSource,
    LookupSource,
    NewEpoch,
    ObjectKey,
    OpenForBypass,
    ReadSource,
    ReleaseBlob,
    ReleaseHandle,
)
from copperfs.node.cache.metadata_cache import UNLISTABLE_MAX, Held, cost_of_listing
from copperfs.node.events import Event, GrantsRevoked, Leave, RefusedPathsChanged, Start
from copperfs.node.limits_and_counters import OBJECT_OVERHEAD_BYTES, SLOT_BYTES, Limits
from copperfs.node.requests.path_policy import LOCAL_FRESH_S, Policy
from tests.unit.node_lab import (
    DEADLINE_S,
    MIB,
    Lab,
    directory,
    file,
    files,
    link,
    version,
)

ABC = files(b"a", b"b", b"c")


def scan(fetch: int, path: bytes) -> ListSource:
    return ListSource(FetchId(fetch), Path(path))


def look(fetch: int, path: bytes) -> LookupSource:
    return LookupSource(FetchId(fetch), Path(path))


def read(fetch: int, path: bytes, size: int = 10, changed_s: int = 0) -> ReadSource:
    return ReadSource(FetchId(fetch), Path(path), version(size, changed_s))


def open_(fetch: int, path: bytes, size: int) -> OpenForBypass:
    return OpenForBypass(FetchId(fetch), Path(path), version(size))


def listed(
    request: int, path: bytes, listing: Listing, until: float | None = None
) -> AnswerListing:
    return AnswerListing(RequestId(request), Path(path), listing, until)


def found(request: int, entry: Entry | None, until: float | None = None) -> AnswerEntry:
    return AnswerEntry(RequestId(request), entry, until)


def object_key(path: bytes, size: int = 10, changed_s: int = 0) -> ObjectKey:
    return ObjectKey(Path(path), version(size, changed_s))


def bytes_of(
    request: int, path: bytes, blob: int, size: int = 10, changed_s: int = 0
) -> AnswerObject:
    return AnswerObject(RequestId(request), object_key(path, size, changed_s), BlobId(blob))


def error(request: int, number: int) -> AnswerError:
    return AnswerError(RequestId(request), number)


def policy(
    shared: tuple[bytes, ...] = (b"",),
    local: tuple[bytes, ...] = (),
    refused: tuple[bytes, ...] = (),
    revalidate_s: float | None = None,
) -> Policy:
    return Policy(
        source=b"/src",
        mountpoint=b"/mnt",
        shared=tuple(map(Path, shared)),
        local=tuple(map(Path, local)),
        refused=frozenset(map(Path, refused)),
        revalidate_s=revalidate_s,
    )


# ---- names: the listing comes first --------------------------------------------------------------


def test_a_name_is_looked_for_by_listing_its_directory() -> None:
    lab = Lab()
    assert lab.look(b"d/a") == [scan(1, b"d")]
    assert lab.scanned(1, ABC) == [listed(1, b"d", ABC)]


def test_the_neighbours_of_a_name_are_answered_from_its_listing() -> None:
    lab = Lab()
    lab.look(b"d/a")
    lab.scanned(1, ABC)
    assert lab.look(b"d/b") == [listed(2, b"d", ABC)]


def test_a_complete_listing_answers_for_missing_names() -> None:
    lab = Lab()
    lab.look(b"d/a")
    lab.scanned(1, ABC)
    assert lab.look(b"d/missing") == [listed(2, b"d", ABC)]


def test_a_listing_that_was_asked_for_answers_for_names_too() -> None:
    lab = Lab()
    assert lab.list(b"d") == [scan(1, b"d")]
    assert lab.scanned(1, ABC) == [listed(1, b"d", ABC)]
    assert lab.look(b"d/c") == [listed(2, b"d", ABC)]
    assert lab.list(b"d") == [listed(3, b"d", ABC)]


def test_the_root_is_looked_up_by_itself() -> None:
    lab = Lab()
    root = directory(2)
    assert lab.look(b"") == [look(1, b"")]
    assert lab.looked(1, root) == [found(1, root)]
    assert lab.look(b"") == [found(2, root)]


def test_names_in_the_root_are_looked_for_in_its_listing() -> None:
    assert Lab().look(b"a") == [scan(1, b"")]


def test_questions_about_one_directory_wait_for_one_scan() -> None:
    lab = Lab()
    assert lab.look(b"d/a") == [scan(1, b"d")]
    assert lab.look(b"d/b") == []
    assert lab.list(b"d") == []
    assert lab.scanned(1, ABC) == [listed(n, b"d", ABC) for n in (1, 2, 3)]
    assert lab.node.statistics().joined == 2


def test_different_directories_are_scanned_at_once() -> None:
    lab = Lab()
    assert lab.look(b"d/a") == [scan(1, b"d")]
    assert lab.look(b"e/a") == [scan(2, b"e")]
    assert lab.scanned(2, files()) == [listed(2, b"e", files())]
    assert lab.scanned(1, ABC) == [listed(1, b"d", ABC)]


def test_absolute_links_are_shown_rewritten_to_those_who_waited_and_to_later_ones() -> None:
    lab = Lab()
    lab.list(b"d")
    given = pack_listing([(b"l", link(b"/src/x"))])
    (first,) = lab.scanned(1, given)
    assert isinstance(first, AnswerListing)
    shown = first.listing.find(b"l")
    assert shown is not None
    assert shown.target == b"/mnt/x"
    assert lab.look(b"d/l") == [listed(2, b"d", first.listing)]


def test_looking_at_what_is_held_between_steps_is_no_use_of_it() -> None:
    lab = Lab()
    for fetch, path in ((1, b"d"), (2, b"e")):
        lab.list(path)
        lab.scanned(fetch, ABC)
    held = lab.held()
    assert lab.node.held_listing(Path(b"d")) == (ABC, None)
    assert lab.held() == held


# ---- bare listings -------------------------------------------------------------------------------


def test_names_in_a_bare_listing_are_looked_up_by_themselves() -> None:
    lab = Lab()
    bare = files(b"a", b"b", bare=True)
    lab.look(b"d/a")
    assert lab.scanned(1, bare) == [look(2, b"d/a")]
    assert lab.looked(2, file(7)) == [found(1, file(7))]
    assert lab.look(b"d/a") == [found(2, file(7))]


def test_names_that_are_not_in_a_bare_listing_are_missing() -> None:
    lab = Lab()
    bare = files(b"a", bare=True)
    lab.look(b"d/missing")
    assert lab.scanned(1, bare) == [listed(1, b"d", bare)]
    assert lab.look(b"d/other") == [listed(2, b"d", bare)]


def test_one_who_lists_is_content_with_a_bare_listing() -> None:
    lab = Lab()
    bare = files(b"a", bare=True)
    lab.list(b"d")
    lab.look(b"d/a")
    assert lab.scanned(1, bare) == [listed(1, b"d", bare), look(2, b"d/a")]
    assert lab.list(b"d") == [listed(3, b"d", bare)]


def test_questions_about_one_name_in_a_bare_listing_wait_for_one_look() -> None:
    lab = Lab()
    lab.look(b"d/a")
    lab.look(b"d/a")
    assert lab.scanned(1, files(b"a", bare=True)) == [look(2, b"d/a")]
    assert lab.look(b"d/a") == []
    assert lab.looked(2, file()) == [found(n, file()) for n in (1, 2, 3)]


def test_a_name_that_vanished_since_the_bare_listing_is_missing() -> None:
    lab = Lab()
    lab.look(b"d/a")
    lab.scanned(1, files(b"a", bare=True))
    assert lab.looked(2, None) == [found(1, None)]
    assert lab.look(b"d/a") == [found(2, None)]


# ---- directories that may be searched, not listed ------------------------------------------------


def test_names_in_an_unlistable_directory_are_looked_up_by_themselves() -> None:
    lab = Lab()
    lab.look(b"d/a")
    lab.list(b"d")
    assert lab.failed(1, errno.EACCES) == [look(2, b"d/a"), error(2, errno.EACCES)]
    assert lab.looked(2, file()) == [found(1, file())]


def test_a_lookup_that_waited_for_an_unlistable_directory_keeps_its_deadline() -> None:
    lab = Lab()
    lab.look(b"d/a")
    lab.tick(DEADLINE_S / 2)
    assert lab.list(b"e") == [scan(2, b"e")]
    assert lab.failed(1, errno.EACCES) == [look(3, b"d/a")]
    assert lab.node.deadline() == DEADLINE_S
    assert lab.tick(DEADLINE_S / 2) == [error(1, errno.ETIMEDOUT)]
    assert lab.tick(DEADLINE_S / 2) == [error(2, errno.ETIMEDOUT)]


def test_an_unlistable_directory_is_not_scanned_for_names_again() -> None:
    lab = Lab()
    lab.look(b"d/a")
    lab.failed(1, errno.EACCES)
    assert lab.look(b"d/b") == [look(3, b"d/b")]


def test_whoever_lists_an_unlistable_directory_has_it_tried_again() -> None:
    lab = Lab()
    lab.list(b"d")
    assert lab.failed(1, errno.EACCES) == [error(1, errno.EACCES)]
    assert lab.list(b"d") == [scan(2, b"d")]


def test_a_directory_that_became_listable_is_listed_for_names_again() -> None:
    lab = Lab(policy=policy(revalidate_s=5.0))
    lab.list(b"d")
    lab.failed(1, errno.EACCES)
    lab.list(b"d")
    lab.scanned(2, ABC)
    lab.now = 5.0
    assert lab.look(b"d/a") == [scan(3, b"d")]


def test_clear_forgets_which_directories_are_unlistable() -> None:
    lab = Lab()
    lab.list(b"d")
    lab.failed(1, errno.EACCES)
    lab.clear()
    assert lab.look(b"d/a") == [scan(2, b"d")]


def test_only_so_many_unlistable_directories_are_remembered() -> None:
    lab = Lab()
    for number in range(UNLISTABLE_MAX + 1):
        lab.list(b"d%d" % number)
        lab.failed(number + 1, errno.EACCES)
    (first,), (second,) = lab.look(b"d0/a"), lab.look(b"d1/a")
    assert isinstance(first, ListSource)
    assert isinstance(second, LookupSource)


# ---- bytes ---------------------------------------------------------------------------------------


def test_a_file_is_read_whole_once() -> None:
    lab = Lab()
    assert lab.read(b"f") == [read(1, b"f")]
    assert lab.have_read(1, blob=7) == [bytes_of(1, b"f", 7)]
    assert lab.read(b"f") == [bytes_of(2, b"f", 7)]


def test_readers_of_one_version_wait_for_one_read() -> None:
    lab = Lab()
    lab.read(b"f")
    assert lab.read(b"f") == []
    assert lab.have_read(1, blob=7) == [bytes_of(1, b"f", 7), bytes_of(2, b"f", 7)]


def test_another_version_is_another_object() -> None:
    lab = Lab()
    lab.read(b"f", changed_s=1)
    assert lab.read(b"f", changed_s=2) == [read(2, b"f", changed_s=2)]
    assert lab.have_read(1, blob=7) == [bytes_of(1, b"f", 7, changed_s=1)]
    assert lab.have_read(2, blob=8) == [bytes_of(2, b"f", 8, changed_s=2)]


def test_an_empty_file_is_an_object() -> None:
    lab = Lab()
    assert lab.read(b"f", size=0) == [read(1, b"f", size=0)]
    assert lab.have_read(1, blob=7) == [bytes_of(1, b"f", 7, size=0)]


def test_what_is_held_counts_each_time_as_answered_from_there() -> None:
    lab = Lab()
    lab.list(b"d")
    lab.scanned(1, ABC)
    lab.read(b"d/a")
    lab.have_read(2, blob=7)
    for times in (1, 2, 3):
        lab.look(b"d/a")
        lab.list(b"d")
        lab.read(b"d/a")
        assert lab.node.statistics().answered_from_cache == 3 * times


def test_each_reader_of_a_large_file_gets_a_handle_of_its_own() -> None:
    lab = Lab(tree_max_bytes=100)
    assert lab.read(b"f", size=100) == [read(1, b"f", size=100)]
    assert lab.read(b"g", size=101) == [open_(2, b"g", 101)]
    assert lab.read(b"g", size=101) == [open_(3, b"g", 101)]
    assert lab.opened(3, handle=30) == [AnswerHandle(RequestId(3), HandleId(30))]
    assert lab.opened(2, handle=20) == [AnswerHandle(RequestId(2), HandleId(20))]


@pytest.mark.parametrize(
    ("memory", "tree_max", "bypass_above", "whole_max"),
    [
        (100 * MIB, 10 * MIB, None, 10 * MIB),
        (100 * MIB, 10 * MIB, MIB, MIB),
        (100 * MIB, 10 * MIB, 0, 0),
        (MIB, 10 * MIB, None, MIB // 2 - OBJECT_OVERHEAD_BYTES),
        (0, 10 * MIB, None, 0),
    ],
)
def test_whole_files_are_limited_by_the_tree_the_bypass_and_half_the_memory(
    memory: int, tree_max: int, bypass_above: int | None, whole_max: int
) -> None:
    assert Limits(memory, tree_max, bypass_above, 1.0).whole_max_bytes == whole_max


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOENT])
def test_a_file_that_is_not_what_was_said_of_it_is_looked_up_again(number: int) -> None:
    lab = Lab()
    lab.look(b"d/f")
    lab.scanned(1, files(b"f"))
    lab.read(b"d/f")
    lab.read(b"d/f")
    assert lab.failed(2, number) == [
        Evict(ListingKey(Path(b"d"))),
        InvalidateName(Path(b"d/f")),
        error(2, number),
        error(3, number),
    ]
    assert lab.look(b"d/f") == [scan(3, b"d")]
    assert lab.node.statistics().version_changes == 1


def test_a_large_file_that_changed_is_looked_up_again() -> None:
    lab = Lab(tree_max_bytes=0)
    lab.read(b"f")
    assert lab.failed(1, errno.ESTALE) == [InvalidateName(Path(b"f")), error(1, errno.ESTALE)]


def test_an_entry_that_was_looked_up_by_itself_is_forgotten_too() -> None:
    lab = Lab()
    lab.look(b"d/a")
    lab.failed(1, errno.EACCES)
    lab.looked(2, file(10))
    lab.read(b"d/a")
    assert lab.failed(3, errno.ESTALE) == [InvalidateName(Path(b"d/a")), error(2, errno.ESTALE)]
    assert lab.look(b"d/a") == [look(4, b"d/a")]


def test_a_directory_that_vanished_is_looked_up_again() -> None:
    lab = Lab()
    lab.list(b"")
    lab.scanned(1, files(b"d"))
    lab.look(b"d/a")
    assert lab.failed(2, errno.ENOENT) == [
        Evict(ListingKey(Path(b""))),
        InvalidateName(Path(b"d")),
        error(2, errno.ENOENT),
    ]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_other_errors_are_answered_and_not_remembered(number: int) -> None:
    lab = Lab()
    lab.read(b"f")
    assert lab.failed(1, number) == [error(1, number)]
    assert lab.read(b"f") == [read(2, b"f")]
    lab.list(b"d")
    assert lab.failed(3, number) == [error(3, number)]
    assert lab.list(b"d") == [scan(4, b"d")]
    assert lab.node.statistics().failures == 2


# ---- memory --------------------------------------------------------------------------------------

ROOM = 100 + OBJECT_OVERHEAD_BYTES


def test_the_least_recently_used_goes_first() -> None:
    lab = Lab(memory_bytes=2 * ROOM)
    for number, name in enumerate([b"f", b"g"], 1):
        lab.read(name, 100)
        lab.have_read(number, blob=number)
    lab.read(b"f", 100)
    assert lab.read(b"h", 100) == [
        Evict(object_key(b"g", 100)),
        ReleaseBlob(BlobId(2)),
        read(3, b"h", 100),
    ]


def test_what_was_used_without_asking_stays() -> None:
    lab = Lab(memory_bytes=2 * ROOM)
    for number, name in enumerate([b"f", b"g"], 1):
        lab.read(name, 100)
        lab.have_read(number, blob=number)
    assert lab.used(object_key(b"f", 100), object_key(b"unknown")) == []
    assert lab.held() == [object_key(b"g", 100), object_key(b"f", 100)]


def test_an_answer_comes_before_what_goes_for_it() -> None:
    lab = Lab(memory_bytes=2 * ROOM, policy=policy(revalidate_s=None))
    lab.list(b"e")
    lab.scanned(1, files())
    many = files(*(b"%d" % n for n in range(100)))
    lab.list(b"d")
    assert lab.scanned(2, many) == [listed(2, b"d", many), Evict(ListingKey(Path(b"e")))]


def test_something_larger_than_the_budget_stays_until_something_else_comes() -> None:
    lab = Lab(memory_bytes=ROOM)
    many = files(*(b"%d" % n for n in range(100)))
    lab.list(b"d")
    assert lab.scanned(1, many) == [listed(1, b"d", many)]
    assert lab.list(b"d") == [listed(2, b"d", many)]
    lab.list(b"e")
    assert lab.scanned(2, files()) == [listed(3, b"e", files()), Evict(ListingKey(Path(b"d")))]


def test_an_evicted_entry_was_published_nowhere() -> None:
    lab = Lab(memory_bytes=1)
    lab.look(b"")
    lab.looked(1, directory())
    lab.list(b"d")
    assert lab.scanned(2, files()) == [listed(2, b"d", files())]
    assert EntryKey(Path(b"")) not in lab.held()


def test_room_for_what_is_on_its_way_is_reserved() -> None:
    lab = Lab(memory_bytes=2 * ROOM)
    lab.read(b"f", 100)
    lab.read(b"g", 100)
    assert lab.node.statistics().reserved_bytes == 2 * ROOM
    lab.have_read(1, blob=1)
    lab.have_read(2, blob=2)
    assert lab.node.statistics().reserved_bytes == 0
    assert lab.node.statistics().held_bytes == 2 * ROOM


def full_of_reads() -> Lab:
    lab = Lab(memory_bytes=2 * ROOM)
    assert len(lab.read(b"f", 100)) == len(lab.read(b"g", 100)) == 1
    assert lab.read(b"h", 100) == lab.read(b"i", 100) == []
    return lab


def test_who_finds_no_room_waits_until_some_is_made() -> None:
    lab = full_of_reads()
    assert lab.have_read(1, blob=1) == [
        bytes_of(1, b"f", 1, 100),
        read(3, b"h", 100),
    ]
    # two waited twice, except the one that got room
    assert lab.node.statistics().waited_for_room == 3


def test_a_failure_makes_room() -> None:
    lab = full_of_reads()
    assert lab.failed(1, errno.EIO) == [error(1, errno.EIO), read(3, b"h", 100)]


def test_running_out_of_time_makes_room() -> None:
    lab = full_of_reads()
    assert lab.tick(DEADLINE_S) == [
        error(1, errno.ETIMEDOUT),
        error(2, errno.ETIMEDOUT),
        read(3, b"h", 100),
        read(4, b"i", 100),
    ]
    assert lab.node.statistics().overdue == 2


def test_who_finds_no_room_for_long_is_told_so() -> None:
    """Smaller reads may take the freed room again and again."""
    lab = Lab(memory_bytes=8 * ROOM)
    for number in range(8):
        lab.read(b"%d" % number, 100)
    assert lab.read(b"large", 100 + ROOM) == []
    for fetch in range(1, 8):
        lab.now += DEADLINE_S / 8
        lab.have_read(fetch, blob=fetch)
        assert lab.tick(0.0) == []
        assert lab.read(b"small%d" % fetch, 100)[-1] == read(8 + fetch, b"small%d" % fetch, 100)
    lab.have_read(8, blob=8)
    assert lab.tick(DEADLINE_S / 8) == [error(9, errno.ETIMEDOUT)]
    assert lab.node.statistics().overdue == 1
    lab.node.check_invariants()


def test_those_who_wait_for_room_for_one_file_share_its_read() -> None:
    lab = Lab(memory_bytes=2 * ROOM)
    lab.read(b"f", 100)
    lab.read(b"g", 100)
    lab.read(b"h", 100)
    lab.read(b"h", 100)
    assert lab.tick(DEADLINE_S)[2:] == [read(3, b"h", 100)]
    assert lab.have_read(3, blob=9) == [bytes_of(n, b"h", 9, 100) for n in (3, 4)]


@pytest.mark.parametrize("memory", [0, 1, OBJECT_OVERHEAD_BYTES - 1, OBJECT_OVERHEAD_BYTES])
def test_with_hardly_any_memory_everything_is_still_answered(memory: int) -> None:
    lab = Lab(memory_bytes=memory)
    assert lab.look(b"d/a") == [scan(1, b"d")]
    assert lab.scanned(1, ABC) == [listed(1, b"d", ABC)]
    assert isinstance(lab.read(b"d/a", 1)[-1], OpenForBypass)
    assert lab.read(b"d/b", 0)[-1:] == [read(3, b"d/b", 0)]
    assert lab.read(b"d/c", 0) == []
    assert lab.have_read(3, blob=1)[0] == bytes_of(3, b"d/b", 1, 0)
    assert lab.have_read(4, blob=2)[0] == bytes_of(4, b"d/c", 2, 0)


@pytest.mark.parametrize("memory", [0, 100, 600, 2000])
def test_reads_find_room_beside_the_credit(memory: int) -> None:
    lab = Lab(memory_bytes=memory, allowance_bytes=memory // 4)
    assert lab.read(b"f", 0)[-1:] == [read(1, b"f", 0)]


# ---- files that the front read on credit ---------------------------------------------------------


def test_complete_listings_are_granted_if_there_is_credit() -> None:
    lab = Lab(allowance_bytes=1000)
    bare = files(b"a", bare=True)
    lab.list(b"d")
    lab.list(b"e")
    (complete,), (incomplete,) = lab.scanned(1, ABC), lab.scanned(2, bare)
    (again,) = lab.look(b"d/a")
    for answer, granted in ((complete, True), (incomplete, False), (again, True)):
        assert isinstance(answer, AnswerListing)
        assert answer.granted is granted


def test_what_was_fetched_on_credit_is_held_once() -> None:
    lab = Lab(allowance_bytes=1000)
    assert lab.fetched(b"f", 10, blob=7) == []
    assert lab.read(b"f") == [bytes_of(1, b"f", 7)]
    assert lab.fetched(b"f", 10, blob=8) == [ReleaseBlob(BlobId(8))]
    assert lab.read(b"f") == [bytes_of(2, b"f", 7)]


def test_a_file_fetched_on_credit_while_it_is_read_is_replaced_by_what_was_read() -> None:
    lab = Lab(allowance_bytes=1000)
    lab.read(b"f")
    lab.fetched(b"f", 10, blob=7)
    assert lab.have_read(1, blob=8) == [bytes_of(1, b"f", 8), ReleaseBlob(BlobId(7))]
    assert lab.read(b"f") == [bytes_of(2, b"f", 8)]


def test_what_is_fetched_on_credit_makes_room_for_itself() -> None:
    lab = Lab(memory_bytes=3 * ROOM, allowance_bytes=ROOM)
    for number, name in enumerate([b"f", b"g"], 1):
        assert lab.fetched(name, 100, blob=number) == []
    gone = [Evict(object_key(b"f", 100)), ReleaseBlob(BlobId(1))]
    assert lab.fetched(b"h", 100, blob=3) == gone


def test_all_below_a_listing_is_granted_where_it_is_alike() -> None:
    policy = Policy(source=b"/src", mountpoint=b"/mnt", local=(Path(b"l/x"),))
    lab = Lab(allowance_bytes=1000, policy=policy)
    for number, (path, below) in enumerate([(b"d", True), (b"l", False), (b"l/x", False)], 1):
        lab.list(path)
        (answer,) = lab.scanned(number, ABC)
        assert isinstance(answer, AnswerListing)
        assert (answer.granted, answer.granted_below) == (True, below)


def test_what_was_warmed_up_is_not_granted_nor_what_is_above_it_with_all_below() -> None:
    lab = Lab(allowance_bytes=1000)
    for number, path in enumerate((b"d", b"d/e", b"other"), 1):
        lab.list(path)
        lab.scanned(number, ABC)
    taken_back = [Evict(ListingKey(Path(path))) for path in (b"d", b"d/e")]
    actions = lab.step(GrantsRevoked((Path(b"d/e"),)))
    assert sorted(actions, key=repr) == taken_back
    assert lab.step(GrantsRevoked((Path(b"d/e"),))) == [], "the front has them back already"
    for path, granted, below in (
        (b"d", True, False),
        (b"d/e", False, False),
        (b"other", True, True),
    ):
        (answer,) = lab.list(path)
        assert isinstance(answer, AnswerListing)
        assert (answer.granted, answer.granted_below) == (granted, below), path
    lab.clear()
    lab.list(b"d/e")
    (answer,) = lab.scanned(4, ABC)
    assert isinstance(answer, AnswerListing)
    assert answer.granted


def test_what_was_listed_on_credit_answers_questions() -> None:
    lab = Lab(allowance_bytes=1000)
    assert lab.listed(b"d", ABC) == []
    (answer,) = lab.look(b"d/a")
    assert isinstance(answer, AnswerListing)
    assert (answer.listing, answer.granted_below) == (ABC, True)
    assert lab.node.statistics().listed_on_credit == 1


def test_what_was_listed_on_credit_is_shown_as_anything_else() -> None:
    lab = Lab(allowance_bytes=1000)
    lab.listed(b"d", pack_listing([(b"a", link(b"/src/f"))]))
    (answer,) = lab.list(b"d")
    assert isinstance(answer, AnswerListing)
    entry = answer.listing.find(b"a")
    assert entry is not None
    assert entry.target == b"/mnt/f"


def test_what_began_to_be_listed_before_a_clear_is_not_held() -> None:
    lab = Lab(allowance_bytes=1000)
    lab.clear()
    assert lab.listed(b"d", ABC, epoch=1) == []
    assert lab.held() == []
    assert lab.listed(b"d", ABC, epoch=2) == []
    assert lab.held() == [ListingKey(Path(b"d"))]


def test_what_is_listed_on_credit_makes_room_for_itself() -> None:
    held = Held(ABC, None, ABC)
    room = 2 * cost_of_listing(Path(b"d"), held)
    lab = Lab(memory_bytes=room + 1024, allowance_bytes=1024)
    gone = [lab.listed(name, ABC) for name in (b"d", b"e", b"f")]
    assert gone == [[], [], [Evict(ListingKey(Path(b"d")))]]


def test_a_listing_that_is_shown_otherwise_costs_the_bytes_of_another_copy() -> None:
    other = files(b"a", b"b", b"d")
    as_it_is = cost_of_listing(Path(b"d"), Held(ABC, None, ABC))
    otherwise = cost_of_listing(Path(b"d"), Held(other, None, ABC))
    assert otherwise == as_it_is + len(ABC.packed) + index_slots(ABC.count) * SLOT_BYTES
    assert as_it_is > 2 * len(ABC.packed)
    far = cost_of_listing(Path(b"d" * 101), Held(ABC, None, ABC))
    assert far == as_it_is + 2 * 100, "its path is the key, and where it is published"


# ---- a node alone --------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [Start(), Leave()])
def test_a_node_alone_begins_and_ends_without_a_word(event: Event) -> None:
    assert Lab().step(event) == []


# ---- deadlines -----------------------------------------------------------------------------------


def test_nothing_is_due_while_nothing_is_fetched() -> None:
    lab = Lab()
    assert lab.node.deadline() is None
    lab.list(b"d")
    lab.scanned(1, ABC)
    assert lab.node.deadline() is None


def test_the_oldest_fetch_is_due_first() -> None:
    lab = Lab()
    lab.list(b"d")
    lab.now = 1.0
    lab.list(b"e")
    assert lab.node.deadline() == DEADLINE_S
    lab.scanned(1, ABC)
    assert lab.node.deadline() == DEADLINE_S + 1.0


def test_who_waited_long_enough_is_told_so() -> None:
    lab = Lab()
    lab.look(b"d/a")
    lab.list(b"d")
    assert lab.tick(DEADLINE_S / 2) == []
    assert lab.tick(DEADLINE_S / 2) == [error(1, errno.ETIMEDOUT), error(2, errno.ETIMEDOUT)]
    assert lab.node.statistics().overdue == 1


def test_after_a_deadline_the_next_one_asks_anew() -> None:
    lab = Lab()
    lab.list(b"d")
    lab.tick(DEADLINE_S)
    assert lab.list(b"d") == [scan(2, b"d")]
    assert lab.scanned(1, files()) == []
    assert lab.scanned(2, ABC) == [listed(2, b"d", ABC)]


def test_bytes_and_handles_that_come_too_late_are_let_go() -> None:
    lab = Lab(tree_max_bytes=100)
    lab.read(b"f", 10)
    lab.read(b"g", 1000)
    lab.tick(DEADLINE_S)
    assert lab.have_read(1, blob=7) == [ReleaseBlob(BlobId(7))]
    assert lab.opened(2, handle=8) == [ReleaseHandle(HandleId(8))]
    assert lab.held() == []


def test_other_outcomes_that_come_too_late_are_ignored() -> None:
    lab = Lab()
    lab.list(b"d")
    lab.look(b"")
    lab.read(b"f")
    lab.tick(DEADLINE_S)
    late: list[Action] = lab.scanned(1, ABC) + lab.looked(2, None) + lab.failed(3, errno.ESTALE)
    assert late == []
    assert lab.held() == []


# ---- clear ---------------------------------------------------------------------------------------


def test_clear_lets_go_of_everything() -> None:
    lab = Lab()
    lab.list(b"d")
    lab.scanned(1, ABC)
    lab.look(b"")
    lab.looked(2, directory())
    lab.read(b"f")
    lab.have_read(3, blob=7)
    assert lab.clear() == [
        Evict(ListingKey(Path(b"d"))),
        Evict(object_key(b"f")),
        ReleaseBlob(BlobId(7)),
        NewEpoch(2),
    ]
    assert lab.held() == []
    assert lab.node.statistics().epoch == 2


def test_clear_starts_again_what_is_being_looked_for() -> None:
    lab = Lab()
    lab.look(b"d/a")
    lab.list(b"d")
    lab.look(b"")
    assert lab.clear() == [NewEpoch(2), scan(3, b"d"), look(4, b"")]
    assert lab.scanned(1, files()) == lab.looked(2, None) == []
    assert lab.scanned(3, ABC) == [listed(1, b"d", ABC), listed(2, b"d", ABC)]
    assert lab.looked(4, directory()) == [found(3, directory())]


def test_clear_does_not_disturb_reads() -> None:
    lab = Lab(tree_max_bytes=100)
    lab.read(b"f")
    lab.read(b"g", 1000)
    assert lab.clear() == [NewEpoch(2)]
    assert lab.have_read(1, blob=7) == [bytes_of(1, b"f", 7)]
    assert lab.opened(2, handle=8) == [AnswerHandle(RequestId(2), HandleId(8))]


# ---- refused places ------------------------------------------------------------------------------


def test_the_mount_point_is_shown_and_nothing_in_it() -> None:
    lab = Lab(policy=policy(refused=(b"mnt",)))
    assert lab.look(b"mnt") == [look(1, b"mnt")]
    assert lab.looked(1, directory(9))[-1:] == [found(1, directory(9), LOCAL_FRESH_S)]
    assert lab.list(b"mnt") == [error(2, errno.ELOOP)]
    assert lab.look(b"mnt/x") == [error(3, errno.ELOOP)]
    assert lab.read(b"mnt/x") == [error(4, errno.ELOOP)]
    assert lab.read(b"mnt") == [error(5, errno.ELOOP)]


def test_a_neighbour_of_the_mount_point_is_not_refused() -> None:
    lab = Lab(policy=policy(refused=(b"mnt",)))
    assert lab.list(b"mnt2") == [scan(1, b"mnt2")]


# ---- freshness -----------------------------------------------------------------------------------


def test_a_snapshot_is_believed_for_ever() -> None:
    lab = Lab()
    lab.list(b"d")
    lab.scanned(1, ABC)
    lab.now = 1e9
    assert lab.look(b"d/a") == [listed(2, b"d", ABC)]


@pytest.mark.parametrize(
    ("chosen", "fresh_s"),
    [
        (policy(revalidate_s=5.0), 5.0),
        (policy(revalidate_s=0.5), 0.5),
        (policy(shared=(b"lus",)), LOCAL_FRESH_S),
        (policy(local=(b"d",)), LOCAL_FRESH_S),
        (policy(local=(b"d",), revalidate_s=5.0), LOCAL_FRESH_S),
        (policy(local=(b"d",), revalidate_s=0.5), 0.5),
    ],
    ids=["revalidate", "revalidate soon", "not shared", "local", "local, later", "local, soon"],
)
def test_other_listings_are_believed_for_a_while(chosen: Policy, fresh_s: float) -> None:
    lab = Lab(policy=chosen, now=100.0)
    lab.list(b"d")
    assert lab.scanned(1, ABC) == [listed(1, b"d", ABC, 100.0 + fresh_s)]
    lab.now += fresh_s * 0.99
    assert lab.look(b"d/a") == [listed(2, b"d", ABC, 100.0 + fresh_s)]
    lab.now = 100.0 + fresh_s
    assert lab.look(b"d/a") == [scan(2, b"d")]


def test_entries_grow_old_too() -> None:
    lab = Lab(policy=policy(revalidate_s=5.0))
    lab.look(b"")
    assert lab.looked(1, directory()) == [found(1, directory(), 5.0)]
    lab.now = 5.0
    assert lab.look(b"") == [look(2, b"")]


def test_a_listing_that_is_renewed_replaces_the_old_one_quietly() -> None:
    lab = Lab(policy=policy(revalidate_s=5.0))
    lab.list(b"d")
    lab.scanned(1, files(b"old"))
    lab.now = 5.0
    lab.list(b"d")
    assert lab.scanned(2, ABC) == [listed(2, b"d", ABC, 10.0)]
    assert lab.held() == [ListingKey(Path(b"d"))]


def test_the_way_down_to_a_shared_prefix_is_as_fresh_as_the_prefix() -> None:
    lab = Lab(policy=policy(shared=(b"net/lus",)))
    assert lab.look(b"net") == [look(1, b"net")]
    assert lab.looked(1, directory()) == [found(1, directory())]
    assert lab.look(b"net/lus") == [look(2, b"net/lus")]
    assert lab.looked(2, directory()) == [found(2, directory())]
    lab.now = 1e9
    assert lab.look(b"net") == [found(3, directory())]
    assert lab.look(b"net/lus") == [found(4, directory())]


def test_what_lies_beside_the_way_down_is_local() -> None:
    lab = Lab(policy=policy(shared=(b"net/lus",)))
    beside = files(b"net", b"etc")
    assert lab.look(b"etc") == [scan(1, b"")]
    assert lab.scanned(1, beside) == [listed(1, b"", beside, LOCAL_FRESH_S)]
    lab.now = LOCAL_FRESH_S
    assert lab.list(b"") == [scan(2, b"")]


def test_a_local_place_in_a_shared_one_is_looked_up_by_itself() -> None:
    lab = Lab(policy=policy(local=(b"tmp",)))
    assert lab.look(b"tmp") == [look(1, b"tmp")]
    assert lab.looked(1, directory()) == [found(1, directory(), LOCAL_FRESH_S)]
    lab.now = LOCAL_FRESH_S
    assert lab.look(b"tmp") == [look(2, b"tmp")]


# ---- statistics ----------------------------------------------------------------------------------


def test_a_node_that_has_done_nothing_has_counted_nothing() -> None:
    counted = asdict(Lab().node.stats)
    assert {name: count for name, count in counted.items() if count} == {"epoch": 1}


def test_a_reset_keeps_what_is_held_and_the_epoch() -> None:
    lab = Lab()
    lab.clear()
    lab.list(b"d")
    lab.scanned(1, ABC)
    before = lab.node.statistics()
    assert (before.questions, before.fetches, before.held_count) == (1, 1, 1)
    lab.node.reset_statistics()
    after = lab.node.statistics()
    assert (after.questions, after.fetches, after.held_count, after.epoch) == (0, 0, 1, 2)


# ---- mounts that move ----------------------------------------------------------------------------


def test_a_path_that_begins_to_lead_back_into_the_mount_is_refused_from_then_on() -> None:
    lab = Lab()
    assert lab.list(b"d/mnt/x") == [scan(1, b"d/mnt/x")]
    assert lab.step(RefusedPathsChanged(frozenset({Path(b"d/mnt")}))) == []
    assert lab.list(b"d/mnt/y") == [AnswerError(RequestId(2), errno.ELOOP)]
    lab.step(RefusedPathsChanged(frozenset()))
    assert lab.list(b"d/mnt/z") == [scan(2, b"d/mnt/z")]
