"""Progress messages: a terminal shows them, and other output does not."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from copperfs.cli.output import print_error, print_json, print_json_error, sentence_of
from copperfs.model.errors import MountError

WITHIN_S = 30.0
SCRIPT = """\
import sys, time
from copperfs.cli.output import waiting
with waiting("so far nothing") as say:
    say("three of four")
    time.sleep(float(sys.argv[1]))
print("done")
"""


def on_terminal(seconds: float, **variables: str) -> str:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(seconds)],
            stdout=subprocess.PIPE, stderr=theirs, timeout=WITHIN_S, check=True, text=True,
            env=os.environ | {"TERM": "xterm"} | variables,
        )  # fmt: skip
        assert done.stdout == "done\n"
        os.write(theirs, b"END")
        seen = b""
        while not seen.endswith(b"END"):
            seen += os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)
    return seen.decode().removesuffix("END")


def test_who_waits_long_is_shown_what_for() -> None:
    assert "three of four" in on_terminal(1.5)


def test_what_is_quick_flickers_not() -> None:
    assert on_terminal(0.0) == ""


def test_a_file_gets_none_of_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "1.5"],
        capture_output=True, text=True, timeout=WITHIN_S, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {}])
def test_colours_are_off_with_no_color(variables: dict[str, str]) -> None:
    assert ("\x1b[32m" in on_terminal(1.5, **variables)) is not bool(variables)


def test_an_error_is_read_back_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    for show in (print_json_error, lambda error: print_error(str(error))):
        show(MountError("/mnt is in use"))
        assert sentence_of(capsys.readouterr().err) == "/mnt is in use"


def test_each_document_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"nodes": 4})
    print_json({"version": 2, "nodes": 4})
    print_json(["object"])
    printed = capsys.readouterr().out.replace("\n", "").replace(" ", "")
    assert printed == '{"version":1,"nodes":4}{"version":2,"nodes":4}["object"]'
