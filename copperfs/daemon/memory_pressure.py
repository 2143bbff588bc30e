"""Memory pressure: with a standby, the daemon is what a node can best do without.

The kernel kills it before the applications, whose memory cannot be had again. Its successor begins
with half the budget, or it would soon be killed again (decision 98). It does so as well beside a
daemon that was killed and cannot end, whose memory is still taken. All such daemons together then
have at most twice the budget.
"""

import logging
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from copperfs.config.settings import MIB, Settings, format_size
from copperfs.daemon.handover import Takeover
from copperfs.launch.available_memory import oom_kills

log = logging.getLogger(__name__)

SCORE = Path("/proc/self/oom_score_adj")
# The kernel adds thousandths of all memory to what a process has.
FIRST_TO_GO = 800
BUDGET_BYTES_MIN = 64 * MIB


def own_score() -> str:
    with suppress(OSError):
        return SCORE.read_text().strip()
    return "0"


def go_first() -> None:
    with suppress(OSError, ValueError):
        SCORE.write_text(str(max(FIRST_TO_GO, int(own_score()))))


def stay(pid: int, score: str) -> None:
    """Of a keeper, which has inherited the score of its daemon."""
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(score)


def resident_bytes(pid: int) -> int:
    """0: the process has ended. Of one that is ending only some thread knows its memory."""
    pages = 0
    for each in Path(f"/proc/{pid}/task").glob("*/statm"):
        with suppress(OSError, LookupError, ValueError):
            pages = max(pages, int(each.read_text().split()[1]))
    return pages * os.sysconf("SC_PAGE_SIZE")


def settings_after(takeover: Takeover) -> Settings:
    """Of a successor: it begins smaller if memory is short."""
    before = takeover.handover
    settings = before.settings
    if settings.memory_bytes <= BUDGET_BYTES_MIN:
        return settings
    # It may be an application that was killed since: the count is of an earlier time.
    if takeover.cause in ("signal-9", "death") and oom_kills() > before.oom_kills:
        why = "the kernel has killed the daemon for want of memory"
    elif held_bytes := resident_bytes(before.pid):
        why = f"process {before.pid} was killed, cannot end, and has {format_size(held_bytes)}"
    else:
        return settings
    memory_bytes = max(BUDGET_BYTES_MIN, settings.memory_bytes // 2)
    log.warning(
        "%s; its successor goes on with --memory %s instead of %s",
        why,
        format_size(memory_bytes),
        format_size(settings.memory_bytes),
    )
    return replace(settings, memory_bytes=memory_bytes)
