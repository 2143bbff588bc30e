"""How much a store may take of a disk of which nobody said it: half of what is free.

What an earlier daemon has left in the directory counts as free, because this one may evict it:
otherwise each restart would halve the store. Its size is in the names (``layout.py``), so no file
is looked at; a million names take about a second.
"""

import os

from copperfs.store.layout import parsed, size_of


def default_budget_bytes(path: str) -> int:
    """For a store in *path*, which need not exist yet; 0 if its disk cannot be asked."""
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
