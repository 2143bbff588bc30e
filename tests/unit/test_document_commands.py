"""Commands in documents: every command that a document tells its reader to type exists as written.

The parser gets the commands in blocks of code of the README, the guide and the examples. For a
synopsis, or a command within a sentence, the test looks up the command and its flags. ``make``
targets have to be in the Makefile.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from copperfs.cli.main import _parse, build_parser
from copperfs.cli.parser_outline import Page, pages
from copperfs.model.errors import UsageError
from tests.unit.test_layers import ROOT

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "examples" / "README.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "commands.md"),
]
PAGES = {page.name: page for page in pages(build_parser())}
# A block of some language, or an indented block, a paragraph of its own.
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)((?:    .*\n)+)")
_INLINE = re.compile(r"`(copperfs [^`]+)`")
_PLACEHOLDER = re.compile(r"\.\.\.|\[(?!\d)|\b(MNT|MOUNTPOINT|COMMAND|DIR|FILE|PORT|REQUEST)\b")


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def blocks(text: str) -> Iterator[str]:
    for language, block in _FENCED.findall(text):
        if language == "sh":
            yield block
        elif language == "console":
            yield "".join(re.findall(r"^\$ (.*\n)", block, re.MULTILINE))
    for block in _INDENTED.findall(_FENCED.sub("", text)):
        yield re.sub(r"^    ", "", block, flags=re.MULTILINE)


def commands(text: str, program: str) -> Iterator[list[str]]:
    """Wherever *program* stands in a line: behind a launcher, or in quotes."""
    for block in blocks(text):
        # A variable's value does not matter, but it may be a path.
        whole = re.sub(r"(\w?)\$(?:\w+|\{\w+\})", _value, block.replace("\\\n", " "))
        for line in whole.splitlines():
            line = re.sub(r"(^|\s)#.*", "", line)
            for part in re.split(r"&&|\|\||[|;&](?!\w)|\$\(|\bdo\b", line):
                found = re.search(rf"(?:^|[\s']|^\S*bin/){program}( .*)?$", part)
                if found and not re.match(r"[A-Za-z ]+: ", part):  # a quoted message
                    rest = (found[1] or "").removesuffix(")")
                    if rest.count("'") % 2:  # the quote began earlier
                        rest = rest.replace("'", "")
                    yield _words(rest)


def _value(found: re.Match[str]) -> str:
    return f"{found[1]}1" if found[1] else "/value"


def _words(line: str) -> list[str]:
    return shlex.split(re.sub(r"\s\d?>.*", "", line))


def page_of(words: list[str]) -> Page | None:
    for count in (2, 1):
        if page := PAGES.get(" ".join(words[:count])):
            return page
    return None


def is_accepted(words: list[str]) -> bool:
    try:
        _parse(words)
    except SystemExit as end:
        return end.code == 0  # --help and --version
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("document", DOCUMENTS, ids=names(DOCUMENTS))
def test_every_command_is_understood_as_it_is_written(document: Path) -> None:
    for words in commands(document.read_text(), "copperfs"):
        line = " ".join(words)
        if _PLACEHOLDER.search(line):
            assert_is_known(line)
            continue
        assert is_accepted(words), f"copperfs {line}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=names(DOCUMENTS))
def test_what_a_sentence_names_exists(document: Path) -> None:
    for line in _INLINE.findall(_FENCED.sub("", document.read_text())):
        assert_is_known(line.removeprefix("copperfs "))


def assert_is_known(line: str) -> None:
    """The line names a command or a group of commands, and its flags exist."""
    line = line.partition(" -- ")[0]
    words = re.findall(r"[\w.-]+", line)
    if words[0].startswith("-") or words[0].isupper():
        return
    page = page_of(words)
    if page is None:
        group = {name.partition(" ")[2] for name in PAGES if name.startswith(f"{words[0]} ")}
        assert group, f"copperfs {line}"
        assert len(words) == 1 or words[1] in group or words[1].isupper(), f"copperfs {line}"
        return
    flags = {flag for argument in page.arguments for flag in argument.flags} | {"--no-NAME"}
    flags |= {f"--no-{flag[2:]}" for flag in flags}
    for flag in re.findall(r"(?<!\S)\[?(--[\w-]+)", line):
        assert flag in flags, f"copperfs {line}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=names(DOCUMENTS))
def test_every_make_target_exists(document: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = document.read_text()
    named = [words[0] for words in commands(text, "make") if words and "=" not in words[0]]
    named += re.findall(r"`make ([a-z-]+)", text)
    assert set(named) <= set(targets)


def test_the_readme_has_the_two_commands_of_a_fresh_machine() -> None:
    found = list(commands((ROOT / "README.md").read_text(), "make"))
    assert found[:2] == [["demo"], ["test"]]


def test_something_is_found_in_most_documents() -> None:
    """Otherwise the patterns above could match nothing."""
    found = {
        str(path.relative_to(ROOT)): len(list(commands(path.read_text(), "copperfs")))
        for path in DOCUMENTS
    }
    assert found["README.md"] >= 15
    for name in ("cluster", "launching", "pfs-sim", "running", "simulator", "warmup"):
        assert found[f"docs/{name}.md"] >= 2, name
    assert sum(found.values()) > 80, found


@pytest.mark.parametrize(
    "line", ["mount --no-such /mnt", "cluster upp -n 4", "stats --jason /mnt", "nonsense /mnt"]
)
def test_what_does_not_exist_is_noticed(line: str) -> None:
    with pytest.raises(AssertionError):
        assert_is_known(line)
    assert not is_accepted(line.split())
