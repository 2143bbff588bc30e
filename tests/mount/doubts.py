"""Watch: counts what a job does beyond the least because its nodes suspect each other.

A job reads everything once as long as no node is late. On a loaded machine a node may be silent for
``--hedge-after``, and then others read the source in its place (``fallbacks``), or as the next root
or owner (``took_over``), and send requests to other nodes as well (``hedges``, ``resent``) or
instead (``detours``). The daemons count each of these, and write down which node they suspected
(``--events``).

A test states the exact number, and allows as many more as were counted if a live node was
suspected. A second read of the source that no count explains is a bug.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mount.helpers import eventually

DOUBTS = ("silent", "lost", "gone")
OF_NODE = ("fallbacks", "took_over", "asks", "spoiled", "overdue")
OF_MEMBERS = ("hedges", "detours", "resent", "reparentings")
WRITTEN_WITHIN_S = 2.0
"""A thread of the daemon writes the events."""


@dataclass(frozen=True, slots=True)
class Doubts:
    counts: Counter[str]
    doubted: tuple[str, ...]
    """Suspicions of live nodes by live nodes."""

    @property
    def reads(self) -> int:
        return self.counts["fallbacks"] + self.counts["took_over"]

    @property
    def asks(self) -> int:
        return self.counts["hedges"] + self.counts["detours"] + self.counts["resent"]

    def allow(self, extra: int, counted: int, what: str) -> None:
        """*extra* is the work beyond the least, *counted* the daemons' count of it."""
        assert extra >= 0, f"{what}: {-extra} too few"
        assert extra <= counted, f"{what}: {extra} too many, and {counted} were counted: {self}"
        assert not extra or self.doubted, f"{what}: {extra} too many, and no node was doubted"


@dataclass(slots=True)
class Watch:
    """No live node is suspected when it begins."""

    stats: Callable[[int], Mapping[str, Any]]
    events: Mapping[int, Path]
    dead: int = 0
    _before: dict[int, Counter[str]] = field(default_factory=dict)
    _read: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        eventually(self._is_calm, "nobody is doubted", within_s=60.0)
        for node, file in self.events.items():
            self._before[node] = self._counts(node)
            self._read[node] = len(_lines(file))

    def doubts(self, dead: Collection[int] = ()) -> Doubts:
        """*dead* were killed by the test: to suspect them is right."""
        counts = Counter[str]()
        for node in self.events:
            if node not in dead:
                now = self._counts(node)
                now.subtract(self._before[node])
                assert min(now.values()) >= 0, "the counts of a node were reset meanwhile"
                counts.update(now)
        until = time.monotonic() + WRITTEN_WITHIN_S
        while not (doubted := tuple(self._doubted(dead))) and time.monotonic() < until:
            if not any(counts[each] for each in ("fallbacks", "took_over", *OF_MEMBERS)):
                break
            time.sleep(0.05)
        return Doubts(counts, doubted)

    def of_node(self, node: int) -> Counter[str]:
        counts = self._counts(node)
        counts.subtract(self._before[node])
        return counts

    def _is_calm(self) -> bool:
        members = [self.stats(node)["members"] for node in self.events]
        return all(each["suspects"] == 0 and each["gone"] == self.dead for each in members)

    def _counts(self, node: int) -> Counter[str]:
        stats = self.stats(node)
        found = Counter({each: stats["node"][each] for each in OF_NODE})
        found.update({each: stats["members"][each] for each in OF_MEMBERS})
        return found

    def _doubted(self, dead: Collection[int]) -> Iterator[str]:
        for node, file in self.events.items():
            for line in _lines(file)[self._read[node] :]:
                happened = json.loads(line)
                by_living = node not in dead and happened["peer"] not in dead
                if by_living and happened["what"] in DOUBTS:
                    yield f"node {node}: {happened['name']} is {happened['what']}"


def _lines(file: Path) -> list[str]:
    if not file.exists():
        return []
    return [each for each in file.read_text().splitlines(keepends=True) if each.endswith("\n")]
