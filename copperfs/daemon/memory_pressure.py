"""Memory pressure: with a standby, the daemon is what a node can best do without.

The kernel kills it before the applications, whose memory cannot be had again. Its successor begins
with half the budget, or it would soon be killed again (decision 98).
"""

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from copperfs.config.settings import MIB, Settings, format_size
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


def after_kills(settings: Settings, kills_before: int) -> Settings:
    """The settings of a successor: smaller if its predecessor was killed for want of memory."""
    if oom_kills() <= kills_before or settings.memory_bytes <= BUDGET_BYTES_MIN:
        return settings
    memory_bytes = max(BUDGET_BYTES_MIN, settings.memory_bytes // 2)
    log.warning(
        "the kernel has killed the daemon for want of memory; it goes on with --memory %s "
        "instead of %s",
        format_size(memory_bytes),
        format_size(settings.memory_bytes),
    )
    return replace(settings, memory_bytes=memory_bytes)
