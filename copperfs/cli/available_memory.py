"""Memory limit: how much memory this process may use, by the machine and by cgroups.

The kernel kills a job or a container beyond its cgroup's limit, whatever the machine's memory. A
limit holds for all cgroups below, so this module reads the own cgroup and all visible ones above:
in version 2 ``memory.max`` and ``memory.high``, beyond which processes are slowed down; in version
1 ``memory.limit_in_bytes``, and ``memory.stat`` for the limits of invisible ancestors.
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
    """The smallest limit; tests have another *root*."""
    return min([physical_memory(), *cgroup_limits(root)], key=lambda each: each.size_bytes)


def cgroup_limits(root: str = "/") -> list[Memory]:
    found: list[Memory] = []
    with suppress(OSError):
        mounts = (Path(root) / "proc/self/mountinfo").read_text(errors="surrogateescape")
        groups = (Path(root) / "proc/self/cgroup").read_text(errors="surrogateescape")
        for line in mounts.splitlines():
            found += _limits_of_mount(root, line, groups)
    return found


def _limits_of_mount(root: str, line: str, groups: str) -> Iterator[Memory]:
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
    """*controller* None means version 2."""
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
    """The own cgroup relative to the mounted one; a container may see its own as the topmost."""
    own_parts, shown_parts = PurePosixPath(own).parts, PurePosixPath(shown).parts
    if ".." in own_parts or own_parts[: len(shown_parts)] != shown_parts:
        return ""
    return "/".join(own_parts[len(shown_parts) :])


def _limit(root: str, file: PurePosixPath, pattern: str) -> Iterator[Memory]:
    with suppress(OSError, UnicodeDecodeError):
        text = (Path(root) / str(file).lstrip("/")).read_text()
        said = re.match(pattern, text)
        # Version 1 says "no limit" as the largest number of whole pages.
        if said is not None and int(said[1]) < 1 << 62:
            yield Memory(int(said[1]), str(file))


def _unescaped(path: str) -> str:
    """The kernel writes blanks as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda each: chr(int(each[1], 8)), path)
