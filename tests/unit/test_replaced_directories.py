"""Replaced directories: the node looks up the names on the way again, and never confuses the names
of the two directories."""

import errno
from dataclasses import replace

import pytest

from copperfs.model.listing import Listing, pack_listing
from copperfs.model.types import Entry, FetchId, Path, RequestId, Version
from copperfs.node.actions import (
    Action,
    AnswerError,
    AnswerListing,
    EntryKey,
    Evict,
    InvalidateName,
    ListingKey,
    ListSource,
    LookupSource,
)
from copperfs.node.cache.metadata_cache import REPLACED_AGAIN_S
from copperfs.node.events import Replaced
from copperfs.node.requests.path_policy import Policy
from tests.unit.node_lab import Lab, directory, entry, file

OLD, NEW = 7, 8


def listing_of(inode: int, *names: tuple[bytes, Entry], bare: bool = False) -> Listing:
    return replace(pack_listing(names, bare=bare), directory=Version(4096, 0, 0, inode))


def above(inode: int = OLD) -> Listing:
    return listing_of(2, (b"b", directory(inode)))


def lab_that_knows_the_directory(policy: Policy | None = None) -> Lab:
    lab = Lab() if policy is None else Lab(policy=policy)
    lab.look(b"a/b")
    lab.scanned(1, above())
    lab.look(b"a")
    lab.scanned(2, listing_of(1, (b"a", directory(2))))
    return lab


FORGOTTEN: list[Action] = [
    Evict(ListingKey(Path(b"a"))),
    InvalidateName(Path(b"a/b")),
    Evict(ListingKey(Path(b""))),
    InvalidateName(Path(b"a")),
]


@pytest.mark.parametrize("asked", ["look", "read", "list"])
def test_a_link_in_the_place_of_a_directory_has_all_that_leads_there_looked_up_again(
    asked: str,
) -> None:
    lab = lab_that_knows_the_directory()
    getattr(lab, asked)(b"a/b/c")
    actions = lab.failed(3, errno.ENOTDIR)
    assert [each for each in actions if each in FORGOTTEN] == FORGOTTEN
    assert actions[-1] == AnswerError(RequestId(3), errno.ENOTDIR)
    assert lab.look(b"a") == [ListSource(FetchId(4), Path(b""))]
    assert lab.node.statistics().version_changes == 1


@pytest.mark.parametrize("asked", ["look", "list"])
def test_another_directory_has_all_that_leads_there_looked_up_again(asked: str) -> None:
    lab = lab_that_knows_the_directory()
    getattr(lab, asked)(b"a/b/c" if asked == "look" else b"a/b")
    actions = lab.scanned(3, listing_of(NEW, (b"c", file())))
    assert actions[:4] == FORGOTTEN
    # the front end compares it with what the kernel knows
    assert isinstance(actions[-1], AnswerListing)
    assert lab.look(b"a/b") == [ListSource(FetchId(4), Path(b"a"))]


def test_a_number_that_does_not_count_makes_no_other_directory() -> None:
    lab = lab_that_knows_the_directory()
    lab.list(b"a/b")
    actions = lab.scanned(3, listing_of(0, (b"c", file())))
    assert not any(each in FORGOTTEN for each in actions)


def test_the_same_directory_with_other_names_is_the_same() -> None:
    lab = lab_that_knows_the_directory()
    lab.list(b"a/b")
    actions = lab.scanned(3, replace(listing_of(OLD), directory=Version(8192, 5, 5, OLD)))
    assert [each for each in actions if isinstance(each, InvalidateName)] == []
    assert lab.node.statistics().version_changes == 0


def test_a_name_in_another_directory_is_not_looked_up_by_itself() -> None:
    """Its entry would not tell which of the two directories it is in."""
    lab = lab_that_knows_the_directory()
    lab.look(b"a/b/c")
    actions = lab.scanned(3, listing_of(NEW, (b"c", file()), bare=True))
    assert AnswerError(RequestId(3), errno.ESTALE) in actions
    assert not any(isinstance(each, LookupSource) for each in actions)


def test_a_number_from_a_bare_listing_does_not_say_which_directory_it_is() -> None:
    """For a mount point it is the number of the directory that the mount covers."""
    lab = Lab()
    lab.list(b"a")
    bare = entry(0o040000, 0, OLD)
    lab.scanned(1, listing_of(2, (b"b", Entry(bare.attributes.bare(OLD, 0o040000))), bare=True))
    lab.list(b"a/b")
    assert not any(isinstance(each, InvalidateName) for each in lab.scanned(2, listing_of(NEW)))


