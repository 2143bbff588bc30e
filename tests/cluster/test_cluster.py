"""``copperfs cluster``: up, status and down, in whatever state the cluster is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from copperfs.config.settings import Settings
from copperfs.lab.local_cluster import node_networks as network
from copperfs.lab.local_cluster.bring_up import up
from copperfs.model.errors import ClusterError, MountError
from tests.cluster.conftest import Starter
from tests.cluster.helpers import Cluster
from tests.conftest import mounts_below
from tests.mount.helpers import COPPERFS, copperfs, eventually, is_mounted, is_running


def test_up_status_and_down_again_and_again(tmp_path: Path, source: Path) -> None:
    (source / "file").write_text("hello")
    directory = tmp_path / "cluster"
    for _ in range(2):
        done = copperfs("cluster", "up", "-n", "3", "--dir", directory, "--source", source)
        assert done.returncode == 0, done.stderr
        with ended(directory):
            for node in range(3):
                assert (directory / f"node{node}" / "mnt" / "file").read_text() == "hello"
                assert f"node{node} " in done.stdout
            shown = copperfs("cluster", "status", "--dir", directory)
            assert shown.returncode == 0, shown.stderr
            assert shown.stdout == done.stdout
        assert not directory.exists()


def test_32_nodes_are_up_within_a_minute(started: Starter, source: Path) -> None:
    (source / "file").write_text("hello")
    before = time.monotonic()
    cluster = started(32, "--fanout", "4")
    assert time.monotonic() - before < 60
    assert (cluster.mnt(31) / "file").read_text() == "hello"
    assert cluster.status()["nodes"][31]["depths"] == [3]


def test_eight_nodes_that_wait_for_all_are_up_with_their_last_one(started: Starter) -> None:
    cluster = started(8, "--wait-all", "--fanout", "2", "--trees", "3")
    done = copperfs("stats", "--all", "--json", cluster.mnt(7))
    assert done.returncode == 0, done.stderr
    asked = json.loads(done.stdout)
    assert (asked["nodes"], asked["missing"]) == (8, [])


def test_status_says_how_each_node_is_reached_and_whom_it_asks(started: Starter) -> None:
    cluster = started(4, "--fanout", "1", "--trees", "2", "--security", "none")
    status = cluster.status()
    assert status["well"]
    assert status["complete"]
    nodes = status["nodes"]
    assert [each["name"] for each in nodes] == ["node0", "node1", "node2", "node3"]
    assert [each["parents"] for each in nodes] == [
        [None, "node3"],
        ["node0", "node0"],
        ["node1", None],
        ["node2", "node2"],
    ]
    assert [each["depths"] for each in nodes] == [[0, 2], [1, 3], [2, 0], [3, 1]]
    assert len({each["endpoint"] for each in nodes}) == 4
    assert all(each["endpoint"].startswith("tcp://127.0.0.1:") for each in nodes)
    assert all(is_running(each["pid"]) and each["answers"] for each in nodes)
    assert status["settings"]["security"] == "none"


def test_options_of_the_mount_pass_through_but_not_those_of_the_launch(
    tmp_path: Path, started: Starter
) -> None:
    cluster = started(2, "--memory", "100MiB", "--log-level", "debug", "--source-deadline", "5")
    settings = cluster.status()["settings"]
    assert (settings["memory_bytes"], settings["source_deadline_s"]) == (100 << 20, 5.0)
    refused = copperfs("cluster", "up", "-n", "2", "--dir", tmp_path / "x", "--port", "1")
    assert refused.returncode == 2
    assert not (tmp_path / "x").exists()


def test_by_default_all_nodes_together_take_the_memory_that_one_would(started: Starter) -> None:
    one = started(1).status()["settings"]["memory_bytes"]
    four = started(4).status()["settings"]["memory_bytes"]
    assert four <= max(64 << 20, one // 4)


def test_a_cluster_of_one_is_a_plain_mount(started: Starter, source: Path) -> None:
    (source / "file").write_text("hello")
    cluster = started(1)
    assert (cluster.mnt(0) / "file").read_text() == "hello"
    assert cluster.status()["nodes"][0]["parents"] == [None]


def test_where_a_cluster_runs_no_other_one_is_started(started: Starter) -> None:
    cluster = started(2)
    again = cluster.up()
    assert again.returncode == 1
    assert "has a cluster of 2 nodes already" in again.stderr
    assert again.stderr.count("\n") == 1
    assert cluster.status()["well"]


def test_of_two_that_start_at_once_one_wins(tmp_path: Path, source: Path) -> None:
    directory = tmp_path / "cluster"
    command = [*COPPERFS, "cluster", "up", "-n", "2", "--source", str(source)]
    command += ["--dir", str(directory)]
    with ended(directory):
        both = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        said = [each.communicate(timeout=60) for each in both]
        assert sorted(each.returncode for each in both) == [0, 1], said
        done = copperfs("cluster", "status", "--dir", directory)
        assert done.returncode == 0, done.stdout


def test_status_tells_which_daemon_was_killed_and_down_cleans_up_after_it(
    started: Starter,
) -> None:
    cluster = started(3)
    cluster.kill(1)
    status = cluster.status()
    assert [each["alive"] for each in status["nodes"]] == [True, False, True]
    assert [each["answers"] for each in status["nodes"]] == [True, False, True]
    assert status["nodes"][1]["mounted"]
    shown = copperfs("cluster", "status", "--dir", cluster.directory).stdout
    assert "has ended" in shown
    assert "does not answer" in shown
    assert cluster.down().returncode == 0
    assert not mounts_below(cluster.directory)
    assert not cluster.directory.exists()


def test_what_a_killed_cluster_left_is_cleaned_up_by_the_next_one(
    started: Starter, source: Path
) -> None:
    (source / "file").write_text("hello")
    cluster = started(3)
    for node in cluster.everywhere():
        cluster.kill(node)
    assert len(mounts_below(cluster.directory)) == 3
    done = cluster.up()
    assert done.returncode == 0, done.stderr
    assert len(mounts_below(cluster.directory)) == 3
    assert (cluster.mnt(2) / "file").read_text() == "hello"
    assert cluster.down().returncode == 0
    assert not cluster.directory.exists(), "the first one had made it"


def test_it_is_cleaned_up_also_where_the_state_is_gone(started: Starter) -> None:
    cluster = started(2)
    pids = [cluster.pid(node) for node in cluster.everywhere()]
    state = cluster.directory / "cluster.json"
    saved = state.read_text()
    state.unlink()
    alive = cluster.down()
    assert alive.returncode == 1
    assert "of no cluster that is known" in alive.stderr
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        eventually(lambda pid=pid: not is_running(pid), "it has ended")  # type: ignore[misc]
    assert cluster.down().returncode == 0
    assert not mounts_below(cluster.directory)
    state.write_text(saved)  # so that it is removed


def test_what_others_put_there_stays(tmp_path: Path, source: Path) -> None:
    directory = tmp_path / "mine"
    (directory / "node0").mkdir(parents=True)
    (directory / "node0" / "notes").write_text("mine")
    (directory / "notes").write_text("mine")
    with Cluster(directory, 2, source):
        pass
    left = sorted(str(each.relative_to(directory)) for each in directory.rglob("*"))
    assert left == ["node0", "node0/notes", "notes"]


def test_down_where_nothing_is_says_so(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        done = copperfs("cluster", "down", "--dir", directory)
        assert done.returncode == 0
        assert "there is no cluster" in done.stdout
    done = copperfs("cluster", "status", "--dir", tmp_path)
    assert done.returncode == 1
    assert "there is no cluster" in done.stderr


def test_if_one_node_cannot_mount_none_stays_up(tmp_path: Path, source: Path) -> None:
    directory = tmp_path / "cluster"
    (directory / "node2").mkdir(parents=True)
    (directory / "node2" / "mnt").write_text("no directory")
    done = copperfs("cluster", "up", "-n", "4", "--dir", directory, "--source", source)
    assert done.returncode == 1
    assert "node2/mnt cannot be made" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not mounts_below(tmp_path)
    left = sorted(str(each.relative_to(directory)) for each in directory.rglob("*"))
    assert left == ["node2", "node2/mnt"]


def test_if_the_source_is_missing_each_daemon_says_so_and_one_is_heard(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    source = tmp_path / "missing"
    done = copperfs("cluster", "up", "-n", "4", "--dir", directory, "--source", source)
    assert done.returncode == 4
    assert "is not a directory that can be read" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not directory.exists()


def test_of_a_daemon_that_dies_without_a_word_the_log_is_quoted(
    tmp_path: Path, source: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nsys.stderr.write('no luck today\\n')\nsys.stderr.flush()\nos._exit(3)\n"
    )
    settings = Settings(mountpoint="", source=str(source), memory_bytes=64 << 20)
    with pytest.raises(MountError, match=r"daemon of node\d ended .* no luck today"):
        up(
            str(tmp_path / "cluster"),
            3,
            settings,
            own_networks=False,
            environ=os.environ | {"PYTHONPATH": str(tmp_path)},
            tell=lambda _: None,
        )
    assert not (tmp_path / "cluster").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_leaves_nothing(
    tmp_path: Path, source: Path, number: signal.Signals
) -> None:
    directory = tmp_path / "cluster"
    command = [*COPPERFS, "cluster", "up", "-n", "8", "--source", str(source)]
    command += ["--dir", str(directory)]
    with (
        ended(directory),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as starting,
    ):
        deadline = time.monotonic() + 60
        while not mounts_below(directory):
            assert starting.poll() is None, "it ended before it had mounted anything"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        pids = [each["pid"] for each in _state(directory)["nodes"]]
        starting.send_signal(number)
        starting.communicate(timeout=60)
        if starting.returncode != 0:  # it was up before it could be interrupted
            assert starting.returncode == 128 + number
            assert not directory.exists()
            assert not [pid for pid in pids if pid and is_running(pid)]


def test_below_the_root_the_nodes_do_not_show_each_other(tmp_path: Path) -> None:
    """Each mount shows the tree in which all are mounted; a walk through them would not end."""
    source = tmp_path
    with Cluster(tmp_path / "cluster", 2, source) as cluster:
        for node in cluster.everywhere():
            seen = cluster.mnt(node) / "cluster"
            for other in cluster.everywhere():
                with pytest.raises(OSError, match="symbolic links"):
                    list((seen / f"node{other}" / "mnt").iterdir())


def test_a_mount_that_somebody_unmounted_is_no_problem(started: Starter) -> None:
    cluster = started(2)
    assert copperfs("umount", cluster.mnt(1)).returncode == 0
    status = cluster.status()
    assert [each["mounted"] for each in status["nodes"]] == [True, False]
    assert cluster.down().returncode == 0


def test_the_directory_may_be_a_symbolic_link(tmp_path: Path, source: Path) -> None:
    (source / "file").write_text("hello")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with Cluster(tmp_path / "link", 2, source) as cluster:
        assert (tmp_path / "real" / "node1" / "mnt" / "file").read_text() == "hello"
        assert cluster.status()["well"]
    assert not mounts_below(tmp_path)
    assert not list((tmp_path / "real").iterdir())


def test_a_daemon_that_was_stopped_is_taken_down_as_well(started: Starter) -> None:
    cluster = started(2)
    pid = cluster.pid(1)
    cluster.kill(1, signal.SIGSTOP)
    done = cluster.down()
    assert done.returncode == 0, done.stderr
    assert not is_running(pid)
    assert not mounts_below(cluster.directory.parent)


def test_a_mount_in_use_is_taken_down_all_the_same(started: Starter, source: Path) -> None:
    (source / "file").write_text("hello")
    cluster = started(2)
    with (cluster.mnt(1) / "file").open():
        assert cluster.down().returncode == 0
        assert not is_mounted(cluster.mnt(1))


def test_netns_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="needs root"):
        network.check_possible()


def test_a_link_can_only_be_cut_with_netns(started: Starter) -> None:
    cluster = started(2)
    for command in ("cut", "heal"):
        done = copperfs("cluster", command, "node1", "--dir", cluster.directory)
        assert done.returncode == 1
        assert "start it with --netns" in done.stderr
        done = copperfs("cluster", command, "node7", "--dir", cluster.directory)
        assert "there is no node7" in done.stderr


# ---- helpers -------------------------------------------------------------------------------------


@contextmanager
def ended(directory: Path) -> Iterator[None]:
    try:
        yield
    finally:
        nodes = len(_state(directory)["nodes"])
        Cluster(directory, nodes, directory).remove()


def _state(directory: Path) -> dict[str, list[dict[str, int]]]:
    try:
        state: dict[str, list[dict[str, int]]] = json.loads(
            (directory / "cluster.json").read_text()
        )
    except FileNotFoundError:
        return {"nodes": []}
    return state
