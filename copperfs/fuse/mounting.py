"""Mounts, unmounts, and cleans up after a daemon that was killed.

libfuse's public ``fuse_open_channel`` mounts, directly as root and through ``fusermount3``
otherwise. The library is found through pyfuse3, because libfuse 3.17 changed its soname.

``/proc/self/mountinfo`` tells whether something is mounted: touching a hung mount would hang the
caller.
"""

import ctypes
import errno
import os
import re
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path as FilePath

from copperfs.model.errors import MountError

FSTYPE = "fuse.copperfs"
PFS_SIM_FSTYPE = "fuse.pfs-sim"
# The default of ``copperfs run``: user, job, digest of the options.
RUN_MOUNTPOINT = re.compile(r"/tmp/copperfs-\d+-[\w.-]+-[0-9a-f]{8}", re.ASCII)
# fusermount3 may wait for a busy kernel.
HELPER_TIMEOUT_S = 30.0
ANSWERS_WITHIN_S = 5.0
_ESCAPE = re.compile(rb"\\(\d{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    mountpoint: bytes
    device: str
    fstype: str
    source: str
    super_options: str


def mounts(table: bytes | None = None) -> list[Mount]:
    """In the order in which they were made."""
    found = []
    if table is None:
        table = FilePath("/proc/self/mountinfo").read_bytes()
    for line in table.splitlines():
        before, _, after = line.partition(b" - ")
        fields, kind = before.split(b" "), after.split(b" ")
        found.append(
            Mount(
                _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), fields[4]),
                os.fsdecode(fields[2]),
                os.fsdecode(kind[0]),
                os.fsdecode(kind[1]) if len(kind) > 1 else "",
                os.fsdecode(kind[2]) if len(kind) > 2 else "",
            )
        )
    return found


def mount_at(mountpoint: str) -> Mount | None:
    wanted = os.fsencode(mountpoint)
    return next((each for each in reversed(mounts()) if each.mountpoint == wanted), None)


def absolute(mountpoint: str) -> str:
    """As mountinfo spells it. Its parent is resolved; the mount point is not touched."""
    path = os.path.abspath(mountpoint)
    if path == "/":
        return path
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def answers(mountpoint: str) -> bool | None:
    """False: its daemon is gone; None: a timeout."""
    outcome: list[bool] = []

    def ask() -> None:
        try:
            os.statvfs(mountpoint)
            outcome.append(True)
        except OSError as error:
            # EIO: aborted; ENOTCONN: the daemon died
            outcome.append(error.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWERS_WITHIN_S)
    return outcome[0] if outcome else None


def open_channel(mountpoint: str, options: list[str]) -> int:
    library = ctypes.CDLL(libfuse_path(), use_errno=True)
    library.fuse_open_channel.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    library.fuse_open_channel.restype = ctypes.c_int
    fd = int(library.fuse_open_channel(os.fsencode(mountpoint), ",".join(options).encode()))
    if fd < 0:
        raise MountError(_why_not(mountpoint, options))
    os.set_inheritable(fd, False)
    return fd


def mount_options(source: str, *, allow_other: bool) -> list[str]:
    """``ro`` makes the kernel refuse every write; ``default_permissions`` makes it check access by
    the modes that are shown."""
    name = f"fsname={mount_name(source)}"
    options = ["ro", "nosuid", "nodev", "default_permissions", "subtype=copperfs", name]
    return [*options, "allow_other"] if allow_other else options


def mount_name(source: str) -> str:
    """Without a comma or a backslash, which would end the option."""
    return re.sub(r"[^\w./+@%-]", "_", source, flags=re.ASCII)


