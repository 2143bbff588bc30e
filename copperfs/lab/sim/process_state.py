"""Process of one node: whether it is alive, and whether it runs.

All that happens to a node goes through ``take``. A *stopped* process (SIGSTOP) and one whose event
loop *hangs* keep what comes, and do it in order when they continue. A dead one takes nothing. A
stop and a hang differ only in what others see of them, which the network simulates.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from copperfs.lab.sim.virtual_clock import VirtualClock


class State(Enum):
    RUNS = "runs"
    STOPPED = "stopped"
    HUNG = "hung"
    DEAD = "dead"


@dataclass(slots=True, eq=False, repr=False)
class Process:
    clock: VirtualClock
    state: State = State.RUNS
    since: float = 0.0
    """When this state began."""
    stood_still_s: float = 0.0
    """Without the present standstill."""
    _waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = field(default_factory=deque)

    @property
    def is_alive(self) -> bool:
        return self.state is not State.DEAD

    @property
    def runs(self) -> bool:
        return self.state is State.RUNS

    def take(self, do: Callable[..., object], *arguments: Any) -> None:
        """Now, or when the process continues."""
        if self.state is State.RUNS and not self._waiting:
            do(*arguments)
        elif self.state is not State.DEAD:
            self._waiting.append((do, arguments))

    def after(self, seconds: float, do: Callable[..., object], *arguments: Any) -> None:
        """A timer, which does not fire while the process stands still."""
        self.clock.after(seconds, self.take, do, *arguments)

    def stop(self, state: State) -> None:
        assert self.state is State.RUNS
        self._become(state)

    def go_on(self) -> None:
        assert self.state in (State.STOPPED, State.HUNG)
        self.stood_still_s += self.clock.now - self.since
        self._become(State.RUNS)
        while self._waiting and self.runs:
            do, arguments = self._waiting.popleft()
            do(*arguments)

    def end(self) -> None:
        self._become(State.DEAD)
        self._waiting.clear()

    def still_s(self) -> float:
        """How long it has stood still in all, until now."""
        now = 0.0 if self.state in (State.RUNS, State.DEAD) else self.clock.now - self.since
        return self.stood_still_s + now

    def _become(self, state: State) -> None:
        self.state, self.since = state, self.clock.now
