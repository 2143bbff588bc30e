"""``copperfs tree``: shows the parents of each node, and the state of the links between them.

Without ``--depth`` it shows what fits a screen, and counts the rest. Missing nodes are always
named.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from copperfs.cli.options import argument_type
from copperfs.cli.output import answered_text, ask, names_of, print_document, printable
from copperfs.cli.which_mount import add_mount_argument, which_mount
from copperfs.config.settings import whole_number
from copperfs.fuse.ioctl import IoctlRequest

NAME = "tree"
HELP = "show the job's nodes: parents, addresses and round trips"

# What fits a screen.
LINES_MAX = 40
DEPTH_MAX = 12
HOPS_MAX = 10**6
TREES_MAX = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_mount_argument(parser, "the mount whose job is shown", dest="path")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--depth",
        type=argument_type(whole_number(0, HOPS_MAX)),
        metavar="N",
        help=f"show all nodes up to N hops from the root (as many as fit {LINES_MAX} lines)",
    )


def run(arguments: argparse.Namespace) -> int:
    print_document(
        ask(which_mount(arguments.path), IoctlRequest.TREE),
        lambda document: shown(document, arguments.depth),
        as_json=arguments.json,
    )
    return 0


def shown(document: Any, depth: int | None = None) -> Group:
    count = document["trees"]
    trees = count if depth is not None else min(count, TREES_MAX)
    parts: list[Tree | Text] = [answered_text(document)]
    parts += [_Drawing(document, tree).draw(depth) for tree in range(trees)]
    if trees < count:
        roots = [
            member
            for member in document["members"]
            if any(place["role"] == "root" for place in member["places"][trees:])
        ]
        parts.append(Text(f"{count - trees} more trees, with the roots {names_of(roots)}"))
    gone = [member for member in document["members"] if member["gone"]]
    if gone:
        parts.append(Text(f"gone: {names_of(gone)}", "bold red"))
    if document["suspects"]:
        parts.append(Text(f"suspected: {names_of(document['suspects'])}", "yellow"))
    return Group(*parts)


@dataclass(slots=True)
class _Drawing:
    document: Any
    tree: int

    def draw(self, depth: int | None) -> Tree:
        members = self.document["members"]
        below: dict[int | None, list[int]] = {}
        there = [(n, each) for n, each in enumerate(members) if not each["gone"]]
        for number, member in there:
            below.setdefault(member["places"][self.tree]["parent"], []).append(number)
        at_depth: dict[int, int] = {}
        for _, member in there:
            hops = member["places"][self.tree]["depth"]
            at_depth[hops] = at_depth.get(hops, 0) + 1
        siblings_max = len(members)
        if depth is None:
            depth = _depth_that_fits(at_depth)
            siblings_max = LINES_MAX
        root = below[None][0]
        result = Tree(self._label(root))
        waiting = [(root, result)]
        while waiting:
            number, branch = waiting.pop()
            children = below.get(number, [])
            if not children:
                continue
            if members[number]["places"][self.tree]["depth"] >= depth:
                branch.label = Text.assemble(
                    branch.label,  # type: ignore[arg-type]  # a Text of ours
                    (f"  + {self._count(children, below)}", "dim"),
                )
                continue
            shown = children[:siblings_max]
            waiting += [(child, branch.add(self._label(child))) for child in shown]
            if len(children) > siblings_max:
                rest = children[siblings_max:]
                branch.add(Text(f"and {self._count(rest, below)}", "dim"))
        return result

    def _label(self, number: int) -> Text:
        member = self.document["members"][number]
        place = member["places"][self.tree]
        words = [f"tree {self.tree}: root" if place["role"] == "root" else place["role"]]
        words.append(f"depth {place['depth']}")
        text = Text.assemble(
            (printable(member["name"]), "bold"),
            f"  {printable(_address(member['endpoint']))}  ",
            (", ".join(words) + ", ", "dim"),
            self._state(member, place),
        )
        if takeovers := member.get("takeovers"):
            text.append(f", {takeovers_text(takeovers)}", "yellow")
        if number == self.document["asked"]:
            text.append("  (this node)", "dim")
        return text

    def _state(self, member: Any, place: Any) -> tuple[str, str]:
        if not member["answered"]:
            return self._absence(member["number"])
        if place["parent"] is None:
            return "up", "green"
        if place["rtt_us"] is not None:
            return f"up, {place['rtt_us'] / 1000:.2f} ms to its parent", "green"
        parent = printable(self.document["members"][place["parent"]]["name"])
        if place["connected"]:
            return f"up, {parent} does not answer it", "yellow"
        return f"up, not connected to {parent}", "yellow"

    def _absence(self, number: int) -> tuple[str, str]:
        behind = next(m["behind"] for m in self.document["missing"] if m["number"] == number)
        if behind is None:
            return "missing", "bold red"
        name = printable(self.document["members"][behind]["name"])
        return f"not reached, since {name} is missing", "red"

    def _count(self, numbers: list[int], below: dict[int | None, list[int]]) -> str:
        """All nodes below count as well."""
        everybody = list(_with_all_below(numbers, below))
        missing = sum(not self.document["members"][each]["answered"] for each in everybody)
        return f"{len(everybody)} more" + (f", {missing} of them missing" if missing else "")


def takeovers_text(takeovers: Any) -> str:
    """Of a node whose daemon was taken over."""
    times = "once" if takeovers["count"] == 1 else f"{takeovers['count']} times"
    return f"taken over {times}, last for {takeovers['cause']} in {takeovers['took_s']:.2f} s"


def _with_all_below(numbers: list[int], below: dict[int | None, list[int]]) -> Iterator[int]:
    waiting = list(numbers)
    while waiting:
        number = waiting.pop()
        yield number
        waiting += below.get(number, [])


def _depth_that_fits(at_depth: dict[int, int]) -> int:
    """The root's children are always shown."""
    depth, lines = 1, at_depth[0] + at_depth.get(1, 0)
    while depth < DEPTH_MAX and depth + 1 in at_depth and lines + at_depth[depth + 1] <= LINES_MAX:
        depth += 1
        lines += at_depth[depth]
    return depth


def _address(endpoint: str | None) -> str:
    return "no address" if endpoint is None else endpoint.removeprefix("tcp://")
