"""What the stand-in adds to its source: latency, rules, and the count of everything asked.

One `Faults` object is shared by the filesystem, which calls `pass_through` at the start of every
operation, and by the control socket, which changes the rules. Both live in one trio loop, so there
are no locks. Order within one operation: count, latency, delays, hangs, then failures. A hang that
is released therefore continues into whatever failure is set for it by then, as a server does that
comes back and answers ESTALE.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from errno import errorcode as errno_names
from typing import Literal

import pyfuse3
import trio

OPERATIONS = frozenset(
    {"lookup", "getattr", "readlink", "open", "read", "opendir", "readdir", "statfs"}
)
# The kernel does not wait for these; they are counted but never delayed or failed.
COUNTED_ONLY = frozenset({"release", "releasedir"})

RuleKind = Literal["fail", "hang", "delay"]


@dataclass(slots=True)
class Rule:
    """One instruction: for `ops` on `path`, do `kind`.

    `path` is relative to the source ("." is its root); "x/**" means x and all below it, "**" all.
    """

    number: int
    kind: RuleKind
    path: str
    ops: frozenset[str]
    errno: int = 0
    seconds: float = 0.0
    times_left: int | None = None  # None: until the rule is removed
    released: trio.Event = field(default_factory=trio.Event)
    waiting: int = 0

    def matches(self, op: str, path: str) -> bool:
        if op not in self.ops or self.times_left == 0:
            return False
        if self.path == "**" or self.path == path:
            return True
        subtree = self.path.removesuffix("/**")
        return subtree != self.path and (path == subtree or path.startswith(subtree + "/"))

    def consume(self) -> None:
        if self.times_left is not None:
            self.times_left -= 1


class Faults:
    """The stand-in's whole changeable state."""

    def __init__(self, per_op_s: float = 0.0, per_read_s: float = 0.0) -> None:
        self.per_op_s = per_op_s
        self.per_read_s = per_read_s
        self.counts: dict[str, Counter[str]] = {}
        self.read_bytes: Counter[str] = Counter()
        self._rules: dict[int, Rule] = {}
        self._numbers = itertools.count(1)

    def add(
        self,
        kind: RuleKind,
        path: str,
        ops: Iterable[str] = (),
        *,
        errno: int = 0,
        seconds: float = 0.0,
        times: int | None = None,
    ) -> int:
        chosen = frozenset(ops) or OPERATIONS
        if unknown := chosen - OPERATIONS:
            raise ValueError(f"unknown operations: {', '.join(sorted(unknown))}")
        if kind == "fail" and errno not in errno_names:
            raise ValueError(f"not an errno: {errno}")
        rule = Rule(next(self._numbers), kind, path, chosen, errno, seconds, times)
        self._rules[rule.number] = rule
        return rule.number

    def remove(self, number: int) -> None:
        """Forget one rule; whoever hangs on it goes on."""
        self._rules.pop(number).released.set()

    def heal(self) -> None:
        """Forget all rules and latency: from now on an ordinary filesystem."""
        for number in list(self._rules):
            self.remove(number)
        self.per_op_s = self.per_read_s = 0.0

    @property
    def hanging(self) -> int:
        """Operations that wait on a hang rule now."""
        return sum(rule.waiting for rule in self._rules.values() if rule.kind == "hang")

    def count(self, op: str, path: str) -> None:
        self.counts.setdefault(op, Counter())[path] += 1

    def reset_counts(self) -> None:
        self.counts.clear()
        self.read_bytes.clear()

    async def pass_through(self, op: str, path: str) -> None:
        """Called first by every operation; returns when it may touch the source, or raises."""
        self.count(op, path)
        wait_s = self.per_read_s if op == "read" else self.per_op_s
        if wait_s > 0:
            await trio.sleep(wait_s)
        if not self._rules:
            return
        for rule in list(self._rules.values()):
            if rule.kind == "delay" and rule.matches(op, path):
                rule.consume()
                await trio.sleep(rule.seconds)
        for rule in list(self._rules.values()):
            if rule.kind == "hang" and rule.matches(op, path):
                rule.consume()
                rule.waiting += 1
                try:
                    await rule.released.wait()
                finally:
                    rule.waiting -= 1
        for rule in list(self._rules.values()):
            if rule.kind == "fail" and rule.matches(op, path):
                rule.consume()
                raise pyfuse3.FUSEError(rule.errno)
