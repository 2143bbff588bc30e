"""Command tree: the commands as data, read from the parsers that also give ``--help``. Man pages,
shell completion and ``docs/commands.md`` are made from it, so that they agree with ``--help``.

argparse has no public way to walk its parsers; only this module uses its private names.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

# The metavars that stand for a file or a directory.
PATHS = frozenset(
    ["PATH", "FILE", "DIR", "D", "MNT", "MOUNTPOINT", "PREFIX", "SOURCE", "DIRECTORY", "PORT|FILE"]
)


@dataclass(frozen=True, slots=True)
class Argument:
    """A flag with its names, or a positional argument."""

    flags: tuple[str, ...]
    metavar: str
    """The placeholder for its value; empty if it takes none."""
    help: str
    group: str
    optional: bool
    repeated: bool

    @property
    def choices(self) -> tuple[str, ...]:
        """The possible values, if they are a few words."""
        words = tuple(self.metavar.split("|"))
        return words if len(words) > 1 and all(word.islower() for word in words) else ()

    @property
    def names_path(self) -> bool:
        return self.metavar in PATHS


@dataclass(frozen=True, slots=True)
class Page:
    """A command."""

    name: str
    """Such as ``mount`` or ``config show``."""
    summary: str
    arguments: tuple[Argument, ...]
    epilog: str


def pages(parser: argparse.ArgumentParser) -> Iterator[Page]:
    """All commands, in the order of ``--help``, each group together."""
    yield from _below(parser, "", "", "")


def _below(parser: argparse.ArgumentParser, name: str, summary: str, epilog: str) -> Iterator[Page]:
    """A subparser inherits the epilog of its parent unless it has one itself."""
    epilog = parser.epilog or epilog
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            about = {each.dest: each.help or "" for each in action._choices_actions}
            for word, each in action.choices.items():
                yield from _below(each, f"{name} {word}".strip(), about.get(word, ""), epilog)
            return
    summary = (parser.description or summary).rstrip(".")
    yield Page(name, summary[:1].upper() + summary[1:], tuple(_arguments(parser)), epilog)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[Argument]:
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        for action in group._group_actions:
            title = group.title or ""
            metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
            yield Argument(
                tuple(action.option_strings),
                metavar if action.nargs != 0 else "",
                formatter._expand_help(action) if action.help else "",
                "" if title in ("options", "positional arguments") else title,
                action.nargs in ("?", "*") or (bool(action.option_strings) and not action.required),
                action.nargs in ("*", "+"),
            )
