"""Virtual clock: a heap of calls, each at its time.

Calls of the same time run in the order in which they were added, so one seed gives one trace. An
entry is never taken out, which is cheaper than finding it: a call that is no longer wanted checks
that when it runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any


@dataclass(slots=True, repr=False)
class VirtualClock:
    now: float = 0.0
    done: int = 0
    """Calls made: the cost of a run, whatever this machine's speed."""
    _heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = field(
        default_factory=list
    )
    _next: int = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_at(self) -> float:
        """When the next call is due; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def at(self, when: float, do: Callable[..., object], *arguments: Any) -> None:
        """At once if the time has passed."""
        self._next += 1
        if when < self.now:
            when = self.now
        heappush(self._heap, (when, self._next, do, arguments))

    def after(self, seconds: float, do: Callable[..., object], *arguments: Any) -> None:
        self.at(self.now + seconds, do, *arguments)

    def run(self, until: float, is_over: Callable[[], bool] | None = None) -> bool:
        """Run all calls up to and including *until*, or until *is_over* holds after one; returns
        whether it did. If not, the time is *until* now."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, do, arguments = heappop(heap)
            self.done += 1
            do(*arguments)
            if is_over is not None and is_over():
                return True
        self.now = max(self.now, until)
        return False
