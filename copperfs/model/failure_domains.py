"""Failure domains: which nodes are lost together, as a switch or a rack with them.

A domain is a number for each node of the roster: that of the first node in it. So it is the same on
all nodes of a job, whatever names the domains have. Nodes compare a digest of all of them when they
greet, because domains decide which nodes keep copies.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence

from copperfs.model.errors import ConfigError

BY_NAME = "name:"
SLURM = "slurm"


def parse_domains(text: str) -> str:
    """ValueError if *text* is neither a file nor a rule."""
    if not text:
        raise ValueError("the value is empty; give a file, slurm, or name: and a pattern")
    if text.startswith(BY_NAME):
        try:
            re.compile(text.removeprefix(BY_NAME))
        except re.error as error:
            raise ValueError(f"{text!r} has no regular expression after name: ({error})") from None
    return text


def domains_by_name(pattern: str, names: Sequence[str]) -> tuple[int, ...]:
    """The domain is the first group of the pattern, or all of its match."""
    found = []
    for name in names:
        match = re.search(pattern, name)
        if match is None:
            raise ConfigError(
                f"--domains name:{pattern} does not match the node {name}: write a pattern that "
                "matches the names of all nodes, or give a file"
            )
        found.append(match[1] if match.re.groups and match[1] is not None else match[0])
    return numbered(found)


def domains_of_lines(
    lines: Iterable[str],
    names: Sequence[str],
    where: str,
    expand: Callable[[str], Iterable[str]] = lambda text: (text,),
) -> tuple[int, ...]:
    """Each line has a node (or a set of nodes, or a pattern with ``*``) and its domain. The first
    line that fits a node counts. *expand* gives the nodes of a set."""
    exact: dict[str, str] = {}
    patterns: list[tuple[str, str, int]] = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise ConfigError(
                f"{where}, line {number}: write a node and its domain, such as 'r1n* rack1'"
            )
        if "*" in words[0] or "?" in words[0]:
            patterns.append((words[0], words[1], number))
        else:
            for name in expand(words[0]):
                exact.setdefault(name, words[1])
    return numbered([_domain_of(name, exact, patterns, where) for name in names])


def _domain_of(
    name: str, exact: dict[str, str], patterns: list[tuple[str, str, int]], where: str
) -> str:
    if name in exact:
        return exact[name]
    for pattern, domain, _ in patterns:
        if fnmatch.fnmatchcase(name, pattern):
            return domain
    raise ConfigError(f"{where} has no domain for the node {name}: add a line with its name")


def domains_of_slurm(
    topology: str, names: Sequence[str], expand: Callable[[str], Iterable[str]]
) -> tuple[int, ...]:
    """*topology* is the output of ``scontrol show topology``: the switches of the lowest level are
    the domains (``SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-3]``)."""
    found: dict[str, str] = {}
    for line in topology.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if words.get("Level") == "0" and "SwitchName" in words and "Nodes" in words:
            for name in expand(words["Nodes"]):
                found.setdefault(name, words["SwitchName"])
    missing = next((name for name in names if name not in found), None)
    if missing is not None:
        raise ConfigError(
            f"--domains slurm: 'scontrol show topology' names no switch for the node {missing}: "
            "give a file instead"
        )
    return numbered([found[name] for name in names])


def numbered(domains: Sequence[str]) -> tuple[int, ...]:
    first: dict[str, int] = {}
    return tuple(first.setdefault(name, number) for number, name in enumerate(domains))
