"""A few names of the source with their versions, as one client sees them.

The clients of most parallel filesystems give a file the server's inode number. Those of some
(sshfs) number files as they see them, so a version with an inode number in it is true on one node
only. Nodes find that out by comparing a sample (``runtime/comparison.py``): names that have the
same size and times on both, and another number.

Two such clients that look at the same names in the same order may give them the same numbers. So
who compares looks in the reverse order. All of them give the same number to their root, so the
place where a filesystem is mounted tells nothing.
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from itertools import islice

from copperfs.core.messages import SAMPLE_MAX, SAMPLE_PATH_BYTES_MAX, Seen
from copperfs.types import Attributes, Path, Version, join

# Directories that are listed in search of names, and how many names of each are read.
DIRECTORIES_MAX = 4
NAMES_MAX = 64
# A sample has the first number of names in all, or the second of each filesystem if that is more.
NAMES_IN_ALL, NAMES_OF_EACH = 8, 3
PREFIXES_MAX = SAMPLE_MAX // NAMES_OF_EACH
# Errors that stay.
FOR_GOOD = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM))


def names_of_each(prefixes: int) -> int:
    return max(NAMES_OF_EACH, NAMES_IN_ALL // max(prefixes, 1))


def take_names(
    root: bytes, prefix: Path, is_shared: Callable[[Path], bool], count: int
) -> tuple[Seen, ...] | None:
    """Up to *count* names near *prefix*, all of one filesystem; the prefix itself if there are no
    others. None if it cannot be looked at now, and perhaps later."""
    try:
        top = os.lstat(_absolute(root, prefix))
        os.scandir(_absolute(root, prefix)).close()
    except OSError as error:
        return () if error.errno in FOR_GOOD else None
    found: list[Seen] = []
    directories = deque([prefix])
    for _ in range(DIRECTORIES_MAX):
        if not directories or len(found) >= count:
            break
        directory = directories.popleft()
        try:
            with os.scandir(_absolute(root, directory)) as names:
                paths = [join(directory, each.name) for each in islice(names, NAMES_MAX)]
        except OSError:
            continue
        for path in paths:
            if len(found) >= count:
                break
            if len(path) > SAMPLE_PATH_BYTES_MAX or not is_shared(path):
                continue
            try:
                status = os.lstat(_absolute(root, path))
            except OSError:
                continue
            if status.st_dev == top.st_dev:
                found.append(Seen(path, _version(status)))
                if Attributes.from_stat(status).is_directory():
                    directories.append(path)
    if not found and len(prefix) <= SAMPLE_PATH_BYTES_MAX:
        return (Seen(prefix, _version(top)),)
    return tuple(found)


def other_number(
    root: bytes, sample: tuple[Seen, ...], is_shared: Callable[[Path], bool]
) -> Path | None:
    """The first name that has another inode number here, and is the same otherwise; None if all
    have the same number, or nothing can be told."""
    for seen in reversed(sample):
        if not is_shared(seen.path):
            continue
        try:
            here = _version(os.lstat(_absolute(root, seen.path)))
        except OSError:
            continue
        if here != seen.version and here._replace(inode=seen.version.inode) == seen.version:
            return seen.path
    return None


def _version(status: os.stat_result) -> Version:
    return Attributes.from_stat(status).version


def _absolute(root: bytes, path: Path) -> bytes:
    return os.path.join(root, path)
