"""Delivery queue: hands arrivals to the receiver one at a time, in the order in which they came.

The receiver may send during a delivery, and the send may find that a peer is lost. That loss is
delivered next, not in between. A loss found by a send outside a delivery is delivered by the
queue's own task, because the sender may be in the middle of a step of the node.
"""

from collections import deque

import trio

from copperfs.transport.interface import Arrival, Deliver


class DeliveryQueue:
    def __init__(self) -> None:
        self._waiting: deque[Arrival] = deque()
        self._deliver: Deliver | None = None
        self._speaking = False
        self._wanted = trio.Event()

    def say(self, arrival: Arrival) -> None:
        """Queue an arrival; the caller sees to it that ``flush`` or ``rouse`` comes next."""
        self._waiting.append(arrival)

    def rouse(self) -> None:
        """Have the queue's own task deliver what waits, if no delivery is running."""
        if self._waiting and not self._speaking:
            self._wanted.set()

    def flush(self) -> None:
        """Deliver all that waits."""
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
