"""A dataset of many files that all nodes of a job cache together: counts the reads of the source.

The setup is that of the benchmarks `dataset` and `owners-die`, smaller, and without a clock. In
each epoch a node reads other files, so that no node has in its own memory what it is to fetch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.altered_daemons import altered
from tests.bench.bench_dataset import owned_bytes
from tests.bench.bench_owners_die import lost_with, owners_of
from tests.bench.dataset import Dataset, Fall, Read, deal, make_dataset, read_epoch
from tests.cluster.conftest import Starter
from tests.cluster.helpers import Cluster
from tests.mount.doubts import Doubts
from tests.mount.helpers import copperfs, eventually
from tests.standin import StandIn

NODES = 4
FILES = 128
KIB, MIB = 1 << 10, 1 << 20
CHUNK = 256 * KIB


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Of one or many chunks; all chunks of a file have one owner."""
    return make_dataset(tmp_path / "dataset", FILES, smallest=64 * KIB, largest=8 * MIB)


@pytest.fixture
def counted(dataset: Dataset) -> Iterator[StandIn]:
    """Without a page cache, so that each read is counted."""
    with StandIn(dataset.directory) as standin:
        yield standin


def with_tier(started: Starter, standin: StandIn, tiers: Path, *flags: str) -> Cluster:
    return started(
        NODES,
        *("--ring", str(standin.mountpoint), "--chunk-size", str(CHUNK), "--security", "none"),
        *("--tier-dir", str(tiers), "--tier-size", "1GiB", "--tier-memory", "64MiB"),
        *flags,
        of=standin.mountpoint,
    )


def mounts(cluster: Cluster) -> dict[int, Path]:
    return dict(enumerate(cluster.mountpoints))


def without_errors(read: Read, dataset: Dataset) -> None:
    assert read.errors == []
    assert read.read_bytes == dataset.total_bytes


def others_chunks(dataset: Dataset, owners: dict[str, list[int]], epoch: int) -> int:
    parts = deal(dataset, range(NODES), epoch)
    return sum(
        owner != reader
        for reader, files in parts.items()
        for file in files
        for owner in owners[file.name]
    )


