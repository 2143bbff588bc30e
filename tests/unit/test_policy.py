"""Path policy: which paths the mount shows, and how."""

import stat

import pytest

from copperfs.model.listing import pack_listing
from copperfs.model.types import ROOT, Path
from copperfs.node.requests.path_policy import LOCAL_FRESH_S, Place, Policy
from tests.unit.node_lab import directory, file, link


def policy(
    *,
    source: bytes = b"/",
    mountpoint: bytes = b"/mnt",
    shared: tuple[bytes, ...] = (b"",),
    local: tuple[bytes, ...] = (),
    pseudo: tuple[bytes, ...] = (),
    refused: tuple[bytes, ...] = (),
    rewrite_symlinks: bool = True,
    revalidate_s: float | None = None,
) -> Policy:
    return Policy(
        source,
        mountpoint,
        tuple(map(Path, shared)),
        tuple(map(Path, local)),
        frozenset(map(Path, pseudo)),
        frozenset(map(Path, refused)),
        rewrite_symlinks,
        revalidate_s,
    )


# ---- places --------------------------------------------------------------------------------------

SOME = policy(
    shared=(b"lus", b"home/shared"), local=(b"lus/tmp", b"lus/tmp2"), refused=(b"lus/mnt",)
)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (b"lus", Place.SHARED),
        (b"lus/a/b", Place.SHARED),
        (b"lustre", Place.LOCAL),
        (b"", Place.LOCAL),
        (b"etc", Place.LOCAL),
        (b"home", Place.LOCAL),
        (b"home/shared/x", Place.SHARED),
        (b"lus/tmp", Place.LOCAL),
        (b"lus/tmp/x", Place.LOCAL),
        (b"lus/tmp3", Place.SHARED),
        (b"lus/mnt", Place.REFUSED),
        (b"lus/mnt/x", Place.REFUSED),
        (b"lus/mnt2", Place.SHARED),
    ],
)
def test_the_longest_prefix_says_which_place_it_is(path: bytes, place: Place) -> None:
    assert SOME.place(Path(path)) is place


def test_a_shared_prefix_in_a_local_one_is_shared() -> None:
    chosen = policy(shared=(b"", b"dev/shared"), local=(b"dev",))
    assert chosen.place(Path(b"dev/shared/x")) is Place.SHARED
    assert chosen.place(Path(b"dev/x")) is Place.LOCAL


@pytest.mark.parametrize(
    ("path", "revalidate_s", "fresh_s"),
    [
        (b"lus/a", None, None),
        (b"lus/a", 5.0, 5.0),
        (b"etc", None, LOCAL_FRESH_S),
        (b"etc", 5.0, LOCAL_FRESH_S),
        (b"etc", 0.1, 0.1),
        (b"", None, None),  # the way down
        (b"home", None, None),
        (b"home", 5.0, 5.0),
        (b"home/other", None, LOCAL_FRESH_S),
    ],
)
def test_for_how_long_a_path_is_believed(
    path: bytes, revalidate_s: float | None, fresh_s: float | None
) -> None:
    chosen = policy(shared=(b"lus", b"home/shared"), revalidate_s=revalidate_s)
    assert chosen.fresh_s(Path(path)) == fresh_s


# ---- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (b"/lus/x", b"/mnt/lus/x"),
        (b"/lus", b"/mnt/lus"),
        (b"//lus//x/", b"/mnt/lus//x/"),  # its spelling is kept
        (b"/etc/../lus/x", b"/mnt/etc/../lus/x"),
        (b"/etc/hostname", b"/etc/hostname"),
        (b"/lus/../etc", b"/lus/../etc"),
        (b"lus/x", b"lus/x"),
        (b"../lus/x", b"../lus/x"),
        (b"", b""),
        (b"/mnt/lus/x", b"/mnt/lus/x"),  # leads into the mount already
        (b"/lus/proc/self", b"/lus/proc/self"),  # kernel interfaces are seen outside
        (b"/lus/" + b"x" * 4090, b"/lus/" + b"x" * 4090),  # would get too long
        (b"/lus/" + b"x" * 4086, b"/mnt/lus/" + b"x" * 4086),
    ],
)
def test_absolute_links_into_shared_places_stay_in_the_mount(target: bytes, shown: bytes) -> None:
    chosen = policy(shared=(b"lus",), pseudo=(b"lus/proc",))
    entry = chosen.shown(ROOT, b"link", link(target))
    assert entry.target == shown
    assert entry.attributes.size == len(shown)


def test_links_are_kept_if_that_is_wanted() -> None:
    entry = link(b"/lus/x")
    chosen = policy(rewrite_symlinks=False)
    assert chosen.shown(ROOT, b"link", entry) is entry
    listing = pack_listing([(b"link", entry)])
    assert chosen.shown_listing(ROOT, listing) is listing


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (b"/data/set/x", b"/mnt/x"),
        (b"/data/set", b"/mnt/"),
        (b"/data/settings", b"/data/settings"),
        (b"/data", b"/data"),
        (b"/x", b"/x"),
    ],
)
def test_links_are_seen_from_the_source(target: bytes, shown: bytes) -> None:
    chosen = policy(source=b"/data/set")
    assert chosen.shown(ROOT, b"link", link(target)).target == shown


# ---- kernel interfaces ---------------------------------------------------------------------------


def test_a_kernel_interface_is_shown_as_a_link_to_itself() -> None:
    chosen = policy(source=b"/data", pseudo=(b"d/proc",))
    entry = chosen.shown(Path(b"d"), b"proc", directory(5))
    assert entry.target == b"/data/d/proc"
    assert entry.attributes.mode == stat.S_IFLNK | 0o777
    assert (entry.attributes.size, entry.attributes.inode) == (len(entry.target), 5)


# ---- listings ------------------------------------------------------------------------------------


def test_a_listing_shows_what_its_entries_show() -> None:
    chosen = policy(shared=(b"lus",), pseudo=(b"lus/proc",))
    rows = [(b"proc", directory()), (b"link", link(b"/lus/x")), (b"file", file(5))]
    shown = chosen.shown_listing(Path(b"lus"), pack_listing(rows))
    expected = [(name, chosen.shown(Path(b"lus"), name, entry)) for name, entry in rows]
    assert list(shown.rows()) == expected
    assert [entry.target for _, entry in shown.rows()] == [b"/lus/proc", b"/mnt/lus/x", b""]


@pytest.mark.parametrize("bare", [False, True])
def test_a_listing_with_nothing_to_change_is_itself(bare: bool) -> None:
    listing = pack_listing([(b"file", file()), (b"link", link(b"relative"))], bare=bare)
    assert policy(pseudo=(b"proc",)).shown_listing(Path(b"d"), listing) is listing


def test_a_bare_listing_stays_bare() -> None:
    listing = pack_listing([(b"proc", directory())], bare=True)
    assert policy(pseudo=(b"proc",)).shown_listing(ROOT, listing).bare


def test_names_beside_the_way_to_a_shared_prefix_are_local() -> None:
    policy = Policy(source=b"/", mountpoint=b"/mnt", shared=(Path(b"net/lus"),))
    assert policy.fresh_s(Path(b"net")) is None
    assert policy.listing_fresh_s(Path(b"")) == LOCAL_FRESH_S
