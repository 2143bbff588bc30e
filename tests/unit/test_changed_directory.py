"""With ``--revalidate``, a directory that is known to have changed is listed again.

The kernel keeps a directory's names for as long as its times do not change. Found by hand: a file
that was created between a ``stat`` and an ``ls`` of its directory stayed invisible for good,
because the kernel was given the new times with the old names.
"""

import stat

from copperfs.core.actions import AnswerListing, ScanSource
from copperfs.core.events import List, Look, Looked, Scanned
from copperfs.core.listing import Listing, pack_listing
from copperfs.core.node import Node
from copperfs.core.policy import Policy
from copperfs.core.state import Limits
from copperfs.types import ROOT, FetchId, Path, RequestId
from tests.unit.core_lab import entry, with_unknown

MIB = 1 << 20


def directory(changed_s: int, *names: bytes) -> Listing:
    listing = pack_listing((name, entry(stat.S_IFREG)) for name in names)
    return Listing(listing.packed, entry(stat.S_IFDIR, changed_s=changed_s).attributes.version)


def above(changed_s: int) -> Listing:
    return pack_listing([(b"d", entry(stat.S_IFDIR, changed_s=changed_s))])


def node_that_listed_d_before_it_was_seen_to_change(seen_changed_s: int) -> Node:
    node = Node(
        Policy(source=b"/", mountpoint=b"/mnt", revalidate_s=2.0), Limits(64 * MIB, MIB, None, 10.0)
    )
    node.step(0.0, List(RequestId(1), Path(b"d")))
    node.step(0.0, Scanned(FetchId(1), directory(1, b"old")))
    node.step(1.0, Look(RequestId(2), Path(b"d")))
    node.step(1.0, Scanned(FetchId(2), above(seen_changed_s)))
    return node


def test_a_directory_that_has_changed_since_it_was_listed_is_listed_again() -> None:
    node = node_that_listed_d_before_it_was_seen_to_change(seen_changed_s=2)
    assert node.step(1.5, List(RequestId(3), Path(b"d"))) == [ScanSource(FetchId(3), Path(b"d"))]


def test_a_directory_that_has_not_changed_is_answered_from_its_listing() -> None:
    node = node_that_listed_d_before_it_was_seen_to_change(seen_changed_s=1)
    (answer,) = node.step(1.5, List(RequestId(3), Path(b"d")))
    assert isinstance(answer, AnswerListing)
    assert b"old" in answer.listing


def test_the_listing_of_the_root_does_not_judge_itself() -> None:
    node = Node(
        Policy(source=b"/", mountpoint=b"/mnt", revalidate_s=2.0), Limits(64 * MIB, MIB, None, 10.0)
    )
    node.step(0.0, List(RequestId(1), ROOT))
    node.step(0.0, Scanned(FetchId(1), directory(1, b"a")))
    node.step(0.1, Look(RequestId(2), ROOT))
    seen = Looked(FetchId(2), entry(stat.S_IFDIR, changed_s=2))
    node.step(0.2, seen)
    assert node.step(0.3, List(RequestId(3), ROOT)) == [ScanSource(FetchId(3), ROOT)]


def test_a_directory_that_could_not_be_looked_at_has_not_changed_for_that() -> None:
    """Its row in the listing above has no times, so the kernel was told none."""
    node = node_that_listed_d_before_it_was_seen_to_change(seen_changed_s=1)
    node.step(3.5, List(RequestId(3), Path(b"d")))
    node.step(3.5, Scanned(FetchId(3), directory(1, b"old")))
    node.step(4.0, List(RequestId(4), ROOT))
    node.step(4.0, Scanned(FetchId(4), with_unknown(above(1), b"d")))
    (answer,) = node.step(4.5, List(RequestId(5), Path(b"d")))
    assert isinstance(answer, AnswerListing)