def test_a_listing_from_before_the_directory_was_replaced_is_listed_again() -> None:
    lab = lab_that_knows_the_directory()
    lab.list(b"a/b")
    lab.scanned(3, listing_of(OLD, (b"old", file())))
    lab.now += 1
    lab.failed(_fetch_of(lab.read(b"a/x")), errno.ESTALE)  # something else in a has changed
    lab.look(b"a/b")
    lab.scanned(5, above(NEW))
    assert lab.list(b"a/b") == [ListSource(FetchId(6), Path(b"a/b"))]


def _fetch_of(actions: list[Action]) -> int:
    return next(each.fetch for each in actions if hasattr(each, "fetch"))


def test_what_the_kernel_knows_as_another_is_forgotten_with_all_that_leads_there() -> None:
    lab = lab_that_knows_the_directory()
    lab.list(b"a/b")
    lab.scanned(3, listing_of(OLD))
    actions = lab.step(Replaced(Path(b"a/b")))
    assert actions == [Evict(ListingKey(Path(b"a/b"))), *FORGOTTEN]
    assert lab.held() == []
    assert EntryKey(Path(b"a/b")) not in lab.held()


# ---- processes in the old directory --------------------------------------------------------------


def test_a_directory_that_was_replaced_is_news_once_however_often_it_is_found_out() -> None:
    lab = lab_that_knows_the_directory()
    lab.list(b"a/b")
    lab.scanned(3, listing_of(NEW))
    assert InvalidateName(Path(b"a")) in lab.step(Replaced(Path(b"a/b")))
    lab.list(b"a/b")
    lab.scanned(4, listing_of(NEW))
    lab.look(b"a")
    lab.scanned(5, listing_of(1, (b"a", directory(2))))
    held = lab.held()
    for _ in range(10):
        lab.now += 0.1
        assert lab.step(Replaced(Path(b"a/b"))) == []
    assert lab.held() == held
    assert lab.node.statistics().version_changes == 2  # once from the node, once from the kernel


@pytest.mark.parametrize("asked", ["look", "list"])
def test_a_link_in_the_place_of_a_directory_is_news_once(asked: str) -> None:
    lab = lab_that_knows_the_directory()
    lab.look(b"a/b/c")
    lab.failed(3, errno.ENOTDIR)
    lab.look(b"a")
    lab.scanned(4, listing_of(1, (b"a", directory(2))))
    held = lab.held()
    for number in range(10):
        lab.now += 0.1
        fetch = _fetch_of(getattr(lab, asked)(b"a/b/%d" % number if asked == "look" else b"a/b"))
        actions = lab.failed(fetch, errno.ENOTDIR)
        assert actions == [AnswerError(RequestId(5 + number), errno.ENOTDIR)]
    assert lab.held() == held
    assert lab.node.statistics().version_changes == 1


def test_the_next_replacement_and_a_late_one_are_news_again() -> None:
    lab = lab_that_knows_the_directory()
    for inode in (NEW, NEW + 1, NEW):
        lab.scanned(_fetch_of(lab.list(b"a/b")), listing_of(inode))
        assert Evict(ListingKey(Path(b"a/b"))) in lab.step(Replaced(Path(b"a/b")))
        assert lab.step(Replaced(Path(b"a/b"))) == []
    lab.now += REPLACED_AGAIN_S
    assert lab.step(Replaced(Path(b"a/b"))) == [
        InvalidateName(Path(b"a/b")),
        InvalidateName(Path(b"a")),
    ]
    lab.failed(_fetch_of(lab.look(b"a/b/c")), errno.ENOTDIR)
    lab.scanned(_fetch_of(lab.list(b"a/b")), listing_of(NEW))
    actions = lab.failed(_fetch_of(lab.list(b"a/b/c")), errno.ENOTDIR)
    assert InvalidateName(Path(b"a/b")) in actions


def test_a_directory_that_is_back_and_gone_again_is_news_each_time() -> None:
    lab = lab_that_knows_the_directory()
    for times in (1, 2):
        lab.now += REPLACED_AGAIN_S / 10
        lab.step(Replaced(Path(b"elsewhere")))  # which concerns another path
        actions = lab.failed(_fetch_of(lab.read(b"a/b/f", 10)), errno.ENOTDIR)
        assert InvalidateName(Path(b"a/b/f")) in actions
        assert lab.node.statistics().version_changes == 1 + times
        lab.scanned(_fetch_of(lab.list(b"a/b")), listing_of(OLD))
