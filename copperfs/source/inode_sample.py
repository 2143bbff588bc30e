"""Inode sample: a few names of the source with their versions, as one client sees them (decision
80).

Some clients (sshfs) number files as they see them, so a version with an inode number is true on one
node only. Nodes find that out by comparing a sample (``daemon/inode_comparison.py``).

Two such clients that look names up in the same order may give them the same numbers, so the
comparing node uses the reverse order. All give the same number to their root, so a mount point
tells nothing.
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from itertools import islice

from copperfs.model.types import Attributes, Path, Version, join
from copperfs.node.peer.inode_agreement import has_other_number
from copperfs.node.peer.messages import SAMPLE_MAX, SAMPLE_PATH_BYTES_MAX, Seen

# Directories that are listed for names, and names that are read of each.
DIRECTORIES_MAX = 4
NAMES_MAX = 64
# In total, or for each filesystem if that is more.
NAMES_IN_ALL, NAMES_OF_EACH = 8, 3
PREFIXES_MAX = SAMPLE_MAX // NAMES_OF_EACH
# Permanent errors.
FOR_GOOD = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM))


def names_of_each(prefixes: int) -> int:
    return max(NAMES_OF_EACH, NAMES_IN_ALL // max(prefixes, 1))


def take_names(
    root: bytes, prefix: Path, is_shared: Callable[[Path], bool], count: int
) -> tuple[Seen, ...] | None:
    """Names of one filesystem; the prefix itself if there are no others. None if it cannot be read
    now, but perhaps later."""
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
    """The first name that differs here in its inode number alone."""
    for seen in reversed(sample):
        if not is_shared(seen.path):
            continue
        try:
            here = _version(os.lstat(_absolute(root, seen.path)))
        except OSError:
            continue
        if has_other_number(here, seen.version):
            return seen.path
    return None


def _version(status: os.stat_result) -> Version:
    return Attributes.from_stat(status).version


def _absolute(root: bytes, path: Path) -> bytes:
    return os.path.join(root, path)
