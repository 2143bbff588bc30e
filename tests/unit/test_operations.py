"""Merging: how a collective combines the results of many nodes."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.daemon.collective_ops import (
    PACKED_BYTES_MAX,
    CollectiveOperations,
    added,
    pack,
    unpack,
)

NUMBERS = st.dictionaries(st.sampled_from(["a", "max_b", "min_c"]), st.integers(0, 99))


def test_numbers_are_summed_and_the_rest_as_it_is_named() -> None:
    one = {"nodes": 1, "max_rtt": 5, "min_free": 3, "by": {"x": 1}, "names": ["n0"], "version": "1"}
    other = {"nodes": 2, "max_rtt": 9, "min_free": 1, "by": {"x": 2, "y": 1}, "names": ["n1"]}
    assert added(one, other) == {
        "nodes": 3,
        "max_rtt": 9,
        "min_free": 1,
        "by": {"x": 3, "y": 1},
        "names": ["n0", "n1"],
        "version": "1",
    }


@given(NUMBERS, NUMBERS, NUMBERS)
def test_in_which_order_results_come_does_not_matter(
    a: dict[str, int], b: dict[str, int], c: dict[str, int]
) -> None:
    assert added(added(a, b), c) == added(a, added(b, c)) == added(c, added(b, a))


def test_a_result_that_is_none_is_left_out() -> None:
    merged = CollectiveOperations({}).merge(
        [pack({"nodes": 1}), b"nonsense", b"", pack({"nodes": 1})]
    )
    assert unpack(merged) == {"nodes": 2}
    assert CollectiveOperations({}).merge([b""]) == b""


@pytest.mark.parametrize("data", [b"", b"x" * 100, pack({"a": 1})[:-3] + b"xyz"])
def test_what_is_no_result_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of zlib or of json
        unpack(data)


def test_a_small_message_cannot_fill_the_memory() -> None:
    bomb = pack({"a": "0" * (40 << 20)})
    assert len(bomb) < 1 << 20
    with pytest.raises(ValueError):  # noqa: PT011
        unpack(bomb)


@pytest.mark.parametrize(
    "other",
    [
        zlib.compress(b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}"),
        pack({"x": 10**400}),
        pack({"x": 10**4200, "y": 10**4200}),
        pack({"x": {"deep": 1}}),
        pack({"x": "0" * (900 << 10)}),
    ],
    ids=["deep", "beyond a float", "many digits", "another kind", "long"],
)
def test_whatever_a_peer_returns_there_is_one_result_that_can_be_sent(other: bytes) -> None:
    ours = pack({"nodes": 1, "x": 1.5})
    merged = CollectiveOperations({}).merge([ours, other, other, other])
    assert len(merged) <= PACKED_BYTES_MAX


def test_of_results_that_are_too_large_it_is_still_said_whose_they_are() -> None:
    noise = random.Random(1)
    results = [pack({"answered": [n], "text": [noise.randbytes(200_000).hex()]}) for n in range(8)]
    assert unpack(CollectiveOperations({}).merge(results)) == {"answered": list(range(8))}
