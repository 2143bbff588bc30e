"""``copperfs warmup --ring`` on real daemons: the source counts its own reads."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from copperfs.cli.warmup import _begin
from copperfs.daemon.warmup_fill import FILLS_AT_ONCE
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from tests.bench.bench_owners_die import owners_of
from tests.bench.dataset import Dataset, make_dataset
from tests.cluster.conftest import Starter
from tests.cluster.helpers import Cluster, digests
from tests.mount.doubts import Doubts
from tests.mount.helpers import COPPERFS, copperfs, eventually
from tests.standin import StandIn

NODES = 3
FILES = 48
KIB, MIB = 1 << 10, 1 << 20
CHUNK = 256 * KIB


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "dataset", FILES, smallest=64 * KIB, largest=3 * MIB)


@pytest.fixture
def counted(dataset: Dataset) -> Iterator[StandIn]:
    with StandIn(dataset.directory) as standin:
        yield standin


def with_tier(started: Starter, standin: StandIn, *flags: str, nodes: int = NODES) -> Cluster:
    return started(
        nodes,
        *("--ring", str(standin.mountpoint), "--chunk-size", str(CHUNK), "--security", "none"),
        *flags,
        of=standin.mountpoint,
    )


def on_disk(tmp_path: Path, size: str = "1GiB") -> tuple[str, ...]:
    return ("--tier-dir", str(tmp_path / "tiers"), "--tier-size", size, "--tier-memory", "32MiB")


def fill(cluster: Cluster, *arguments: str, node: int = 0, code: int = 0) -> dict[str, Any]:
    done = copperfs("warmup", "--ring", "--json", cluster.mnt(node), *(arguments or (".",)))
    assert done.returncode == code, (done.stdout, done.stderr)
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def begun(cluster: Cluster, path: str = ".", **how: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COPPERFS, "warmup", "--ring", "--json", cluster.mnt(0), path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


def state(cluster: Cluster) -> dict[str, Any]:
    found = ask_mount(str(cluster.mnt(0)), IoctlRequest.WARM_UP_STATE)
    assert isinstance(found, dict)
    return found


def once(dataset: Dataset) -> dict[str, int]:
    return {each.name: each.size for each in dataset.files}


def chunks_of(dataset: Dataset) -> int:
    return sum(-(-each.size // CHUNK) for each in dataset.files)


def check_read(counted: StandIn, least: Mapping[str, int], doubts: Doubts) -> None:
    """The source read each byte of *least* once, and more only in place of suspected nodes."""
    found = Counter(counted.counts().read_bytes)
    assert Counter(least) - found == Counter(), "all was read"
    extra = (found - Counter(least)).total()
    doubts.allow(-(-extra // CHUNK), doubts.reads, "chunks read")


def all_read(cluster: Cluster, nodes: list[int], dataset: Dataset) -> None:
    wanted = digests(dataset.directory)
    for node in nodes:
        assert digests(cluster.mnt(node)) == wanted


@pytest.mark.parametrize("disk", [True, False])
def test_each_byte_is_read_once_and_none_when_it_is_used(
    started: Starter, dataset: Dataset, counted: StandIn, tmp_path: Path, disk: bool
) -> None:
    cluster = with_tier(started, counted, *(on_disk(tmp_path) if disk else ()))
    watch = cluster.watch()
    outcome = fill(cluster, node=1)
    assert (outcome["phase"], outcome["files"], outcome["chunks"]) == (
        "done",
        FILES,
        chunks_of(dataset),
    )
    assert outcome["total_bytes"] == outcome["done_bytes"] == dataset.total_bytes
    assert (outcome["nodes"], outcome["nodes_complete"], outcome["roster"]) == (3, 3, 3)
    assert outcome["lacking"] == outcome["gone"] == outcome["unheard"] == []
    assert outcome["left_bytes"] == outcome["failed"] == 0
    doubts = watch.doubts()
    check_read(counted, once(dataset), doubts)
    stats = [cluster.stats(node)["tier"] for node in cluster.everywhere()]
    assert all(each["hits"]["source"] for each in stats), "each node has read its own"
    assert sum(each["hits"]["peer"] for each in stats) == 0, "and nobody else's"

    counted.reset_counts()
    all_read(cluster, cluster.everywhere(), dataset)
    doubts = watch.doubts()
    check_read(counted, {}, doubts)
    doubts.allow(counted.counts().total("open"), doubts.reads, "files opened")


def test_the_second_time_there_is_nothing_to_do_also_after_a_restart(
    started: Starter, dataset: Dataset, counted: StandIn, tmp_path: Path
) -> None:
    for node in range(NODES):
        (tmp_path / f"nvme{node}").mkdir(mode=0o700)
        (tmp_path / f"nvme{node}" / f"node{node}").mkdir(mode=0o700)
        (tmp_path / f"node{node}").symlink_to(tmp_path / f"nvme{node}")
    flags = ("--tier-dir", f"{tmp_path}/%h/%h", "--tier-size", "1GiB")
    cluster = with_tier(started, counted, *flags)
    assert copperfs("warmup", "--ring", "--check", cluster.mnt(0), ".").returncode == 1
    assert counted.counts().total("read") == 0
    fill(cluster)
    counted.reset_counts()
    assert fill(cluster, node=2)["held_chunks"] == chunks_of(dataset)
    assert counted.counts().total("read") == 0
    cluster.remove()

    cluster = with_tier(started, counted, *flags)
    done = copperfs("warmup", "--ring", "--check", cluster.mnt(0), "part00", "part01")
    assert done.returncode == 0, done.stderr
    assert "all are held by their owners" in done.stdout
    fill(cluster)
    loaded = [cluster.stats(node)["tier"]["hits"]["nvme"] for node in cluster.everywhere()]
    assert sum(loaded) == 0, "what is on the disk is not loaded for that"
    assert counted.counts().total("read") == 0


def test_what_a_node_had_that_is_killed_meanwhile_the_others_have(
    started: Starter, dataset: Dataset, counted: StandIn, tmp_path: Path
) -> None:
    cluster = with_tier(started, counted, *on_disk(tmp_path))
    rule = counted.hang("part07/000007.bin", ops=["read"])
    with begun(cluster) as filling:
        counted.wait_for_hanging(1)
        eventually(lambda: state(cluster)["done_bytes"] > 0, "some is held")
        cluster.kill(2)
        counted.release(rule)
        said, complaint = filling.communicate(timeout=120)
    assert filling.returncode == 0, (said, complaint)
    watch = cluster.watch([2])
    outcome = json.loads(said)
    assert (outcome["gone"], outcome["nodes"], outcome["nodes_complete"]) == (["node2"], 2, 2)
    assert outcome["done_bytes"] == dataset.total_bytes
    counted.reset_counts()
    all_read(cluster, [0, 1], dataset)
    check_read(counted, {}, watch.doubts([2]))


def test_a_bar_tells_how_far_it_is_if_there_is_a_terminal(
    started: Starter, dataset: Dataset, counted: StandIn
) -> None:
    cluster = with_tier(started, counted)
    ours, theirs = pty.openpty()
    rule = counted.hang("part07/000007.bin", ops=["read"])
    seen = b""
    with subprocess.Popen(
        [*COPPERFS, "warmup", "--ring", cluster.mnt(0), "."],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    ) as filling:
        os.close(theirs)
        counted.wait_for_hanging(1)
        while f"/{FILES} files".encode() not in seen or b"MB" not in seen:
            seen += os.read(ours, 4096)
        counted.release(rule)
        assert filling.stdout is not None
        shown = filling.stdout.read()
    os.close(ours)
    assert filling.returncode == 0
    mib = dataset.total_bytes / MIB
    assert shown == (
        f"{FILES} files, {mib:.1f} MiB in {chunks_of(dataset)} chunks: all are held by their "
        "owners\n"
    )
    again = copperfs("warmup", "--ring", cluster.mnt(0), ".")
    assert again.stderr == "", "no terminal, no bar"


def test_whoever_interrupts_it_stops_all_nodes(
    started: Starter, dataset: Dataset, counted: StandIn
) -> None:
    cluster = with_tier(started, counted)
    watch = cluster.watch()
    rule = counted.hang("**", ops=["read"])
    with begun(cluster) as filling:
        counted.wait_for_hanging(NODES)
        filling.send_signal(signal.SIGINT)
        try:
            filling.communicate(timeout=60)
        finally:
            filling.kill()  # it does nothing to a warmup that has ended
    assert filling.returncode == 130
    eventually(lambda: state(cluster)["phase"] == "failed", "it has ended")
    assert "stopped" in state(cluster)["error"]
    counted.release(rule)
    eventually(
        lambda: not any(cluster.stats(n)["node"]["fetching"] for n in cluster.everywhere()),
        "nothing is on its way",
    )
    most = NODES * FILLS_AT_ONCE
    assert 0 < sum(counted.counts().read_bytes.values()) <= most * CHUNK < dataset.total_bytes
    assert fill(cluster)["done_bytes"] == dataset.total_bytes, "and it can be begun again"
    check_read(counted, once(dataset), watch.doubts())


def test_whoever_interrupts_it_while_a_path_is_checked_stops_it(
    started: Starter, dataset: Dataset, counted: StandIn
) -> None:
    cluster = with_tier(started, counted)
    rule = counted.hang("**", ops=["opendir"])
    # The command itself would first look the path up, and hang.
    request = {"paths": [dataset.files[0].name], "ring": True, "check": False}
    number = _begin(str(cluster.mnt(0)), request)["number"]
    counted.wait_for_hanging(1)
    _begin(str(cluster.mnt(0)), {"paths": [], "stop": number})
    eventually(lambda: state(cluster)["phase"] == "failed", "it has ended")
    assert "stopped" in state(cluster)["error"]
    counted.release(rule)
    assert counted.counts().read_bytes == {}


def test_what_does_not_fit_is_said_beforehand_and_what_fits_is_kept(
    started: Starter, dataset: Dataset, counted: StandIn, tmp_path: Path
) -> None:
    cluster = with_tier(started, counted, *on_disk(tmp_path, "8MiB"))
    watch = cluster.watch()
    done = copperfs("warmup", "--ring", "--json", cluster.mnt(0), ".")
    assert done.returncode == 1
    assert done.stderr.startswith("the set takes more than the data tier holds: ")
    outcome = json.loads(done.stdout)
    assert 0 < outcome["left_bytes"] < dataset.total_bytes
    owned = Counter[int]()
    for file in dataset.files:
        owners, chunk_bytes = owners_of(cluster.mnt(0), file)
        for index, owner in enumerate(owners):
            owned[owner] += min(chunk_bytes, file.size - index * chunk_bytes)
    # A chunk has a header, and the last one may not fit.
    least = sum(min(each, int(0.9 * 8 * MIB)) for each in owned.values())
    assert least <= outcome["done_bytes"] <= NODES * 8 * MIB
    read = sum(counted.counts().read_bytes.values())
    in_vain = read - outcome["done_bytes"]
    doubts = watch.doubts()
    assert in_vain >= 0
    doubts.allow(-(-in_vain // CHUNK), doubts.reads, "chunks read in vain")
    evictions = [cluster.stats(n)["tier"]["disk"]["evictions"] for n in cluster.everywhere()]
    assert evictions == [0] * NODES
    assert fill(cluster, code=1)["done_bytes"] == read
    assert sum(counted.counts().read_bytes.values()) == read


def test_only_what_goes_through_the_tier_is_taken(
    started: Starter, source: Path, standin: StandIn
) -> None:
    (source / "below").mkdir()
    (source / "below/small").write_bytes(b"x" * 1000)
    (source / "below/large").write_bytes(os.urandom(11 * MIB))
    cluster = started(2, of=standin.mountpoint)
    outcome = fill(cluster, "below")
    assert (outcome["files"], outcome["total_bytes"]) == (1, 11 * MIB)
    assert standin.counts().read_bytes == {"below/large": 11 * MIB}

    def refusal(*words: str) -> str:
        done = copperfs("warmup", "--ring", cluster.mnt(0), *words)
        assert done.returncode in (2, 5), done.stdout
        return done.stderr

    assert "nothing of that goes through the data tier" in refusal("below/small")
    assert "not a file or directory there: nowhere" in refusal("nowhere")
    assert "neither --manifest nor --evict" in refusal("below", "--evict")


def test_where_nobody_keeps_chunks_it_is_refused(started: Starter, source: Path) -> None:
    (source / "file").write_bytes(b"x")
    cluster = started(2, "--tier-memory", "0")
    done = copperfs("warmup", "--ring", cluster.mnt(0), "file")
    assert done.returncode == 5
    assert "nobody keeps chunks here" in done.stderr
