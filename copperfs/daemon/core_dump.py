"""Core dump filter: a core dump of the daemon holds its registers and none of its memory.

The daemon's memory holds other users' files (blobs, replies, messages of ZeroMQ), names in their
directories, and this node's secret key. ZeroMQ keeps copies of the key that no call of its
interface reaches. ``madvise(MADV_DONTDUMP)`` works on pages, and ``malloc`` mixes all of these in
one page. So the daemon sets the filter of its own process to exclude anonymous memory (core(5)). An
administrator can set the filter back for one daemon; mappings of blobs are excluded even then
(``blob.c``).

Rejected: ``prctl(PR_SET_DUMPABLE, 0)`` gives ``/proc/PID`` to root, and the daemon's own user could
then neither trace nor inspect it.
"""

import logging

log = logging.getLogger(__name__)

FILTER = "/proc/self/coredump_filter"
HEADERS_ONLY = "0x10"
"""Dumps only the pages that say which libraries were loaded."""


def leave_out_memory() -> None:
    """Set the filter for this process and its children."""
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
