"""Settling: how long to wait before reading a file that has just changed.

Two changes within one tick of the source's clock give the same version. So a node waits for a tick
before it reads a recent version: from then on every change shows. No call returns the source's
clock, which may be ahead of ours or behind.

The daemon does this in ``native/source/read.c``; here it is for simulated sources.
"""

from copperfs.model.types import Version

TICK_NS = 20_000_000
"""Ticks are 4 ms and rarely 10."""
BEHIND_NS = 2_000_000_000
"""How far the source's clock may be behind ours. NTP keeps to 0.1 s, but a cluster always has
a clock without it. A file that changed within these seconds costs its reader a tick, once.
"""


def settles_ns(now_ns: int, version: Version) -> int:
    return TICK_NS if now_ns - version.ctime_ns < TICK_NS + BEHIND_NS else 0
