"""Schedules: which fault hits which node, when, and for how long. Each follows from its seed.

A schedule is text, one fault a line, sorted by time:

    # schedule 17: 16 nodes, fan-out 3, 10.0 s, single
    0.512 kill node0 for 3.250
    4.100 drop node7 for 2.000 share 0.30 away

Every fault ends within the schedule. No node has two faults at a time, and one node has none at
all, so that one node always survives. There are three styles:

- *Single*: one kind, one fault after the other with time to recover, so that a stall can be
  attributed to its fault.
- *Mixed*: any kinds at any times.
- *Storm*: several nodes at the same moment, by chance, a whole level of the tree, or all ancestors
  of one node.

In half of the environments (``mixture.py``) mounts have ``--takeover``, and their daemons die, hang
and are upgraded.

A *mixed* schedule also says what is wrong around the nodes (``mixture.py``). It is drawn
separately, so a seed keeps its faults.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tests.chaos.mixture import (
    SEEDS_EACH,
    Trouble,
    check_trouble,
    draw_environment,
    draw_troubles,
    parse_trouble,
)

KINDS = ("kill", "stop", "cut", "drop", "stick")
# Of mounts with --takeover: the daemon dies, hangs for good or is upgraded, and another goes on.
# The arena starts a daemon again only after a kill, which ends the keeper as well.
OWN_KINDS = ("die", "hang", "upgrade")
TAKEOVER_KINDS = (*OWN_KINDS, "kill", "cut", "drop")
DIRECTIONS = ("both", "towards", "away")
STYLES = {"single": 4, "mixed": 4, "storm": 2}
# Most schedules are short, because a run has many of them; some let a fault last long.
LENGTHS_S = {6.0: 5, 8.0: 3, 12.0: 1}

# The first and the last moments are compared.
QUIET_S = 0.5
# The pause between faults of the style "single".
RECOVERY_S = 1.5
# A shorter fault has no consequences.
LASTS_MIN_S = 0.5
# How often a fault hits the root, and the nodes that others ask.
ROOT_SHARE, INNER_SHARE = 0.25, 0.45
ATTEMPTS_MAX = 100

_LINE = re.compile(
    r"(?P<at>[\d.]+) (?P<kind>\w+) node(?P<node>\d+) for (?P<lasts>[\d.]+)"
    r"(?: share (?P<share>[\d.]+) (?P<direction>\w+))?"
)
_HEAD = re.compile(
    r"# schedule (\d+): (\d+) nodes, fan-out (\d+), ([\d.]+) s, (\w+)"
    r"(?:, environment (\d+))?(, takeover)?"
)


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    at_s: float
    node: int
    kind: str
    lasts_s: float
    share: float = 1.0
    """Of packets that are lost; for "drop" only."""
    direction: str = "both"

    @property
    def ends_s(self) -> float:
        return self.at_s + self.lasts_s

    @property
    def silences(self) -> bool:
        """The node's own daemon cannot reply to its applications meanwhile."""
        return self.kind in ("kill", "stop", "stick", "hang")

    def __str__(self) -> str:
        text = f"{self.at_s:.3f} {self.kind} node{self.node} for {self.lasts_s:.3f}"
        return f"{text} share {self.share:.2f} {self.direction}" if self.kind == "drop" else text


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    nodes: int
    fanout: int
    length_s: float
    style: str
    faults: tuple[Fault, ...]
    troubles: tuple[Trouble, ...] = ()
    environment: int | None = None
    """None: all nodes are alike."""
    takeover: bool = False

    def __str__(self) -> str:
        head = (
            f"# schedule {self.seed}: {self.nodes} nodes, fan-out {self.fanout}, "
            f"{self.length_s:.1f} s, {self.style}"
        )
        if self.environment is not None:
            head += f", environment {self.environment}"
        if self.takeover:
            head += ", takeover"
        return "\n".join([head, *map(str, self.faults), *map(str, self.troubles)])


def parse(text: str) -> Schedule:
    """ValueError if it is no schedule."""
    head, *lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = _HEAD.fullmatch(head)
    if found is None:
        raise ValueError(f"a schedule begins otherwise than with: {head}")
    lines = [line for line in lines if not line.startswith("#")]
    troubles = [each for line in lines if (each := parse_trouble(line)) is not None]
    faults = [_fault(line) for line in lines if parse_trouble(line) is None]
    seed, nodes, fanout, length, style, environment, takeover = found.groups()
    schedule = Schedule(
        *(int(seed), int(nodes), int(fanout), float(length), style),
        tuple(sorted(faults)),
        tuple(sorted(troubles)),
        None if environment is None else int(environment),
        takeover is not None,
    )
    check(schedule)
    return schedule


