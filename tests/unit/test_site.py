"""Documentation site: the documents build, and a broken link fails the build."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_layers import ROOT

WITHIN_S = 180.0
NEEDED = ["mkdocs.yml", "README.md", "CHANGELOG.md", "examples/README.md"]

pytest.importorskip("mkdocs")


def build(top: Path, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", where],
        cwd=top, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    shutil.copytree(ROOT / "docs", top / "docs")
    (top / "examples").mkdir()
    for name in NEEDED:
        shutil.copy(ROOT / name, top / name)
    return top


def test_the_site_builds_and_fetches_nothing(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    names = {str(page.relative_to(tmp_path / "site")) for page in pages}
    assert {
        "readme.html",
        "examples.html",
        "options.html",
        "decisions/0070-a-connection-is-a-use.html",
    } <= names
    for page in pages:
        text = page.read_text()
        assert not re.search(r"<(script|link|img)[^>]+(src|href)=.?https?://", text), page


def test_every_document_can_be_found_in_the_navigation() -> None:
    named = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= named


@pytest.mark.parametrize(
    "link",
    ["[gone](gone.md)", "[gone](options.md#gone)", "![gone](gone.svg)", "[x](../README.md#no)"],
)
def test_a_link_that_leads_nowhere_fails_it(copy: Path, tmp_path: Path, link: str) -> None:
    index = copy / "docs" / "index.md"
    index.write_text(index.read_text() + f"\n{link}\n")
    done = build(copy, tmp_path / "site")
    assert done.returncode != 0
    assert "WARNING" in done.stderr
