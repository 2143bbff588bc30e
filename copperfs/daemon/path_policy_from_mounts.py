"""Path policy from mounts: classifies paths as shared, local or refused, from settings and mounts.

A single node, or a job on one machine, shares the named source. Nodes on several machines share
network filesystems and the prefixes of ``--shared``, never a disk of one machine: all nodes would
show node 0's ``/tmp``.
"""

import logging
import os
import posixpath
import select
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from copperfs.config.settings import Settings
from copperfs.fuse.mounting import FSTYPE, PFS_SIM_FSTYPE, Mount, mounts
from copperfs.model.errors import MountError
from copperfs.model.protection import protection_of, split_class
from copperfs.model.roster import Roster
from copperfs.model.types import ROOT, Path, is_below
from copperfs.node.requests.path_policy import Place, Policy

log = logging.getLogger(__name__)

# These look the same on all nodes of a job.
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
        PFS_SIM_FSTYPE,  # it simulates one of these
    ]
)
# A type in neither list is shared only below a named source.
LOCAL_FILESYSTEMS = frozenset(
    [
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "bcachefs",
        "f2fs",
        "jfs",
        "reiserfs",
        "nilfs2",
        "tmpfs",
        "ramfs",
        "rootfs",
        "overlay",
        "aufs",
        "squashfs",
        "erofs",
        "iso9660",
        "udf",
        "vfat",
        "msdos",
        "exfat",
        "ntfs",
        "ntfs3",
        "fuseblk",
        "fuse.fuse-overlayfs",
        "fuse.squashfuse",
    ]
)
# Their clients assign their own inode numbers (libfuse/sshfs, issue 109).
OWN_INODES = frozenset(["fuse.sshfs"])
# The size of a file is unknown before it is read.
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
# systemd-gpt-auto-generator mounts a partition of the boot disk there.
AUTOMOUNTED_LOCAL = (*ALWAYS_LOCAL, b"/boot", b"/efi")


@dataclass(frozen=True, slots=True)
class PathClasses:
    """Prefixes of paths, as the mount's first daemon found them. A successor keeps them, because
    the node's mounts may have changed by then, and a filesystem of ``--shared`` may hang."""

    shared: tuple[Path, ...]
    local: tuple[Path, ...]
    pseudo: tuple[Path, ...]
    compared: tuple[Path, ...]
    """Where nodes compare inode numbers."""
    ignores_inodes: bool

    def to_json(self) -> dict[str, Any]:
        paths = {name: [*map(os.fsdecode, getattr(self, name))] for name in _PATHS}
        return paths | {"ignores_inodes": self.ignores_inodes}

    @classmethod
    def of_json(cls, words: dict[str, Any]) -> "PathClasses":
        paths = {name: tuple(Path(os.fsencode(each)) for each in words[name]) for name in _PATHS}
        return cls(**paths, ignores_inodes=words["ignores_inodes"])


_PATHS = ("shared", "local", "pseudo", "compared")


def path_classes_for(
    settings: Settings,
    source: bytes,
    *,
    apart: bool = False,
    before: PathClasses | None = None,
    changed: Collection[str] = (),
) -> PathClasses:
    """*before*: those of the predecessor, whose settings were the same, except *changed*."""
    if before is None or "shared" in changed:
        all_mounts = mounts()
        policy = policy_for(settings, all_mounts, source, apart=apart)
        return PathClasses(
            policy.shared,
            policy.local,
            tuple(policy.pseudo),
            compared_prefixes(all_mounts, policy),
            ignores_inodes(settings, all_mounts, policy),
        )
    if "inodes" not in changed:
        return before
    ignored = ignores_inodes(settings, mounts(), policy_of(settings, source, before))
    return replace(before, ignores_inodes=ignored)


def policy_of(settings: Settings, source: bytes, classes: PathClasses) -> Policy:
    return _policy(settings, source, classes.shared, classes.local, classes.pseudo)


