"""Inode comparison in virtual time: the counterpart of ``daemon/inode_comparison.py``.

The decision is the daemon's own (``node/peer/inode_numbers.py``). This module models the time of
lookups, and what a client shows. A sample leaves out names that hang.
"""

from dataclasses import dataclass, field
from typing import Any

from copperfs.lab.sim.sim_process import Process
from copperfs.lab.sim.source_workers import SourceWorkers
from copperfs.model.types import Path, is_below
from copperfs.node.peer.inode_numbers import InodeNumbers, has_other_number
from copperfs.node.peer.messages import Seen

LOOKS_S, AGAIN_S = 4.0, 60.0
NAMES_IN_ALL, NAMES_OF_EACH = 8, 3
"""In a sample (``source/inode_sample.py``): in all, and of each filesystem."""


@dataclass(slots=True)
class Numbers(InodeNumbers):
    _process: Process = field(kw_only=True)
    _hands: SourceWorkers = field(kw_only=True)
    _goes_on: bool = False

    def wake(self) -> None:
        has_work = self._heard or not (self.is_sampled or self._taken is not None)
        if self.is_wanted and has_work and not self.ignoring and not self._goes_on:
            self._goes_on = True
            self._process.after(0.0, self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        while not self.ignoring and (names := self.next_heard()):
            self.begins_to_compare()
            self._after_lookups(len(names), self._compare, names)
        if not self.ignoring and self.begins_to_take():
            self._process.after(LOOKS_S, self._end_sample)
            self._after_lookups(NAMES_IN_ALL, self._take)

    def _after_lookups(self, count: int, then: Any, *arguments: object) -> None:
        source = self._hands.source
        took_s = count * source.costs.operation_s + source.costs.latency_s
        wait_s = max(0.0, source.stalled_until - source.clock.now)
        self._process.after(wait_s + took_s, then, *arguments)

    def _take(self) -> None:
        if self._hands.is_sick:
            self._process.after(AGAIN_S, self._take)
        else:
            self.found(self._names())
        self._end_sample()

    def _end_sample(self) -> None:
        if not self.is_sampled:
            self.sampled()

    def _names(self) -> tuple[Seen, ...]:
        source = self._hands.source
        tops = [Path(b""), *source.filesystems]
        found: dict[Path, list[Seen]] = {top: [] for top in tops}
        most = max(NAMES_OF_EACH, NAMES_IN_ALL // len(tops))
        for path in [] if source.only_searched else source.files():
            top = max((top for top in tops if is_below(path, top)), key=len)
            if len(found[top]) < most and source.held_until(path) <= source.clock.now:
                entry = source.entry(path)
                assert entry is not None
                found[top].append(Seen(path, self._hands.client.raw(entry)))
        return tuple(each for names in found.values() for each in names)

    def _compare(self, names: tuple[Seen, ...]) -> None:
        source, is_other = self._hands.source, False
        for seen in names:
            entry = source.entry(seen.path)
            can_be_told = entry is not None and not self._hands.is_sick
            if can_be_told and source.held_until(seen.path) <= source.clock.now:
                assert entry is not None
                here = self._hands.client.raw(entry)
                is_other = is_other or has_other_number(here, seen.version)
        self.compared(is_other=is_other)
