"""Repeated values: ``--shared A --shared B``, and the older ``--shared A B``.

Options of several values once took all words up to the next option. Scripts were documented to put
the mount point before them, and go on working with a warning: words that follow such an option's
value belong to it if the command's own arguments are complete without them.
"""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from copperfs.cli.output import print_warning


class RepeatableAction(argparse.Action):
    """Adds each value to a list, as ``append`` does, without a default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        found = getattr(namespace, self.dest, None) or []
        setattr(namespace, self.dest, [*found, values])


def with_flags_repeated(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """*words* with the flag before each of its values."""
    attached, free = after_values(words, parser)
    if not attached or len(free) < _positionals_max(parser, words, attached):
        return list(words)
    flags = sorted(set(attached.values()))
    print_warning(f"give each value its own flag, as in {flags[0]} A {flags[0]} B")
    result: list[str] = []
    for at, word in enumerate(words):
        result += [attached[at], word] if at in attached else [word]
    return result


def _positionals_max(
    parser: argparse.ArgumentParser, words: Sequence[str], attached: dict[int, str]
) -> int:
    """How many words the command takes besides its options."""
    if "--all" in words:
        return 0
    # Its mount point may be left out, and is mounted if it is given.
    if parser.prog.endswith(" doctor") and not os.path.ismount(words[max(attached)]):
        return 0
    taken = [each for each in parser._actions if not each.option_strings]
    return sum(1 if each.nargs in (None, "?") else 1000 for each in taken if each.dest != "program")


def after_values(
    words: Sequence[str], parser: argparse.ArgumentParser
) -> tuple[dict[int, str], list[int]]:
    """The places of words that directly follow the value of a repeatable option, each with the
    option's flag, and those of all others that are neither options nor values."""
    takes = {flag: action for action in parser._actions for flag in action.option_strings}
    attached: dict[int, str] = {}
    free: list[int] = []
    flag, left = "", 0
    for at, word in enumerate(words):
        if word.startswith("-") and word != "-":
            name, equals, _ = word.partition("=")
            found = takes.get(name) or next(
                (action for each, action in takes.items() if each.startswith(name)), None
            )
            many = isinstance(found, RepeatableAction)
            flag = name if many and not equals else ""
            left = 0 if found is None or found.nargs == 0 or equals else 1
        elif left:
            left -= 1
        elif flag:
            attached[at] = flag
        else:
            free.append(at)
    return attached, free
