"""Inside mounts: finds the mounts of in-place runs from outside of their namespaces.

Only the kernel's tables of other processes are read, and never a path in such a mount: it may hang.
Only mounts of this process's own user count, also for root: anybody can make a namespace in which
``/bin/sh`` is another program.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from copperfs.fuse.mounting import FSTYPE, mounts, owner_of


@dataclass(frozen=True, slots=True)
class InsideMount:
    pid: int
    """A process of the namespace, which may end at any time."""
    mountpoint: str

    @property
    def path(self) -> str:
        """It leads there from outside."""
        return f"/proc/{self.pid}/root{self.mountpoint}"


def inside_mounts() -> Iterator[InsideMount]:
    """Each namespace once."""
    for pid, table in other_namespaces():
        for each in mounts(table):
            mine = owner_of(each) == os.geteuid()
            if each.fstype == FSTYPE and mine and not _is_here(each.device):
                yield InsideMount(pid, os.fsdecode(each.mountpoint))
                break


def other_namespaces() -> Iterator[tuple[int, bytes]]:
    """A process of each other mount namespace that this user may look into, and its mount table."""
    seen = {os.readlink("/proc/self/ns/mnt")}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):  # it ended, or is another user's
            namespace = os.readlink(process / "ns" / "mnt")
            if namespace in seen:
                continue
            table = (process / "mountinfo").read_bytes()
            seen.add(namespace)
            yield int(process.name), table


def _is_here(device: str) -> bool:
    """A container has a copy of a mount that is seen here as well."""
    return any(each.device == device for each in mounts())


def inside_mount(mountpoint: str) -> InsideMount | None:
    return next((each for each in inside_mounts() if each.mountpoint == mountpoint), None)
