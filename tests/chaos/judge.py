"""Judge: decides from the records of one schedule whether it was right.

An error counts, unless the reader's own daemon had been killed at the time, and the error says so.
A wrong byte counts always. A schedule in which nothing was read is bad.

In a mixed schedule a sick name has to return exactly the error of the source, or its content where
a node holds that; a read on a sick data server has to return EIO. A node may believe both for
``BELIEVED_S`` after they were healed.

A stall is attributed to the fault that was in force when the read began, and for ``GRACE_S`` after
it was healed, because a returning node is an event, too; otherwise to the first fault that began
during the read. It is attributed to "several", "none" (the machine itself), or "cold" (before the
schedule begins). *Others* are the nodes that were not hurt; *own* is what a node with a cut or bad
link saw by itself.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.content import LARGE, WALK
from tests.chaos.schedule import Fault, Schedule

GRACE_S = 1.0
OF_THE_DEAD = (errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT)
"""The kernel's errors where no daemon replies any more, to requests that were under way, and, while
the node is started again, for paths below a bare mount point."""
# A node believes an error for two seconds, and so may a node that asks it at their end.
BELIEVED_S = 4.5
ROOT = 0
COLD, NONE, SEVERAL = "cold", "none", "several"


@dataclass(slots=True)
class Applied:
    """When it was really in force, by the monotonic clock."""

    fault: Fault
    began: float
    """Before the fault was injected."""
    ended: float = float("inf")
    """When a killed node replies again."""
    healing: float = float("inf")
    """Before it was undone."""

    def during(self, began: float, ended: float) -> bool:
        return began <= self.ended and ended >= self.began


@dataclass(slots=True)
class Sick:
    paths: frozenset[str]
    errno: int
    began: float
    ended: float = float("inf")

    def explains(self, read: Read) -> bool:
        return (
            read.errno == self.errno
            and read.path in self.paths
            and read.ended >= self.began
            and read.began <= self.ended + BELIEVED_S
        )


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
    schedule: Schedule
    began: float
    applied: list[Applied] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    imports: list[Imported] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Faults of the job itself: a daemon with a bug, a tree that does not become whole."""
    opened: Mapping[str, int] = field(default_factory=dict)
    openings: Mapping[str, list[tuple[float, str]]] = field(default_factory=dict)
    """Of files that were opened more than once: when, and by which client of the source."""
    listed: Mapping[str, int] = field(default_factory=dict)
    whole_s: float | None = None
    """From the last healing until all nodes replied."""
    nodes: list[dict[str, Any]] = field(default_factory=list)
    sick: list[Sick] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verdict:
    errors: list[Read]
    wrong: list[Read]
    imports: list[Imported]
    """Reads that failed although their daemon was there."""
    excused: Counter[str]
    """By name where the own daemon had been killed; errors of sick files as "sick"."""
    problems: list[str]

    @property
    def is_good(self) -> bool:
        return not (self.errors or self.wrong or self.imports or self.problems)


def judge(outcome: Outcome) -> Verdict:
    killed = _by_node(each for each in outcome.applied if each.fault.kind == "kill")

    def dead(node: int, began: float, ended: float) -> bool:
        return any(each.during(began, ended) for each in killed.get(node, ()))

    errors, excused = [], Counter[str]()
    for each in outcome.reads:
        if each.errno in OF_THE_DEAD and dead(each.node, each.began, each.ended):
            excused[errno.errorcode.get(each.errno, str(each.errno))] += 1
        elif each.errno and any(sick.explains(each) for sick in outcome.sick):
            excused["sick"] += 1
        elif each.errno:
            errors.append(each)
    return Verdict(
        errors,
        [each for each in outcome.reads if each.wrong],
        [
            each
            for each in outcome.imports
            if each.code and not dead(each.node, each.began, each.ended)
        ],
        excused,
        [*outcome.problems, *([] if outcome.reads else ["nothing was read"])],
    )


# ---- stalls --------------------------------------------------------------------------------------


def stalls(outcome: Outcome) -> dict[tuple[str, str], list[Read]]:
    """By the fault that they are attributed to and by *own* or *others*. Walks and reads of a sick
    name are slow by themselves, and left out."""
    found: dict[tuple[str, str], list[Read]] = {}
    sick = {each.target for each in outcome.schedule.troubles if each.kind == "sick"}
    by_node = _by_node(outcome.applied)
    for each in outcome.reads:
        if each.path in sick or each.path.startswith(WALK):
            continue
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
    return durations[min(len(durations) - 1, int(share * len(durations)))]


def more_than_once(counts: Mapping[str, int]) -> dict[str, int]:
    return {path: count for path, count in sorted(counts.items()) if count > 1}


def beyond_faults(outcome: Outcome) -> dict[str, int]:
    """Files that were opened more often than once and once more for each fault. A fault splits the
    tree into two at most, or removes what one node held. The death of the root does both: its heir
    reads while it is gone, and the root reads again once it is back. A cleared file may be read
    once more, and once again by a node that was just reading it. A sick name is retried, and each
    of its owners opens a large file."""
    cleared = sum(each.kind == "clear" for each in outcome.schedule.troubles)
    allowed = 1 + len(outcome.applied) + 2 * cleared
    free = frozenset[str]().union(*(each.paths for each in outcome.sick))
    return {
        path: count
        for path, count in sorted(outcome.opened.items())
        if count > allowed + _deaths_of_root(outcome, path) and path not in free
        if LARGE not in path
    }


def _deaths_of_root(outcome: Outcome, path: str) -> int:
    """Those that the file was opened during, and again once the root was started."""
    times = [at for at, _ in outcome.openings.get(path, ())]
    count = 0
    for each in outcome.applied:
        if each.fault.kind == "kill" and each.fault.node == ROOT:
            gone = [at for at in times if each.began <= at <= each.ended]
            back = [at for at in times if at >= min(each.healing, each.ended)]
            count += bool(gone and back and min(gone) < max(back))
    return count


def _by_node(applied: Iterable[Applied]) -> dict[int, list[Applied]]:
    found: dict[int, list[Applied]] = {}
    for each in applied:
        found.setdefault(each.fault.node, []).append(each)
    return found
