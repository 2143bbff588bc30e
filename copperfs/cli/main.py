"""Entry point: finds the command, runs it, and turns errors into an exit code.

A command is a module with the names of ``Command``, listed in ``COMMANDS``. Only the requested
module is imported, which halves the cost of a short command; ``--help`` and an unknown command need
all. Command modules import heavy packages (pyfuse3, the daemon, rich) inside ``run``. Only ``LAB``
names the lab, which no command of the product imports.
"""

import argparse
import errno
import gettext
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, Protocol, cast

from copperfs import __version__
from copperfs.cli.command_parser import (
    CommandParser,
    ParagraphFormatter,
    suggestion,
    usage_error,
)
from copperfs.cli.output import print_error, print_json_error
from copperfs.cli.repeated_values import RepeatableAction, after_values, with_flags_repeated
from copperfs.model.errors import CopperError, UsageError

# For commands that name no others; the classes of ``model/errors.py`` have them, too.
EXIT_CODES = """\
exit codes: 0 done; 1 failed, or not on all nodes; 2 wrong usage or setting; 3 no C extension; 4
cannot mount or unmount; 5 a mount cannot be asked, or refuses; 6 a launch on several nodes failed;
130 interrupted.
"""
DESCRIPTION = "A read-only view of a shared filesystem, read once for the whole job."
# What standard output may say if its file cannot be written.
CANNOT_BE_WRITTEN = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])


class Command(Protocol):
    NAME: str  # two words, "config show", make a group
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def run(self, arguments: argparse.Namespace, /) -> int: ...


SECTIONS: dict[str, tuple[str, ...]] = {
    "Mount": ("mount", "umount", "status", "upgrade"),
    "Run a command": ("run", "enter", "record", "profile"),
    "Ask a mount": ("stats", "top", "tree", "ring"),
    "Fill and drop caches": ("warmup", "clear", "scrub"),
    "Set up, and find faults": (
        "config show",
        "doctor",
        "probe",
        "bugreport",
        "keygen",
        "completion",
    ),
}
COMMANDS: tuple[str, ...] = tuple(name for names in SECTIONS.values() for name in names)
LAB_SECTION = "Try it on one machine"
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


def build_parser(names: Sequence[str] | None = None) -> CommandParser:
    """The parser of all commands, or only of these."""
    parser = CommandParser(prog="copperfs", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"copperfs {__version__}")
    top = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    groups: dict[str, argparse._SubParsersAction[CommandParser]] = {}
    for command in map(command_named, command_names() if names is None else names):
        group, _, name = command.NAME.rpartition(" ")
        if group and group not in groups:
            group_parser = top.add_parser(group, help=f"commands about the {group}")
            groups[group] = group_parser.add_subparsers(metavar="COMMAND", required=True)
        command_parser = groups.get(group, top).add_parser(
            name, help=command.HELP, description=command.HELP[0].upper() + command.HELP[1:] + "."
        )
        command.add_arguments(command_parser)
        command_parser.formatter_class = ParagraphFormatter
        if "exit codes:" not in (command_parser.epilog or ""):
            command_parser.epilog = f"{command_parser.epilog or ''}\n{EXIT_CODES}".lstrip("\n")
        command_parser.set_defaults(command=command, parser=command_parser)
    if names is None:
        parser.overview = _overview()
    return parser


def _overview() -> str:
    """The text of ``copperfs --help``."""
    import textwrap

    lines = ["usage: copperfs COMMAND [ARGUMENTS]", "", DESCRIPTION]
    lab = tuple(name for name in command_names() if name not in COMMANDS)
    for title, names in {**SECTIONS, LAB_SECTION: lab}.items():
        lines += ["", f"{title}:"]
        for first in dict.fromkeys(name.split()[0] for name in names):
            below = [name for name in names if name.startswith(f"{first} ")]
            if len(below) > 1:
                about = " ".join(name.split()[1] for name in below)
                shown = first
            else:
                shown = below[0] if below else first
                about = command_named(shown).HELP
            lines += textwrap.wrap(
                f"{shown:14}{about}", 78, initial_indent="  ", subsequent_indent=" " * 16
            )
    lines += ["", "'copperfs help COMMAND' explains a command; each has --help, too."]
    return "\n".join(lines) + "\n"


def _requested(words: Sequence[str], names: Sequence[str]) -> list[str]:
    return [name for name in names if words[: name.count(" ") + 1] == name.split()]


def _command_words(words: Sequence[str]) -> list[str]:
    """With ``help COMMAND`` as ``COMMAND --help``."""
    if words[:1] != ["help"]:
        return list(words)
    return [*words[1:], "--help"]


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """``profile`` and ``record`` get the words after ``--`` unparsed: argparse takes an optional
    positional after an option as missing. The command of ``run`` is not parsed either, and needs no
    ``--`` before it."""
    words = _command_words(words)
    requested = _requested(words, COMMANDS) or _requested(words, command_names())
    if not requested:
        return _without_command(words)
    parser = build_parser(requested)
    command = _command_parser(parser)
    begin = requested[0].count(" ") + 1
    given, program = _split(words[begin:], command, requested[0])
    command.refuse_unknown_options(given)
    given = with_flags_repeated(given, command)
    if requested == ["run"] and program is not None:
        arguments = _parsed(parser, [*words[:begin], *given, "--", *program[:1]])
    else:
        arguments = _parsed(parser, [*words[:begin], *given])
    if program is not None:
        arguments.program = program
    return arguments


