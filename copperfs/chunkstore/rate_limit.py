"""Rate limit in bytes, without a clock of its own.

Unused time is not saved up: after a pause there is no burst on a disk that others use, too.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class RateLimit:
    rate_bytes_s: int
    """0: no limit."""
    _free_at: float = 0.0

    def delay_s(self, now: float) -> float:
        return max(0.0, self._free_at - now)

    def spend(self, now: float, size: int) -> None:
        if self.rate_bytes_s:
            self._free_at = max(now, self._free_at) + size / self.rate_bytes_s
