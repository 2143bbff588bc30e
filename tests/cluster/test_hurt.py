"""Nodes that are hurt by command and healed again: they are the same nodes as before."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import Starter
from tests.cluster.helpers import Cluster, digests, fill
from tests.cluster.test_links import link, networks_can_be_made
from tests.mount.helpers import copperfs, errno_of, eventually, is_mounted, is_running, name_of
from tests.standin import StandIn

bad_links = pytest.mark.skipif(
    not networks_can_be_made() or shutil.which("nft") is None,
    reason="links need root, iproute2 and nftables",
)


def command(cluster: Cluster, do: str, *words: str) -> None:
    done = copperfs("cluster", do, *words, "--dir", cluster.directory)
    assert done.returncode == 0, done.stderr


def refused(cluster: Cluster, do: str, *words: str) -> str:
    done = copperfs("cluster", do, *words, "--dir", cluster.directory)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_node_that_was_killed_comes_back_as_the_same_node(started: Starter, source: Path) -> None:
    for name in ("before", "after"):
        fill(source, name)
    cluster = started(4, "--fanout", "1")  # a chain: 2 is the parent of 3
    assert digests(cluster.mnt(3) / "before") == digests(source / "before")
    was = cluster.status()["nodes"][2]
    peers = cluster.stats(2)["job"]["connected"]
    command(cluster, "kill", "node2")
    assert not is_running(was["pid"])
    assert not is_mounted(cluster.mnt(2))
    command(cluster, "start", "2")
    now = cluster.status()["nodes"][2]
    assert now["pid"] != was["pid"]
    assert {**now, "pid": was["pid"]} == was
    eventually(lambda: cluster.stats(2)["job"]["connected"] == peers, "its child is back")
    assert digests(cluster.mnt(3) / "after") == digests(source / "after")
    opened = [cluster.stats(node)["source"]["open"] for node in cluster.everywhere()]
    assert opened == [40, 0, 0, 0]
    assert cluster.stats(2)["bytes"]["to_children"] > 0


def test_who_comes_back_does_not_wait_for_those_that_never_will(
    started: Starter, source: Path
) -> None:
    """With ``--wait-all``, to a job that has begun long ago."""
    (source / "file").write_text("hello")
    cluster = started(4, "--wait-all")
    for number in (0, 2, 3):
        cluster.kill(number)
    eventually(lambda: cluster.stats(1)["members"]["gone"] == 3, "they are missed")
    for number in (2, 0):
        command(cluster, "start", str(number))
        assert (cluster.mnt(number) / "file").read_text() == "hello"


def test_all_nodes_but_one_are_killed_and_come_back_at_once(started: Starter) -> None:
    cluster = started(5, "--fanout", "2")
    peers = cluster.stats(2)["job"]["connected"]
    most = ["4", "3", "1", "0"]
    command(cluster, "kill", *most)
    command(cluster, "start", *most)
    assert cluster.status()["well"]
    eventually(lambda: cluster.stats(2)["job"]["connected"] == peers, "it has all its peers again")


def test_a_dead_mount_that_was_left_fails_at_once_and_start_cleans_it_up(
    started: Starter, source: Path
) -> None:
    (source / "file").write_text("hello")
    cluster = started(2)
    command(cluster, "kill", "node1", "--leave")
    assert is_mounted(cluster.mnt(1))
    assert name_of(errno_of((cluster.mnt(1) / "file").read_bytes)) == "ENOTCONN"
    command(cluster, "start", "node1")
    assert (cluster.mnt(1) / "file").read_text() == "hello"


def test_who_waits_for_another_node_is_told_when_its_own_daemon_is_killed(
    started: Starter, standin: StandIn, source: Path
) -> None:
    """The parent would send the bytes, and it waits for the source."""
    (source / "file").write_text("hello")
    cluster = started(2, of=standin.mountpoint)
    os.lstat(cluster.mnt(1) / "file")
    rule = standin.hang("file", ops=["open"])
    program = "import sys; open(sys.argv[1]).read()"
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(cluster.mnt(1) / "file")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    standin.wait_for_hanging(1)
    command(cluster, "kill", "node1", "--leave")
    for reader in readers:
        _, said = reader.communicate(timeout=5)  # the source still hangs
        # The kernel decides whether it asks again for a page whose read was aborted.
        assert "Errno 107" in said or "Errno 103" in said, said
    standin.release(rule)
    done = copperfs("umount", cluster.mnt(1))
    assert done.returncode == 0, done.stderr
    assert not is_mounted(cluster.mnt(1))
    assert (cluster.mnt(0) / "file").read_text() == "hello"


def test_what_a_daemon_was_told_is_for_its_owner_only_and_goes_with_the_cluster(
    started: Starter,
) -> None:
    cluster = started(2)
    told = cluster.directory / "node1" / "told"
    assert stat.S_IMODE(told.stat().st_mode) == 0o600
    command(cluster, "kill", "1")
    command(cluster, "start", "1")
    assert cluster.down().returncode == 0
    assert not cluster.directory.exists()


def test_a_daemon_that_is_stopped_says_nothing_until_it_goes_on(
    started: Starter, source: Path
) -> None:
    (source / "file").write_text("hello")
    cluster = started(2)
    command(cluster, "stop", "1")
    status = (Path("/proc") / str(cluster.pid(1)) / "stat").read_text().rpartition(")")[2].split()
    assert status[0] in "Tt"
    reader = subprocess.Popen(["cat", cluster.mnt(1) / "file"], stdout=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        reader.communicate(timeout=0.3)
    command(cluster, "cont", "1")
    assert reader.communicate(timeout=15)[0] == "hello"


def test_what_makes_no_sense_is_refused(started: Starter, tmp_path: Path) -> None:
    cluster = started(2)
    assert "node1 runs already" in refused(cluster, "start", "node1")
    assert "there is no node7" in refused(cluster, "kill", "node7")
    command(cluster, "kill", "1")
    assert "has ended" in refused(cluster, "stop", "1")
    assert "start it with --netns" in refused(cluster, "drop", "1")
    (cluster.directory / "node1" / "told").unlink()
    assert "node1 cannot be started again" in refused(cluster, "start", "1")
    done = copperfs("cluster", "start", "1", "--dir", tmp_path / "nowhere")
    assert "there is no cluster" in done.stderr
    for share in ("0", "1.1", "nan", "x"):
        done = copperfs("cluster", "drop", "1", "--dir", cluster.directory, "--share", share)
        assert done.returncode == 2


@bad_links
def test_a_link_that_loses_every_packet_of_one_direction(started: Starter, source: Path) -> None:
    for name in ("before", "during", "after"):
        fill(source, name)
    cluster = started(3, "--netns", "--fanout", "1")
    assert digests(cluster.mnt(2) / "before") == digests(source / "before")
    command(cluster, "drop", "2", "--direction", "towards")
    status = cluster.status()
    assert [each["loses"] for each in status["nodes"]] == [False, False, True]
    assert not status["well"]
    assert digests(cluster.mnt(2) / "during") == digests(source / "during")
    assert cluster.stats(2)["node"]["fallbacks"] > 0
    link(cluster, "heal", 2)
    assert cluster.status()["well"]
    eventually(lambda: cluster.stats(2)["transport"]["connections"] > 0, "connected again", 60)
    assert digests(cluster.mnt(2) / "after") == digests(source / "after")


@bad_links
def test_a_link_that_loses_some_packets_is_slow_and_nothing_else(
    started: Starter, source: Path
) -> None:
    fill(source, "files")
    cluster = started(2, "--netns")
    command(cluster, "drop", "1", "--share", "0.5", "--direction", "away")
    command(cluster, "drop", "1", "--share", "0.05")  # replaces the first share
    assert digests(cluster.mnt(1) / "files") == digests(source / "files")
    link(cluster, "heal", 1)
    assert cluster.status()["well"]
