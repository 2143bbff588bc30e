"""Default budget of a store: half of the free space of its disk.

Files of an earlier daemon in the directory count as free, because this one may evict them. Their
sizes are in the names: a million names take about a second.
"""

import os

from copperfs.chunkstore.disk_format import parsed, size_of


def default_budget_bytes(path: str) -> int:
    """*path* need not exist yet; 0 if its disk gives no answer."""
    try:
        found = os.statvfs(_nearest(os.path.abspath(path)))
        return (found.f_bavail * found.f_frsize + _left_bytes(path)) // 2
    except OSError:
        return 0


def _nearest(path: str) -> str:
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return path


def _left_bytes(path: str) -> int:
    total = 0
    try:
        fans = os.listdir(os.path.join(path, "chunks"))
    except OSError:
        return 0  # no store yet
    for fan in fans:
        try:
            names = os.listdir(os.path.join(path, "chunks", fan))
        except NotADirectoryError:
            continue
        total += sum(size_of(found[1]) for name in names if (found := parsed(name)))
    return total
