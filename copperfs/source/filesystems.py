"""Which filesystem below the source's root a file is on, as all nodes of a job say it.

``filesystems.c`` does the same without the GIL, and says why it is so.
"""

import os
import re
import select
import threading
import weakref

from copperfs.types import FILESYSTEM, OWN_INODE

KNOWN_MAX = 65536
_READ_BYTES = 1 << 16
_READ_TRIES = 4
"""When something is mounted while the table is read."""
_U64 = 0xFFFF_FFFF_FFFF_FFFF
_TABLE = "/proc/self/mountinfo"


class Filesystems:
    """For all threads of a source whose root is *root*, on *device*."""

    def __init__(self, root: bytes, device: int) -> None:
        self.root = root.rstrip(b"/")
        self._root_device = device
        self._own_inodes = 0
        self._known: dict[int, int] = {}
        """Of all that the table has below the root, and of what was found out."""
        self._is_read = False
        self._table_root = 0
        self._lock = threading.Lock()
        # The kernel flags this descriptor when anything is mounted.
        self._mounts = os.open(_TABLE, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._mounts)
        self._poll = select.poll()
        self._poll.register(self._mounts, select.POLLPRI)

    def ignore_inodes(self) -> None:
        """From now on inode numbers are those of this client alone."""
        self._own_inodes = OWN_INODE

    def flags(self, device: int) -> int:
        """What ``flags`` of the attributes has to say of a file on this device."""
        return self._tag(device) | self._own_inodes

    def _tag(self, device: int) -> int:
        if device == self._root_device:
            return 0
        with self._lock:
            self._learn()
            tag = 0 if device == self._table_root else self._known.get(device)
        if tag is None:
            tag = self._find_out(device)
        if tag == 0:
            self._root_device = device
        return tag

    def _find_out(self, device: int) -> int:
        """A device that the table does not have: the root may take its time."""
        try:
            if os.stat(self.root or b"/").st_dev == device:
                return 0
        except OSError:
            pass
        tag = _tag_of(b"/%d" % device)
        with self._lock:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
                self._is_read = False
            return self._known.setdefault(device, tag)

    def _learn(self) -> None:
        """Read the table, if anything was mounted since. Under the lock."""
        self._is_read = self._is_read and not self._poll.poll(0)
        tries = 0
        while not self._is_read:
            self._table_root, self._known = self._read_table()
            tries += 1
            self._is_read = tries > _READ_TRIES or not self._poll.poll(0)

    def _read_table(self) -> tuple[int, dict[int, int]]:
        """The device of the root's filesystem, and the tags of those below, by the first of the
        shortest paths at which each is mounted."""
        root_device, longest = 0, 0
        mounts: dict[int, bytes] = {}
        for line in self._text().split(b"\n")[:-1]:
            fields = line.split(b" ")
            major, minor = map(int, fields[2].split(b":"))
            each, mountpoint = os.makedev(major, minor), _unescaped(fields[4]).rstrip(b"/")
            # of two at one place the later one hides the other
            if _below(self.root, mountpoint) is not None and len(mountpoint) >= longest:
                root_device, longest = each, len(mountpoint)
            path = _below(mountpoint, self.root)
            if path:
                mounts[each] = min(mounts.get(each, path), path, key=lambda path: (len(path), path))
        mounts.pop(root_device, None)
        return root_device, {each: _tag_of(path) for each, path in mounts.items()}

    def _text(self) -> bytes:
        """By the descriptor that is kept: all others may be used up."""
        text = b""
        while more := os.pread(self._mounts, _READ_BYTES, len(text)):
            text += more
        return text


def _below(path: bytes, above: bytes) -> bytes | None:
    """What follows *above* and a slash in *path*; None if it is not below."""
    if path == above:
        return b""
    return path[len(above) + 1 :] if path.startswith(above + b"/") else None


def _unescaped(text: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes((int(found[1], 8),)), text)


def _tag_of(text: bytes) -> int:
    """FNV-1a, folded; never 0, which is the root's."""
    value = 0xCBF29CE484222325
    for each in text:
        value = (value ^ each) * 0x100000001B3 & _U64
    return (value ^ (value >> 32)) & FILESYSTEM or 1
