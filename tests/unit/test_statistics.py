"""Statistics: quantiles from counts by bucket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.daemon.statistics import quantile

buckets = st.dictionaries(st.integers(1, 10**12), st.integers(1, 1000), min_size=1, max_size=30)
shares = st.floats(0.01, 1.0)


def test_of_nothing_there_is_no_quantile() -> None:
    assert quantile({}, 0.5) == 0.0


@pytest.mark.parametrize(
    ("share", "lower_ns"),
    [(0.5, 1000), (0.9, 1000), (0.91, 2000), (0.99, 2000), (0.991, 4_000_000), (1.0, 4_000_000)],
)
def test_a_quantile_is_where_enough_have_been_seen(share: float, lower_ns: int) -> None:
    counts = {4_000_000: 1, 1000: 90, 2000: 9}
    assert quantile(counts, share) == pytest.approx(lower_ns / 1000 * 1.1, abs=0.01)


@given(buckets, shares)
def test_so_many_are_below_and_no_fewer_would_do(counts: dict[int, int], share: float) -> None:
    found_us = quantile(counts, share)
    lower_ns = next(each for each in counts if round(each * 1.1 / 1000, 2) == found_us)
    wanted = share * sum(counts.values())
    up_to = sum(count for each, count in counts.items() if each <= lower_ns)
    below = sum(n for each, n in counts.items() if round(each * 1.1 / 1000, 2) < found_us)
    assert below < wanted
    assert up_to >= wanted or any(
        round(each * 1.1 / 1000, 2) == found_us for each in counts if each > lower_ns
    )


@given(buckets, shares, shares)
def test_a_larger_share_takes_longer(counts: dict[int, int], one: float, other: float) -> None:
    assert quantile(counts, min(one, other)) <= quantile(counts, max(one, other))