def policy_for(
    settings: Settings, all_mounts: Sequence[Mount], source: bytes, *, apart: bool = False
) -> Policy:
    """*source* is absolute, without symbolic links. *apart*: the job has nodes on several machines,
    and having nothing to share is a MountError."""

    def below(absolute: bytes) -> Path | None:
        return below_source(source, absolute)

    def prefixes(candidates: Sequence[bytes]) -> tuple[Path, ...]:
        return tuple(path for each in candidates if (path := below(each)) is not None)

    local = prefixes(ALWAYS_LOCAL)
    network = [each.mountpoint for each in all_mounts if _is_network(each)]
    if settings.shared:
        named = [os.fsencode(os.path.realpath(each)) for each in settings.shared]
        shared = (ROOT,) if any(is_below(source, each) for each in named) else prefixes(named)
    elif apart:
        shared, of_one = _of_all_machines(all_mounts, source)
        local = tuple(dict.fromkeys((*local, *of_one)))
        if not shared:
            raise MountError(_nothing_shared(settings.source, _filesystem_of(all_mounts, source)))
    elif source == b"/" and network:
        shared = prefixes(network)
    else:
        shared = (ROOT,)
    local = tuple(each for each in local if any(is_below(each, above) for above in shared))
    pseudo = prefixes([each.mountpoint for each in all_mounts if each.fstype in PSEUDO_FILESYSTEMS])
    return _policy(settings, source, shared, local, pseudo)


def _policy(
    settings: Settings,
    source: bytes,
    shared: tuple[Path, ...],
    local: tuple[Path, ...],
    pseudo: tuple[Path, ...],
) -> Policy:
    """It asks no filesystem."""
    mountpoint = os.fsencode(settings.mountpoint)
    own = below_source(source, mountpoint)
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
        protection=protection_of(
            {
                path: copies
                for prefix, copies in map(split_class, settings.protect)
                if (path := ring_prefix(settings, source, prefix)) is not None
            }
        ),
    )


def has_network(all_mounts: Sequence[Mount]) -> bool:
    return any(map(_is_network, all_mounts))


def _is_network(mount: Mount) -> bool:
    """Counts automount points as well, by name (``/home``, ``/cvmfs``) or at one place
    (``x-systemd.automount``): nodes differ only in what is mounted there at the moment."""
    return mount.fstype in NETWORK_FILESYSTEMS or (
        mount.fstype == "autofs"
        and not any(is_below(mount.mountpoint, each) for each in AUTOMOUNTED_LOCAL)
    )


