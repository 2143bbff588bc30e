"""Opens files that a daemon writes at a configured path: logs, events, metrics.

Other users may be able to make names there, as in ``/tmp``. So the daemon writes through no link,
and into no file of another user.
"""

import errno
import os
import stat
from contextlib import suppress

_TRIES = 3


def open_to_append(path: str) -> int:
    """OSError if the file is not ours."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        # another process made and removed it in between
        with suppress(FileNotFoundError):
            return _open_existing(path, flags | os.O_NONBLOCK)
    raise OSError(errno.EAGAIN, "it comes and goes", path)


def _open_existing(path: str, flags: int) -> int:
    try:
        fd = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise OSError(errno.ELOOP, "it is a symbolic link", path) from None
        raise
    try:
        check_ours(os.fstat(fd), path)
    except OSError:
        os.close(fd)
        raise
    return fd


def check_ours(found: os.stat_result, path: str) -> None:
    """OSError unless this is a device, or a file of this user without other links."""
    if stat.S_ISCHR(found.st_mode):
        return  # /dev/null
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", path)
    if found.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user", path)
    if found.st_nlink > 1:
        raise OSError(errno.EPERM, "it has another name elsewhere", path)
