"""Inode comparison in virtual time: the counterpart of ``daemon/inode_comparison.py``.

The decision is the daemon's own (``node/peer/inode_agreement.py``). This module models the time of
lookups, and what a client shows. A sample leaves out names that hang.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from copperfs.lab.sim.process_state import Process
from copperfs.lab.sim.source_workers import SourceWorkers
from copperfs.model.types import Path, is_below
from copperfs.node.events import Event, InodesCompared, InodesDiffer, InodesFound, InodesSampled
from copperfs.node.peer.inode_agreement import has_other_number
from copperfs.node.peer.messages import Seen

LOOKS_S, AGAIN_S = 4.0, 60.0
NAMES_IN_ALL, NAMES_OF_EACH = 8, 3
"""In a sample (``source/inode_sample.py``): in all, and of each filesystem."""


@dataclass(slots=True)
class SimulatedComparison:
    """The driver's port."""

    post: Callable[[Event], None]
    process: Process
    hands: SourceWorkers

    def take_sample(self) -> None:
        self.process.after(LOOKS_S, self._end_sample)
        self._after_lookups(NAMES_IN_ALL, self._take)

    def compare(self, names: tuple[Seen, ...]) -> None:
        self._after_lookups(len(names), self._compare, names)

    def ignore(self, *, was_told: bool) -> None:
        self.hands.client.ignore_numbers()

    def _after_lookups(self, count: int, then: Any, *arguments: object) -> None:
        source = self.hands.source
        took_s = count * source.costs.operation_s + source.costs.latency_s
        wait_s = max(0.0, source.stalled_until - source.clock.now)
        self.process.after(wait_s + took_s, then, *arguments)

    def _take(self) -> None:
        if self.hands.is_sick:
            self.process.after(AGAIN_S, self._take)
        else:
            self.post(InodesFound(self._names()))
        self._end_sample()

    def _end_sample(self) -> None:
        self.post(InodesSampled())

    def _names(self) -> tuple[Seen, ...]:
        source = self.hands.source
        tops = [Path(b""), *source.filesystems]
        found: dict[Path, list[Seen]] = {top: [] for top in tops}
        most = max(NAMES_OF_EACH, NAMES_IN_ALL // len(tops))
        for path in [] if source.only_searched else source.files():
            top = max((top for top in tops if is_below(path, top)), key=len)
            if len(found[top]) < most and source.held_until(path) <= source.clock.now:
                entry = source.entry(path)
                assert entry is not None
                found[top].append(Seen(path, self.hands.client.raw(entry)))
        return tuple(each for names in found.values() for each in names)

    def _compare(self, names: tuple[Seen, ...]) -> None:
        source, is_other = self.hands.source, False
        for seen in names:
            entry = source.entry(seen.path)
            can_be_told = entry is not None and not self.hands.is_sick
            if can_be_told and source.held_until(seen.path) <= source.clock.now:
                assert entry is not None
                here = self.hands.client.raw(entry)
                is_other = is_other or has_other_number(here, seen.version)
        if is_other:
            self.post(InodesDiffer())
        self.post(InodesCompared())
