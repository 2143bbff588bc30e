"""What a core dump of the daemon holds: its registers, and none of its memory.

The daemon's memory holds files of other people (blobs, replies, messages of ZeroMQ), the names in
their directories, and the secret key of this node. ZeroMQ has copies of the key that no call of its
interface reaches, and ``madvise(MADV_DONTDUMP)`` works on pages, which ``malloc`` shares between
all of these. So the daemon sets the filter of its own process: no anonymous memory (core(5)). An
administrator can set it back for one daemon; mappings of blobs are left out even then (``blob.h``).

``prctl(PR_SET_DUMPABLE, 0)`` was rejected: it gives ``/proc/PID`` to root, so that the daemon's own
user could neither trace it nor see what it does.
"""

import logging

log = logging.getLogger(__name__)

FILTER = "/proc/self/coredump_filter"
HEADERS_ONLY = "0x10"
"""Of the memory only what says which libraries were loaded."""


def leave_out_memory() -> None:
    """For this process, and those that it starts."""
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