def _parsed(parser: CommandParser, words: list[str]) -> argparse.Namespace:
    arguments, more = parser.parse_known_args(words)
    if more:
        many = "arguments" if len(more) > 1 else "an argument"
        raise usage_error(arguments.parser, f"{' '.join(more)}: {many} too many")
    return arguments


def _without_command(words: Sequence[str]) -> NoReturn:
    """Show the help of all commands or of a group, or say that there is no such command."""
    names = [name.split() for name in command_names()]
    firsts = [name[0] for name in names]
    seconds = [name[1] for name in names if name[:1] == list(words[:1]) and len(name) > 1]
    parser = build_parser()
    if words[:1] in (["--version"], ["-h"], ["--help"]):
        parser.parse_args(words[:1])
    if not words or (seconds and (len(words) == 1 or words[1] in ("-h", "--help"))):
        parser.parse_args([*words[:1], "--help"]) if words[1:] else _print_help(parser, words)
    if not seconds:
        close = suggestion(words[0], [*firsts, "help"])
        what = "option" if words[0].startswith("-") else "command"
        said, where = f"there is no {what} {words[0]}", "copperfs"
    else:
        close = suggestion(words[1], seconds)
        close = close and f"{words[0]} {close}"
        said, where = f"there is no command {words[0]} {words[1]}", f"copperfs {words[0]}"
    advice = f"; did you mean 'copperfs {close}'?" if close else ""
    raise UsageError(f"{said}{advice}", f"see: {where} --help")


def _print_help(parser: CommandParser, words: Sequence[str]) -> NoReturn:
    """A missing command is wrong usage, and its help is what is looked for."""
    try:
        parser.parse_args([*words, "--help"])
    except SystemExit:
        raise SystemExit(UsageError.exit_code) from None
    raise AssertionError("--help ends it")


def _split(
    words: list[str], parser: CommandParser, name: str
) -> tuple[list[str], list[str] | None]:
    """The command's own words, and those of the program that it runs, unparsed."""
    if name == "run":
        end = _end_of_options(parser, words)
    elif name in ("profile", "record", "enter") and "--" in words:
        end = words.index("--")
    elif name == "record":
        end = _second_word(words, parser)
    else:
        end = None
    if end is None:
        return words, None
    return words[:end], words[end + 1 :] if words[end] == "--" else words[end:]


def _end_of_options(parser: CommandParser, words: Sequence[str]) -> int | None:
    """Where ``--`` is, or the first word that is neither an option nor a value; None if there is no
    command. An option that may be repeated takes one value without ``--``."""
    takes = {flag: action for action in parser._actions for flag in action.option_strings}
    at = 0
    while at < len(words):
        if words[at] == "--" or not words[at].startswith("-"):
            return at
        flag, equals, _ = words[at].partition("=")
        known = [takes[flag]] if flag in takes else []
        known += [action for each, action in takes.items() if each.startswith(flag)]
        at += 1
        if not known or known[0].nargs == 0:
            continue
        if isinstance(known[0], RepeatableAction) and not equals:
            at = _end_of_values(words, at)
        elif not equals:
            at += 1
    return None


def _second_word(words: Sequence[str], parser: CommandParser) -> int | None:
    """The place of the second word that is neither an option nor a value."""
    _, free = after_values(words, parser)
    return free[1] if len(free) > 1 else None


def _end_of_values(words: Sequence[str], begin: int) -> int:
    """Of absolute paths before ``--``, or the first word."""
    end = begin
    while end < len(words) and words[end].startswith("/"):
        end += 1
    return end if end < len(words) and words[end].startswith("--") else begin + 1


def _command_parser(parser: argparse.ArgumentParser) -> CommandParser:
    """That of the only command that *parser* knows."""
    while True:
        below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        found = list(below[0].choices.values()) if below else []
        if len(found) != 1:
            return cast(CommandParser, parser)
        [parser] = found


def main(argv: Sequence[str] | None = None) -> int:
    # For each of its texts argparse would look for translations below Python's prefix.
    gettext.bindtextdomain("messages", os.devnull)
    words = sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        arguments = _parse(words)
        command: Command = arguments.command
        code = command.run(arguments)
        sys.stdout.flush()
        return code
    except CopperError as error:
        return _told(error, as_json=as_json)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has enough.
        _silence_stdout()
        return 1
    except OSError as error:
        if error.errno not in CANNOT_BE_WRITTEN or error.filename is not None:
            raise
        _silence_stdout()
        print_error(f"standard output cannot be written: {error.strerror}")
        return 1


def _told(error: CopperError, *, as_json: bool) -> int:
    if not str(error):  # another rank reports it
        return error.exit_code
    if as_json:
        print_json_error(error)
        return error.exit_code
    print_error(str(error))
    if isinstance(error, UsageError) and error.hint:
        print_error(error.hint)
    return error.exit_code


def _silence_stdout() -> None:
    """Without it, Python would complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
