"""``copperfs scrub`` as its daemon does it: what lies on the disk of the tier is read and checked.

It goes on by itself once it was begun, and who wants to know asks how far it is: the disk of a node
may hold terabytes. Who begins it while it is under way joins it. What is damaged the store drops
and counts by itself (an *erasure*), whoever finds it.
"""

import logging
from dataclasses import dataclass, field

from copperfs.runtime.engine import Engine
from copperfs.runtime.operations import Result
from copperfs.runtime.tier import TierDisk
from copperfs.store.contract import ScrubReport

log = logging.getLogger(__name__)

SCRUB_KEYS = ("disks", "busy", "chunks", "done_bytes", "total_bytes", "damaged")
NOTHING = ScrubReport(0, 0, 0)


@dataclass(slots=True)
class Scrubbing:
    engine: Engine
    _report: ScrubReport = field(default=NOTHING)
    """Of the latest one, as far as it is."""
    _total_bytes: int = 0
    _busy: bool = False

    def begin(self, rate: int) -> Result:
        """At most *rate* bytes a second, 0 for as fast as it goes; the state of it."""
        tier = self.engine.tier
        if tier is not None and not self._busy:
            assert self.engine.nursery is not None, "asked of an engine that runs"
            self._busy = True
            self._report, self._total_bytes = NOTHING, tier.store.statistics().held_bytes
            self.engine.nursery.start_soon(self._scrub, tier, rate)
        return self.state()

    def state(self) -> Result:
        """How far the latest one is."""
        report = self._report
        return {
            "disks": int(self.engine.tier is not None),
            "busy": int(self._busy),
            "chunks": report.chunks,
            "done_bytes": report.bytes,
            "total_bytes": self._total_bytes,
            "damaged": report.erasures,
        }

    async def _scrub(self, tier: TierDisk, rate: int) -> None:
        try:
            report = await tier.store.scrub(rate, self._so_far)
            # What went meanwhile was not checked.
            self._total_bytes = report.bytes
            log.info("checked %d chunks on the disk, %d damaged", report.chunks, report.erasures)
        except Exception:
            log.exception("a bug: a scrub failed")
        finally:
            self._busy = False

    def _so_far(self, report: ScrubReport) -> None:
        self._report = report
