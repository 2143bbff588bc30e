"""docs/pfs-sim.md: it has every option of ``copperfs pfs-sim`` and every request of ``pfs-ask``."""

import argparse
import re
from pathlib import Path

from copperfs.lab.commands import pfs_ask, pfs_sim
from tests.unit.test_layers import ROOT

DOCUMENT = Path(ROOT / "docs" / "pfs-sim.md").read_text()


def test_every_option_is_documented_with_its_default() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    pfs_sim.add_arguments(parser)
    rows = {
        cells[0]: cells[1]
        for line in DOCUMENT.splitlines()
        if (cells := [cell.strip() for cell in line.split("|")[1:]]) and "`--" in cells[0]
        if len(cells) == 4
    }
    told = {flag: row for row in rows for flag in re.findall(r"--[\w-]+", row)}
    flags = {flag: action for action in parser._actions for flag in action.option_strings}
    assert set(told) == set(flags)
    for flag, row in told.items():
        default = re.search(r"Default: (.*)\.$", flags[flag].help or "")
        if default is not None and flags[flag].metavar in ("DURATION", "N", "SIZE"):
            assert rows[row] == default[1], flag


def test_every_request_is_documented() -> None:
    parser = argparse.ArgumentParser()
    pfs_ask.add_arguments(parser)
    (requests,) = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    table = DOCUMENT.partition("| request |")[2].partition("\n\n")[0]
    told = {
        request.split()[0]
        for line in table.splitlines()[2:]
        for request in re.findall(r"`([^`]+)`", line.split("|")[1])
    }
    assert told == set(requests)
