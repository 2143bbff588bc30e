"""Which filesystem below the source's root a file is on, as all nodes of a job say it.

``filesystems.c`` does the same without the GIL, and says why it is so.
"""

import os
import re
import select
import threading
import weakref

from copperfs.types import FILESYSTEM, OWN_INODE

KNOWN_MAX = 64
_U64 = 0xFFFF_FFFF_FFFF_FFFF
_TABLE = "/proc/self/mountinfo"


class Filesystems:
    """For all threads of a source whose root is *root*, on *device*."""

    def __init__(self, root: bytes, device: int) -> None:
        self.root = root.rstrip(b"/")
        self._root_device = device
        self._own_inodes = 0
        self._known: dict[int, int] = {}
        self._lock = threading.Lock()
        # The kernel flags this descriptor when anything is mounted.
        mounts = os.open(_TABLE, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, mounts)
        self._poll = select.poll()
        self._poll.register(mounts, select.POLLPRI)

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
            if self._poll.poll(0):
                self._known.clear()
            tag = self._known.get(device)
        if tag is not None:
            return tag
        tag = self._find_out(device)
        with self._lock:
            if tag == 0:
                self._root_device = device
                return 0
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[device] = tag
        return tag

    def _find_out(self, device: int) -> int:
        root_device, found = self._find(device)
        if root_device == device:
            return 0
        if found is not None:
            return _tag_of(found)
        try:
            if os.stat(self.root or b"/").st_dev == device:
                return 0
        except OSError:
            pass
        return _tag_of(b"/%d" % device)

    def _find(self, device: int) -> tuple[int, bytes | None]:
        """The device of the root's filesystem, and where *device* is mounted below: the first of
        the shortest paths."""
        root_device, longest, found = 0, 0, []
        with open(_TABLE, "rb") as table:
            for line in table:
                fields = line.split(b" ")
                major, minor = map(int, fields[2].split(b":"))
                each, mountpoint = os.makedev(major, minor), _unescaped(fields[4]).rstrip(b"/")
                # of two at one place the later one hides the other
                if _below(self.root, mountpoint) is not None and len(mountpoint) >= longest:
                    root_device, longest = each, len(mountpoint)
                path = _below(mountpoint, self.root)
                if path and each == device:
                    found.append(path)
        return root_device, min(found, key=lambda path: (len(path), path), default=None)


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
