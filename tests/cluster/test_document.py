"""docs/cluster.md lists all commands; ``tests/mount/test_document_commands.py`` executes them."""

from __future__ import annotations

import re

from copperfs.cli import main as cli
from tests.unit.test_layers import ROOT

DOCUMENT = (ROOT / "docs" / "cluster.md").read_text()


def test_the_document_has_all_commands() -> None:
    commands = {each for each in cli.command_names() if each.startswith("cluster ")}
    assert commands == set(re.findall(r"^\| `(cluster \w+)", DOCUMENT, re.MULTILINE))
