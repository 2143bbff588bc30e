"""Memory limit: how much memory this process may use, by the machine and by cgroups; and whether
the kernel has killed processes that took more.

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
_V1_KILLS = ("memory.oom_control", r"(?m)^oom_kill (\d+)$")
_V2_KILLS = ("memory.events", r"(?m)^oom_kill (\d+)$")
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
    for each in _own_groups(root):
        found += _limits(root, each)
    return found


def oom_kills(root: str = "/") -> int:
    """How many processes of the own cgroup the kernel has killed for want of memory."""
    found = 0
    for each in _own_groups(root):
        file, pattern = _V2_KILLS if each.is_v2 else _V1_KILLS
        with suppress(OSError, UnicodeDecodeError):
            said = re.search(pattern, (Path(root) / str(each.path / file).lstrip("/")).read_text())
            found += 0 if said is None else int(said[1])
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    path: PurePosixPath
    top: PurePosixPath
    """Where the hierarchy is mounted."""
    is_v2: bool


def _own_groups(root: str) -> Iterator[_Group]:
    with suppress(OSError):
        mounts = (Path(root) / "proc/self/mountinfo").read_text(errors="surrogateescape")
        groups = (Path(root) / "proc/self/cgroup").read_text(errors="surrogateescape")
        for line in mounts.splitlines():
            yield from _group_of_mount(line, groups)


def _group_of_mount(line: str, groups: str) -> Iterator[_Group]:
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
    yield _Group(top / _below(own, _unescaped(mounted[3])), top, is_v2)


def _limits(root: str, group: _Group) -> Iterator[Memory]:
    for each in (group.path, *group.path.parents):
        for name, pattern in _V2 if group.is_v2 else (_V1,):
            yield from _limit(root, each / name, pattern)
        if each == group.top:
            break
    if not group.is_v2:
        yield from _limit(root, group.path / _V1_ABOVE[0], _V1_ABOVE[1])


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
