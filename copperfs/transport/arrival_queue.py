"""Arrival queue: hands arrivals to the receiver one at a time, in the order in which they came.

A loss that a send finds during a delivery is delivered next. One found outside a delivery is
delivered by the queue's own task, because the sender may be in the middle of a step of the node.
"""

from collections import deque

import trio

from copperfs.transport.interface import Arrival, Deliver


class ArrivalQueue:
    def __init__(self) -> None:
        self._waiting: deque[Arrival] = deque()
        self._deliver: Deliver | None = None
        self._is_delivering = False
        self._wanted = trio.Event()

    def put(self, arrival: Arrival) -> None:
        """Queue an arrival; the caller sees to ``deliver_all`` or ``wake``."""
        self._waiting.append(arrival)

    def wake(self) -> None:
        """Let the queue's own task deliver, unless a delivery is running."""
        if self._waiting and not self._is_delivering:
            self._wanted.set()

    def deliver_all(self) -> None:
        if self._is_delivering or self._deliver is None:
            return
        self._is_delivering = True
        try:
            while self._waiting:
                self._deliver(self._waiting.popleft())
        finally:
            self._is_delivering = False

    async def run(self, deliver: Deliver) -> None:
        self._deliver = deliver
        while True:
            self.deliver_all()
            self._wanted = trio.Event()
            await self._wanted.wait()
