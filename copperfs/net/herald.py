"""Hands arrivals to whoever runs the transport: one at a time, in the order in which they came.

The receiver may send while it is told of something, and a send may find that a peer is lost: that
is said next, not in between. A loss that is found by a send outside of that is said by the herald's
own task, because whoever sends may be in the middle of a step of the core.
"""

from collections import deque

import trio

from copperfs.net.transport import Arrival, Deliver


class Herald:
    def __init__(self) -> None:
        self._waiting: deque[Arrival] = deque()
        self._deliver: Deliver | None = None
        self._speaking = False
        self._wanted = trio.Event()

    def say(self, arrival: Arrival) -> None:
        """Soon: whoever calls this sees to it that ``flush`` or ``rouse`` comes next."""
        self._waiting.append(arrival)

    def rouse(self) -> None:
        """Have the herald's own task say what waits, if nobody does."""
        if self._waiting and not self._speaking:
            self._wanted.set()

    def flush(self) -> None:
        """Say all that waits."""
        if self._speaking or self._deliver is None:
            return
        self._speaking = True
        try:
            while self._waiting:
                self._deliver(self._waiting.popleft())
        finally:
            self._speaking = False

    async def run(self, deliver: Deliver) -> None:
        self._deliver = deliver
        while True:
            self.flush()
            self._wanted = trio.Event()
            await self._wanted.wait()
