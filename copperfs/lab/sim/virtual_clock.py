"""Virtual clock: a heap of calls, each at its time.

Calls of the same time run in the order in which they were added, so one seed gives one trace. An
entry is a plain tuple and is never taken out: a caller that no longer wants a call checks, when it
runs, whether it is still valid. That is cheaper than finding the entry, and a message is one entry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any


@dataclass(slots=True, repr=False)
class VirtualClock:
    now: float = 0.0
    done: int = 0
    """The number of calls made; it measures the cost of a run independently of this machine's
    speed."""
    _heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = field(
        default_factory=list
    )
    _next: int = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when: float, do: Callable[..., object], *arguments: Any) -> None:
        """Call *do* at this time; now, if the time has passed."""
        self._next += 1
        if when < self.now:
            when = self.now
        heappush(self._heap, (when, self._next, do, arguments))

    def after(self, seconds: float, do: Callable[..., object], *arguments: Any) -> None:
        self.at(self.now + seconds, do, *arguments)

    def run(self, until: float, is_over: Callable[[], bool] | None = None) -> bool:
        """Run all calls up to and including *until*, or until *is_over* holds after one of them;
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
