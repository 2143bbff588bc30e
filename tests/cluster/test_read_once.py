"""However many nodes there are, the source is asked what a single node would have asked."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from copperfs.pfs.client import Counts
from tests.cluster.conftest import Starter
from tests.cluster.helpers import PATIENT, Cluster, digests, digests_at_once, import_at_once
from tests.standin import StandIn

NODES = 8
# A fan-out of 2 makes trees of depth 3 of so few nodes.
SHAPES = {"one tree": ("--fanout", "2"), "four trees": ("--fanout", "2", "--trees", "4")}

shapes = pytest.mark.parametrize("flags", list(SHAPES.values()), ids=list(SHAPES))


def differences(one: Counts, many: Counts) -> list[str]:
    """Where the source was asked other things by a job of many nodes than by one of one."""
    return [
        f"{op} {path}: {one.total(op, path)} by one node, {many.total(op, path)} by many"
        for op in sorted({*one.operations, *many.operations})
        for path in sorted({*one.paths(op), *many.paths(op)})
        if one.total(op, path) != many.total(op, path)
    ]


@shapes
def test_a_cold_import_on_all_nodes_at_once_asks_the_source_what_one_node_asks(
    started: Starter, standin: StandIn, package: str, flags: tuple[str, ...]
) -> None:
    alone = started(1, of=standin.mountpoint)
    standin.reset()
    import_at_once(package, alone.mountpoints)
    by_one = standin.counts()
    assert by_one.total("open") > 50, "the package is of some size"
    alone.remove()

    cluster = started(NODES, *flags, *PATIENT, of=standin.mountpoint)
    standin.reset()
    import_at_once(package, cluster.mountpoints)
    by_many = standin.counts()
    assert not differences(by_one, by_many)
    assert not by_many.not_found, "after a directory was listed, no missing name is looked up"

    import_at_once(package, cluster.mountpoints)
    assert not differences(by_one, standin.counts()), "a repeated import adds nothing"
    assert not any(cluster.stats(node)["node"]["fallbacks"] for node in cluster.everywhere())


@shapes
def test_all_files_read_on_all_nodes_in_any_order_are_the_sources_and_are_read_once(
    started: Starter, standin: StandIn, package: str, source: Path, flags: tuple[str, ...]
) -> None:
    (source / "large").write_bytes(random.Random(1).randbytes(5_000_000))  # goes in many parts
    (source / "empty").touch()
    (source / "link").symlink_to("rich/console.py")
    files = [str(each.relative_to(source)) for each in source.rglob("*") if each.is_file()]
    with_bytes = {each for each in files if (source / each).stat().st_size}
    cluster = started(NODES, *flags, *PATIENT, of=standin.mountpoint)
    standin.reset()

    def read_all(node: int) -> None:
        shuffled = files.copy()
        random.Random(node).shuffle(shuffled)
        for each in shuffled:
            (cluster.mnt(node) / each).read_bytes()

    with ThreadPoolExecutor(NODES) as pool:
        list(pool.map(read_all, cluster.everywhere()))
    counts = standin.counts()
    opened = {path: counts.total("open", path) for path in counts.paths("open")}
    assert set(opened) == with_bytes - {"link"}, "what is empty is never opened"
    assert set(opened.values()) == {1}, {p: n for p, n in opened.items() if n != 1}
    listed = {path: counts.total("opendir", path) for path in counts.paths("opendir")}
    assert set(listed.values()) == {1}, {p: n for p, n in listed.items() if n != 1}

    wanted = digests(source)
    for node, found in enumerate(digests_at_once(cluster.mountpoints)):
        assert found == wanted, f"node {node}"
    assert standin.counts().total("open") == counts.total("open")


@pytest.mark.parametrize("seed", range(3))
def test_what_is_read_ahead_is_the_same_for_one_node_and_for_many_in_any_order(
    started: Starter, standin: StandIn, source: Path, seed: int
) -> None:
    draw = random.Random(seed)
    names = []
    for number in range(12):
        directory = source / f"d{number}"
        directory.mkdir()
        for each in range(draw.randrange(3, 30)):
            name = f"d{number}/{each:02}{draw.choice(('.p', '.q', ''))}"
            (source / name).write_bytes(draw.randbytes(draw.choice((100, 5000, 200_000))))
            names.append(name)
    asked = draw.sample(names, len(names) // 4)
    found = []
    for nodes, flags in ((1, ()), (4, ("--fanout", "2", "--trees", "2"))):
        cluster = started(nodes, *flags, *PATIENT, of=standin.mountpoint)
        standin.reset()

        def read_all(node: int, cluster: Cluster = cluster) -> None:
            shuffled = asked.copy()
            random.Random(100 * seed + node).shuffle(shuffled)
            for each in shuffled:
                assert (cluster.mnt(node) / each).read_bytes() == (source / each).read_bytes()

        with ThreadPoolExecutor(nodes) as pool:
            list(pool.map(read_all, range(nodes)))
        settled(standin)
        found.append(standin.counts())
        cluster.remove()
    assert not differences(*found)
    opened = {path: found[0].total("open", path) for path in found[0].paths("open")}
    assert set(opened.values()) == {1}
    assert set(opened) > set(asked), "some were read ahead"


def settled(standin: StandIn) -> None:
    """Until what is read ahead is read: nothing was asked of the source for a while."""
    before = -1
    while (now := standin.counts().total()) != before:
        before = now
        time.sleep(0.5)


def test_who_follows_has_most_answered_without_python(started: Starter, source: Path) -> None:
    files = [f"d{number}/{each}.p" for number in range(10) for each in range(20)]
    for each in files:
        (source / each).parent.mkdir(exist_ok=True)
        (source / each).write_bytes(each.encode() * 100)
    cluster = started(3, "--fanout", "2", *PATIENT)
    for each in files:
        assert (cluster.mnt(1) / each).read_bytes() == each.encode() * 100
    cluster.reset()
    for each in files:
        assert (cluster.mnt(2) / each).read_bytes() == each.encode() * 100
    stats = [cluster.stats(node) for node in cluster.everywhere()]
    # each ask is answered before the next: what is offered with it comes first, or soon
    assert stats[2]["node"]["asks"] < 60
    assert stats[2]["node"]["offered"] > 150
    assert stats[2]["handlers"]["requests"] < 80
    assert stats[0]["source"]["open"] == 0


def test_who_is_level_with_another_is_sent_what_that_one_asks_for(
    started: Starter, source: Path
) -> None:
    files = [f"{number}.{number}" for number in range(60)]
    for each in files:
        (source / each).write_bytes(each.encode())
    cluster = started(3, "--fanout", "2", "--no-read-ahead", *PATIENT)
    for node in (1, 2, 1):
        for each in files[:40]:
            (cluster.mnt(node) / each).read_bytes()
    cluster.reset()
    for each in files[40:]:
        (cluster.mnt(1) / each).read_bytes()
    wait_until(lambda: cluster.stats(2)["node"]["offered"] == 20)
    for each in files[40:]:
        assert (cluster.mnt(2) / each).read_bytes() == each.encode()
    stats = cluster.stats(2)
    assert stats["node"]["asks"] == stats["node"]["questions"] == 0


def wait_until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """The core wakes by its own deadlines, and by nothing that a test does."""
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def test_with_four_trees_four_roots_share_the_work_evenly(started: Starter, source: Path) -> None:
    directories = 1000
    for index in range(directories):
        directory = source / f"d{index:04}"
        directory.mkdir()
        (directory / "file").write_bytes(b"%d" % index)
    cluster = started(NODES, "--trees", "4", "--fanout", "2", *PATIENT)
    cluster.reset()

    def read_part(node: int) -> None:
        for index in range(node, directories, NODES):
            file = cluster.mnt(node) / f"d{index:04}" / "file"
            assert file.read_bytes() == b"%d" % index

    with ThreadPoolExecutor(NODES) as pool:
        list(pool.map(read_part, cluster.everywhere()))
    counts = [cluster.stats(node)["source"] for node in cluster.everywhere()]
    roots = [node for node in cluster.everywhere() if counts[node]["open"]]
    assert len(roots) == 4
    status = cluster.status()["nodes"]
    assert roots == [node for node in cluster.everywhere() if None in status[node]["parents"]]
    for what in ("open", "scandir"):
        shares = {node: counts[node][what] for node in roots}
        even = directories / len(roots)
        assert all(0.8 * even <= share <= 1.2 * even for share in shares.values()), shares
    assert sum(counts[node]["open"] for node in roots) == directories
    assert sum(counts[node]["scandir"] for node in roots) == directories + 1
