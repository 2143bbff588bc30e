"""Agreement: the digest of the settings that must be equal on all nodes, and the error that names
one.
"""

from dataclasses import replace

import pytest

from copperfs.config.settings import Settings
from copperfs.daemon.agreement import AGREED, agreed_flags, digest_of, shown_places
from copperfs.model.types import Path
from copperfs.node.peer.hello_exchange import difference
from copperfs.node.requests.path_policy import Policy

ALONE = Settings(mountpoint="/mnt", memory_bytes=1 << 30)
OTHERS: dict[str, object] = {
    "source": "/lus",
    "revalidate_s": 5.0,
    "trees": 2,
    "fanout": 3,
    "push_fanout": 3,
    "tree_max_bytes": 1 << 20,
    "chunk_size_bytes": 1 << 18,
    "vnodes": 200,
    "ring": ("/lus/data",),
    "protect": ("/lus/data=copies:2",),
    "inodes": "ignore",
}


@pytest.mark.parametrize("name", AGREED)
def test_nodes_with_another_value_do_not_agree(name: str) -> None:
    other = replace(ALONE, **{name: OTHERS[name]})  # type: ignore[arg-type]  # each by its name
    assert digest_of(other) != digest_of(ALONE)


def test_what_each_node_decides_for_itself_is_not_agreed_on() -> None:
    other = replace(ALONE, mountpoint="/other", memory_bytes=1, tier_memory_bytes=5, tier_dir="/n")
    assert digest_of(other) == digest_of(ALONE)


def test_nodes_with_other_failure_domains_do_not_agree() -> None:
    assert digest_of(ALONE, (0, 0, 2)) != digest_of(ALONE, (0, 1, 1))


def test_a_file_of_domains_may_have_another_name_on_each_node() -> None:
    other = replace(ALONE, domains="/etc/racks")
    assert digest_of(other, (0, 0, 2)) == digest_of(ALONE, (0, 0, 2))


def test_the_sentence_names_all_of_it() -> None:
    assert agreed_flags() == (
        "--source, --revalidate, --trees, --fanout, --push-fanout, --tree-max, --chunk-size, "
        "--vnodes, --ring, --protect, --inodes and --domains"
    )


def places(*shared: bytes, local: tuple[bytes, ...] = (), source: str = "/") -> bytes:
    policy = Policy(b"/", b"/mnt", shared=tuple(map(Path, shared)), local=tuple(map(Path, local)))
    return shown_places(policy, source)


def test_the_same_places_are_the_same_in_any_order() -> None:
    assert difference(0, places(b"lus", b"home"), 1, places(b"home", b"lus")) is None


def test_a_place_that_only_one_node_shares_is_named_with_its_node() -> None:
    told = difference(0, places(b"lus", b"home"), 3, places(b"lus", b"a", b"b", local=(b"lus/t",)))
    assert told is not None
    assert "node 3 does not show the same places as this node, 0" in told
    assert "shared on node 3 alone: /a, /b; shared on node 0 alone: /home" in told
    assert "local on node 3 alone: /lus/t" in told


def test_places_are_named_by_the_source() -> None:
    told = difference(0, places(b"", source="/lus/sw"), 1, places(b"x", source="/lus/sw"))
    assert told is not None
    assert "shared on node 1 alone: /lus/sw/x; shared on node 0 alone: /lus/sw:" not in told
    assert "shared on node 1 alone: /lus/sw/x; shared on node 0 alone: /lus/sw" in told


def test_too_many_places_to_tell_are_compared_all_the_same() -> None:
    many = [b"lus/%064d" % each for each in range(1000)]
    assert len(places(*many)) < 100
    assert difference(0, places(*many), 1, places(*many)) is None
    assert "too many to name" in str(difference(0, places(*many), 1, places(*many[1:])))


@pytest.mark.parametrize(
    "nonsense", [b"", b"\xff", b"[]", b"3", b'{"shared": 1}', b'{"ring": [2]}']
)
def test_nonsense_for_places_is_a_difference_and_no_failure(nonsense: bytes) -> None:
    assert "shared on node 0 alone: /lus" in str(difference(0, places(b"lus"), 1, nonsense))
