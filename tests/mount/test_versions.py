"""A job's node that runs another version of the program: it and the node that refuses it report
so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from copperfs import __version__
from copperfs.launch.curve_keys import write_key_file
from copperfs.wire.wire_version import VERSION
from tests.bootstrap.slurm import free_ports
from tests.mount.helpers import COMMAND_TIMEOUT_S, is_mounted
from tests.mount.jobs import JobNode

pytestmark = pytest.mark.mount

HOSTS, PORT = ("127.0.14.1", "127.0.14.2"), free_ports(1)[0]
OTHER = "9.9.1", 99
# The module that is imported before any other.
CUSTOM = f"""
import copperfs
copperfs.__version__ = {OTHER[0]!r}
import copperfs.wire.wire_version
copperfs.wire.wire_version.VERSION = {OTHER[1]}
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    write_key_file(str(tmp_path / "key"))
    (tmp_path / "hosts").write_text("".join(f"{each}:{PORT}\n" for each in HOSTS))
    (tmp_path / "meet").mkdir(0o700)
    return ("--wait-all", "--launch-timeout", "30")


def by_hostfile(work: Path) -> tuple[str, ...]:
    return ("--hostfile", str(work / "hosts"), "--key-file", str(work / "key"))


def by_rendezvous(work: Path) -> tuple[str, ...]:
    return ("--rendezvous", str(work / "meet"), "--nodes", "2", "--listen", "127.0.0.1")


@pytest.mark.parametrize("way", [by_hostfile, by_rendezvous])
@pytest.mark.parametrize("other", [0, 1])
def test_both_say_which_node_runs_what(
    way: object, other: int, tmp_path: Path, flags: tuple[str, ...], stack: ExitStack
) -> None:
    assert callable(way)
    (tmp_path / "source").mkdir()
    (tmp_path / "sitecustomize.py").write_text(CUSTOM)
    started = []
    for number, name in enumerate(HOSTS):
        node = JobNode(tmp_path / "source", tmp_path / f"n{number}", *way(tmp_path), *flags)
        node.name = name
        stack.callback(node.remove)
        environ = {"PYTHONPATH": str(tmp_path)} if number == other else {}
        started.append((node, node.begin(environ=environ)))
    for number, (node, process) in enumerate(started):
        said = process.communicate(timeout=COMMAND_TIMEOUT_S)[1]
        assert process.returncode in (4, 6)
        assert said.count("\n") == 1, said
        assert f"copperfs {OTHER[0]} (wire version {OTHER[1]})" in said
        assert f"copperfs {__version__} (wire version {VERSION})" in said
        assert "start all nodes from one installation" in said
        if way is by_hostfile:
            assert re.search(f"node {1 - number} runs .* this node, {number}, runs", said), said
        assert not is_mounted(node.mountpoint)