def check_read(counted: StandIn, least: dict[str, int], doubts: Doubts) -> None:
    """The source was read for each byte of *least* once, and beyond that only in place of suspected
    nodes."""
    found = Counter(counted.counts().read_bytes)
    assert Counter(least) - found == Counter(), "all was read"
    extra = (found - Counter(least)).total()
    doubts.allow(-(-extra // CHUNK), doubts.reads, "chunks read")


def all_on_disk(tiers: Path, dataset: Dataset) -> None:
    eventually(
        lambda: sum(owned_bytes(each) for each in tiers.iterdir()) >= dataset.total_bytes,
        "all chunks are on the disks",
    )


def test_each_byte_is_read_once_and_never_again(
    started: Starter, dataset: Dataset, counted: StandIn, tmp_path: Path
) -> None:
    tiers = tmp_path / "tiers"
    # Nothing read ahead is evicted before its use, and fetched again.
    cluster = with_tier(started, counted, tiers, "--tier-memory", "1GiB")
    once = {each.name: each.size for each in dataset.files}
    owners = {each.name: owners_of(cluster.mnt(0), each)[0] for each in dataset.files}
    chunks = sum(map(len, owners.values()))
    kept_twice = 0
    for epoch in range(3):
        counted.reset_counts()
        cluster.reset()
        watch = cluster.watch()
        without_errors(read_epoch(dataset, mounts(cluster), epoch), dataset)
        hits = Counter[str]()
        for node in cluster.everywhere():
            hits.update(cluster.stats(node)["tier"]["hits"])
        doubts = watch.doubts()
        check_read(counted, {} if epoch else once, doubts)
        again = hits["source"] - (0 if epoch else chunks)
        doubts.allow(again, doubts.reads, "chunks read")
        others = hits["peer"] - others_chunks(dataset, owners, epoch)
        doubts.allow(max(0, others), doubts.asks, "chunks given")
        doubts.allow(max(0, -others), doubts.reads, "chunks not given")
        assert hits["memory"] + hits["nvme"] + hits["source"] >= chunks
        kept_twice += again
    all_on_disk(tiers, dataset)
    sizes = [owned_bytes(tiers / f"node{node}") for node in range(NODES)]
    on_disk = sum(sizes) - kept_twice * 2 * CHUNK
    assert on_disk < 1.1 * dataset.total_bytes, "each chunk is on one node's disk"
    # The spread of sizes depends on the few files; the ring's share does not.
    shown = copperfs("ring", "--json", cluster.mnt(0))
    assert json.loads(shown.stdout)["max_to_mean"]["share"] <= 1.25


def test_each_chunk_of_a_killed_node_is_read_once_more(
    started: Starter, dataset: Dataset, counted: StandIn, tmp_path: Path
) -> None:
    cluster = with_tier(started, counted, tmp_path / "tiers")
    living, killed = mounts(cluster), list[int]()
    without_errors(read_epoch(dataset, living, 0), dataset)
    missing = Counter[str]()
    lost_bytes = again_bytes = 0
    for epoch, node in enumerate((2, 0, 1), start=1):
        asked = next(mount for other, mount in living.items() if other != node)
        lost = lost_with(asked, dataset, node)
        lost_bytes += (lost - missing).total()
        missing |= lost
        del living[node]
        watch = cluster.watch(killed)
        killed.append(node)
        cluster.kill(node)
        counted.reset_counts()
        without_errors(read_epoch(dataset, living, epoch), dataset)
        again = Counter(counted.counts().read_bytes)
        doubts = watch.doubts(killed)
        extra = (again - missing).total()  # beyond what was lost, each byte once
        doubts.allow(-(-extra // CHUNK), doubts.reads, "chunks read")
        assert -(-again.total() // CHUNK) <= doubts.reads, "each was read in the place of its owner"
        again &= missing
        again_bytes += again.total()
        missing -= again
    assert lost_bytes == again_bytes + missing.total()
    assert again_bytes > lost_bytes / 2, "nodes had not all of it in their memory, from reading it"


@pytest.mark.parametrize("node", [0, 3])
def test_a_node_that_is_killed_in_the_middle_is_missed_by_no_other(
    node: int, started: Starter, dataset: Dataset, counted: StandIn, tmp_path: Path
) -> None:
    cluster = with_tier(started, counted, tmp_path / "tiers")
    living = mounts(cluster)
    without_errors(read_epoch(dataset, living, 0), dataset)
    lost = lost_with(living[1], dataset, node)
    watch = cluster.watch()
    counted.reset_counts()
    fall = Fall(node, cluster.pid(node), FILES // 3)
    without_errors(read_epoch(dataset, living, 1, fall=fall), dataset)
    del living[node]
    without_errors(read_epoch(dataset, living, 2), dataset)
    again = Counter(counted.counts().read_bytes)
    doubts = watch.doubts([node])
    extra = (again - lost).total()
    doubts.allow(-(-extra // CHUNK), doubts.reads, "chunks read")
    assert again.total() > lost.total() // 2


def test_what_was_lost_is_read_by_each_reader_if_that_is_asked_for(
    started: Starter,
    dataset: Dataset,
    counted: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in altered("lost-from-source").items():
        monkeypatch.setenv(name, value)
    cluster = with_tier(started, counted, tmp_path / "tiers")
    living = mounts(cluster)
    without_errors(read_epoch(dataset, living, 0), dataset)
    lost = lost_with(living[0], dataset, 2)
    cluster.kill(2)
    del living[2]
    again = Counter[str]()
    for epoch in (1, 2, 3):
        watch = cluster.watch([2])
        counted.reset_counts()
        without_errors(read_epoch(dataset, living, epoch), dataset)
        counts = Counter(counted.counts().read_bytes)
        # A chunk that was read ahead and evicted before its use is read again in this mode.
        kept = sum(size for name, size in counts.items() if name not in lost)
        doubts = watch.doubts([2])
        doubts.allow(-(-kept // CHUNK), doubts.reads, "chunks of nodes that live")
        again += counts
    assert again.total() > 2 * lost.total()
