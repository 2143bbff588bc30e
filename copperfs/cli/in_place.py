"""In place: what ``copperfs run`` does so that its command sees files at their own paths.

The first run of a node makes the namespace (``inplace/namespace.py``), starts the daemon outside of
it, and covers the directories. The daemon gives all runs of the node the descriptors by which their
commands enter.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from copperfs.cli.rewriting import policy_of_paths
from copperfs.config.settings import Settings
from copperfs.model.errors import MountError
from copperfs.node.requests.path_policy import Place

if TYPE_CHECKING:
    from copperfs.inplace.covers import Covers
    from copperfs.inplace.namespace import Namespace


CONTAINERS = frozenset(
    [
        *("apptainer", "singularity", "podman", "docker", "nerdctl", "buildah", "bwrap"),
        *("ch-run", "charliecloud", "enroot", "sarus", "shifter", "udocker", "unshare"),
    ]
)


@dataclass(frozen=True, slots=True)
class InPlaceRun:
    namespace: "Namespace"
    covers: "Covers"
    source_root: str

    @property
    def fds(self) -> list[int]:
        found = (self.namespace.fuse_fd, self.namespace.mounts_fd, self.namespace.users_fd)
        return [fd for fd in found if fd is not None]

    def line(self) -> dict[str, Any]:
        """``MountedInside.of_line`` of the daemon reads it."""
        made = self.namespace
        return {
            "fuse": made.fuse_fd,
            "mounts": made.mounts_fd,
            "users": made.users_fd,
            "mountpoint": made.mountpoint,
            "device": made.device,
        }

    def cover(self, settings: Settings) -> dict[str, Any]:
        """The mount answers now. The daemon is told, to renew the overlay after a clear."""
        from copperfs.inplace.namespace import CannotBeInPlace, Covered

        directories = self.covers.directories
        try:
            covered = self.namespace.cover(
                self.source_root,
                directories,
                self.covers.writable,
                # With --revalidate files change below, which overlayfs does not bear.
                overlay=settings.revalidate_s is None,
            )
        except CannotBeInPlace as error:
            covered = Covered(False, (), dict.fromkeys(directories, str(error)))
        return asdict(covered) | {"writable": self.covers.writable}


@dataclass(slots=True)
class Inside:
    """The namespace of this node's runs, for the command of this one."""

    mountpoint: str
    failed: dict[str, str]
    """The directories that could not be covered, with the reasons."""
    _fds: list[int]

    def enter(self) -> None:
        from copperfs.inplace.namespace import enter

        if os.fstat(self._fds[0]).st_ino == os.stat("/proc/self/ns/mnt").st_ino:
            return  # a run in a run
        cwd = os.getcwd()
        enter(self._fds[0], self._fds[1] if len(self._fds) > 1 else None)
        os.chdir(cwd)

    def close(self) -> None:
        """The namespace ends with its last process, and not with this one."""
        while self._fds:
            os.close(self._fds.pop())


def inside_of(said: Mapping[str, Any], fds: list[int]) -> Inside | None:
    if "in_place" not in said:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)
    # Imported now: between fork and exec nothing is.
    import copperfs.inplace.namespace  # noqa: F401

    words = said["in_place"]
    return Inside(words["mountpoint"], words["failed"], fds)


def why_not_in_place(
    settings: Settings, program: Sequence[str], environ: Mapping[str, str], *, at_own_path: bool
) -> str | None:
    """The reason why the command is not to run in place, although the machine may allow it; None if
    there is none. In a user namespace of one user some commands would not find what they find
    outside; root needs none."""
    if settings.in_place == "always":
        return None
    name, is_root = os.path.basename(program[0]), os.geteuid() == 0
    if settings.in_place == "never":
        return "--in-place never"
    if at_own_path:
        return "--mountpoint was given"
    if name in CONTAINERS and not is_root:
        return f"{name} makes user namespaces of its own"
    if environ.get("KRB5CCNAME", "").startswith("KEYRING:") and not is_root:
        return "Kerberos tickets are in the kernel's keyring, which is another one inside"
    return None


def covers_of(
    settings: Settings, environ: Mapping[str, str], also: Sequence[str], command: Sequence[str]
) -> "Covers | None":
    """None: paths of variables are led through the mount. *also*: other variables than the usual,
    whose directories are taken as entries of PYTHONPATH."""
    from copperfs.inplace.covers import covers

    must = settings.in_place == "always"
    root = os.path.realpath(settings.source)
    is_shared = _shared_below(settings, root, must=must)
    if is_shared is None:
        return None
    values = [environ.get(name, "") for name in ("PYTHONPATH", *also)]
    entries = [each for each in ":".join(values).split(":") if each.startswith("/")]
    found = covers(
        environ={**environ, "PYTHONPATH": ":".join(entries)},
        command=command,
        cwd=_working_directory(),
        is_shared=is_shared,
        source_root=root,
        at=settings.in_place_at,
        ring=settings.ring,
        writable=settings.writable,
    )
    return found if found.directories or must else None


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise MountError(
            f"the working directory cannot be found ({error.strerror}); change to another one"
        ) from None


def _shared_below(settings: Settings, root: str, *, must: bool) -> Callable[[str], bool] | None:
    """Which real paths are shared; None if nothing is known to be. On a machine without a network
    filesystem, whose user names nothing, all is on its own disks."""
    from copperfs.daemon.path_policy_from_mounts import below_source, has_network
    from copperfs.fuse.mounting import mounts

    all_mounts = mounts()
    named = settings.shared or settings.source != "/" or settings.in_place_at or settings.ring
    if not (named or must or has_network(all_mounts)):
        return None
    source = os.fsencode(root)
    policy = policy_of_paths(settings, all_mounts, root)

    def is_shared(path: str) -> bool:
        below = below_source(source, os.fsencode(path))
        return below is not None and policy.place(below) is Place.SHARED

    return is_shared


def begin_in_place(settings: Settings, covers: "Covers") -> InPlaceRun | str:
    """The reason, if this machine does not allow it, and it was not demanded."""
    from copperfs.fuse.mounting import FSTYPE, mount_name
    from copperfs.inplace.namespace import CannotBeInPlace, FuseOptions, Namespace

    options = FuseOptions(FSTYPE, mount_name(settings.source), settings.allow_other)
    try:
        made = Namespace.make(_name_inside(settings.mountpoint), options)
    except CannotBeInPlace as error:
        if settings.in_place == "always":
            raise MountError(f"--in-place always cannot be had: {error}") from None
        return str(error)
    return InPlaceRun(made, covers, os.path.realpath(settings.source))


def _name_inside(mountpoint: str) -> str:
    """A name that mount tables show as it is, and that is not one of the helper's own."""
    from copperfs.fuse.mounting import mount_name

    return mount_name(os.path.basename(mountpoint)).lstrip(".") or "mount"
