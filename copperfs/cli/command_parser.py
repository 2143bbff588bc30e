"""Command parser: argparse with errors of one sentence, advice for misspelled words, and two
lengths of help.

An error is a ``UsageError``, which ``main`` prints as any other; argparse would print the usage.
``--help`` of a command that takes the settings of a mount shows only those that many users need
(``everyday``), in one line each; ``--help-all`` shows all.

Only this module and ``parser_outline.py`` use private names of argparse, which has no public way to
look into a parser.
"""

import argparse
import copy
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from copperfs.model.errors import UsageError

# How alike two words are that may be the same one, misspelled.
ALIKE = 0.7
# What fits before the help text of an option.
METAVAR_MAX = 12


class ParagraphFormatter(argparse.HelpFormatter):
    """Fills each paragraph by itself, and leaves alone those that fit."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = []
        for paragraph in text.strip("\n").split("\n\n"):
            lines = paragraph.splitlines()
            if max(map(len, lines), default=0) > width - len(indent):
                lines = textwrap.wrap(" ".join(lines), width - len(indent))
            filled.append("\n".join(indent + line for line in lines))
        return "\n\n".join(filled)


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """The known word that *word* may have been meant to be."""
    import difflib  # only after an error

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=ALIKE)
    return close[0] if close else None


class CommandParser(argparse.ArgumentParser):
    everyday: Mapping[str, str] | None = None
    """The settings that ``--help`` shows, with a text of a line each; None: all."""
    hidden_settings: frozenset[str] = frozenset()
    """The other settings, which only ``--help-all`` shows."""
    overview: str | None = None
    """The whole text of ``--help``."""

    def error(self, message: str) -> NoReturn:
        """Say it as a sentence, and where the arguments are explained."""
        said = message.removeprefix("argument ")
        required = re.fullmatch(r"the following arguments are required: (.*)", said)
        if required is not None:
            said = f"{required[1]} is missing"
        said = re.sub(r"(.*): expected (?:one|at least one) argument", r"\1 needs a value", said)
        choice = re.fullmatch(r".*?: invalid choice: (.*) \(choose from (.*)\)", said)
        if choice is not None:
            said = f"{choice[1]} is not one of {choice[2].replace(chr(39), '')}"
        raise usage_error(self, said)

    def format_help(self) -> str:
        if self.overview is not None:
            return self.overview
        if self.everyday is None:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_arguments(
                [_brief(each, self.everyday) for each in self._shown(group._group_actions)]
            )
            formatter.end_section()
        formatter.add_text(self.epilog)
        return f"usage: {self.prog} {self.brief_usage()}\n\n{formatter.format_help()}"

    def brief_usage(self) -> str:
        """Without its options."""
        positional = [each for each in self._actions if not each.option_strings]
        words = [self._get_formatter()._format_args(each, each.dest) for each in positional]
        return " ".join(["[OPTIONS]", *words])

    def format_usage(self) -> str:
        if self.everyday is None:
            return super().format_usage()
        return f"usage: {self.prog} {self.brief_usage()}\n"

    def _shown(self, actions: Iterable[argparse.Action]) -> Iterator[argparse.Action]:
        return (each for each in actions if each.dest not in self.hidden_settings)

    def refuse_unknown_options(self, words: Sequence[str]) -> None:
        """*words* are the arguments of this command, up to ``--``. argparse would first complain of
        the mount point that it takes an option's value for."""
        known = set(_flags(self))
        for word in words:
            flag = word.partition("=")[0]
            if not flag.startswith("-") or flag == "-" or _is_number(flag):
                continue
            if flag in known or (not flag.startswith("--") and flag[:2] in known):
                continue
            if flag.startswith("--") and any(each.startswith(flag) for each in known):
                continue
            close = suggestion(flag, known)
            advice = f"; did you mean {close}?" if close else ""
            raise usage_error(self, f"there is no option {flag}{advice}")


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Also of the commands below."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _flags(below)


def usage_error(parser: argparse.ArgumentParser, sentence: str) -> UsageError:
    command = parser.prog.partition(" ")[2]
    said = f"{command}: {sentence}" if command else sentence
    return UsageError(said, f"see: {parser.prog} --help")


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-\d+|-\d*\.\d+", word) is not None


def _brief(action: argparse.Action, texts: Mapping[str, str]) -> argparse.Action:
    if action.dest not in texts:
        return action
    found = copy.copy(action)
    found.help = texts[action.dest]
    if isinstance(action, argparse.BooleanOptionalAction):
        found.option_strings = [
            each for each in action.option_strings if not each.startswith("--no-")
        ]
    if "|" in str(action.metavar) and len(str(action.metavar)) > METAVAR_MAX:
        found.metavar = action.option_strings[0].rpartition("-")[2].upper()
    return found


class HelpAll(argparse.Action):
    """``--help-all``."""

    def __init__(self, option_strings: Sequence[str], dest: str, **how: Any) -> None:
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **how
        )

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, CommandParser)
        parser.everyday = None
        parser.usage = f"%(prog)s {parser.brief_usage()}"
        parser.print_help()
        parser.exit()
