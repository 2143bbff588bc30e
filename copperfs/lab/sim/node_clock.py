"""Node clock: the driver's port to virtual time, for the clock of one node.

It began at some number and may run a little fast or slow. It wakes the node at its last deadline,
and checks that the node then has no overdue work left.
"""

from collections.abc import Callable
from dataclasses import dataclass

from copperfs.lab.sim.process_state import Process
from copperfs.lab.sim.virtual_clock import VirtualClock
from copperfs.node.events import Event, Tick
from copperfs.node.node import Node

CLOCK_STEP_S = 1e-9


@dataclass(slots=True)
class NodeClock:
    clock: VirtualClock
    process: Process
    node: Node
    post: Callable[[Event], None]
    boot_s: float = 0.0
    """Its reading when virtual time began,"""
    rate: float = 1.0
    """and how many of its seconds pass in one."""
    _alarm: float | None = None

    def now(self) -> float:
        return self.boot_s + self.rate * self.clock.now

    def wake_at(self, deadline: float | None) -> None:
        if deadline is not None and (self._alarm is None or deadline < self._alarm):
            self._alarm = deadline
            self.clock.at(self._comes_at(deadline), self.process.take, self._wake, deadline)

    def _comes_at(self, mine: float) -> float:
        """The virtual time at which this clock shows *mine*; not before now."""
        if not self.boot_s and self.rate == 1.0:
            return mine
        at = (mine - self.boot_s) / self.rate
        while self.boot_s + self.rate * at < mine:
            at += CLOCK_STEP_S
        return at

    def _wake(self, meant: float) -> None:
        if self._alarm == meant:
            self._alarm = None
        deadline = self.node.deadline()
        if deadline is None or deadline > self.now():
            self.wake_at(deadline)
            return
        self.post(Tick())
        if self._alarm is not None and self._alarm <= self.now():
            after = self.node.deadline()
            done = after is None or after > self.now()
            assert done, "it wants to be woken for what it has done"
