"""K-ary tree of the nodes present: all reach the root, and no node gets too many children."""

from hypothesis import given
from hypothesis import strategies as st

from copperfs.node.routing.tree_failover import children_among, parent_among, parent_position

SHAPES = st.tuples(st.integers(1, 90), st.integers(1, 9)).flatmap(
    lambda shape: st.tuples(
        st.just(shape[0]), st.just(shape[1]), st.sets(st.integers(0, shape[0] - 1))
    )
)
Shape = tuple[int, int, set[int]]


def there(nodes: int, gone: set[int]) -> list[int]:
    return [each for each in range(nodes) if each not in gone]


@given(SHAPES)
def test_whoever_is_there_reaches_the_lowest_that_is(shape: Shape) -> None:
    nodes, fanout, gone = shape
    for position in there(nodes, gone):
        at, hops = position, 0
        while (above := parent_among(at, fanout, nodes, gone.__contains__)) is not None:
            assert above not in gone
            at, hops = above, hops + 1
            assert hops <= nodes
        assert at == there(nodes, gone)[0]


@given(SHAPES)
def test_a_parent_knows_its_children(shape: Shape) -> None:
    nodes, fanout, gone = shape
    for position in there(nodes, gone):
        assert children_among(position, fanout, nodes, gone.__contains__) == [
            each
            for each in there(nodes, gone)
            if parent_among(each, fanout, nodes, gone.__contains__) == position
        ]


@given(SHAPES)
def test_a_parent_is_lower_whatever_its_child_believes(shape: Shape) -> None:
    """Two nodes with different views never wait for each other."""
    nodes, fanout, gone = shape
    for position in range(nodes):
        above = parent_among(position, fanout, nodes, gone.__contains__)
        assert above is None or above < position


@given(SHAPES)
def test_only_who_lost_the_parent_moves(shape: Shape) -> None:
    nodes, fanout, gone = shape
    for position in there(nodes, gone):
        above = parent_position(position, fanout)
        if above is not None and above not in gone:
            assert parent_among(position, fanout, nodes, gone.__contains__) == above


def most_children(nodes: int, fanout: int, gone: set[int]) -> int:
    counts = [
        len(children_among(each, fanout, nodes, gone.__contains__)) for each in there(nodes, gone)
    ]
    return max(counts)


def test_one_death_gives_nobody_more_than_two_children_more() -> None:
    for dead in range(1, 273):
        assert most_children(273, 16, {dead}) <= 18, dead


def test_the_next_root_has_its_own_children_and_those_of_the_last() -> None:
    assert most_children(273, 16, {0}) == 16 + 15


def test_the_death_of_a_whole_level_does_not_fall_on_the_root() -> None:
    level = set(range(1, 17))
    assert len(children_among(0, 16, 4369, level.__contains__)) == 16
    assert most_children(4369, 16, level) <= 2 * 16
    assert most_children(4369, 16, {0, *level}) <= 3 * 16


def test_the_lowest_child_of_the_root_is_the_next_root() -> None:
    assert parent_among(1, 16, 100, {0}.__contains__) is None
    assert children_among(1, 16, 100, {0}.__contains__)[:2] == [2, 3]