def _fault(line: str) -> Fault:
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"no fault: {line}")
    return Fault(
        float(found["at"]),
        int(found["node"]),
        found["kind"],
        float(found["lasts"]),
        float(found["share"] or 1.0),
        found["direction"] or "both",
    )


def check(schedule: Schedule) -> None:
    """ValueError if it breaks a rule of the module."""
    for each in schedule.faults:
        if each.kind not in {*KINDS, *TAKEOVER_KINDS} or each.direction not in DIRECTIONS:
            raise ValueError(f"no such fault: {each}")
        if each.kind in OWN_KINDS and not schedule.takeover:
            raise ValueError(f"not without takeover: {each}")
        if not 0 <= each.node < schedule.nodes:
            raise ValueError(f"no such node: {each}")
        if each.lasts_s <= 0 or each.ends_s > schedule.length_s:
            raise ValueError(f"it does not end in time: {each}")
        if not 0 < each.share <= 1:
            raise ValueError(f"no share: {each}")
    for one, other in zip(schedule.faults, schedule.faults[1:], strict=False):
        if one > other:
            raise ValueError(f"not in order: {other}")
    for one in schedule.faults:
        for other in schedule.faults:
            if one is not other and one.node == other.node and overlap(one, other):
                raise ValueError(f"two at a time: {one}; {other}")
    if len({each.node for each in schedule.faults}) >= schedule.nodes:
        raise ValueError("nobody survives")
    for trouble in schedule.troubles:
        check_trouble(trouble, schedule.nodes, schedule.length_s)


def overlap(one: Fault, other: Fault) -> bool:
    return one.at_s <= other.ends_s and other.at_s <= one.ends_s


# ---- drawing -------------------------------------------------------------------------------------


def is_drawn_with_takeover(seed: int) -> bool:
    return seed // SEEDS_EACH % 2 == 1


def draw(
    seed: int,
    nodes: int,
    fanout: int,
    *,
    length_s: float | None = None,
    kinds: Sequence[str] | None = None,
    spared: Collection[int] = (),
    mixed_files: int | None = None,
    environment: int | None = None,
    takeover: bool = False,
) -> Schedule:
    """*spared* nodes are never killed, so that their leaks can be measured over many schedules. The
    schedule is mixed if *mixed_files* gives the number of files; then *environment* overrides that
    of the seed."""
    numbers = random.Random(f"{seed} {nodes} {fanout}")
    if length_s is None:
        length_s = numbers.choices(list(LENGTHS_S), list(LENGTHS_S.values()))[0]
    style = numbers.choices(list(STYLES), list(STYLES.values()))[0]
    if kinds is None:
        kinds = TAKEOVER_KINDS if takeover else KINDS
    hand = _Hand(numbers, nodes, fanout, length_s, tuple(kinds), frozenset(spared))
    match style:
        case "single":
            hand.one_after_the_other()
        case "mixed":
            for _ in range(numbers.randint(2, 5)):
                hand.anything(QUIET_S, length_s - QUIET_S)
        case _:
            hand.storm()
    troubles: tuple[Trouble, ...] = ()
    if mixed_files is not None:
        environment = seed // SEEDS_EACH if environment is None else environment
        around = draw_environment(environment, nodes)
        troubles = draw_troubles(seed, around, length_s, mixed_files)
    faults = tuple(sorted(hand.faults))
    schedule = Schedule(
        seed, nodes, fanout, length_s, style, faults, troubles, environment, takeover
    )
    check(schedule)
    return schedule


