"""The data tier of a cluster: each node's share of it, and where its chunks lie."""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from tests.cluster.conftest import Starter
from tests.cluster.helpers import Cluster
from tests.mount.doubts import Doubts
from tests.mount.helpers import copperfs, eventually
from tests.standin import StandIn

MIB = 1 << 20
SIZE = 40 * MIB + 4321


@pytest.fixture
def content(source: Path) -> bytes:
    data = random.Random("large").randbytes(SIZE)
    (source / "large").write_bytes(data)
    os.utime(source / "large", ns=(10**18, 10**18))
    return data


def all_stats(cluster: Cluster) -> dict[str, Any]:
    done = copperfs("stats", "--all", "--json", cluster.mnt(0))
    assert done.returncode == 0, done.stderr
    statistics: dict[str, Any] = json.loads(done.stdout)
    return statistics


def hits(cluster: Cluster) -> Any:
    return all_stats(cluster)["total"]["tier"]["hits"]


def check_read(standin: StandIn, name: str, least: int, doubts: Doubts) -> None:
    """The source gave this many bytes, and more only in place of suspected nodes."""
    found = standin.counts().read_bytes.get(name, 0)
    assert found >= least
    doubts.allow(-(-(found - least) // MIB), doubts.reads, f"chunks of {name} read")


def test_each_node_has_a_directory_of_its_own_which_goes_with_the_cluster(
    started: Starter, content: bytes, tmp_path: Path
) -> None:
    top = tmp_path / "tiers"
    cluster = started(3, "--tier-dir", str(top))
    assert (cluster.mnt(0) / "large").read_bytes() == content
    assert sorted(each.name for each in top.iterdir()) == ["node0", "node1", "node2"]
    cluster.remove()
    assert not top.exists()


def test_what_was_there_before_stays_for_the_next_cluster(
    started: Starter, standin: StandIn, content: bytes, tmp_path: Path
) -> None:
    for node in range(3):
        (tmp_path / f"nvme{node}").mkdir(mode=0o700)
        (tmp_path / f"nvme{node}" / f"node{node}").mkdir(mode=0o700)
    for node in range(3):  # one path for all, as in a job
        (tmp_path / f"node{node}").symlink_to(tmp_path / f"nvme{node}")
    flags = ("--tier-dir", f"{tmp_path}/%h/%h")
    cluster = started(3, *flags, of=standin.mountpoint)
    watch = cluster.watch()
    assert (cluster.mnt(1) / "large").read_bytes() == content
    chunks = SIZE // MIB + 1

    def held() -> int:
        return int(all_stats(cluster)["total"]["tier"]["disk"]["held"])

    eventually(lambda: held() >= chunks, "all are written")
    doubts = watch.doubts()
    doubts.allow(hits(cluster)["source"] - chunks, doubts.reads, "chunks read")
    doubts.allow(held() - chunks, doubts.reads, "chunks kept")
    cluster.remove()
    standin.reset()

    cluster = started(3, *flags, of=standin.mountpoint)
    watch = cluster.watch()
    assert (cluster.mnt(2) / "large").read_bytes() == content
    found, doubts = hits(cluster), watch.doubts()
    doubts.allow(found["source"], doubts.reads, "chunks read")
    # A chunk that a fallback read is not found on the disk of its owner.
    doubts.allow(chunks - found["nvme"], doubts.reads, "chunks not found on a disk")
    check_read(standin, "large", 0, doubts)


def test_a_killed_node_finds_its_chunks_again(
    started: Starter, content: bytes, tmp_path: Path
) -> None:
    cluster = started(2, "--tier-dir", str(tmp_path / "tiers"))
    assert (cluster.mnt(0) / "large").read_bytes() == content
    chunks = SIZE // MIB + 1
    eventually(lambda: all_stats(cluster)["total"]["tier"]["disk"]["held"] == chunks, "written")
    held = cluster.stats(1)["tier"]["disk"]["held"]
    assert held
    cluster.kill(1)
    assert copperfs("cluster", "start", "--dir", cluster.directory, "node1").returncode == 0
    assert cluster.stats(1)["tier"]["disk"]["held"] == held


def test_ring_shows_who_owns_what_and_scrub_checks_all_of_it(
    started: Starter, content: bytes, tmp_path: Path
) -> None:
    top = tmp_path / "tiers"
    cluster = started(4, "--tier-dir", str(top), "--tier-size", "1GiB", "--chunk-size", "64KiB")
    assert (cluster.mnt(0) / "large").read_bytes() == content
    chunks = SIZE // (64 << 10) + 1
    eventually(lambda: all_stats(cluster)["total"]["tier"]["disk"]["held"] == chunks, "written")

    def ring(node: int, *paths: str) -> Any:
        done = copperfs("ring", "--json", cluster.mnt(node), *paths)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    found = ring(0)
    assert (found["nodes"], found["placement"]) == (4, "ring")
    assert sum(each["share"] for each in found["members"]) == pytest.approx(1)
    assert 1 <= found["max_to_mean"]["share"] < 1.3, "500 points each"
    assert sum(each["disk_chunks"] for each in found["members"]) == chunks
    assert all(each["memory_bytes"] for each in found["members"] if each["disk_chunks"])

    (placed,) = ring(3, "large")["paths"]
    owned = {each["number"]: each["chunks"] for each in placed["owners"]}
    assert owned == {
        each["number"]: each["disk_chunks"] for each in found["members"] if each["disk_chunks"]
    }
    ranges = placed["ranges"]
    assert [ranges[0]["first"], ranges[-1]["last"]] == [0, chunks - 1]
    assert sum(each["last"] - each["first"] + 1 for each in ranges) == placed["chunks"] == chunks
    shown = copperfs("ring", cluster.mnt(1)).stdout
    assert "4 of 4 nodes answered" in shown
    assert "maximum over mean: owned 1." in shown

    damaged = [
        file
        for node in range(4)
        for file in sorted((top / f"node{node}" / "chunks").glob("*/*"))[:3]
    ]
    for file in damaged:
        os.truncate(file, 100)
    done = copperfs("scrub", "--all", "--json", cluster.mnt(2))
    assert done.returncode == 0, done.stderr
    scrubbed = json.loads(done.stdout)
    assert (scrubbed["nodes"], scrubbed["disks"]) == (4, 4)
    assert (scrubbed["chunks"], scrubbed["damaged"]) == (chunks, len(damaged))

    cluster.kill(3)
    done = copperfs("scrub", "--all", cluster.mnt(2))
    assert done.returncode == 1
    assert "1 of 4 nodes did not answer: node3" in done.stderr
    assert "missing" in copperfs("ring", cluster.mnt(1)).stdout


def test_a_job_in_which_nobody_keeps_chunks_reads_large_files_node_by_node(
    started: Starter, standin: StandIn, content: bytes
) -> None:
    cluster = started(2, "--tier-memory", "0", of=standin.mountpoint)
    for node in cluster.everywhere():
        assert (cluster.mnt(node) / "large").read_bytes() == content
    assert sum(hits(cluster).values()) == 0
    assert standin.counts().read_bytes["large"] >= 2 * SIZE


def test_by_default_a_job_of_several_reads_a_large_file_once(
    started: Starter, standin: StandIn, content: bytes
) -> None:
    cluster = started(3, of=standin.mountpoint)
    watch = cluster.watch()
    for node in cluster.everywhere():
        assert (cluster.mnt(node) / "large").read_bytes() == content
    check_read(standin, "large", SIZE, watch.doubts())


def test_owners_with_slow_disks_have_the_source_read_once_for_all_nodes(
    started: Starter, standin: StandIn, source: Path, tmp_path: Path
) -> None:
    """More than the memories of both nodes and their write backlogs hold."""
    size = 220 * MIB
    data = random.Random("slow").randbytes(size)
    (source / "slow").write_bytes(data)
    cluster = started(
        2,
        *("--tier-dir", str(tmp_path / "tiers"), "--tier-memory", "64MiB"),
        *("--mover-rate", "20MiB"),
        of=standin.mountpoint,
    )
    watch = cluster.watch()
    for node in (0, 1, 0):
        assert (cluster.mnt(node) / "slow").read_bytes() == data
        descriptor = os.open(cluster.mnt(node) / "slow", os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    total = all_stats(cluster)["total"]
    doubts = watch.doubts()
    doubts.allow(total["tier"]["hits"]["source"] - size // MIB, doubts.reads, "chunks read")
    check_read(standin, "slow", size, doubts)
    assert total["tier"]["disk"]["waited"] > 0
    doubts.allow(total["node"]["fallbacks"], doubts.reads, "nobody reads it because a disk is slow")


def given_bytes(cluster: Cluster, node: int) -> int:
    answer: Any = ask_mount(str(cluster.mnt(node)), IoctlRequest.STATISTICS)
    given: int = answer["bytes"]["to_children"]
    return given


@pytest.mark.long
def test_thirty_two_nodes_want_one_library_at_the_same_time(
    started: Starter, standin: StandIn, source: Path
) -> None:
    """Its owner sends each chunk as often as the fan-out says."""
    nodes, fanout, size = 32, 3, 8 * MIB
    library = random.Random("library").randbytes(size)
    (source / "library").write_bytes(library)  # one owner has all of it
    cluster = started(
        nodes,
        *("--fanout", str(fanout), "--tree-max", "1MiB", "--tier-memory", "64MiB"),
        *("--security", "none"),
        of=standin.mountpoint,
    )
    for node in cluster.everywhere():
        assert os.listdir(cluster.mnt(node)) == ["library"]
    watch = cluster.watch()
    before = [given_bytes(cluster, node) for node in cluster.everywhere()]
    standin.reset()
    read: list[bytes] = []

    def take(node: int) -> None:
        read.append((cluster.mnt(node) / "library").read_bytes())

    threads = [threading.Thread(target=take, args=(node,)) for node in cluster.everywhere()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [library] * nodes
    doubts = watch.doubts()
    check_read(standin, "library", size, doubts)
    gave = [given_bytes(cluster, node) - before[node] for node in cluster.everywhere()]
    # A node that was asked as well, or instead, may send a chunk twice. A node that falls back to
    # the source gets none.
    more = sum(gave) - (nodes - 1) * size
    doubts.allow(max(0, -(-more // MIB)), doubts.asks, "chunks given")
    doubts.allow(max(0, -(more // MIB)), doubts.reads, "chunks not given")
    by_one = max(gave) - fanout * size
    doubts.allow(max(0, -(-by_one // MIB)), doubts.asks, "chunks given by the owner, or any other")
