"""Every command that the README tells its reader to type exists.

Taken from the ``sh`` blocks: ``make`` targets have to be in the Makefile, and the arguments of
``copperfs`` have to be accepted by its parser. Other commands are not looked at.
"""

import re
import shlex

import pytest

from copperfs.cli.main import build_parser
from tests.unit.test_layers import ROOT


def command_lines() -> list[list[str]]:
    """The words of each simple command in the README, without variables set before it."""
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    commands = []
    text = "".join(blocks).replace("\\\n", " ")
    # What a variable holds does not matter here, but that it can be a path does.
    for line in re.sub(r"\$(\w+|\{\w+\})", "/value", text).splitlines():
        for part in re.split(r"&&|\|\||[|;]", line):
            words = shlex.split(part, comments=True)
            while words and re.match(r"\w+=", words[0]):
                words.pop(0)
            if words:
                commands.append(words)
    return commands


def commands_of(program: str) -> list[list[str]]:
    return [words[1:] for words in command_lines() if words[0] == program]


def test_the_readme_has_the_two_commands_of_a_fresh_machine() -> None:
    assert commands_of("make")[:2] == [["demo"], ["test"]]


def test_every_make_target_in_the_readme_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words in commands_of("make"):
        assert words[0] in targets


@pytest.mark.parametrize("words", commands_of("copperfs"), ids=" ".join)
def test_every_copperfs_command_in_the_readme_is_understood(words: list[str]) -> None:
    build_parser().parse_args(words)