def _of_all_machines(
    all_mounts: Sequence[Mount], source: bytes
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The prefixes where shared filesystems begin, and those where local ones begin inside them."""
    kind = _filesystem_of(all_mounts, source)
    known = kind in LOCAL_FILESYSTEMS | PSEUDO_FILESYSTEMS
    # A source of unknown type was named deliberately: share it.
    is_shared = {ROOT: kind in NETWORK_FILESYSTEMS or not (known or source == b"/")}
    for each in all_mounts:
        path = below_source(source, each.mountpoint)
        if path and (_is_network(each) or each.fstype in LOCAL_FILESYSTEMS):
            is_shared[path] = _is_network(each)
    begin: dict[Path, bool] = {}
    for path in sorted(is_shared):  # parents come first
        above = max((each for each in begin if is_below(path, each)), key=len, default=None)
        if is_shared[path] != (above is not None and begin[above]):
            begin[path] = is_shared[path]
    shared = tuple(path for path, value in begin.items() if value)
    return shared, tuple(path for path, value in begin.items() if not value)


def _filesystem_of(all_mounts: Sequence[Mount], path: bytes) -> str:
    above = [each for each in all_mounts if is_below(path, each.mountpoint.rstrip(b"/"))]
    # Of several mounts at one place the last covers the others.
    return max(enumerate(above), key=lambda one: (len(one[1].mountpoint), one[0]))[1].fstype


def _nothing_shared(source: str, kind: str) -> str:
    return (
        f"{source} is on a disk of this node alone ({kind}), and the job has several nodes: name "
        "with --shared the directories that all of them see alike, give another --source, or "
        "--bootstrap none if each node is to mount for itself"
    )


def check_shared(settings: Settings, source: bytes) -> None:
    """MountError if a prefix of ``--shared`` does not exist. A site names all that its nodes share,
    so one may be outside the source."""
    shown = False
    for each in settings.shared:
        try:
            os.stat(each)
        except (FileNotFoundError, NotADirectoryError):
            raise MountError(
                f"--shared {each} does not exist on this node: name directories that all nodes have"
            ) from None
        except OSError:
            pass  # it exists, but this user cannot access it at the moment
        real = os.fsencode(os.path.realpath(each))
        shown = shown or below_source(source, real) is not None or is_below(source, real)
    if settings.shared and not shown:
        log.warning(
            "nothing of %s is shared with other nodes: --shared names only %s",
            settings.source,
            ", ".join(settings.shared),
        )


def are_apart(roster: Roster) -> bool:
    """Nodes with one address, or with loopback addresses only, are on one machine."""
    hosts = {each.endpoint.removeprefix("tcp://").rpartition(":")[0] for each in roster.members}
    inside = ("127.", "[::1]", "localhost")
    return len(hosts) > 1 and not all(each.startswith(inside) for each in hosts)


def ignores_inodes(settings: Settings, all_mounts: Sequence[Mount], policy: Policy) -> bool:
    if settings.inodes != "auto":
        return settings.inodes == "ignore"
    for path in policy.shared:
        prefix = posixpath.join(policy.source, path).rstrip(b"/")
        around = [each for each in all_mounts if is_below(prefix, each.mountpoint.rstrip(b"/"))]
        longest = max(reversed(around), key=lambda each: len(each.mountpoint), default=None)
        within = [each for each in all_mounts if is_below(each.mountpoint, prefix)]
        if any(each.fstype in OWN_INODES for each in (longest, *within) if each is not None):
            return True
    return False


def compared_prefixes(all_mounts: Sequence[Mount], policy: Policy) -> tuple[Path, ...]:
    """Where nodes compare inode numbers: in the shared prefixes and the network filesystems below
    them. A lookup in an unmounted automount point would mount it on all nodes, so these are
    skipped."""
    found = [
        each
        for each in policy.shared
        if policy.place(each) is Place.SHARED
        and _filesystem_of(all_mounts, posixpath.join(policy.source, each)) != "autofs"
    ]
    for each in all_mounts:
        if each.fstype not in NETWORK_FILESYSTEMS and not each.fstype.startswith("fuse."):
            continue
        path = below_source(policy.source, each.mountpoint)
        if path is not None and path not in found and policy.place(path) is Place.SHARED:
            found.append(path)
    return tuple(found)


def ring_prefix(settings: Settings, source: bytes, prefix: str) -> Path | None:
    """*prefix* has the source's name or its real path. None if it is outside."""
    path = posixpath.normpath(os.fsencode(prefix))
    below = below_source(source, path)
    return below_source(os.fsencode(settings.source), path) if below is None else below


def below_source(source: bytes, absolute: bytes) -> Path | None:
    prefix = source.rstrip(b"/")
    if not is_below(absolute, prefix):
        return None
    return Path(absolute[len(prefix) :].strip(b"/"))


@dataclass(slots=True)
class OwnMounts:
    """The paths below the source that lead back into the daemon's own mount (a bind mount), or may:
    all mounts of copperfs, except one that is itself the source."""

    source: bytes
    device: str
    changed: Callable[[frozenset[Path]], None]
    """Called with the new set, from any thread."""
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
        """One cheap system call unless a mount changed."""
        with self._lock:
            if self._poll.poll(0):
                self._read()
            return self.paths

    def _read(self) -> None:
        found = (
            (each, below_source(self.source, each.mountpoint))
            for each in mounts(self._table())
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

    def _table(self) -> bytes:
        """Read through the open descriptor: the process may have no other one left."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        pieces = []
        while piece := os.read(self._fd, 1 << 16):
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        os.close(self._fd)
