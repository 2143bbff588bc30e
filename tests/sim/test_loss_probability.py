"""Loss probability: the formulas against all sets of lost nodes, the paper, and our placement."""

from fractions import Fraction

import pytest

from copperfs.lab.sim.loss_probability import (
    brute_force,
    failures_until_loss,
    grouped_holders,
    grouped_loss,
    lost_fraction,
    ring_holders,
    simulated,
)

SMALL = [(4, 2), (8, 2), (6, 3), (9, 3), (8, 4)]


@pytest.mark.parametrize(("nodes", "copies"), SMALL)
def test_the_formulas_are_what_all_sets_of_lost_nodes_give(nodes: int, copies: int) -> None:
    holders = grouped_holders(nodes, copies)
    for failures in range(nodes + 1):
        found = brute_force(holders, nodes, failures)
        assert found.any_lost == grouped_loss(nodes, copies, failures)
        assert found.lost_fraction == lost_fraction(nodes, copies, failures)


@pytest.mark.parametrize(("nodes", "copies"), SMALL)
def test_a_ring_loses_the_same_part_in_the_mean(nodes: int, copies: int) -> None:
    holders = ring_holders(nodes, copies, 500, vnodes=20)
    for failures in range(nodes + 1):
        found = brute_force(holders, nodes, failures)
        assert found.lost_fraction == lost_fraction(nodes, copies, failures)


def test_fewer_losses_than_copies_lose_nothing() -> None:
    for copies in (2, 3, 4):
        holders = ring_holders(1024, copies, 20_000, vnodes=500)
        assert simulated(holders, 1024, copies - 1, 20, seed=1).any_lost == 0
        assert lost_fraction(1024, copies, copies - 1) == 0


@pytest.mark.parametrize(("copies", "expected"), [(2, 39.8), (3, 129.5), (4, 229.4)])
def test_the_mean_number_of_losses_until_data_is_lost_is_the_papers(
    copies: int, expected: float
) -> None:
    assert round(float(failures_until_loss(1008, copies)), 1) == expected


def test_our_placement_at_1024_nodes_loses_the_part_that_the_formula_says() -> None:
    holders = ring_holders(1024, 2, 100_000, vnodes=500)
    for failures in (64, 256):
        found = simulated(holders, 1024, failures, 20, seed=failures).lost_fraction
        assert abs(found / lost_fraction(1024, 2, failures) - 1) < Fraction(1, 10)


def test_our_placement_loses_a_little_where_groups_mostly_lose_nothing() -> None:
    holders = ring_holders(1024, 2, 100_000, vnodes=500)
    found = simulated(holders, 1024, 8, 100, seed=8)
    assert found.any_lost > grouped_loss(1024, 2, 8)
    assert found.lost_fraction < Fraction(1, 10_000)
