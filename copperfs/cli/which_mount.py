"""Which mount: the one that a command is about, if it may be left out.

A named one; else that of ``$COPPERFS_MOUNTPOINT``, which ``copperfs run`` sets; else the only one
of this user on this node, in-place runs included.
"""

import argparse
import os

from copperfs.launch.launcher_variables import MOUNTPOINT_VARIABLE
from copperfs.model.errors import MountError, UsageError

OR_ELSE = "$COPPERFS_MOUNTPOINT, or the only mount here"


def add_mount_argument(
    parser: argparse.ArgumentParser, about: str, *, dest: str = "mountpoint"
) -> None:
    """*about* says what the command does with it."""
    parser.add_argument(dest, metavar="MNT", nargs="?", help=f"{about} ({OR_ELSE})")


def which_mount(named: str | None) -> str:
    """UsageError if there are several, MountError if there is none."""
    if named is not None:
        return named
    if found := os.environ.get(MOUNTPOINT_VARIABLE):
        return found
    here = own_mounts()
    if not here:
        raise MountError("no mount of copperfs is yours on this node; name one, or make one")
    if len(here) > 1:
        raise UsageError(f"several mounts are yours on this node; name one: {', '.join(here)}")
    return here[0]


def mount_and_paths(named: str | None, paths: list[str]) -> tuple[str, list[str]]:
    """The mount, and the paths that a command is about. The first word is a path if it is not a
    mount, and the mount can be found otherwise."""
    from copperfs.fuse.mounting import FSTYPE, absolute, mount_at

    if named is None:
        return which_mount(None), paths
    mounted = mount_at(absolute(named))
    if mounted is not None and mounted.fstype == FSTYPE:
        return named, paths
    if named == os.environ.get(MOUNTPOINT_VARIABLE) or named in own_mounts():
        return named, paths
    try:
        found = which_mount(None)
    except (MountError, UsageError):
        return named, paths
    return found, [named, *paths]


def own_mounts() -> list[str]:
    """Mount points of this user on this node, for root those of root; nothing is touched."""
    from copperfs.fuse.inside_mounts import inside_mounts
    from copperfs.fuse.mounting import FSTYPE, mounts, owner_of

    mine = [each for each in mounts() if each.fstype == FSTYPE and owner_of(each) == os.geteuid()]
    by_device = {each.device: os.fsdecode(each.mountpoint) for each in reversed(mine)}
    return [*reversed(by_device.values()), *(each.mountpoint for each in inside_mounts())]
