"""Statfs cache: the source's numbers for ``df``, at most a quarter of a minute old.

The source is asked on request, not by a clock: ten thousand idle mounts would query the servers of
a parallel filesystem without end. When the source hangs, the earlier numbers are shown.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

log = logging.getLogger(__name__)

FRESH_S = 15.0
# Well below the time that ``mounting.answers`` waits for a mount's numbers.
WITHIN_S = 1.0


@dataclass(slots=True)
class Statfs:
    """The first numbers are requested at once, before any user can wait for the mount, unless
    earlier ones are given."""

    ask: Callable[[], os.statvfs_result]
    """May hang."""
    earlier: os.statvfs_result | None = None
    known: os.statvfs_result = field(init=False)
    _asked_at: float = field(init=False)
    _one_at_a_time: trio.CapacityLimiter = field(init=False)
    """Otherwise each request would leave a thread in a source that hangs."""

    def __post_init__(self) -> None:
        if self.earlier is not None:
            self.known, self._asked_at = self.earlier, -FRESH_S
        else:
            self.known, self._asked_at = self.ask(), time.monotonic()
        self._one_at_a_time = trio.CapacityLimiter(1)

    async def current(self) -> os.statvfs_result:
        if time.monotonic() - self._asked_at >= FRESH_S:
            with trio.move_on_after(WITHIN_S):
                try:
                    self.known = await trio.to_thread.run_sync(
                        self.ask, abandon_on_cancel=True, limiter=self._one_at_a_time
                    )
                except OSError as error:
                    log.info("the source does not say how full it is: %s", error)
            self._asked_at = time.monotonic()
        return self.known
