"""Command pages: man pages, docs/commands.md and shell completion agree with ``--help``."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from copperfs.cli.completion import SHELLS
from copperfs.cli.main import build_parser, main
from copperfs.cli.parser_outline import Page, pages
from copperfs.lab.manual import man, markdown
from copperfs.lab.manual.page_texts import paragraphs
from tests.unit.test_layers import ROOT

PAGES = list(pages(build_parser()))
WITHIN_S = 60.0


def has(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    return found


# ---- kept pages equal generated ones -------------------------------------------------------------


def test_the_document_of_commands_is_current() -> None:
    written = (ROOT / "docs" / "commands.md").read_text()
    assert written == markdown.render_commands(), (
        "run: python -m copperfs.lab.manual.markdown commands > docs/commands.md"
    )


def test_the_man_pages_are_current() -> None:
    written = {path.name: path.read_text() for path in (ROOT / "man").glob("*.1")}
    assert written == man.render_all(), "run: python -m copperfs.lab.manual.man man"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_says_its_exit_codes_and_explains_its_arguments(page: Page) -> None:
    assert page.summary
    assert paragraphs(page)[1], "exit codes"
    seen: set[str] = set()
    for each in page.arguments:
        assert len(each.help.split()) >= 2, each
        assert not each.help.lower().startswith("default"), each
        assert each.help not in seen, each
        seen.add(each.help)
        if each.metavar in ("MNT", "MOUNTPOINT"):
            assert "mount" in each.help, each
        if each.metavar == "COMMAND":
            assert "--" in each.help, each


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_the_help_of_every_command_fits_80_columns(
    page: Page, flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not any(flag in each.flags for each in page.arguments):
        return
    monkeypatch.setenv("COLUMNS", "80")
    words = page.name.split()
    if words[0] == "pfs-ask":
        words.insert(1, "/mnt")
    with pytest.raises(SystemExit):
        main([*words, flag])
    for line in capsys.readouterr().out.splitlines():
        assert len(line) <= 80, line


# They print nothing of their own, or requested data as it is.
WITHOUT_JSON = {
    *("mount", "run", "enter", "record", "keygen", "completion", "pfs-sim"),
    *(f"cluster {word}" for word in ("kill", "start", "stop", "cont", "cut", "drop", "heal")),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_prints_prints_json(page: Page) -> None:
    has_json = any("--json" in each.flags for each in page.arguments)
    assert has_json != (page.name in WITHOUT_JSON)


# ---- man -----------------------------------------------------------------------------------------


def test_the_man_pages_are_sound() -> None:
    mandoc = has("mandoc")
    for path in sorted((ROOT / "man").glob("*.1")):
        done = subprocess.run(
            [mandoc, "-T", "lint", "-W", "error", path],
            capture_output=True, text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_a_man_page_reads_as_the_help_does() -> None:
    done = subprocess.run(
        [has("mandoc"), "-T", "ascii", ROOT / "man" / "copperfs-run.1"],
        capture_output=True, text=True, timeout=WITHIN_S, check=True,
    )  # fmt: skip
    text = re.sub(".\b", "", done.stdout)
    words = " ".join(text.split())
    assert "copperfs run [OPTIONS] -- COMMAND..." in words
    assert "--prefix-env NAMES" in words
    assert "EXIT STATUS that of the command; 128 and the number of the signal" in words
    assert "~/.config/copperfs.toml" in words


# ---- completion ----------------------------------------------------------------------------------

ASKED = [
    (["mou"], "mount"),
    (["config", ""], "show"),
    (["mount", "--symlinks", ""], "rewrite"),
    (["run", "--prefix"], "--prefix-env"),
    (["cluster", "up", "--net"], "--netns"),
    (["stats", "fil"], "file-of-mine"),
    (["completion", "z"], "zsh"),
]


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "file-of-mine").touch()
    path = tmp_path / "script"
    done = subprocess.run(
        [sys.executable, "-m", "copperfs.cli.main", "completion", request.param],
        capture_output=True, text=True, timeout=WITHIN_S, check=True, cwd=ROOT,
    )  # fmt: skip
    path.write_text(done.stdout)
    return path


@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(("words", "expected"), ASKED)
def test_bash_completes(script: Path, words: list[str], expected: str) -> None:
    line = " ".join(f"'{word}'" for word in ["copperfs", *words])
    program = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _copperfs; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [has("bash"), "-u", "-c", program],
        capture_output=True, text=True, timeout=WITHIN_S, check=True, cwd=script.parent,
    )  # fmt: skip
    assert expected in done.stdout.splitlines(), done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("script", ["fish"], indirect=True)
@pytest.mark.parametrize(("words", "expected"), ASKED)
def test_fish_completes(script: Path, words: list[str], expected: str) -> None:
    line = " ".join(["copperfs", *words])
    done = subprocess.run(
        [has("fish"), "--no-config", "-c", f"source {script}; complete -C '{line}'"],
        capture_output=True, text=True, timeout=WITHIN_S, check=True, cwd=script.parent,
        env=os.environ | {"HOME": str(script.parent)},
    )  # fmt: skip
    assert expected in [each.partition("\t")[0] for each in done.stdout.splitlines()], done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
@pytest.mark.parametrize(("words", "expected"), ASKED)
def test_zsh_completes(script: Path, words: list[str], expected: str) -> None:
    """zsh completes only on a key press."""
    zsh = has("zsh")
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(script.parent)
        os.execve(
            zsh,
            [zsh, "-f", "-i"],
            {"TERM": "dumb", "HOME": str(script.parent), "PATH": "/usr/bin:/bin"},
        )
    try:
        start = "unsetopt zle_bracketed_paste; PS1=; autoload -U compinit; compinit -D; "
        os.write(terminal, f"{start}source {script}; echo rea''dy\n".encode())
        seen = _read_until(terminal, b"ready\r")
        assert b"parse error" not in seen
        os.write(terminal, f"copperfs {' '.join(words)}\t\t".encode())
        seen = _read_until(terminal, expected.encode())
        assert b"command not found" not in seen
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def _read_until(terminal: int, words: bytes) -> bytes:
    import select

    seen, deadline = b"", time.monotonic() + 20
    while words not in seen:
        left = deadline - time.monotonic()
        if left < 0 or not select.select([terminal], [], [], left)[0]:
            raise AssertionError(f"{words!r} is not in {seen!r}")
        seen += os.read(terminal, 4096)
    return seen


def test_each_shell_knows_every_command_and_flag() -> None:
    for shell, make in SHELLS.items():
        text = make(PAGES)
        for page in PAGES:
            assert page.name.split()[-1] in text
            for each in page.arguments:
                for flag in each.flags:
                    written = (
                        flag
                        if shell != "fish"
                        else f" {'-l' if flag[1] == '-' else '-s'} {flag.lstrip('-')}"
                    )
                    assert written in text, (shell, page.name, flag)
