"""The join socket: the question of a further run, and when the first run's answer fits it."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from copperfs.launch import launcher_variables
from copperfs.launch.join_socket import (
    LENGTH,
    READ_BY_RUN,
    JoinRequest,
    ResolvedRun,
    decisive,
    message,
    strings_of,
)
from copperfs.launch.run_report import RunReport
from tests.unit.test_layers import ROOT

# They find out what a run does.
DECIDING = (
    *("cli/run.py", "cli/in_place.py", "cli/options.py", "cli/rewriting.py"),
    *("inplace/covers.py", "inplace/writable_places.py", "inplace/path_lookup.py"),
    *("inplace/interpreters.py", "launch/launcher_variables.py"),
)
VARIABLE = re.compile(r"[A-Z][A-Z0-9]+(_[A-Z0-9]+)*")
# Ranks only decide who prints; PMI_FD and its like count by their presence.
# Words of help texts, a prefix, and what Python adds to an environment.
NO_VARIABLES = {"COMMAND", "DIR", "FILE", "LC_CTYPE", "MPI_LOCAL", "NAMES"}
OF_RANKS = {*launcher_variables._RANKS, "PMI_FD", "PMI_CONTROL_PORT"}

FIRST_RUN = ResolvedRun(
    words=("--shared", "/lus", "--", "python3"),
    cwd="/lus/me",
    environ={"PATH": "/bin", "HOME": "/home/me", "OWN_PATH": "/x"},
    prefix_names=("OWN_PATH",),
    command=("/lus/env/bin/python3",),
    variables={"COPPERFS_MOUNTPOINT": "/tmp/m"},
    mountpoint="/tmp/m",
    remove=True,
    with_parent=False,
    report=RunReport("/tmp/m", ("/lus/env",), "never", (), {}, expects_reads=True, summary=False),
)
REQUEST = JoinRequest("0" * 32, FIRST_RUN.cwd, (*FIRST_RUN.words, "x.py"), dict(FIRST_RUN.environ))


def test_each_variable_that_a_run_reads_is_compared() -> None:
    """A further run with another value of it would otherwise do as the first one."""
    found = set()
    for name in DECIDING:
        tree = ast.parse((ROOT / "copperfs" / name).read_text())
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(text)) if VARIABLE.fullmatch(text):
                    found.add(text)
    assert {"PYTHONPATH", "SLURM_NODEID", "TMPDIR"} <= found
    compared = set(launcher_variables.same_for_all(dict.fromkeys(found, "1")))
    own = {each for each in found if each.startswith("COPPERFS_")}
    assert found - compared - own - set(READ_BY_RUN) - OF_RANKS == NO_VARIABLES


def test_a_recipe_survives_the_way_to_the_daemon() -> None:
    line = json.loads(json.dumps(FIRST_RUN.line()))
    assert ResolvedRun.of_line(line) == FIRST_RUN
    plain = replace(FIRST_RUN, report=replace(FIRST_RUN.report, covered=None))
    assert ResolvedRun.of_line(json.loads(json.dumps(plain.line()))) == plain


@pytest.mark.parametrize(
    ("changed", "fits"),
    [
        ({}, True),
        ({"cwd": "/lus"}, False),
        ({"words": ("--", "true")}, False),
        ({"words": ("--shared", "/lus", "--", "python3", "y.py", "--", "z")}, True),
        ({"words": ("--shared", "/lus", "--", "python3.12", "x.py")}, False),
        ({"environ": REQUEST.environ | {"PMI_RANK": "7", "ANY": "1"}}, True),
        ({"environ": REQUEST.environ | {"OWN_PATH": "/y"}}, False),
        ({"environ": REQUEST.environ | {"COPPERFS_MEMORY": "1G"}}, False),
        ({"environ": REQUEST.environ | {"COPPERFS_RUN": "1"}}, True),
        ({"environ": REQUEST.environ | {"SLURM_STEP_ID": "1"}}, False),
        ({"environ": REQUEST.environ | {"PMI_FD": "1"}}, False),  # MPI started this one
        ({"environ": {"PATH": "/bin"}}, False),
    ],
)
def test_a_recipe_fits_whoever_would_find_out_the_same(
    changed: dict[str, object], fits: bool
) -> None:
    assert FIRST_RUN.fits(replace(REQUEST, **changed)) is fits  # type: ignore[arg-type]


def test_a_further_run_keeps_its_own_arguments() -> None:
    request = replace(REQUEST, words=("--shared", "/lus", "--", "python3", "y.py", "--rank", "3"))
    _, _, *more = strings_of(FIRST_RUN.answer(request, 2)[LENGTH.size :])
    assert more[3:8] == ["4", "/lus/env/bin/python3", "y.py", "--rank", "3"]


@pytest.mark.parametrize(
    ("words", "decide"),
    [
        (("--", "a", "b"), 2),
        (("a", "b"), 2),
        (("--", "/usr/bin/env", "X=1", "a"), 4),
        (("--",), 1),
        ((), 0),
    ],
)
def test_what_decides_is_told_from_the_program_s_arguments(
    words: tuple[str, ...], decide: int
) -> None:
    assert decisive(words) == words[:decide]


def test_a_request_is_read_as_it_was_written(tmp_path: Path) -> None:
    name = "caf\udce9"  # no UTF-8
    data = message("1", "0" * 32, "/a b", "2", "--", name, "HOME=/x=y", f"LAST={name}")
    (length,) = LENGTH.unpack(data[: LENGTH.size])
    assert length == len(data) - LENGTH.size
    request = JoinRequest.of(strings_of(data[LENGTH.size :]))
    assert request == JoinRequest("0" * 32, "/a b", ("--", name), {"HOME": "/x=y", "LAST": name})


@pytest.mark.parametrize(
    "strings",
    [[], ["1"], ["2", "t", "/", "1", "x"], ["1", "t", "/", "x"], ["1", "t", "/", "3", "x"]],
)
def test_what_is_no_request_is_refused(strings: list[str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        JoinRequest.of(strings)
