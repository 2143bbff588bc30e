"""Fixtures of every test here: an empty source, a package to import, and clusters that end."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.helpers import Cluster
from tests.standin import StandIn

Starter = Callable[..., Cluster]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    return root


@pytest.fixture
def package(source: Path) -> str:
    """With its dependencies, in the source; returns what to import. No file is above
    ``--tree-max``."""
    installed = Path(sysconfig.get_path("purelib"))
    for name in ("rich", "pygments", "markdown_it", "mdurl"):
        shutil.copytree(
            installed / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    return "rich.console, rich.markdown, pygments.lexers.python"


@pytest.fixture
def started(tmp_path: Path, source: Path) -> Iterator[Starter]:
    with ExitStack() as stack:
        count = 0

        def start(nodes: int, *flags: str, of: Path | None = None) -> Cluster:
            nonlocal count
            count += 1
            return stack.enter_context(
                Cluster(tmp_path / f"cluster{count}", nodes, of or source, *flags)
            )

        yield start


@pytest.fixture
def standin(source: Path) -> Iterator[StandIn]:
    with StandIn(source) as standin:
        yield standin
