"""Memory limit: how much memory this process may use, by the machine and by cgroups.

A job of Slurm or Kubernetes, or a container, is in a cgroup with a limit, and the kernel kills it
beyond that. The machine's memory says nothing there. A limit holds for all cgroups below it, so
this module reads the own cgroup and all visible ones above. In version 2 it reads ``memory.max``,
and ``memory.high``, beyond which the process is slowed down. In version 1 it reads
``memory.limit_in_bytes``, and ``memory.stat`` for the limits of ancestors that are not visible.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_V1 = ("memory.limit_in_bytes", r"(\d+)\s*")
_V1_ABOVE = ("memory.stat", r"(?s:.*?)hierarchical_memory_limit (\d+)\b")
_V2 = (("memory.max", r"(\d+)\s*"), ("memory.high", r"(\d+)\s*"))


@dataclass(frozen=True, slots=True)
class Memory:
    """An amount of memory, and the file that sets it."""

    size_bytes: int
    where: str


def physical_memory() -> Memory:
    return Memory(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "physical memory")


def memory_for_us(root: str = "/") -> Memory:
    """The smallest limit. Tests have another *root* for ``/proc`` and ``/sys``."""
    return min([physical_memory(), *cgroup_limits(root)], key=lambda each: each.size_bytes)


def cgroup_limits(root: str = "/") -> list[Memory]:
    """All limits of this process's cgroups; a cgroup without one gives none."""
    found: list[Memory] = []
    with suppress(OSError):
        mounts = (Path(root) / "proc/self/mountinfo").read_text(errors="surrogateescape")
        groups = (Path(root) / "proc/self/cgroup").read_text(errors="surrogateescape")
        for line in mounts.splitlines():
            found += _limits_of_mount(root, line, groups)
    return found


def _limits_of_mount(root: str, line: str, groups: str) -> Iterator[Memory]:
    """The limits of one line of mountinfo, if it is a hierarchy that limits memory."""
    left, _, right = line.partition(" - ")
    mounted, kind = left.split(), right.split()
    if len(mounted) < 6 or len(kind) < 3:
        return
    is_v2 = kind[0] == "cgroup2"
    if not is_v2 and (kind[0] != "cgroup" or "memory" not in kind[2].split(",")):
        return
    own = _own_group(groups, None if is_v2 else "memory")
    if own is None:
        return
    top = PurePosixPath(_unescaped(mounted[4]))
    group = top / _below(own, _unescaped(mounted[3]))
    for each in (group, *group.parents):
        for name, pattern in _V2 if is_v2 else (_V1,):
            yield from _limit(root, each / name, pattern)
        if each == top:
            break
    if not is_v2:
        yield from _limit(root, group / _V1_ABOVE[0], _V1_ABOVE[1])


def _own_group(groups: str, controller: str | None) -> str | None:
    """The cgroup of this process, in the hierarchy of *controller* or in that of version 2."""
    for line in groups.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if (
            (number == "0" and not controllers)
            if controller is None
            else (controller in controllers.split(","))
        ):
            return path
    return None


def _below(own: str, shown: str) -> str:
    """The own cgroup's path relative to the mounted one. A container may see its own cgroup as the
    topmost, whatever is above it."""
    own_parts, shown_parts = PurePosixPath(own).parts, PurePosixPath(shown).parts
    if ".." in own_parts or own_parts[: len(shown_parts)] != shown_parts:
        return ""
    return "/".join(own_parts[len(shown_parts) :])


def _limit(root: str, file: PurePosixPath, pattern: str) -> Iterator[Memory]:
    """The limit in a file, unless it sets none or cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        text = (Path(root) / str(file).lstrip("/")).read_text()
        said = re.match(pattern, text)
        # Version 1 says "no limit" as the largest number of whole pages.
        if said is not None and int(said[1]) < 1 << 62:
            yield Memory(int(said[1]), str(file))


def _unescaped(path: str) -> str:
    """The kernel writes blanks in paths as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda each: chr(int(each[1], 8)), path)
