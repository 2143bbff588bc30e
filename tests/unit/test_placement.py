"""Placement: one suite for every kind; then tests of the ring alone."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copperfs.lab.sim.rendezvous_hashing import RendezvousHashing
from copperfs.model.roster import NODES_MAX
from copperfs.model.types import NodeId, Path, Version
from copperfs.node.routing.hash_ring import Ring
from copperfs.node.routing.placement_order import Placement, chunk_key, weights_of

KINDS: dict[str, Callable[[Sequence[str], Sequence[float] | None], Placement]] = {
    "ring": lambda names, weights: Ring(names, weights, vnodes=20),
    "rendezvous": RendezvousHashing,
}
VERSION = Version(10, 20, 30, 40)


@dataclass(frozen=True)
class Job:
    names: list[str]
    weights: list[float]
    gone: set[NodeId]
    keys: list[bytes]

    @property
    def there(self) -> set[NodeId]:
        return {NodeId(n) for n, weight in enumerate(self.weights) if weight} - self.gone


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    names = draw(st.lists(st.text("abc012-.é", max_size=8), min_size=1, max_size=12, unique=True))
    weights = [draw(st.sampled_from((1.0, 1.0, 0.0, 0.01, 0.5, 3.0))) for _ in names]
    gone = draw(st.sets(st.integers(0, len(names) - 1).map(NodeId)))
    keys = draw(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
    if draw(st.booleans()):
        weights = [1.0] * len(names)
    return Job(names, weights, gone, keys)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---- an order of the nodes for each key ---------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@given(job=jobs())
def test_all_that_have_room_have_a_place_in_the_order(kind: str, job: Job) -> None:
    placement = KINDS[kind](job.names, job.weights)
    for key in job.keys:
        order = placement.owners(key, 100, job.gone)
        assert set(order) == job.there
        assert len(order) == len(job.there)


@pytest.mark.parametrize("kind", KINDS)
@given(job=jobs())
def test_who_is_gone_is_left_out_and_nobody_else_moves(kind: str, job: Job) -> None:
    placement = KINDS[kind](job.names, job.weights)
    for key in job.keys:
        order = placement.owners(key, len(job.names))
        without = [node for node in order if node not in job.gone]
        assert placement.owners(key, len(job.names), job.gone) == without
        assert placement.owner(key, job.gone) == (without[0] if without else None)
        assert placement.owner(key) == (order[0] if order else None)


@pytest.mark.parametrize("kind", KINDS)
@given(job=jobs(), count=st.integers(0, 13))
def test_fewer_owners_are_the_first_ones(kind: str, job: Job, count: int) -> None:
    placement = KINDS[kind](job.names, job.weights)
    for key in job.keys:
        all_of_them = placement.owners(key, len(job.names), job.gone)
        assert placement.owners(key, count, job.gone) == all_of_them[:count]


@pytest.mark.parametrize("kind", KINDS)
@given(job=jobs(), random=st.randoms(use_true_random=False))
def test_a_place_in_the_roster_makes_no_difference(
    kind: str, job: Job, random: random.Random
) -> None:
    shuffled = list(range(len(job.names)))
    random.shuffle(shuffled)
    names = [job.names[n] for n in shuffled]
    one = KINDS[kind](job.names, job.weights)
    other = KINDS[kind](names, [job.weights[n] for n in shuffled])
    for key in job.keys:
        order = [job.names[n] for n in one.owners(key, len(names))]
        assert [names[n] for n in other.owners(key, len(names))] == order


@pytest.mark.parametrize("kind", KINDS)
@given(job=jobs())
def test_whoever_was_never_there_makes_no_difference_either(kind: str, job: Job) -> None:
    """Two jobs with different rosters place keys alike that belong to nodes of both."""
    kept = [n for n in range(len(job.names)) if n not in job.gone]
    names = [job.names[n] for n in kept]
    whole = KINDS[kind](job.names, job.weights)
    part = KINDS[kind](names, [job.weights[n] for n in kept])
    for key in job.keys:
        order = [job.names[n] for n in whole.owners(key, len(job.names), job.gone)]
        assert [names[n] for n in part.owners(key, len(names))] == order


@pytest.mark.parametrize("kind", KINDS)
@given(job=jobs(), which=st.integers(0, 11), weight=st.sampled_from((0.5, 1.0, 2.0, 5.0)))
def test_a_node_with_more_room_only_gains(kind: str, job: Job, which: int, weight: float) -> None:
    node = NodeId(which % len(job.names))
    before = KINDS[kind](job.names, job.weights)
    weights = list(job.weights)
    weights[node] += weight
    after = KINDS[kind](job.names, weights)
    for key in job.keys:
        assert after.owner(key) in (node, before.owner(key))


# ---- shares -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@given(job=jobs())
def test_shares_are_of_those_who_are_there_and_make_a_whole(kind: str, job: Job) -> None:
    shares = KINDS[kind](job.names, job.weights).shares(job.gone)
    assert set(shares) == job.there
    assert all(share > 0 for share in shares.values())
    assert sum(shares.values()) == pytest.approx(1 if job.there else 0)


def test_nodes_own_as_many_keys_as_their_shares_say(kind: str) -> None:
    placement = KINDS[kind]([f"n{n}" for n in range(16)], [1, 2, 3, 4] * 4)
    gone = {NodeId(3), NodeId(7)}
    keys = [b"data/%d" % number for number in range(20_000)]
    owned = Counter(placement.owner(key, gone) for key in keys)
    shares = placement.shares(gone)
    assert set(owned) == set(shares)
    for node, share in shares.items():
        expected = share * len(keys)
        assert abs(owned[node] - expected) < 5 * expected**0.5


def test_the_keys_of_a_lost_node_are_spread_over_many(kind: str) -> None:
    placement = KINDS[kind]([f"n{n}" for n in range(64)], None)
    keys = [b"data/%d" % number for number in range(20_000)]
    lost = NodeId(9)
    moved = [key for key in keys if placement.owner(key) == lost]
    received = Counter(placement.owner(key, {lost}) for key in moved)
    assert len(received) >= 14  # 20 arcs of 63 others: 17.2 in the mean
    assert max(received.values()) < len(moved) / 3


@pytest.mark.parametrize("vnodes", [100, 1000])
def test_the_shares_of_a_ring_deviate_as_its_virtual_nodes_let_expect(vnodes: int) -> None:
    """A share is the sum of this many arcs, each of which deviates by its own length."""
    weights = [1.0, 2.0] * 100
    shares = Ring([f"n{n}" for n in range(200)], weights, vnodes).shares()
    off = [shares[NodeId(n)] * 300 / weight - 1 for n, weight in enumerate(weights)]
    sigmas = [each * (vnodes * weight) ** 0.5 for each, weight in zip(off, weights, strict=True)]
    assert max(map(abs, sigmas)) < 4.5
    assert 0.85 < (sum(each**2 for each in sigmas) / len(sigmas)) ** 0.5 < 1.15


# ---- the same everywhere ------------------------------------------------------------------------

# A change lets nodes of two versions ask different owners for a key, and makes a tier that outlives
# its job refill.
EXPECTED = {
    "ring": [1, 3, 5, 1, 5, 1, 0, 4],
    "rendezvous": [5, 5, 0, 5, 3, 0, 5, 1],
    "all alike": [4, 2, 2, 5, 3, 0, 1, 1],
}
OWNERS = """
import json
from tests.unit.test_placement import golden
print(json.dumps(golden()))
"""


def golden() -> dict[str, list[int | None]]:
    weights = [1, 1, 0, 2, 0.5, 3]
    names = [f"x1000c0s{n}b0n0" for n in range(6)]
    keys = [chunk_key(Path(b"lus/data/%d" % n), VERSION, n) for n in range(8)]
    placements = {name: make(names, weights) for name, make in KINDS.items()}
    placements["all alike"] = RendezvousHashing(names)
    return {name: [each.owner(key) for key in keys] for name, each in placements.items()}


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_owners_are_the_same_in_every_process_and_version(hash_seed: str) -> None:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    found = subprocess.run(
        [sys.executable, "-c", OWNERS], env=environment, check=True, capture_output=True, timeout=60
    )
    assert json.loads(found.stdout) == EXPECTED


# ---- keys and weights ---------------------------------------------------------------------------

NUMBERS = st.integers(0, 2**64 - 1)
CHUNKS = st.tuples(
    st.binary(max_size=30).map(Path),
    st.builds(Version, NUMBERS, st.integers(-(2**63), 2**63 - 1), NUMBERS, NUMBERS),
    NUMBERS,
)


@given(CHUNKS, CHUNKS)
def test_two_chunks_have_two_keys(
    one: tuple[Path, Version, int], other: tuple[Path, Version, int]
) -> None:
    assert (chunk_key(*one) == chunk_key(*other)) == (one == other)


def test_a_file_from_a_far_future_or_past_has_a_key() -> None:
    far = Version(1, 2**70, -(2**70), 1)
    assert chunk_key(Path(b"a"), far, 0) != chunk_key(Path(b"a"), far, 1)


def test_weights_are_in_proportion_to_tiers_with_1_for_the_mean_of_those_that_are() -> None:
    assert weights_of([100, 0, 300]) == [0.5, 0, 1.5]
    assert weights_of([0, 0]) == [0, 0]
    assert weights_of([]) == []


def test_a_placement_without_room_anywhere_has_no_owners(kind: str) -> None:
    for placement in (KINDS[kind]([], None), KINDS[kind](["a", "b"], [0, 0])):
        assert placement.owner(b"key") is None
        assert placement.owner(b"key", {NodeId(0)}) is None
        assert placement.owners(b"key", 3) == []
        assert placement.shares() == {}


# ---- the ring -----------------------------------------------------------------------------------


def test_a_ring_has_points_by_weight_and_at_least_one() -> None:
    assert len(Ring(["a"])) == 100
    assert len(Ring(["a", "b", "c", "d"], [1, 0.254, 0, 0.0001])) == 100 + 25 + 0 + 1


def test_a_ring_has_room_for_all_nodes_that_a_roster_may_have() -> None:
    ring = Ring([str(n) for n in range(NODES_MAX)], vnodes=1)
    assert len(ring) == NODES_MAX
    assert max(ring.shares()) == NODES_MAX - 1


class CountingSet(set[NodeId]):
    asked = 0

    def __contains__(self, node: object) -> bool:
        self.asked += 1
        return super().__contains__(node)


@pytest.mark.parametrize(("every", "steps"), [(2, 2), (10, 10)])
def test_a_lookup_passes_by_only_so_many_as_are_gone(every: int, steps: float) -> None:
    """However large the ring is; a death or a return costs no more."""
    ring = Ring([f"n{n}" for n in range(1000)])
    gone = CountingSet(NodeId(n) for n in range(1000) if n % every)
    for number in range(2000):
        ring.owner(b"%d" % number, gone)
    assert gone.asked / 2000 == pytest.approx(steps, rel=0.2)


@pytest.mark.parametrize("name", ["{}", "n{}", "nid{:05}", "x1000c0s{}b0n0"])
def test_nodes_whose_names_are_alike_have_points_of_their_own(name: str) -> None:
    """Seeded with the index, xxh3 gave n12 and n13 the same points except for two."""
    shares = Ring([name.format(n) for n in range(100)]).shares().values()
    assert len(shares) == 100
    assert max(shares) < 1.5 / 100
    assert min(shares) > 0.6 / 100


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 50))
def test_more_owners_than_there_are_do_not_cost_a_way_round(nodes: int, there: int) -> None:
    ring = Ring([f"n{n}" for n in range(nodes)], vnodes=100)
    gone = CountingSet(NodeId(n) for n in range(there, nodes))
    left = ring.owners(b"key", 1000, gone)
    assert len(left) == min(nodes, there)
    last = ring.owners(b"key", len(left), CountingSet(gone))
    assert left == last
