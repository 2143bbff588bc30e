"""Source workers: one node's threads at the source, in virtual time (``native/source/pool.c``)."""

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from copperfs.lab.sim.sim_source import Arrived, SimulatedSource
from copperfs.lab.sim.source_client import SimulatedClient
from copperfs.node.actions import SourceAction
from copperfs.node.events import Failed

PAUSE_S = 0.1
"""The pool's longest pause between two tries without descriptors."""


@dataclass(slots=True)
class SourceWorkers:
    """Operations that find no free thread wait."""

    source: SimulatedSource
    count: int
    times: int = 1
    """How many nodes this one stands for."""
    client: SimulatedClient = field(default_factory=SimulatedClient)
    is_sick: bool = False
    """This node's own client of the filesystem gives errors."""
    may_open: Callable[[], bool] = lambda: True
    """Whether the process has descriptors left."""
    deadline_s: float = 60.0
    busy: int = 0
    opened: int = 0
    """How many are at the source; the others wait for descriptors."""
    starved_s: float = 0.0
    """The longest wait for descriptors."""
    holds: bool = False
    """Operations that begin wait in ``held`` until ``let_go``: the source does not answer this
    node."""
    held: deque[tuple[SourceAction, Callable[[Arrived], None]]] = field(default_factory=deque)
    """With what is called at the end of each."""
    _waiting: deque[tuple[SourceAction, Callable[[Arrived], None]]] = field(default_factory=deque)

    def start(self, fetch: SourceAction, done: Callable[[Arrived], None]) -> None:
        if self.busy >= self.count:
            self._waiting.append((fetch, done))
            return
        self.busy += 1
        self._begin(fetch, done, self.source.clock.now)

    def _begin(self, fetch: SourceAction, done: Callable[[Arrived], None], since: float) -> None:
        """Without descriptors it waits, since the daemon is at fault and not the source."""
        clock = self.source.clock
        self.opened += 1
        if not self.may_open():
            self.opened -= 1
            self.starved_s = max(self.starved_s, clock.now - since)
            if clock.now + PAUSE_S > since + self.deadline_s:
                self.opened += 1
                self._end(Failed(fetch.fetch, errno.ETIMEDOUT), done)
            else:
                clock.after(PAUSE_S, self._begin, fetch, done, since)
            return
        ended = partial(self._end, done=done)
        if self.holds:
            self.held.append((fetch, ended))
        else:
            self.source.begin(fetch, ended, self.times, self.client)

    def let_go(self) -> None:
        self.holds = False
        while self.held:
            fetch, ended = self.held.popleft()
            self.source.begin(fetch, ended, self.times, self.client)

    def _end(self, arrived: Arrived, done: Callable[[Arrived], None]) -> None:
        self.busy -= 1
        self.opened -= 1
        if self.is_sick:
            arrived = Failed(arrived.fetch, errno.EIO)
        if self._waiting:
            self.start(*self._waiting.popleft())
        done(arrived)
