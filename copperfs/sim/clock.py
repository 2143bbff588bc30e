"""Virtual time: a heap of things to do, each at its time.

What is to be done at the same time is done in the order in which it was put in, so one seed gives
one trace. An entry is a plain tuple and is never taken out: who has changed his mind looks, when
he is called, whether he is still meant. That is cheaper than finding it, and a message is one
entry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any


@dataclass(slots=True, repr=False)
class Clock:
    now: float = 0.0
    done: int = 0
    """How many things were done; what a run costs is told by this, not by this machine's time."""
    _heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = field(
        default_factory=list
    )
    _next: int = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when: float, do: Callable[..., object], *arguments: Any) -> None:
        """Call *do* at this time; now, if it is over."""
        self._next += 1
        if when < self.now:
            when = self.now
        heappush(self._heap, (when, self._next, do, arguments))

    def after(self, seconds: float, do: Callable[..., object], *arguments: Any) -> None:
        self.at(self.now + seconds, do, *arguments)

    def run(self, until: float, is_over: Callable[[], bool] | None = None) -> bool:
        """Let everything happen up to and including *until*, or until *is_over* after one of the
        things that were done. Whether it was; otherwise it is *until* now."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, do, arguments = heappop(heap)
            self.done += 1
            do(*arguments)
            if is_over is not None and is_over():
                return True
        self.now = max(self.now, until)
        return False
