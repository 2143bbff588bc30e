"""System calls for private mounts: ``unshare``, ``setns``, ``mount`` and ``umount2``.

Python offers the first two from 3.12 on only, and the others never. Each raises OSError.
"""

import ctypes
import os

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC = 0x1, 0x2, 0x4, 0x1000, 0x4000
MS_SLAVE = 0x80000
MNT_DETACH = 0x2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [
    *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p),
    *(ctypes.c_ulong, ctypes.c_char_p),
]


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(fd, kind), "setns")


def mount(what: str, where: str, fstype: str | None, flags: int, data: str | None = None) -> None:
    kind, options = (None if each is None else os.fsencode(each) for each in (fstype, data))
    _check(_libc.mount(os.fsencode(what), os.fsencode(where), kind, flags, options), where)


def unmount(where: str, flags: int) -> None:
    _check(_libc.umount2(os.fsencode(where), flags), where)
