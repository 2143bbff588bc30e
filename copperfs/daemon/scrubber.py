"""Scrubber: reads and checks all chunks on the disk of the chunk cache, for ``copperfs scrub``.

A disk may hold terabytes, so clients poll the state. A second request joins the running scrub. The
store drops and counts a damaged chunk (an *erasure*).
"""

import logging
from dataclasses import dataclass, field

from copperfs.chunkstore.store_interface import ScrubReport
from copperfs.daemon.chunk_disk import ChunkDisk
from copperfs.daemon.collective_ops import Result
from copperfs.daemon.engine import Engine

log = logging.getLogger(__name__)

SCRUB_KEYS = ("disks", "busy", "chunks", "done_bytes", "total_bytes", "damaged")
NOTHING = ScrubReport(0, 0, 0)


@dataclass(slots=True)
class Scrubbing:
    engine: Engine
    _report: ScrubReport = field(default=NOTHING)
    _total_bytes: int = 0
    _busy: bool = False

    def begin(self, rate: int) -> Result:
        """*rate* in bytes a second, 0 for no limit; returns the state."""
        tier = self.engine.tier
        if tier is not None and not self._busy:
            assert self.engine.nursery is not None, "asked of an engine that runs"
            self._busy = True
            self._report, self._total_bytes = NOTHING, tier.store.statistics().held_bytes
            self.engine.nursery.start_soon(self._scrub, tier, rate)
        return self.state()

    def state(self) -> Result:
        report = self._report
        return {
            "disks": int(self.engine.tier is not None),
            "busy": int(self._busy),
            "chunks": report.chunks,
            "done_bytes": report.bytes,
            "total_bytes": self._total_bytes,
            "damaged": report.erasures,
        }

    async def _scrub(self, tier: ChunkDisk, rate: int) -> None:
        try:
            report = await tier.store.scrub(rate, self._so_far)
            # Chunks evicted meanwhile were not checked.
            self._total_bytes = report.bytes
            log.info("checked %d chunks on the disk, %d damaged", report.chunks, report.erasures)
        except Exception:
            log.exception("a bug: a scrub failed")
        finally:
            self._busy = False

    def _so_far(self, report: ScrubReport) -> None:
        self._report = report