def unmount(mountpoint: str, *, lazy: bool = False) -> None:
    """MountError has the reason."""
    if os.geteuid() == 0:
        code = _unmount_as_root(mountpoint, lazy=lazy)
        if code == 0:
            return
        if code == errno.EBUSY:
            raise MountError(f"{mountpoint} is in use; end what uses it, or unmount with --lazy")
        raise MountError(f"{mountpoint} cannot be unmounted: {os.strerror(code)}")
    command = [_fusermount(), "-u", *(["-z"] if lazy else []), "--", mountpoint]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=HELPER_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise MountError(f"{mountpoint} cannot be unmounted: fusermount3 does not end") from None
    if result.returncode != 0:
        if "busy" in result.stderr:
            raise MountError(f"{mountpoint} is in use; end what uses it, or unmount with --lazy")
        raise MountError(f"{mountpoint} cannot be unmounted: {result.stderr.strip()}")


def _unmount_as_root(mountpoint: str, *, lazy: bool) -> int:
    """An errno, or 0. Follows no link: the mount's owner may have put one there that leads to
    another user's mount."""
    *above, name = mountpoint.strip("/").split("/")
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open("/", flags)
    try:
        for each in above:
            below = os.open(each, flags | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = below
    except OSError as error:
        os.close(fd)
        return error.errno or errno.EIO
    try:
        library = ctypes.CDLL(None, use_errno=True)
        path = os.fsencode(f"/proc/self/fd/{fd}/{name}")
        # MNT_DETACH, UMOUNT_NOFOLLOW
        done = library.umount2(path, (2 if lazy else 0) | 8) == 0
        return 0 if done else ctypes.get_errno()
    finally:
        os.close(fd)


def owner_of(mount: Mount) -> int | None:
    """As the kernel reports it, not as any program claims."""
    found = re.search(r"(?:^|,)user_id=(\d+)", mount.super_options)
    return None if found is None else int(found[1])


def clean_up_stale(mountpoint: str, fstype: str = FSTYPE) -> bool:
    cleaned = False
    while (found := mount_at(mountpoint)) is not None and found.fstype == fstype:
        if answers(mountpoint) is not False:
            break
        unmount(mountpoint, lazy=True)
        cleaned = True
    return cleaned


def libfuse_path() -> str:
    """Importing pyfuse3 loads it."""
    import pyfuse3  # noqa: F401  # loads it

    for line in FilePath("/proc/self/maps").read_text(errors="replace").splitlines():
        path = line.split(maxsplit=5)[-1]
        if os.path.basename(path).startswith("libfuse3.so"):
            return path
    raise MountError("pyfuse3 is not bound to libfuse 3; install it again")


def fusermount_path(path: str | None = None, library: str | None = None) -> str | None:
    """Where ``fusermount3`` is: in *path*, else PATH, or where libfuse looks first, which is
    compiled into it."""
    found = shutil.which("fusermount3", path=path)
    if found is not None:
        return found
    try:
        code = FilePath(library or libfuse_path()).read_bytes()
    except (ImportError, OSError, MountError):
        return None
    compiled_in = map(os.fsdecode, re.findall(rb"(/[\x21-\x7e]*/fusermount3)\0", code))
    return next((each for each in compiled_in if os.access(each, os.X_OK)), None)


def _fusermount() -> str:
    found = fusermount_path()
    if found is None:
        raise MountError("fusermount3 is missing; install the package fuse3")
    return found


def _why_not(mountpoint: str, options: list[str]) -> str:
    """libfuse prints the reason and returns no errno."""
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse is missing; the fuse kernel module has to be loaded by an administrator"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened; ask an administrator for access to it"
    if os.geteuid() != 0 and fusermount_path() is None:
        return "fusermount3 is missing; install the package fuse3"
    if "allow_other" in options and os.geteuid() != 0 and not _user_allow_other():
        return "--allow-other needs the line user_allow_other in /etc/fuse.conf"
    if not os.access(mountpoint, os.W_OK):
        return f"{mountpoint} is not yours; an ordinary user can only mount over own directories"
    return f"mounting at {mountpoint} failed; libfuse's own message is in the log"


def _user_allow_other() -> bool:
    try:
        lines = FilePath("/etc/fuse.conf").read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)
