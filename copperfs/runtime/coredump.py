"""What a core dump of the daemon holds: its registers, and none of its memory.

The daemon's memory is files of other people (blobs, replies, messages of ZeroMQ), the names in
their directories, and the secret key of this node, with copies of it inside ZeroMQ that nobody can
reach. ``madvise(MADV_DONTDUMP)`` for each of them would leave out what ``malloc`` has used in
between, so the kernel is told once, for the process: no anonymous memory (core(5)). Who looks for
the cause of a crash can take that back for one daemon; mappings of blobs are left out even then
(``blob.h``).

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
