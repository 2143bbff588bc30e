"""A directory's names with their attributes.

The same as ``scan.c``, in Python. It takes an open directory, so that a path of any length can be
listed.
"""

import errno
import os
import stat
from collections.abc import Iterator

from copperfs.core.listing import pack_listing
from copperfs.source.filesystems import Filesystems
from copperfs.types import Attributes, Entry


def scan(fd: int, limit: int, filesystems: Filesystems, untouchable: tuple[bytes, ...]) -> bytes:
    """A packed listing of the directory *fd*; ``scan.c`` does the same.

    Bare if there are more than *limit* names, or if they may be listed but not looked at. Names in
    *untouchable* lead back into the mount and are shown without being touched.
    """
    # An absolute path would be needed to give names as bytes to scandir(); fds give str.
    names = [os.fsencode(name) for name in os.listdir(fd)]
    bare = len(names) > limit
    if not bare:
        try:
            return pack_listing(_rows(fd, names, filesystems, untouchable)).packed
        except PermissionError:
            bare = True
    with os.scandir(fd) as found:
        rows = [(os.fsencode(each.name), _bare(each, untouchable)) for each in found]
    return pack_listing(rows, bare=bare).packed


def _rows(
    fd: int, names: list[bytes], filesystems: Filesystems, untouchable: tuple[bytes, ...]
) -> Iterator[tuple[bytes, Entry]]:
    for name in names:
        if name in untouchable:
            with os.scandir(fd) as found:
                inodes = [each.inode() for each in found if os.fsencode(each.name) == name]
            for inode in inodes:  # none, if it is gone by now
                yield name, Entry(Attributes.bare(inode, stat.S_IFDIR))
            continue
        try:
            yield name, entry_at(fd, name, filesystems)
        except FileNotFoundError:
            continue  # gone between being listed and being looked at


def _bare(found: "os.DirEntry[str]", untouchable: tuple[bytes, ...]) -> Entry:
    inode = found.inode()
    if os.fsencode(found.name) in untouchable:
        return Entry(Attributes.bare(inode, stat.S_IFDIR))
    # Python tells four types apart without asking; a reader gets the rest by looking it up.
    if found.is_symlink():
        kind = stat.S_IFLNK
    elif found.is_dir(follow_symlinks=False):
        kind = stat.S_IFDIR
    elif found.is_file(follow_symlinks=False):
        kind = stat.S_IFREG
    else:
        kind = 0
    return Entry(Attributes.bare(inode, kind))


def entry_at(directory: int, name: bytes, filesystems: Filesystems) -> Entry:
    """The entry of *name* in an open directory; OSError if there is none."""
    for _ in range(8):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        attributes = Attributes.from_stat(status, filesystems.flags(status.st_dev))
        if not stat.S_ISLNK(status.st_mode):
            return Entry(attributes)
        try:
            return Entry(attributes, os.readlink(name, dir_fd=directory))
        except OSError as error:
            if error.errno != errno.EINVAL:  # it became something else meanwhile
                raise
    raise OSError(errno.EIO, "changes too fast to be looked at")
