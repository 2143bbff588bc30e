"""Fault rules and operation counts of the stand-in.

It has no clock and no I/O. An operation is counted, waits for its server, then for the delays that
match, then hangs, then fails. So an operation that is released from a hang meets the failure that
is set at that moment, as with a server that comes back and answers ESTALE.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from errno import errorcode as errno_names
from typing import Literal, get_args

# Without release and releasedir, for which no process waits.
OPERATIONS = frozenset(
    {"lookup", "getattr", "readlink", "open", "read", "opendir", "readdir", "statfs"}
)

RuleKind = Literal["fail", "hang", "delay"]


@dataclass(slots=True)
class Rule:
    """One instruction: for `ops` on `path`, do `kind`."""

    rule: int
    kind: RuleKind
    path: str
    ops: frozenset[str]
    errno: int = 0
    seconds: float = 0.0
    times_left: int | None = None
    """None: until the rule is released."""
    server: int | None = None
    """Only reads of files that lie on this data server."""

    def matches(self, op: str, path: str, server: int | None) -> bool:
        if op not in self.ops or self.times_left == 0:
            return False
        if self.server is not None and self.server != server:
            return False
        if self.path in ("**", path):
            return True
        subtree = self.path.removesuffix("/**")
        return subtree != self.path and (path == subtree or path.startswith(subtree + "/"))

    def consume(self) -> None:
        if self.times_left is not None:
            self.times_left -= 1

    def document(self) -> dict[str, object]:
        return {**asdict(self), "ops": sorted(self.ops)}


class Rules:
    def __init__(self) -> None:
        self._rules: dict[int, Rule] = {}
        self._numbers = itertools.count(1)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules.values())

    def __contains__(self, number: int) -> bool:
        return number in self._rules

    def add(
        self,
        kind: RuleKind,
        path: str,
        ops: Iterable[str] = (),
        *,
        errno: int = 0,
        seconds: float = 0.0,
        times: int | None = None,
        server: int | None = None,
    ) -> int:
        chosen = frozenset(ops) or OPERATIONS
        if server is not None:  # metadata are on other servers
            chosen &= {"read"}
            if not chosen or server < 0:
                raise ValueError("data servers have numbers from 0 on, and serve reads alone")
        if kind not in get_args(RuleKind):
            raise ValueError(f"no such kind of rule: {kind}")
        if unknown := chosen - OPERATIONS:
            raise ValueError(f"unknown operations: {', '.join(sorted(unknown))}")
        if kind == "fail" and errno not in errno_names:
            raise ValueError(f"not an errno: {errno}")
        if kind == "delay" and not 0 < seconds < float("inf"):
            raise ValueError(f"not a time to wait: {seconds} s")
        if times is not None and times < 1:
            raise ValueError(f"not a number of times: {times}")
        rule = Rule(next(self._numbers), kind, path, chosen, errno, seconds, times, server)
        self._rules[rule.rule] = rule
        return rule.rule

    def remove(self, number: int) -> None:
        del self._rules[number]

    def clear(self) -> None:
        self._rules.clear()

    def matching(
        self, kind: RuleKind, op: str, path: str, server: int | None = None
    ) -> Iterator[Rule]:
        """Each rule that applies uses up one of its times. *server* keeps the file."""
        for rule in list(self._rules.values()):
            if rule.kind == kind and rule.matches(op, path, server):
                rule.consume()
                yield rule


OPENINGS_MAX = 8


class OperationCounts:
    def __init__(self) -> None:
        self.operations: dict[str, dict[str, int]] = {}
        self.not_found: dict[str, int] = {}
        self.read_bytes: dict[str, int] = {}
        self._openings: dict[str, list[tuple[float, str]]] = {}

    def opened(self, path: str, at_s: float, client: str) -> None:
        there = self._openings.setdefault(path, [])
        if len(there) < OPENINGS_MAX:
            there.append((at_s, client))

    def opened_again(self) -> dict[str, list[tuple[float, str]]]:
        """Of files that were opened more than once: the first times, and the clients."""
        return {path: each for path, each in self._openings.items() if len(each) > 1}

    def count(self, op: str, path: str) -> None:
        paths = self.operations.get(op)
        if paths is None:
            paths = self.operations[op] = {}
        paths[path] = paths.get(path, 0) + 1

    def missed(self, path: str) -> None:
        self.not_found[path] = self.not_found.get(path, 0) + 1

    def read(self, path: str, size_bytes: int) -> None:
        self.read_bytes[path] = self.read_bytes.get(path, 0) + size_bytes

    def totals(self) -> dict[str, int]:
        return {op: sum(paths.values()) for op, paths in sorted(self.operations.items())}

    def reset(self) -> None:
        self.operations.clear()
        self.not_found.clear()
        self.read_bytes.clear()
        self._openings.clear()
