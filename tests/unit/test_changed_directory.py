"""With ``--revalidate``, the node lists a directory again if it is known to have changed.

A file created between a ``stat`` and an ``ls`` of its directory stayed invisible for good: the
kernel keeps a directory's names while its times do not change, and had got the new times with the
old names.
"""

import stat

from copperfs.model.listing import Listing, pack_listing
from copperfs.model.types import ROOT, FetchId, Path, RequestId
from copperfs.node.actions import AnswerListing, ListSource
from copperfs.node.events import ListRequest, LookupRequest, SourceListed, SourceLookedUp
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.requests.path_policy import Policy
from tests.unit.node_lab import entry, with_unknown

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
    node.step(0.0, ListRequest(RequestId(1), Path(b"d")))
    node.step(0.0, SourceListed(FetchId(1), directory(1, b"old")))
    node.step(1.0, LookupRequest(RequestId(2), Path(b"d")))
    node.step(1.0, SourceListed(FetchId(2), above(seen_changed_s)))
    return node


def test_a_directory_that_has_changed_since_it_was_listed_is_listed_again() -> None:
    node = node_that_listed_d_before_it_was_seen_to_change(seen_changed_s=2)
    assert node.step(1.5, ListRequest(RequestId(3), Path(b"d"))) == [
        ListSource(FetchId(3), Path(b"d"))
    ]


def test_a_directory_that_has_not_changed_is_answered_from_its_listing() -> None:
    node = node_that_listed_d_before_it_was_seen_to_change(seen_changed_s=1)
    (answer,) = node.step(1.5, ListRequest(RequestId(3), Path(b"d")))
    assert isinstance(answer, AnswerListing)
    assert b"old" in answer.listing


def test_what_was_seen_of_a_directory_before_it_was_listed_does_not_have_it_listed_again() -> None:
    node = Node(
        Policy(source=b"/", mountpoint=b"/mnt", revalidate_s=2.0), Limits(64 * MIB, MIB, None, 10.0)
    )
    node.step(0.0, LookupRequest(RequestId(1), Path(b"d")))
    node.step(0.0, SourceListed(FetchId(1), above(1)))
    node.step(1.0, ListRequest(RequestId(2), Path(b"d")))
    node.step(1.0, SourceListed(FetchId(2), directory(2, b"new")))
    (answer,) = node.step(1.5, ListRequest(RequestId(3), Path(b"d")))
    assert isinstance(answer, AnswerListing)
    assert b"new" in answer.listing


def test_the_listing_of_the_root_does_not_judge_itself() -> None:
    node = Node(
        Policy(source=b"/", mountpoint=b"/mnt", revalidate_s=2.0), Limits(64 * MIB, MIB, None, 10.0)
    )
    node.step(0.0, ListRequest(RequestId(1), ROOT))
    node.step(0.0, SourceListed(FetchId(1), directory(1, b"a")))
    node.step(0.1, LookupRequest(RequestId(2), ROOT))
    seen = SourceLookedUp(FetchId(2), entry(stat.S_IFDIR, changed_s=2))
    node.step(0.2, seen)
    assert node.step(0.3, ListRequest(RequestId(3), ROOT)) == [ListSource(FetchId(3), ROOT)]


def test_a_directory_that_could_not_be_looked_at_has_not_changed_for_that() -> None:
    """Its row in the listing above has no times, so the kernel received none."""
    node = node_that_listed_d_before_it_was_seen_to_change(seen_changed_s=1)
    node.step(3.5, ListRequest(RequestId(3), Path(b"d")))
    node.step(3.5, SourceListed(FetchId(3), directory(1, b"old")))
    node.step(4.0, ListRequest(RequestId(4), ROOT))
    node.step(4.0, SourceListed(FetchId(4), with_unknown(above(1), b"d")))
    (answer,) = node.step(4.5, ListRequest(RequestId(5), Path(b"d")))
    assert isinstance(answer, AnswerListing)
