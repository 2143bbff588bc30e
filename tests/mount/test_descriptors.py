"""A node with a low limit of descriptors, and strangers that take all they get."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from copperfs.launch.curve_keys import write_key_file
from tests.bootstrap.slurm import free_ports
from tests.mount.helpers import eventually
from tests.mount.jobs import JobNode

pytestmark = pytest.mark.mount

LIMIT, STRANGERS, FILES = 256, 300, 400
HOSTS, PORT = ("127.0.12.1", "127.0.12.2"), free_ports(1)[0]
LOOKS_S = 1.0
BUSY_AT_MOST = 0.5
"""The share of the time; a thread whose accepts all fail takes all of it."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.fixture
def nodes(tmp_path: Path, stack: ExitStack) -> list[JobNode]:
    """Of a hostfile, so that one can be up before the other. None is started."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(FILES):
        (source / f"{number}").write_text(f"content of {number}")
    write_key_file(str(tmp_path / "key"))
    (tmp_path / "hosts").write_text("".join(f"{each}:{PORT}\n" for each in HOSTS))
    flags = ("--hostfile", str(tmp_path / "hosts"), "--key-file", str(tmp_path / "key"))
    found = [JobNode(source, tmp_path / f"n{each}", *flags) for each in range(len(HOSTS))]
    for node, name in zip(found, HOSTS, strict=True):
        node.name = name
        stack.callback(node.remove)
    return found


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_strangers_that_keep_connections_open_take_nothing_from_readers_and_nodes(
    nodes: list[JobNode], stack: ExitStack
) -> None:
    node, other = nodes
    node.is_up(node.begin(("prlimit", f"--nofile={LIMIT}:{LIMIT}")))
    for _ in range(STRANGERS):
        stranger = stack.enter_context(socket.socket())
        stranger.connect((HOSTS[0], PORT))
    contents = {each: (node / f"{each}").read_text() for each in range(FILES)}
    assert contents == {each: f"content of {each}" for each in range(FILES)}

    crowded = partial(lambda: node.stats()["transport"]["crowded"] > 0)
    eventually(crowded, "connections were shut")
    before = cpu_s(node.pid)
    time.sleep(LOOKS_S)  # the time over which the daemon's CPU use is counted
    assert cpu_s(node.pid) - before < BUSY_AT_MOST * LOOKS_S

    other.is_up(other.begin())
    assert (other / "1").read_text() == "content of 1"
    assert node.stats()["transport"]["connections"] == 1
    assert node.log.read_text().count("too many connections") == 1
    node.check_log()
    other.check_log()
