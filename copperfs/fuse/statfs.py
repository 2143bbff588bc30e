"""What ``df`` shows: the numbers of the source, as old as a quarter of a minute at most.

The source is asked when somebody wants to know, not by a clock: ten thousand idle mounts would
otherwise ask the servers of a parallel filesystem without end. It is never waited for for long,
since a mount is asked for its numbers to find out whether it answers at all (``mounting.answers``):
when the source hangs, what was known before is shown.

The front answers by itself, from what is published; the daemon withdraws that every so often.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

log = logging.getLogger(__name__)

FRESH_S = 15.0
# Well below the time that ``mounting.answers`` waits.
WITHIN_S = 1.0


@dataclass(slots=True)
class Statfs:
    """Its first numbers are asked for at once, before anybody can wait for the mount."""

    ask: Callable[[], os.statvfs_result]
    """Asks the source; may hang."""
    publish: Callable[[os.statvfs_result], object] = lambda _: None
    known: os.statvfs_result = field(init=False)
    _asked_at: float = field(init=False)
    _one_at_a_time: trio.CapacityLimiter = field(init=False)
    """Or each who wants to know would leave a thread in a source that hangs."""

    def __post_init__(self) -> None:
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
        self.publish(self.known)
        return self.known
