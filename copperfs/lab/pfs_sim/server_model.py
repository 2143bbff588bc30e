"""Server model: how long the operations of a loaded parallel filesystem take, by queues and pipes.

The caller passes the time, and gets the time at which the work will be done. Work is *reserved* in
the order of the calls, so the throughput is exactly that of the servers.
"""

import heapq
from dataclasses import dataclass


@dataclass(slots=True)
class Load:
    operations: int = 0
    served_s: float = 0.0
    queued_s: float = 0.0
    """Summed over all operations."""
    queued_max_s: float = 0.0


class Servers:
    """Servers, each busy with one operation at a time; 0 stands for as many as needed."""

    def __init__(self, count: int) -> None:
        self.load = Load()
        self._free_at: list[float] = []
        self.resize(count)

    @property
    def count(self) -> int:
        return len(self._free_at)

    def resize(self, count: int) -> None:
        """Takes away idle servers first; new ones are free at once."""
        kept = heapq.nlargest(count, self._free_at)
        self._free_at = kept + [0.0] * (count - len(kept))
        heapq.heapify(self._free_at)

    def reserve(self, now: float, service_s: float) -> float:
        """When an operation that arrives now ends."""
        load = self.load
        load.operations += 1
        load.served_s += service_s
        free_at = self._free_at
        if not free_at:
            return now + service_s
        start = free_at[0]
        if start <= now:
            start = now
        else:
            queued_s = start - now
            load.queued_s += queued_s
            load.queued_max_s = max(load.queued_max_s, queued_s)
        heapq.heapreplace(free_at, start + service_s)
        return start + service_s


class Pipes:
    """Data servers: a file lies on one of them, and each moves its share of the bandwidth.

    A bandwidth of 0 stands for no limit.
    """

    def __init__(self, count: int, bytes_per_s: float) -> None:
        self.load = Load()
        self.bytes_per_s = bytes_per_s
        self._free_at = [0.0] * max(count, 1)

    @property
    def count(self) -> int:
        return len(self._free_at)

    def resize(self, count: int) -> None:
        """Files move; a read whose server is gone keeps its end."""
        old = self._free_at
        self._free_at = [old[index] if index < len(old) else 0.0 for index in range(max(count, 1))]

    def reserve(self, now: float, size_bytes: int, file: int) -> float:
        """When *size_bytes* of this file have been moved."""
        load = self.load
        load.operations += 1
        if self.bytes_per_s <= 0:
            return now
        pipe = file % len(self._free_at)
        moved_s = size_bytes * len(self._free_at) / self.bytes_per_s
        start = max(now, self._free_at[pipe])
        load.served_s += moved_s
        load.queued_s += start - now
        load.queued_max_s = max(load.queued_max_s, start - now)
        self._free_at[pipe] = start + moved_s
        return start + moved_s
