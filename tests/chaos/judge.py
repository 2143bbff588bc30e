"""What happened in one schedule, and whether that was right. Nothing here touches the world.

An error counts unless the reader's own daemon was killed, stopped or stuck at the time: whoever
asks a dead daemon is told so, and nobody can help that. A wrong byte counts always and everywhere.

A stall is put down to the fault that was in force when the read began (and for ``GRACE_S`` after
it was healed, because returning is an event, too), or, if there was none, to the first that came
while it waited; to "several" if there were several at once; to "none" if nothing was wrong, which
shows what the machine itself does; to "cold" before the schedule begins, when all nodes begin to
read with nothing cached. *Others* are the nodes that were not hurt; *own* is what a node
with a cut or bad link saw by itself.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.schedule import Fault, Schedule

GRACE_S = 1.0
COLD, NONE, SEVERAL = "cold", "none", "several"


@dataclass(slots=True)
class Applied:
    """A fault and when it was really in force, by the monotonic clock."""

    fault: Fault
    began: float
    """Before it was done."""
    ended: float = float("inf")
    """After it was undone: a killed node answers again."""

    def during(self, began: float, ended: float) -> bool:
        return began <= self.ended and ended >= self.began


@dataclass(frozen=True, slots=True)
class Read:
    node: int
    began: float
    ended: float
    path: str
    errno: int
    wrong: bool

    @property
    def took_s(self) -> float:
        return self.ended - self.began

    def __str__(self) -> str:
        what = f"node{self.node} {self.path} took {self.took_s:.3f} s"
        if self.errno:
            what += f": {errno.errorcode.get(self.errno, self.errno)}"
        return what + (": WRONG BYTES" if self.wrong else "")


@dataclass(frozen=True, slots=True)
class Imported:
    node: int
    began: float
    ended: float
    code: int
    said: str

    @property
    def took_s(self) -> float:
        return self.ended - self.began


@dataclass(slots=True)
class Outcome:
    """Everything that is known of one schedule."""

    schedule: Schedule
    began: float
    applied: list[Applied] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    imports: list[Imported] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What went wrong with the job itself: a daemon with a bug, a tree that does not get whole."""
    opened: Mapping[str, int] = field(default_factory=dict)
    """Opens of the source by path."""
    listed: Mapping[str, int] = field(default_factory=dict)
    whole_s: float | None = None
    """From when everything was healed until all nodes answered."""
    nodes: list[dict[str, Any]] = field(default_factory=list)
    """What the daemons say of themselves at the end, and what they take of the machine."""


@dataclass(frozen=True, slots=True)
class Verdict:
    errors: list[Read]
    wrong: list[Read]
    imports: list[Imported]
    """Those that failed though their daemon was there."""
    excused: Counter[str]
    """Errors on nodes whose own daemon was not, by name."""
    problems: list[str]

    @property
    def is_good(self) -> bool:
        return not (self.errors or self.wrong or self.imports or self.problems)


def judge(outcome: Outcome) -> Verdict:
    silent = _by_node(each for each in outcome.applied if each.fault.silences)

    def alone(node: int, began: float, ended: float) -> bool:
        return any(each.during(began, ended) for each in silent.get(node, ()))

    errors, excused = [], Counter[str]()
    for each in outcome.reads:
        if each.errno and alone(each.node, each.began, each.ended):
            excused[errno.errorcode.get(each.errno, str(each.errno))] += 1
        elif each.errno:
            errors.append(each)
    return Verdict(
        errors,
        [each for each in outcome.reads if each.wrong],
        [
            each
            for each in outcome.imports
            if each.code and not alone(each.node, each.began, each.ended)
        ],
        excused,
        outcome.problems,
    )


# ---- stalls --------------------------------------------------------------------------------------


def stalls(outcome: Outcome) -> dict[tuple[str, str], list[Read]]:
    """All reads that count, by what they are put down to and whose they are."""
    found: dict[tuple[str, str], list[Read]] = {}
    by_node = _by_node(outcome.applied)
    for each in outcome.reads:
        own = [
            applied
            for applied in by_node.get(each.node, ())
            if applied.began - GRACE_S <= each.ended and each.began <= applied.ended + GRACE_S
        ]
        if any(applied.fault.silences for applied in own):
            continue
        label = label_of(each, outcome.applied)
        if label == NONE and each.began < outcome.began:
            label = COLD
        found.setdefault((label, "own" if own else "others"), []).append(each)
    return found


def label_of(read: Read, applied: Sequence[Applied]) -> str:
    active = [each for each in applied if each.began <= read.began <= each.ended + GRACE_S]
    if not active:
        later = [each for each in applied if read.began < each.began < read.ended]
        active = sorted(later, key=lambda each: each.began)[:1]
    if len(active) > 1:
        return SEVERAL
    if not active:
        return NONE
    fault = active[0].fault
    where = " root" if fault.node == 0 else ""
    return f"{fault.kind}{where}"


def quantile(durations: Sequence[float], share: float) -> float:
    """Of sorted durations: what *share* of them did not exceed."""
    return durations[min(len(durations) - 1, int(share * len(durations)))]


def more_than_once(counts: Mapping[str, int]) -> dict[str, int]:
    return {path: count for path, count in sorted(counts.items()) if count > 1}


def beyond_faults(outcome: Outcome) -> dict[str, int]:
    """Files that were opened more often than once and once more for each fault. A fault splits the
    tree into two at most, and the part without a root gets another one; or takes what one node
    held. So nothing has to be read more often than that."""
    allowed = 1 + len(outcome.applied)
    return {path: count for path, count in sorted(outcome.opened.items()) if count > allowed}


def _by_node(applied: Iterable[Applied]) -> dict[int, list[Applied]]:
    found: dict[int, list[Applied]] = {}
    for each in applied:
        found.setdefault(each.fault.node, []).append(each)
    return found
