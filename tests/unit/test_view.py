"""Member table: nodes converge on one view, whatever updates they receive and in whatever order.
Only a node itself can refute its own death."""

import random

from hypothesis import given
from hypothesis import strategies as st

from copperfs.model.types import NodeId
from copperfs.node.membership.member_table import INCARNATION_LEAP_MAX, MemberTable
from copperfs.node.peer.messages import MemberStatus

NODES = 5
FATES = st.lists(
    st.builds(
        MemberStatus,
        st.integers(1, NODES - 1).map(NodeId),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=20,
)


def view(me: int = 0) -> MemberTable:
    return MemberTable(NodeId(me), NODES)


@given(FATES, st.randoms(use_true_random=False))
def test_the_order_in_which_fates_are_heard_makes_no_difference(
    records: list[MemberStatus], order: random.Random
) -> None:
    one, other = view(), view()
    for record in records:
        one.hear(record)
    shuffled = [*records, *order.sample(records, len(records) // 2)]
    order.shuffle(shuffled)
    for record in shuffled:
        other.hear(record)
    one.check_invariants()
    other.check_invariants()
    assert one.gone == other.gone
    assert one.digest == other.digest
    assert set(one.records()) == set(other.records())


@given(FATES)
def test_who_hears_all_that_another_believes_believes_the_same(records: list[MemberStatus]) -> None:
    one, other = view(), view()
    for record in records:
        one.hear(record)
    for record in one.records():
        other.hear(record)
    assert one.digest == other.digest


def test_of_one_incarnation_it_is_true_that_the_node_is_gone() -> None:
    here = view()
    assert here.hear(MemberStatus(NodeId(3), 0, is_gone=True)) is not None
    assert here.hear(MemberStatus(NodeId(3), 0, is_gone=False)) is None
    assert here.gone == {3}
    assert here.hear(MemberStatus(NodeId(3), 1, is_gone=False)) is not None
    assert here.gone == set()


def test_who_hears_of_its_own_end_refutes_it_with_the_next_incarnation() -> None:
    here = view(2)
    assert here.hear(MemberStatus(NodeId(2), 4, is_gone=True)) == MemberStatus(
        NodeId(2), 5, is_gone=False
    )
    assert here.hear(MemberStatus(NodeId(2), 4, is_gone=True)) is None
    assert here.gone == set()
    assert here.death_of(NodeId(2)) == MemberStatus(NodeId(2), 5, is_gone=True)


def test_who_leaves_does_not_refute_it() -> None:
    here = view(2)
    here.leaving = True
    assert here.hear(here.death_of(NodeId(2))) == MemberStatus(NodeId(2), 0, is_gone=True)


def test_nonsense_is_not_believed() -> None:
    here = view()
    assert here.hear(MemberStatus(NodeId(NODES), 0, is_gone=True)) is None
    assert here.hear(MemberStatus(NodeId(1), INCARNATION_LEAP_MAX + 1, is_gone=True)) is None
    assert here.gone == set()
