"""Nodes of a hostfile with names, and a resolver (``names.c``) that does not answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from copperfs.launch.curve_keys import write_key_file
from tests.bootstrap.slurm import free_ports
from tests.mount.helpers import COMMAND_TIMEOUT_S, copperfs, eventually
from tests.mount.jobs import JobNode
from tests.mount.keepers import kill_with_keeper

pytestmark = pytest.mark.mount

NAMES, PORT = ("alpha", "beta", "gamma"), free_ports(1)[0]
ELSEWHERE = "127.0.13.9"


def address(number: int) -> str:
    return f"127.0.13.{number + 1}"


class Town:
    """Three nodes, each of which asks the one before it: alpha, beta, gamma."""

    def __init__(self, work: Path) -> None:
        self.source, self.book = work / "source", work / "book"
        for each in (self.source, self.book):
            each.mkdir()
        for number in range(10):
            (self.source / f"{number}").write_text(f"content of {number}")
        library = work / "names.so"
        code = Path(__file__).with_name("names.c")
        subprocess.run(
            ["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, code, "-ldl"], check=True
        )
        self.environ = {"LD_PRELOAD": str(library), "COPPERFS_TEST_NAMES": str(self.book)}
        for number, name in enumerate(NAMES):
            (self.book / name).write_text(address(number))
        write_key_file(str(work / "key"))
        (work / "hosts").write_text("".join(f"{each}:{PORT}\n" for each in NAMES))
        flags = ("--hostfile", str(work / "hosts"), "--key-file", str(work / "key"))
        self.flags = (*flags, "--fanout", "1", "--trees", "1", "--dead-after", "5")
        self.work = work

    def node(self, number: int, *flags: str, at: str | None = None) -> JobNode:
        where = ("--listen", at or address(number))
        found = JobNode(self.source, self.work / f"n{number}", *self.flags, *where, *flags)
        found.name = NAMES[number]
        return found

    def hold(self, name: str) -> None:
        (self.book / f"{name}.asked").unlink(missing_ok=True)
        (self.book / f"{name}.held").touch()

    def let_go(self) -> None:
        for each in self.book.glob("*.held"):
            each.unlink()

    def was_asked(self, name: str) -> bool:
        return (self.book / f"{name}.asked").exists()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.fixture
def town(tmp_path: Path, stack: ExitStack) -> Town:
    found = Town(tmp_path)
    # Threads that wait for an answer would keep their daemons.
    stack.callback(found.let_go)
    return found


def test_a_resolver_that_hangs_stops_nobody_and_a_node_that_moved_is_found(
    town: Town, stack: ExitStack
) -> None:
    nodes = [town.node(each, "--shared", str(town.source)) for each in range(3)]
    for node in nodes:
        stack.callback(node.remove)
    for node, started in [(node, node.begin(environ=town.environ)) for node in nodes]:
        node.is_up(started)
    alpha, beta, gamma = nodes
    assert (gamma / "0").read_text() == "content of 0"

    town.hold("alpha")
    kill_with_keeper(alpha.pid)
    eventually(partial(town.was_asked, "alpha"), "beta looks for alpha")
    taken = gamma.stats()["transport"]["received"]
    assert beta.stats()["transport"]["connections"] >= 1
    assert 1 in answered(gamma), "beta, which waits for the resolver"
    for number in range(1, 10):
        assert (gamma / f"{number}").read_text() == f"content of {number}"
    assert gamma.stats()["transport"]["received"] > taken

    (town.book / "alpha").write_text(ELSEWHERE)
    (town.book / "alpha.held").unlink()
    alpha.remove()
    again = town.node(0, "--shared", str(town.source), at=ELSEWHERE)
    stack.callback(again.remove)
    again.is_up(again.begin(environ=town.environ))
    eventually(lambda: answered(again) == {0, 1, 2}, "all hear of each other again")
    for node in (again, beta, gamma):
        node.check_log()


def answered(node: JobNode) -> set[int]:
    said = copperfs("stats", node.mountpoint, "--all", "--json").stdout
    return set(range(len(NAMES))) - {each["number"] for each in json.loads(said)["missing"]}


def test_nodes_on_several_machines_do_not_share_a_disk(town: Town, stack: ExitStack) -> None:
    """The names seem to belong to several machines."""
    for number in range(3):
        node = town.node(number)
        stack.callback(node.remove)
        _, said = node.begin(environ=town.environ).communicate(timeout=COMMAND_TIMEOUT_S)
        assert f"{town.source} is on a disk of this node alone" in said
        assert "name with --shared the directories" in said


def test_nodes_that_share_other_places_say_so_on_both_sides(town: Town, stack: ExitStack) -> None:
    for each in ("a", "b"):
        (town.source / each).mkdir()
    nodes = [town.node(each, "--wait-all", *shared(town, each)) for each in range(2)]
    for node in nodes:
        stack.callback(node.remove)
    started = [node.begin(environ=town.environ) for node in nodes]
    said = [each.communicate(timeout=COMMAND_TIMEOUT_S)[1] for each in started]
    for me, other in ((0, 1), (1, 0)):
        assert f"node {other} does not show the same places as this node, {me}" in said[me]
        assert f"shared on node 1 alone: {town.source}/b)" in said[me]


def shared(town: Town, number: int) -> tuple[str, ...]:
    names = ("a",) if number == 0 else ("a", "b")
    paths = (f"--shared={town.source}/{each}" for each in names)
    return ("--launch-timeout", "20", *paths)
