"""A rate of bytes, kept without a clock of its own.

Each piece of work moves the time before which the next may not begin. What was not used is not
saved up: after a pause a disk that others use, too, is not hit by a burst."""

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    rate_bytes_s: int
    """0: no limit."""
    _free_at: float = 0.0

    def delay_s(self, now: float) -> float:
        """For how long the next piece of work has to wait."""
        return max(0.0, self._free_at - now)

    def spend(self, now: float, size: int) -> None:
        """*size* bytes begin to be worked on."""
        if self.rate_bytes_s:
            self._free_at = max(now, self._free_at) + size / self.rate_bytes_s
