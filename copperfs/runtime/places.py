"""Which paths are what, from the settings and the mounts of this machine.

``policy_for`` is pure; ``OwnMounts`` follows ``/proc/self/mountinfo`` for places where the daemon's
own mount shows up again, such as a recursive bind mount made later, and for other mounts of
copperfs: through one that shows the same source, the way would lead back here.
"""

import os
import posixpath
import select
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from copperfs.config import Settings
from copperfs.core.policy import Policy
from copperfs.fuse.mounting import FSTYPE, PFS_SIM_FSTYPE, Mount, mounts
from copperfs.types import ROOT, Path, is_below

# Filesystems that all nodes of a job see alike.
NETWORK_FILESYSTEMS = frozenset(
    [
        "lustre",
        "nfs",
        "nfs4",
        "gpfs",
        "beegfs",
        "panfs",
        "ceph",
        "orangefs",
        "pvfs2",
        "cifs",
        "smb3",
        "afs",
        "9p",
        "dvs",
        "wekafs",
        "quobyte",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.sshfs",
        "fuse.daos",
        "fuse.juicefs",
        "fuse.cvmfs2",
        "fuse.lustre",
        PFS_SIM_FSTYPE,  # it stands for one of these
    ]
)
# Interfaces of the kernel: their files have no size before they are read.
PSEUDO_FILESYSTEMS = frozenset(
    [
        "proc",
        "sysfs",
        "devtmpfs",
        "devpts",
        "cgroup",
        "cgroup2",
        "debugfs",
        "tracefs",
        "securityfs",
        "pstore",
        "bpf",
        "configfs",
        "fusectl",
        "mqueue",
        "hugetlbfs",
        "binfmt_misc",
        "efivarfs",
        "selinuxfs",
        "rpc_pipefs",
        "nsfs",
    ]
)
ALWAYS_LOCAL = (b"/proc", b"/sys", b"/dev", b"/run")


def policy_for(settings: Settings, all_mounts: Sequence[Mount], source: bytes) -> Policy:
    """*source* is the settings' source, absolute and without symbolic links."""

    def below(absolute: bytes) -> Path | None:
        return below_source(source, absolute)

    def prefixes(candidates: Sequence[bytes]) -> tuple[Path, ...]:
        return tuple(path for each in candidates if (path := below(each)) is not None)

    local: tuple[Path, ...] = ()
    network = [each.mountpoint for each in all_mounts if each.fstype in NETWORK_FILESYSTEMS]
    if settings.shared:
        shared = prefixes([posixpath.normpath(os.fsencode(each)) for each in settings.shared])
        if any(is_below(source, os.fsencode(each)) for each in settings.shared):
            shared = (ROOT,)
    elif source == b"/" and network:
        shared = prefixes(network)
    else:
        # A source that was named is meant to be shared, wherever it lies.
        shared, local = (ROOT,), prefixes(ALWAYS_LOCAL)
    pseudo = prefixes([each.mountpoint for each in all_mounts if each.fstype in PSEUDO_FILESYSTEMS])
    mountpoint = os.fsencode(settings.mountpoint)
    own = below(mountpoint)
    return Policy(
        source=source,
        mountpoint=mountpoint,
        shared=shared,
        local=local,
        pseudo=frozenset(path for path in pseudo if path != ROOT),
        refused=frozenset() if own is None else frozenset({own}),
        rewrite_symlinks=settings.symlinks == "rewrite",
        revalidate_s=settings.revalidate_s,
        ring=tuple(
            path
            for each in settings.ring
            if (path := ring_prefix(settings, source, each)) is not None
        ),
    )


def ring_prefix(settings: Settings, source: bytes, prefix: str) -> Path | None:
    """A prefix of ``--ring`` as a path below the source, by the source's name or where that leads;
    None if it is not there."""
    path = posixpath.normpath(os.fsencode(prefix))
    below = below_source(source, path)
    return below_source(os.fsencode(settings.source), path) if below is None else below


def below_source(source: bytes, absolute: bytes) -> Path | None:
    """An absolute path as one below the source; None if it is not there."""
    prefix = source.rstrip(b"/")
    if not is_below(absolute, prefix):
        return None
    return Path(absolute[len(prefix) :].strip(b"/"))


@dataclass(slots=True)
class OwnMounts:
    """The paths below the source that lead back into the daemon's own mount, or may: those of all
    mounts of copperfs, but for one that is itself the source."""

    source: bytes
    device: str
    changed: Callable[[frozenset[Path]], None]
    """Told the new set whenever it is another one; from any thread."""
    paths: frozenset[Path] = frozenset()
    _poll: select.poll = field(default_factory=select.poll)
    _fd: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        # The kernel flags this descriptor whenever a mount is made or removed.
        self._fd = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll.register(self._fd, select.POLLPRI | select.POLLERR)
        self._read()

    def __call__(self) -> frozenset[Path]:
        """The paths as they are now; one cheap system call unless something was mounted."""
        with self._lock:
            if self._poll.poll(0):
                self._read()
            return self.paths

    def _read(self) -> None:
        found = (
            (each, below_source(self.source, each.mountpoint))
            for each in mounts()
            if each.device == self.device or each.fstype == FSTYPE
        )
        paths = frozenset(
            path
            for each, path in found
            if path is not None and (each.device == self.device or path != ROOT)
        )
        if paths != self.paths:
            self.paths = paths
            self.changed(paths)

    def close(self) -> None:
        os.close(self._fd)
