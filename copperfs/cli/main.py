"""Entry point: finds the command, runs it, and turns errors into an exit code.

A command is a module with the names of ``Command``, listed in ``COMMANDS``. Only the requested
module is imported, which halves the cost of a short command; ``--help`` and an unknown command need
all. Command modules import heavy packages (pyfuse3, the daemon, rich) inside ``run``. Only ``LAB``
names the lab, which no command of the product imports.
"""

import argparse
import gettext
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from copperfs import __version__
from copperfs.cli.output import print_error
from copperfs.model.errors import CopperError

# For commands that name no others.
EXIT_CODES = """\
exit codes: 0 done; 1 an error, told on standard error; 2 wrong usage; 130
interrupted.
"""


class Command(Protocol):
    NAME: str  # two words, "config show", make a group
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def run(self, arguments: argparse.Namespace, /) -> int: ...


COMMANDS: tuple[str, ...] = (
    "mount",
    "umount",
    "upgrade",
    "run",
    "enter",
    "stats",
    "top",
    "tree",
    "clear",
    "warmup",
    "record",
    "ring",
    "scrub",
    "profile",
    "config show",
    "doctor",
    "bugreport",
    "keygen",
    "completion",
)
LAB = "copperfs.lab.commands"


def command_names() -> tuple[str, ...]:
    """In the order of ``--help``."""
    return (*COMMANDS, *import_module(LAB).COMMANDS)


def command_named(name: str) -> Command:
    if name in COMMANDS:
        found: Command = cast(Any, import_module(f"copperfs.cli.{name.replace(' ', '_')}"))
    else:
        found = import_module(LAB).command_named(name)
    return found


def build_parser(names: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser of all commands, or only of these."""
    parser = argparse.ArgumentParser(
        prog="copperfs",
        description="A read-only view of a shared filesystem, read once for the whole job.",
    )
    parser.add_argument("--version", action="version", version=f"copperfs {__version__}")
    top = parser.add_subparsers(metavar="COMMAND", required=True)
    groups: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    for command in map(command_named, command_names() if names is None else names):
        group, _, name = command.NAME.rpartition(" ")
        if group and group not in groups:
            group_parser = top.add_parser(group, help=f"commands about the {group}")
            groups[group] = group_parser.add_subparsers(metavar="COMMAND", required=True)
        command_parser = groups.get(group, top).add_parser(
            name, help=command.HELP, description=command.HELP[0].upper() + command.HELP[1:] + "."
        )
        command.add_arguments(command_parser)
        command_parser.formatter_class = argparse.RawDescriptionHelpFormatter
        if "exit codes:" not in (command_parser.epilog or ""):
            command_parser.epilog = f"{command_parser.epilog or ''}\n{EXIT_CODES}".lstrip("\n")
        command_parser.set_defaults(command=command)
    return parser


def _requested(words: Sequence[str], names: Sequence[str]) -> list[str]:
    return [name for name in names if words[: name.count(" ") + 1] == name.split()]


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """``profile`` gets the words after ``--`` unparsed: argparse takes an optional positional after
    an option as missing. The command of ``run`` is not parsed either, and needs no ``--`` before
    it."""
    parser = build_parser(_requested(words, COMMANDS) or _requested(words, command_names()) or None)
    end = None
    if words[:1] == ["run"]:
        end = _end_of_options(parser, words)
    elif words[:1] == ["profile"] and "--" in words:
        end = words.index("--")
    if end is None:
        return parser.parse_args(words)
    program = list(words[end + 1 :] if words[end] == "--" else words[end:])
    if words[:1] == ["profile"]:
        arguments = parser.parse_args(words[:end])
        arguments.program = program
        return arguments
    arguments = parser.parse_args([*words[:end], "--", *program[:1]])
    arguments.program = program
    return arguments


def _end_of_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> int | None:
    """Where ``--`` is, or the first word that is neither an option nor a value; None if there is no
    command. An option of several values takes one without ``--``."""
    takes = {flag: action for action in _actions(parser) for flag in action.option_strings}
    at = 1
    while at < len(words):
        if words[at] == "--" or not words[at].startswith("-"):
            return at
        flag, equals, _ = words[at].partition("=")
        known = [takes[flag]] if flag in takes else []
        known += [action for each, action in takes.items() if each.startswith(flag)]
        at += 1
        if not known or known[0].nargs == 0:
            continue
        if known[0].nargs == "+":
            at = _end_of_values(words, at)
        elif not equals:
            at += 1
    return None


def _end_of_values(words: Sequence[str], begin: int) -> int:
    """Of absolute paths before ``--``, or the first word."""
    end = begin
    while end < len(words) and words[end].startswith("/"):
        end += 1
    return end if end < len(words) and words[end].startswith("--") else begin + 1


def _actions(parser: argparse.ArgumentParser) -> Sequence[argparse.Action]:
    """Those of the only command that *parser* knows."""
    [commands] = [each for each in parser._actions if isinstance(each.choices, dict)]
    [command] = cast(dict[str, argparse.ArgumentParser], commands.choices).values()
    return command._actions


def main(argv: Sequence[str] | None = None) -> int:
    # For each of its texts argparse would look for translations below Python's prefix.
    gettext.bindtextdomain("messages", os.devnull)
    arguments = _parse(sys.argv[1:] if argv is None else list(argv))
    command: Command = arguments.command
    try:
        return command.run(arguments)
    except CopperError as error:
        if str(error):  # else another rank reports it
            print_error(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has enough; without this, Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
