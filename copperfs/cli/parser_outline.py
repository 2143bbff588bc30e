"""Command tree: the commands as data for man pages, shell completion and ``docs/commands.md``, read
from the parsers of ``--help``.

This module and ``command_parser.py`` use private names of argparse, which has no public way to walk
parsers.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from copperfs.cli.repeated_values import RepeatableAction

# Metavars of files and directories.
PATHS = frozenset(
    ["PATH", "FILE", "DIR", "D", "MNT", "MOUNTPOINT", "PREFIX", "SOURCE", "DIRECTORY", "PORT|FILE"]
)


@dataclass(frozen=True, slots=True)
class Argument:
    flags: tuple[str, ...]
    metavar: str
    """Empty if it takes no value."""
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
    name: str
    """Such as ``mount`` or ``config show``."""
    summary: str
    arguments: tuple[Argument, ...]
    epilog: str


def pages(parser: argparse.ArgumentParser) -> Iterator[Page]:
    yield from _below(parser, "", "", "")


def _below(parser: argparse.ArgumentParser, name: str, summary: str, epilog: str) -> Iterator[Page]:
    """A subparser without an epilog inherits its parent's."""
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
            if action.help == argparse.SUPPRESS:
                continue
            title = group.title or ""
            metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
            yield Argument(
                tuple(action.option_strings),
                metavar if action.nargs != 0 else "",
                formatter._expand_help(action) if action.help else "",
                "" if title in ("options", "positional arguments") else title,
                action.nargs in ("?", "*") or (bool(action.option_strings) and not action.required),
                action.nargs in ("*", "+") or isinstance(action, RepeatableAction),
            )
