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
from copperfs.source.watch import Watch
from copperfs.types import Attributes, Entry, Path


def scan(
    path: Path,
    fd: int,
    limit: int,
    filesystems: Filesystems,
    untouchable: tuple[bytes, ...],
    watch: Watch,
) -> bytes:
    """A packed listing of the directory *fd*; ``scan.c`` does the same.

    Bare if there are more than *limit* names, or if they may be listed but not looked at. Names in
    *untouchable* lead back into the mount and are shown without being touched. A name that
    cannot be looked at, or that hangs, is listed by number and type.
    """
    # An absolute path would be needed to give names as bytes to scandir(); fds give str.
    names = [os.fsencode(name) for name in os.listdir(fd)]
    bare = len(names) > limit
    if not bare:
        try:
            whole = _rows(path, fd, names, filesystems, untouchable, watch)
            return pack_listing(whole).packed
        except PermissionError:
            bare = True
    with os.scandir(fd) as found:
        rows = [(os.fsencode(each.name), _bare(each, untouchable)) for each in found]
    return pack_listing(rows, bare=bare).packed


def _rows(
    path: Path,
    fd: int,
    names: list[bytes],
    filesystems: Filesystems,
    untouchable: tuple[bytes, ...],
    watch: Watch,
) -> Iterator[tuple[bytes, Entry]]:
    found = watch.look_at(
        path,
        fd,
        [name for name in names if name not in untouchable],
        lambda directory, name: entry_at(directory, name, filesystems),
    )
    bare: dict[bytes, Entry] = {}
    if len(names) != sum(entry is not None for entry in found.values()):
        with os.scandir(fd) as entries:
            bare = {
                os.fsencode(each.name): _bare(each, untouchable)
                for each in entries
                if found.get(os.fsencode(each.name)) is None
            }
    for name in names:
        entry = found.get(name)
        if entry is not None:
            yield name, entry
        elif name in bare and name in untouchable:
            yield name, bare[name]
        elif name in bare and name in found:
            yield name, Entry(bare[name].attributes, unknown=True)
        # or it is gone by now


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
