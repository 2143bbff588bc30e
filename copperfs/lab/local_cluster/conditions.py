"""Conditions: how the surroundings of one node differ from those of the others, as on a real
cluster.

Conditions follow from a seed, or are given for a node: ``3:skew=-1.5,descriptors=256``
(docs/cluster.md).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from copperfs.model.errors import ClusterError

SKEW_MAX_S = 2.0
DESCRIPTORS_FEW = 256
MEMORY_SHARES = (0.5, 1.0)
RESOLVERS = ("quick", "slow", "failing")
STARTS_WITHIN_S = 1.0
# The share of nodes that get the unusual value.
FEW_SHARE = 0.4
SMALL_SHARE = 0.4
BAD_RESOLVER_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Conditions:
    """Defaults are those of a cluster that is not mixed."""

    skew: float = 0.0
    """Seconds by which its wall clock is ahead."""
    descriptors: int | None = None
    """Its daemon's limit; None: this process's."""
    memory: float = 1.0
    """Its share of ``--memory`` and ``--tier-memory``."""
    resolver: str | None = None
    """How the name server answers it; None: it gets addresses."""
    start: float = 0.0
    """Seconds from the first node's start to its own."""

    def __str__(self) -> str:
        values = [(each.name, getattr(self, each.name), each.default) for each in fields(self)]
        said = [f"{name}={value}" for name, value, usual in values if value != usual]
        return ",".join(said) or "as usual"

    def check(self) -> None:
        if not abs(self.skew) <= 86_400.0:
            raise ClusterError(f"a clock cannot be wrong by {self.skew} s; a day is the most")
        if self.descriptors is not None and not 64 <= self.descriptors <= 1 << 20:
            raise ClusterError(f"{self.descriptors} descriptors are no limit; give 64 or more")
        if not 0 < self.memory <= 1:
            raise ClusterError(f"{self.memory} is no share of the memory; give one up to 1")
        if self.resolver not in (None, *RESOLVERS):
            raise ClusterError(
                f"{self.resolver} is no kind of resolver; give one of {', '.join(RESOLVERS)}"
            )
        if not 0 <= self.start <= 60.0:
            raise ClusterError(f"a node cannot start after {self.start} s; give 0 to 60")


USUAL = Conditions()


def draw_conditions(number: int, nodes: int) -> list[Conditions]:
    """Conditions by the seed *number*. Either all nodes have a resolver or none, since they share
    the roster; all else is drawn for each node."""
    numbers = random.Random(f"conditions {number} {nodes}")
    named = numbers.random() < 0.5
    drawn = []
    for _ in range(nodes):
        resolver = "quick"
        if numbers.random() < BAD_RESOLVER_SHARE:
            resolver = numbers.choice(RESOLVERS[1:])
        drawn.append(
            Conditions(
                skew=round(numbers.uniform(-SKEW_MAX_S, SKEW_MAX_S), 3),
                descriptors=DESCRIPTORS_FEW if numbers.random() < FEW_SHARE else None,
                memory=MEMORY_SHARES[0] if numbers.random() < SMALL_SHARE else 1.0,
                resolver=resolver if named else None,
                start=round(numbers.uniform(0, STARTS_WITHIN_S), 2),
            )
        )
    return drawn


def parse_conditions(words: Sequence[str], drawn: list[Conditions]) -> list[Conditions]:
    """*drawn* with the changes of *words* (``NODE:NAME=VALUE,...``)."""
    kinds: dict[str, type[Any]] = {
        "skew": float, "descriptors": int, "memory": float, "resolver": str, "start": float
    }  # fmt: skip
    found = list(drawn)
    for word in words:
        node, _, values = word.partition(":")
        index = node.removeprefix("node")
        if not (index.isascii() and index.isdigit()) or int(index) >= len(found):
            raise ClusterError(f"{word!r} is about no node; write 3:skew=1.5")
        changes = {}
        for each in values.split(","):
            name, _, value = each.partition("=")
            if name not in kinds:
                raise ClusterError(f"{each!r} is no condition; there are {', '.join(kinds)}")
            try:
                changes[name] = kinds[name](value)
            except ValueError:
                raise ClusterError(f"{each!r}: {value!r} is no value of {name}") from None
        found[int(index)] = replace(found[int(index)], **changes)
    for conditions in found:
        conditions.check()
    return found
