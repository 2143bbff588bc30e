"""Settling: how long to wait before reading a file that has just changed.

Two changes within one tick of the source's clock give the same version. So a node that has seen a
recent version waits for a tick before it reads: from then on every change shows. Only the source's
clock tells how old a version is, and no call returns that clock. If it is ahead of ours, the change
lies in the future; if it is behind, the change seems older than it is.

The daemon does this in ``native/source/read.c``; here it is for simulated sources.
"""

from copperfs.model.types import Version

TICK_NS = 20_000_000
"""Ticks are 4 ms and rarely 10."""
BEHIND_NS = 2_000_000_000
"""The source's clock may be behind ours by this much. It was 0.1 s, which clocks with NTP keep to,
but in a cluster there is always one without. A file that changed within these seconds costs its
reader a tick, once."""


def settles_ns(now_ns: int, version: Version) -> int:
    """How long to wait before reading a version that was just seen, at *now* on this node's
    clock."""
    return TICK_NS if now_ns - version.ctime_ns < TICK_NS + BEHIND_NS else 0
