"""docs/statistics.md names every key of the JSON of the commands about a mount."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_layers import ROOT

WITHIN_S = 120.0
COPPERFS = [sys.executable, "-m", "copperfs.cli.main"]

pytestmark = pytest.mark.mount


def copperfs(*arguments: str | Path) -> str:
    return subprocess.run(
        [*COPPERFS, *arguments], capture_output=True, text=True, timeout=WITHIN_S, check=True
    ).stdout


@pytest.fixture
def documents(tmp_path: Path) -> Iterator[list[Any]]:
    source, mountpoint = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    (source / "large").write_bytes(bytes(3 << 20))
    tier = ("--tier-dir", tmp_path / "tier", "--tree-max", "1MiB")
    copperfs("mount", mountpoint, "--source", source, *tier)
    try:
        yield [
            json.loads(copperfs(*command, "--json", mountpoint))
            for command in (
                ["stats"],
                ["stats", "--all"],
                ["tree"],
                ["clear"],
                ["ring"],
                ["scrub"],
                ["scrub", "--all"],
            )
        ] + [json.loads(copperfs("ring", "--json", mountpoint, "large"))]
    finally:
        copperfs("umount", mountpoint)


def keys_of(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        yield from document
        document = list(document.values())
    if isinstance(document, list):
        for value in document:
            yield from keys_of(value)


def test_every_key_is_documented(documents: list[Any]) -> None:
    text = (ROOT / "docs" / "statistics.md").read_text()
    documented = {
        part for span in re.findall(r"`([^`\n]+)`", text) for part in re.findall(r"\w+", span)
    }
    assert set(keys_of(documents)) - documented == set()
