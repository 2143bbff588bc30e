"""Core dump filter: a core dump of the daemon holds its registers and none of its memory.

The daemon's memory holds other users' files and names, and this node's secret key, of which ZeroMQ
keeps copies. ``malloc`` mixes all of these in one page, so ``madvise(MADV_DONTDUMP)`` cannot
exclude them. An administrator can set the filter (core(5)) back; mappings of blobs are excluded
even then (``blob.c``).

Rejected: ``prctl(PR_SET_DUMPABLE, 0)`` gives ``/proc/PID`` to root, so that the daemon's own user
could not trace it.
"""

import logging

log = logging.getLogger(__name__)

FILTER = "/proc/self/coredump_filter"
HEADERS_ONLY = "0x10"
"""Dumps only the pages that say which libraries were loaded."""


def leave_out_memory() -> None:
    try:
        with open(FILTER, "w", encoding="ascii") as file:
            file.write(HEADERS_ONLY)
    except OSError as error:
        log.warning(
            "a core dump of this daemon would hold cached files and its secret key: %s cannot be "
            "written (%s); forbid core dumps (ulimit -c 0)",
            FILTER,
            error.strerror,
        )
