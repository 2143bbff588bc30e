"""Loss probability: how likely simultaneous losses of nodes lose data of which there are copies.

Two questions, each for *failures* nodes lost at once, before any copy was made anew:

* ``grouped_loss``: ReStore's placement has groups of as many nodes as there are copies, and each
  group keeps the same data. This is the probability that a whole group is lost, so anything at all
  (ReStore, section 5: an alternating sum, in exact integers because it is unstable in floats).
* ``lost_fraction``: which part of the data is lost in the mean. It is the same for groups and for a
  ring on which each chunk has other holders: all its holders have to be among the lost nodes.

They differ in how losses are distributed. Groups lose nothing mostly, and then much. A ring with
many virtual nodes has nearly every set of nodes as the holders of some chunks, so it loses a little
as soon as there are as many losses as copies (copysets: Cidon and others, USENIX ATC 2013).
``simulated`` shows what our placement loses; ``brute_force`` tries all sets of lost nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import comb
from random import Random

from copperfs.node.routing.hash_ring import Ring


def grouped_loss(nodes: int, copies: int, failures: int) -> Fraction:
    """``sum_j (-1)^(j+1) C(g,j) C(p-jr, f-jr) / C(p,f)`` with ``g = p/r`` groups."""
    assert nodes % copies == 0
    assert 0 <= failures <= nodes
    groups = nodes // copies
    total = 0
    for lost in range(1, min(groups, failures // copies) + 1):
        term = comb(groups, lost) * comb(nodes - lost * copies, failures - lost * copies)
        total += term if lost % 2 else -term
    return Fraction(total, comb(nodes, failures))


def failures_until_loss(nodes: int, copies: int) -> Fraction:
    """The mean number of losses, one after the other without repair, until data is lost."""
    return sum(
        (1 - grouped_loss(nodes, copies, failures) for failures in range(nodes)), Fraction(0)
    )


def lost_fraction(nodes: int, copies: int, failures: int) -> Fraction:
    return Fraction(comb(failures, copies), comb(nodes, copies))


@dataclass(frozen=True, slots=True)
class Losses:
    any_lost: Fraction
    """In which part of the trials anything was lost."""
    lost_fraction: Fraction
    """The mean part of the data that was lost."""


def brute_force(holders: Sequence[frozenset[int]], nodes: int, failures: int) -> Losses:
    """*holders* of each piece of data; over all sets of lost nodes."""
    return _losses(holders, [frozenset(each) for each in combinations(range(nodes), failures)])


def grouped_holders(nodes: int, copies: int) -> list[frozenset[int]]:
    groups = nodes // copies
    return [frozenset(range(first * copies, (first + 1) * copies)) for first in range(groups)]


def ring_holders(nodes: int, copies: int, chunks: int, vnodes: int) -> list[frozenset[int]]:
    """Of *chunks* groups of adjacent chunks, by the placement of daemons."""
    ring = Ring([f"n{number}" for number in range(nodes)], vnodes=vnodes)
    return [frozenset(ring.owners(b"chunk %d" % each, copies)) for each in range(chunks)]


def simulated(
    holders: Sequence[frozenset[int]], nodes: int, failures: int, trials: int, seed: int
) -> Losses:
    draw = Random(seed)
    return _losses(holders, [frozenset(draw.sample(range(nodes), failures)) for _ in range(trials)])


def _losses(holders: Sequence[frozenset[int]], trials: Sequence[frozenset[int]]) -> Losses:
    at: dict[int, list[frozenset[int]]] = {}
    for each in holders:
        at.setdefault(min(each), []).append(each)
    lost = [sum(each <= gone for node in gone for each in at.get(node, ())) for gone in trials]
    return Losses(
        Fraction(sum(map(bool, lost)), len(trials)),
        Fraction(sum(lost), len(trials) * len(holders)),
    )
