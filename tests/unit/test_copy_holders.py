"""Copy holders: which nodes keep a chunk, whatever nodes are lost, and in which failure domains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.launch.node_sets import expand
from copperfs.model.errors import ConfigError
from copperfs.model.failure_domains import (
    domains_by_name,
    domains_of_lines,
    domains_of_slurm,
    numbered,
    parse_domains,
)
from copperfs.model.types import NodeId
from copperfs.node.routing.copy_holders import holders
from copperfs.node.routing.hash_ring import Ring

NODES = 16
RING = Ring([f"n{number}" for number in range(NODES)])
KEYS = [b"key %d" % number for number in range(60)]
RACKS = tuple(number - number % 4 for number in range(NODES))
lost = st.sets(st.integers(0, NODES - 1).map(NodeId), max_size=NODES - 1)
domains = st.lists(st.integers(0, 5), min_size=NODES, max_size=NODES).map(tuple)
some_copies = st.integers(2, 4)


def test_without_domains_the_first_living_nodes_of_the_order_keep_a_chunk() -> None:
    for key in KEYS:
        order = RING.owners(key, NODES)
        assert holders(RING, key, 3) == order[:3]
        assert holders(RING, key, 3, {order[0], order[2]}) == [order[1], *order[3:5]]


@given(lost, some_copies)
def test_the_owner_is_the_first_living_node_whatever_the_domains(
    gone: set[NodeId], copies: int
) -> None:
    for key in KEYS[:10]:
        assert holders(RING, key, copies, gone, RACKS)[0] == RING.owner(key, gone)


@given(lost, domains, some_copies)
def test_no_two_copies_are_in_one_domain_while_there_are_enough(
    gone: set[NodeId], domains: tuple[int, ...], copies: int
) -> None:
    living = {domains[number] for number in range(NODES) if number not in gone}
    for key in KEYS[:10]:
        found = holders(RING, key, copies, gone, domains)
        assert len(found) == len(set(found)) == min(copies, NODES - len(gone))
        assert not set(found) & gone
        assert len({domains[each] for each in found}) == min(copies, len(living))


@given(lost, domains, some_copies, st.integers(0, NODES - 1).map(NodeId))
def test_a_loss_leaves_all_other_holders_what_they_are(
    gone: set[NodeId], domains: tuple[int, ...], copies: int, dies: NodeId
) -> None:
    for key in KEYS[:10]:
        before = holders(RING, key, copies, gone, domains)
        if len({domains[each] for each in before}) < copies:
            continue  # then the rest is filled with any nodes
        after = holders(RING, key, copies, gone | {dies}, domains)
        assert set(before) - {dies} <= set(after)


def test_the_copies_of_a_lost_node_are_spread() -> None:
    ring = Ring([f"n{number}" for number in range(64)])
    keys = [b"%d" % number for number in range(20_000)]
    of_one = [key for key in keys if ring.owner(key) == 0]
    heirs = {holders(ring, key, 3, {NodeId(0)})[2] for key in of_one}
    assert len(heirs) > 40, "100 arcs follow its points"


# --- where domains come from ----------------------------------------------------------------------

NAMES = ("r1n1", "r1n2", "r2n1", "r2n2")


def test_a_domain_has_the_number_of_its_first_node() -> None:
    assert numbered(("x", "y", "x", "z")) == (0, 1, 0, 3)


def test_a_pattern_finds_domains_in_names() -> None:
    assert domains_by_name(r"^r\d+", NAMES) == (0, 0, 2, 2)
    assert domains_by_name(r"n(\d)", NAMES) == (0, 1, 0, 1)


def test_a_name_that_the_pattern_does_not_match_is_told() -> None:
    with pytest.raises(ConfigError, match="does not match the node login"):
        domains_by_name(r"r\d", ("r1n1", "login"))


def test_a_file_has_names_sets_and_patterns() -> None:
    lines = ["# racks", "r1n[1-2] one", "r2* two  # the rest", ""]
    assert domains_of_lines(lines, NAMES, "f", lambda text: expand(text, "f")) == (0, 0, 2, 2)


def test_a_node_without_a_domain_and_a_line_without_one_are_told() -> None:
    with pytest.raises(ConfigError, match="f has no domain for the node r2n1"):
        domains_of_lines(["r1* one"], NAMES, "f")
    with pytest.raises(ConfigError, match="f, line 2: write a node and its domain"):
        domains_of_lines(["r1* one", "r2*"], NAMES, "f")


def test_the_lowest_switches_of_slurm_are_domains() -> None:
    topology = (
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=r1n[1-2]\n"
        "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=r2n[1-2]\n"
        "SwitchName=s2 Level=1 LinkSpeed=1 Nodes=r1n[1-2],r2n[1-2] Switches=s[0-1]\n"
    )
    assert domains_of_slurm(topology, NAMES, lambda text: expand(text, "")) == (0, 0, 2, 2)
    with pytest.raises(ConfigError, match="names no switch for the node login"):
        domains_of_slurm(topology, (*NAMES, "login"), lambda text: expand(text, ""))


def test_a_pattern_that_is_none_is_refused() -> None:
    assert parse_domains("name:r") == "name:r"
    with pytest.raises(ValueError, match="no regular expression"):
        parse_domains("name:(")
