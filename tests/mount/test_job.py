"""Collectives over all nodes of a job: statistics, tree, clear. Real daemons, on one machine."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from copperfs.daemon.collective_ops import added
from copperfs.daemon.job_requests import CALL_WITHIN_S
from copperfs.model.types import NodeId
from copperfs.node.routing.trees import Trees
from tests.mount.conftest import Mounter
from tests.mount.helpers import copperfs, eventually, is_mounted, watch
from tests.mount.jobs import Job

NODES = 4
Starter = Callable[..., Job]


@pytest.fixture
def job(tmp_path: Path, source: Path) -> Iterator[Starter]:
    with ExitStack() as stack:
        yield lambda *flags, **only: stack.enter_context(
            Job(source, tmp_path / "job", NODES, *flags, **only)
        )


def names(document: Any) -> list[str]:
    return [each["name"] for each in document["missing"]]


def epochs(job: Job) -> list[int]:
    return [node.stats()["epoch"] for node in job.nodes]


def read_all(job: Job, name: str) -> list[bytes]:
    return [(node / name).read_bytes() for node in job.nodes]


# ---- statistics ----------------------------------------------------------------------------------


def test_the_sums_are_those_of_the_nodes(source: Path, job: Starter) -> None:
    for count in range(5):
        (source / f"file{count}").write_bytes(b"x" * 100_000)
    nodes = job("--fanout", "2")
    for count in range(5):
        read_all(nodes, f"file{count}")
    # reads by C threads enter the statistics a moment later
    eventually(
        lambda: nodes[0].stats()["cache"]["object_bytes"] == 500_000, "the root has entered all"
    )
    singles = [node.stats() for node in nodes.nodes]
    document = nodes.all_stats(3)
    assert (document["nodes"], document["roster"], document["missing"]) == (4, 4, [])
    assert [each["name"] for each in document["by_node"]] == ["n0", "n1", "n2", "n3"]
    summed: dict[str, Any] = {}
    for each in document["by_node"]:
        del each["number"], each["name"], each["endpoint"]
        summed = added(summed, each)
    assert summed == document["total"]
    for key in ("bytes", "source", "cache"):
        assert [each[key] for each in document["by_node"]] == [each[key] for each in singles]
    total = document["total"]
    assert total["source"]["open"] == 5, "each file is read once for all nodes"
    assert total["source"]["read_bytes"] == 500_000
    assert total["bytes"]["from_memory"] == 4 * 500_000
    assert total["bytes"]["from_parents"] == total["bytes"]["to_children"] >= 3 * 500_000
    assert total["node"]["fallbacks"] == 0


def test_people_see_sums_and_a_line_for_each_node(job: Starter) -> None:
    nodes = job()
    done = copperfs("stats", "--all", nodes[2].mountpoint)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 nodes answered" in done.stdout
    for word in ("from source", "from parents", "to children", "held", "fallbacks"):
        assert word in done.stdout
    lines = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("n")]
    assert lines == ["node", "n0", "n1", "n2", "n3"]
    single = copperfs("stats", nodes[2].mountpoint)
    assert "Overlay (node 2 of 4)" in single.stdout


def test_all_nodes_count_anew(source: Path, job: Starter) -> None:
    (source / "file").write_bytes(b"content")
    nodes = job()
    read_all(nodes, "file")
    assert nodes.all_stats()["total"]["bytes"]["from_memory"] == 4 * 7
    done = copperfs("stats", "--reset", "--all", nodes[1].mountpoint)
    assert (done.returncode, done.stderr) == (0, "")
    total = nodes.all_stats()["total"]
    assert total["bytes"] == dict.fromkeys(total["bytes"], 0)
    assert total["node"]["asks"] == 0


def test_watching_all_ends_with_the_mount(job: Starter) -> None:
    nodes = job()
    watching = watch(nodes[1], "--all")
    assert nodes[1].umount().returncode == 0
    _, said = watching.communicate(timeout=15)
    assert "Traceback" not in said


# ---- the tree ------------------------------------------------------------------------------------


@pytest.mark.parametrize("trees", [1, 2])
@pytest.mark.parametrize("fanout", [1, 2, 16])
def test_the_tree_has_the_parents_that_are_asked(job: Starter, fanout: int, trees: int) -> None:
    nodes = job("--fanout", str(fanout), "--trees", str(trees))
    document = nodes.tree(asked=3)
    assert (document["asked"], document["trees"], document["fanout"]) == (3, trees, fanout)
    assert [each["name"] for each in document["members"]] == ["n0", "n1", "n2", "n3"]
    for number, member in enumerate(document["members"]):
        assert member["answered"]
        assert member["endpoint"].startswith("tcp://127.0.0.1:")
        own = Trees(NODES, NodeId(number), fanout, 2, trees)
        for tree, place in enumerate(member["places"]):
            assert place["tree"] == tree
            assert place["parent"] == own.parent(tree)
            assert place["depth"] == own.depth(tree)
            is_root = own.parent(tree) is None
            assert (place["role"] == "root") == is_root
            assert place["connected"] is (None if is_root else True)
            assert is_root or 0 < place["rtt_us"] < CALL_WITHIN_S * 1e6
    shown = copperfs("tree", nodes[0].mountpoint)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("root") == trees
    assert shown.stdout.count("ms to its parent") == 3 * trees
    assert shown.stdout.count("(this node)") == trees


# ---- nodes that are gone -------------------------------------------------------------------------


def test_a_killed_leaf_is_missing_and_the_others_answer(job: Starter) -> None:
    nodes = job("--fanout", "16")
    nodes[2].kill()
    began = time.monotonic()
    for asked in (0, 1, 3):
        document = nodes.all_stats(asked)
        assert document["nodes"] == 3
        assert [each["name"] for each in document["by_node"]] == ["n0", "n1", "n3"]
        assert names(document) == ["n2"]
        tree = nodes.tree(asked)
        assert [each["answered"] for each in tree["members"]] == [True, True, False, True]
        assert tree["missing"][0]["behind"] is None
    assert time.monotonic() - began < CALL_WITHIN_S, "nobody waited for it"
    shown = copperfs("tree", nodes[0].mountpoint).stdout
    assert "3 of 4 nodes answered; missing: n2" in shown
    assert shown.splitlines()[-1] == "gone: n2"


def test_who_is_behind_a_stopped_node_is_said_to_be_behind_it(job: Starter) -> None:
    nodes = job("--fanout", "1", "--dead-after", "60")
    os.kill(nodes[1].pid, signal.SIGSTOP)
    try:
        document = nodes.tree(0)
        assert names(document) == ["n1", "n2", "n3"]
        assert [each["behind"] for each in document["missing"]] == [None, 1, 1]
        seen_from_below = nodes.tree(3)
        assert [each["behind"] for each in seen_from_below["missing"]] == [1, None]
        assert [(each["name"], each["by"]) for each in seen_from_below["suspects"]] == [
            ("n1", [2, 3])
        ]
        shown = copperfs("tree", nodes[3].mountpoint).stdout
        assert "missing: n1, and not reached behind them n0" in shown
        assert re.search("up, (n1 does not answer it|not connected to n1)", shown), shown
        assert "suspected: n1" in shown
    finally:
        os.kill(nodes[1].pid, signal.SIGCONT)
    eventually(lambda: nodes.tree(0)["missing"] == [], "it is back")


def test_who_was_behind_a_killed_node_is_reached_around_it(job: Starter) -> None:
    nodes = job("--fanout", "1")
    nodes[1].kill()
    eventually(lambda: names(nodes.tree(0)) == ["n1"], "the others answer")
    document = nodes.tree(3)
    assert [each["behind"] for each in document["missing"]] == [None]
    assert [each["gone"] for each in document["members"]] == [False, True, False, False]
    place = document["members"][2]["places"][0]
    assert (place["parent"], place["connected"], place["depth"]) == (0, True, 1)
    shown = copperfs("tree", nodes[3].mountpoint).stdout
    assert "gone: n1" in shown
    members = nodes.ask(2, "stats")["members"]
    assert (members["gone"], members["reparentings"]) == (1, 1)


def test_a_node_that_hangs_keeps_the_others_waiting_until_the_deadline_only(job: Starter) -> None:
    # The front gives up after 7 s; the replies of the other nodes must not be lost with that.
    nodes = job("--fanout", "2", "--source-deadline", "2")
    os.kill(nodes[3].pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        document = nodes.all_stats(2)
        assert time.monotonic() - began < 7
        assert (document["nodes"], names(document)) == (3, ["n3"])
    finally:
        os.kill(nodes[3].pid, signal.SIGCONT)
    eventually(lambda: nodes.all_stats(2)["nodes"] == 4, "it is back")


# ---- clearing ------------------------------------------------------------------------------------


def test_clearing_from_a_leaf_reaches_all(source: Path, job: Starter) -> None:
    (source / "file").write_bytes(b"before")
    nodes = job("--fanout", "2")
    assert read_all(nodes, "file") == [b"before"] * NODES
    (source / "file").write_bytes(b"after it")
    (source / "new").write_bytes(b"")
    assert read_all(nodes, "file") == [b"before"] * NODES, "a job sees one snapshot"
    assert not any((node / "new").exists() for node in nodes.nodes)
    done = copperfs("clear", nodes[3].mountpoint)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cleared 4 of 4 nodes; epoch 2" in done.stdout
    assert read_all(nodes, "file") == [b"after it"] * NODES
    assert all((node / "new").exists() for node in nodes.nodes)
    assert epochs(nodes) == [2] * NODES


def test_clears_at_once_on_several_nodes_leave_all_in_one_epoch(source: Path, job: Starter) -> None:
    """A node that learns of an epoch from a peer first must not begin the next one: the others
    would clear once more."""
    for count in range(20):
        (source / f"file{count}").write_bytes(b"0")
    nodes = job("--fanout", "2")
    over = threading.Event()

    def read(node: int) -> None:
        while not over.is_set():
            for count in range(1, 20):
                (nodes[node] / f"file{count}").read_bytes()

    with ThreadPoolExecutor(2 * NODES) as pool:
        readers = [pool.submit(read, node) for node in range(NODES)]
        try:
            for turn in range(1, 4):
                (source / "file0").write_bytes(b"x" * turn)
                for cleared in list(pool.map(lambda node: nodes[node].clear(), range(NODES))):
                    assert cleared["nodes"] == NODES
                assert read_all(nodes, "file0") == [b"x" * turn] * NODES
                found = epochs(nodes)
                assert len(set(found)) == 1, found
                assert turn + 1 <= found[0] <= NODES * turn + 1
        finally:
            over.set()
        for reader in readers:
            reader.result(30)
    assert len(set(epochs(nodes))) == 1


def test_clearing_locally_leaves_the_others_alone(source: Path, job: Starter) -> None:
    (source / "file").write_bytes(b"before")
    nodes = job("--fanout", "2")
    read_all(nodes, "file")
    (source / "file").write_bytes(b"after it")
    held = [node.stats()["cache"]["held"] for node in nodes.nodes]
    done = copperfs("clear", "--local", nodes[3].mountpoint)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cleared this node" in done.stdout
    assert nodes[3].stats()["cache"]["held"] < held[3]
    asks = nodes[3].stats()["node"]["asks"]
    assert read_all(nodes, "file") == [b"before"] * NODES, "it stays in the snapshot of the job"
    assert nodes[3].stats()["node"]["asks"] > asks, "it asked its parent again"
    assert [node.stats()["cache"]["held"] for node in nodes.nodes][:3] == held[:3]
    assert epochs(nodes) == [1] * NODES
    assert nodes.all_stats()["total"]["source"]["open"] == 1


def test_clearing_says_who_could_not_be_told(source: Path, job: Starter) -> None:
    nodes = job("--fanout", "2")
    nodes[1].kill()
    eventually(lambda: nodes.ask(3, "stats")["members"]["gone"] == 1, "it asks another one")
    done = copperfs("clear", nodes[0].mountpoint)
    assert done.returncode == 1
    assert "cleared 3 of 4 nodes; epoch 2" in done.stdout
    assert done.stderr == (
        "copperfs: 1 of 4 nodes did not confirm, and may keep their caches: n1\n"
    )
    as_json = copperfs("clear", "--json", nodes[2].mountpoint)
    assert as_json.returncode == 1
    assert names(json.loads(as_json.stdout)) == ["n1"]


def test_who_was_away_during_a_clear_clears_when_it_is_back(source: Path, job: Starter) -> None:
    (source / "file").write_bytes(b"before")
    nodes = job("--fanout", "2")
    assert read_all(nodes, "file") == [b"before"] * NODES
    os.kill(nodes[3].pid, signal.SIGSTOP)
    try:
        eventually(lambda: nodes.ask(1, "stats")["members"]["gone"] == 1, "it is taken for gone")
        (source / "file").write_bytes(b"after it")
        assert copperfs("clear", nodes[0].mountpoint).returncode == 1
    finally:
        os.kill(nodes[3].pid, signal.SIGCONT)
    eventually(lambda: nodes.ask(3, "stats")["epoch"] == 2, "it hears of the epoch")
    eventually(lambda: (nodes[3] / "file").read_bytes() == b"after it", "and clears")


# ---- starting ------------------------------------------------------------------------------------


def test_who_waits_for_all_is_told_who_does_not_agree(source: Path, tmp_path: Path) -> None:
    job = Job(source, tmp_path / "job", 3, "--launch-timeout", "5", only={2: ("--fanout", "3")})
    with pytest.raises(AssertionError, match="node 2 was started with other settings"), job:
        raise NotImplementedError("it is not up")
    for node in job.nodes:
        node.check_log()
        assert not is_mounted(node.mountpoint)


# ---- a node alone --------------------------------------------------------------------------------


def test_a_node_alone_is_a_job_of_one(source: Path, mounted: Mounter) -> None:
    (source / "file").write_bytes(b"content")
    mount = mounted("--node-name", "here")
    (mount / "file").read_bytes()
    document = json.loads(copperfs("stats", "--all", "--json", mount.mountpoint).stdout)
    assert (document["nodes"], document["roster"], document["missing"]) == (1, 1, [])
    assert document["total"]["source"]["open"] == 1
    shown = copperfs("stats", "--all", mount.mountpoint).stdout
    assert "1 of 1 nodes answered" in shown
    tree = json.loads(copperfs("tree", "--json", mount.mountpoint).stdout)
    [member] = tree["members"]
    assert (member["name"], member["endpoint"], member["answered"]) == ("here", None, True)
    assert member["places"][0]["role"] == "root"
    assert "here" in copperfs("tree", mount.mountpoint).stdout
    assert "Overlay" not in copperfs("stats", mount.mountpoint).stdout
    assert "cleared this node; epoch 2" in copperfs("clear", mount.mountpoint).stdout
    assert "cleared this node; epoch 3" in copperfs("clear", "--local", mount.mountpoint).stdout
    assert copperfs("stats", "--reset", "--all", mount.mountpoint).returncode == 0
