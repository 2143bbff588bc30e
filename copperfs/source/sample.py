"""A few names of the source with their versions, as one client sees them.

The clients of most parallel filesystems give a file the server's inode number. Those of some
(sshfs) number files as they see them, so a version with an inode number in it is true on one node
only. Nodes find that out by comparing a sample (``runtime/comparison.py``): names that have the
same size and times on both, and another number.

Two such clients that look at the same names in the same order may give them the same numbers. So
who compares looks in the reverse order.
"""

import os
from collections import deque
from collections.abc import Callable
from itertools import islice

from copperfs.core.messages import SAMPLE_MAX, Seen
from copperfs.types import Attributes, Path, Version, join

# Directories that are listed in search of names, and how many names of each are read.
DIRECTORIES_MAX = 4
NAMES_MAX = 64
PREFIXES_MAX = SAMPLE_MAX // 2
# Of a path in a sample, which travels with each greeting.
PATH_BYTES_MAX = 512


def take_sample(
    root: bytes, prefixes: tuple[Path, ...], is_shared: Callable[[Path], bool]
) -> tuple[Seen, ...]:
    """Up to ``SAMPLE_MAX`` names below the *prefixes*, from all of them as far as there is room."""
    sample: list[Seen] = []
    some = prefixes[:PREFIXES_MAX]
    for done, prefix in enumerate(some):
        sample += _at(root, prefix, is_shared, (SAMPLE_MAX - len(sample)) // (len(some) - done))
    return tuple(sample)


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


def _at(root: bytes, prefix: Path, is_shared: Callable[[Path], bool], count: int) -> list[Seen]:
    """The prefix itself, and names near it, all of one filesystem."""
    try:
        found = [Seen(prefix, _version(os.lstat(_absolute(root, prefix))))]
    except OSError:
        return []
    directories = deque([prefix])
    for _ in range(DIRECTORIES_MAX):
        if not directories or len(found) >= count:
            break
        directory = directories.popleft()
        try:
            device = os.lstat(_absolute(root, directory)).st_dev
            with os.scandir(_absolute(root, directory)) as names:
                paths = [join(directory, each.name) for each in islice(names, NAMES_MAX)]
        except OSError:
            continue
        for path in paths:
            if len(found) >= count:
                break
            if len(path) > PATH_BYTES_MAX or not is_shared(path):
                continue
            try:
                status = os.lstat(_absolute(root, path))
            except OSError:
                continue
            if status.st_dev == device:
                found.append(Seen(path, _version(status)))
                if Attributes.from_stat(status).is_directory():
                    directories.append(path)
    return found


def _version(status: os.stat_result) -> Version:
    return Attributes.from_stat(status).version


def _absolute(root: bytes, path: Path) -> bytes:
    return os.path.join(root, path)