class _Hand:
    def __init__(
        self,
        numbers: random.Random,
        nodes: int,
        fanout: int,
        length_s: float,
        kinds: tuple[str, ...],
        spared: frozenset[int],
    ) -> None:
        self.numbers = numbers
        self.nodes = nodes
        self.fanout = fanout
        self.length_s = length_s
        self.kinds = kinds
        self.spared = spared
        # The root is the most interesting node to hit.
        lucky = range(nodes) if numbers.random() < 0.1 else range(1, nodes)
        self.lucky = numbers.choice(lucky)
        self.faults: list[Fault] = []

    def one_after_the_other(self) -> None:
        kind = self.numbers.choice(self.kinds)
        room_s = self.length_s - 2 * QUIET_S
        most = max(1, min(3, int(room_s / (RECOVERY_S + 2 * LASTS_MIN_S))))
        count = self.numbers.randint(1, most)
        slot_s = room_s / count
        for index in range(count):
            begins = QUIET_S + index * slot_s
            self.anything(begins, begins + slot_s - RECOVERY_S, kind=kind)

    def storm(self) -> None:
        at_s = self._round(self.numbers.uniform(QUIET_S, self.length_s / 2))
        kinds = (
            [self.numbers.choice(self.kinds)] if self.numbers.random() < 0.5 else list(self.kinds)
        )
        for node in self._many():
            begins = at_s + self.numbers.choice((0.0, self.numbers.uniform(0, 0.3)))
            kind = self.numbers.choice(kinds)
            self.anything(begins, self.length_s - QUIET_S, kind=kind, node=node, at_once=True)
        for _ in range(self.numbers.randint(0, 2)):
            self.anything(at_s, self.length_s - QUIET_S)

    def anything(
        self,
        begins_s: float,
        ends_s: float,
        *,
        kind: str | None = None,
        node: int | None = None,
        at_once: bool = False,
    ) -> None:
        """If the rules leave room for it."""
        for _ in range(ATTEMPTS_MAX):
            lasts_s = min(ends_s - begins_s, self._lasting())
            latest = begins_s if at_once else ends_s - lasts_s
            fault = self._fault(
                self._round(self.numbers.uniform(begins_s, latest)),
                self._node() if node is None else node,
                kind or self.numbers.choice(self.kinds),
                self._round(lasts_s),
            )
            if self._may(fault):
                self.faults.append(fault)
                return
            if node is not None:
                return

    def _fault(self, at_s: float, node: int, kind: str, lasts_s: float) -> Fault:
        if kind != "drop":
            return Fault(at_s, node, kind, lasts_s)
        # All packets of one direction, or a share of one or both.
        if self.numbers.random() < 0.4:
            return Fault(at_s, node, kind, lasts_s, 1.0, self.numbers.choice(DIRECTIONS[1:]))
        share = self.numbers.choice((0.05, 0.1, 0.3, 0.6))
        return Fault(at_s, node, kind, lasts_s, share, self.numbers.choice(DIRECTIONS))

    def _may(self, fault: Fault) -> bool:
        return (
            fault.node != self.lucky
            and fault.ends_s <= self.length_s
            and not (fault.kind == "kill" and fault.node in self.spared)
            and not any(each.node == fault.node and overlap(each, fault) for each in self.faults)
        )

    def _lasting(self) -> float:
        longest = self.length_s - 2 * QUIET_S
        return float(LASTS_MIN_S * (longest / LASTS_MIN_S) ** self.numbers.random())

    def _node(self) -> int:
        chosen = self.numbers.random()
        inner = range(1, 1 + max(0, (self.nodes - 2) // self.fanout))
        if chosen < ROOT_SHARE:
            return 0
        if chosen < ROOT_SHARE + INNER_SHARE and inner:
            return self.numbers.choice(inner)
        return self.numbers.randrange(self.nodes)

    def _many(self) -> list[int]:
        match self.numbers.choice(("some", "level", "above", "most")):
            case "level":
                first, width = 1, self.fanout
                if self.numbers.random() < 0.5:
                    first, width = 1 + self.fanout, self.fanout**2
                return list(range(first, min(first + width, self.nodes)))
            case "above":
                node, above = self.nodes - 1 - self.numbers.randrange(self.fanout), []
                while node > 0:
                    node = (node - 1) // self.fanout
                    above.append(node)
                return above
            case "some":
                count = self.numbers.randint(2, max(2, self.nodes // 3))
            case _:
                count = self.numbers.randint(self.nodes // 2, self.nodes - 1)
        return self.numbers.sample(range(self.nodes), min(count, self.nodes))

    @staticmethod
    def _round(seconds: float) -> float:
        """As it is written: rounded down, so that what ends in time still does."""
        return int(seconds * 1000) / 1000
