"""Simulated resolver of a node: ``transport/resolver.py`` with a resolver that is slow or fails.

It looks up at most ``THREADS_MAX`` names at a time, anew for each connection. A known good address
is used after ``PATIENCE_S``.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.lab.sim.process_state import Process
from copperfs.model.types import NodeId

THREADS_MAX = 8
LOOKS_UP_WITHIN_S = 30.0
PATIENCE_S = 0.25


@dataclass(slots=True, eq=False)
class _Waiting:
    then: Callable[[bool], None] | None

    def end(self, *, is_known: bool) -> None:
        then, self.then = self.then, None
        if then is not None:
            then(is_known)


@dataclass(slots=True, repr=False)
class SimulatedResolver:
    process: Process
    takes_s: float
    """The time for a name."""
    fails_until: float = 0.0
    """It resolves no name before."""
    _known: set[NodeId] = field(default_factory=set)
    _looking: dict[NodeId, list[_Waiting]] = field(default_factory=dict)
    _queue: deque[NodeId] = field(default_factory=deque)
    _threads: int = 0

    def find(self, peer: NodeId, then: Callable[[bool], None]) -> None:
        """Call *then* with whether there is an address."""
        waiting = _Waiting(then)
        if peer not in self._looking:
            self._looking[peer] = []
            self._queue.append(peer)
            self._begin()
        self._looking[peer].append(waiting)
        wait_s = PATIENCE_S if peer in self._known else LOOKS_UP_WITHIN_S
        self.process.after(wait_s, self._give_up, peer, waiting)

    def _give_up(self, peer: NodeId, waiting: _Waiting) -> None:
        waiting.end(is_known=peer in self._known)

    def _begin(self) -> None:
        while self._queue and self._threads < THREADS_MAX:
            self._threads += 1
            takes_s = min(self.takes_s, LOOKS_UP_WITHIN_S)
            self.process.after(takes_s, self._looked_up, self._queue.popleft())

    def _looked_up(self, peer: NodeId) -> None:
        self._threads -= 1
        if self.process.clock.now >= self.fails_until and self.takes_s < LOOKS_UP_WITHIN_S:
            self._known.add(peer)
        for waiting in self._looking.pop(peer):
            waiting.end(is_known=peer in self._known)
        self._begin()
