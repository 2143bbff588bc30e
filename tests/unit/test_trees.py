"""Overlay trees: which node asks which, in every shape of job."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.lab.sim.baselines import copper_fanout
from copperfs.model.types import NodeId, Path
from copperfs.node.routing.trees import Trees

SIZES = st.tuples(st.integers(1, 70), st.integers(1, 9), st.integers(1, 6))


def job(nodes: int, fanout: int, count: int) -> list[Trees]:
    return [Trees(nodes, NodeId(me), fanout, fanout, count) for me in range(nodes)]


@given(SIZES)
def test_every_node_but_the_root_is_the_child_of_its_parent(sizes: tuple[int, int, int]) -> None:
    trees = job(*sizes)
    for tree in range(sizes[2]):
        for node in trees:
            parent = node.parent(tree)
            assert (parent is None) == (node.me == node.root(tree))
            if parent is not None:
                assert node.me in trees[parent].children(tree)
        children = [child for node in trees for child in node.children(tree)]
        assert sorted(children) == [n for n in range(sizes[0]) if n != trees[0].root(tree)]


@given(SIZES)
def test_whoever_asks_reaches_the_root(sizes: tuple[int, int, int]) -> None:
    trees = job(*sizes)
    for tree in range(sizes[2]):
        for node in trees:
            at, hops = node, 0
            while (parent := at.parent(tree)) is not None:
                at, hops = trees[parent], hops + 1
            assert at.me == node.root(tree)
            assert hops == node.depth(tree)


def test_the_push_tree_has_its_own_fan_out() -> None:
    node = Trees(31, NodeId(0), fanout=16, push_fanout=2)
    assert len(node.children(0)) == 16
    assert node.push_children(0) == [1, 2]
    assert Trees(31, NodeId(20), 16, 2).push_parent(0) == 9
    assert set(Trees(31, NodeId(20), 16, 2).parents()) == {1, 9}


def test_the_roots_of_several_trees_are_far_apart() -> None:
    assert [Trees(8, NodeId(0), count=4).root(tree) for tree in range(4)] == [0, 2, 4, 6]


def test_a_directory_is_asked_for_in_the_same_tree_everywhere() -> None:
    where = {Trees(8, NodeId(me), count=4).tree_of(Path(b"usr/lib")) for me in range(8)}
    assert len(where) == 1


def test_a_thousand_directories_are_spread_evenly() -> None:
    trees = Trees(8, NodeId(0), count=4)
    shares = Counter(trees.tree_of(Path(b"env/lib/package%d" % n)) for n in range(1000))
    assert all(0.8 * 250 <= shares[tree] <= 1.2 * 250 for tree in range(4)), shares


@pytest.mark.parametrize(
    ("nodes", "fanout"),
    [(1, 2), (31, 2), (32, 3), (121, 3), (341, 4), (781, 5), (1555, 6), (1556, 7), (8300, 7)],
)
def test_the_fan_out_of_copper(nodes: int, fanout: int) -> None:
    assert copper_fanout(nodes) == fanout
