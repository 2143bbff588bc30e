"""However many nodes a job has, the source gets the operations of a single node."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from copperfs.lab.pfs_sim.pfs_client import ReportedCounts
from tests.cluster.conftest import Starter
from tests.cluster.helpers import Cluster, digests, digests_at_once, import_at_once
from tests.mount.doubts import Doubts
from tests.standin import StandIn

NODES = 8
# A fan-out of 2 makes trees of depth 3 of so few nodes.
SHAPES = {"one tree": ("--fanout", "2"), "four trees": ("--fanout", "2", "--trees", "4")}

shapes = pytest.mark.parametrize("flags", list(SHAPES.values()), ids=list(SHAPES))


def differences(one: ReportedCounts, many: ReportedCounts) -> list[str]:
    return [
        f"{op} {path}: {one.total(op, path)} by one node, {many.total(op, path)} by many"
        for op in sorted({*one.operations, *many.operations})
        for path in sorted({*one.paths(op), *many.paths(op)})
        if one.total(op, path) != many.total(op, path)
    ]


def check_asked_as_by_one(by_one: ReportedCounts, by_many: ReportedCounts, doubts: Doubts) -> None:
    """The same operations on the same paths, except in place of suspected nodes; a root that was
    not asked reads less ahead then."""
    found = differences(by_one, by_many)
    extra = sum(
        max(0, by_many.total(op, path) - by_one.total(op, path))
        for op in ("open", "opendir")
        for path in by_many.paths(op)
    )
    doubts.allow(extra, doubts.reads, "files opened and directories listed")
    assert not found or doubts.reads, found


def check_each_once(counts: ReportedCounts, op: str, doubts: Doubts) -> set[str]:
    times = {path: counts.total(op, path) for path in counts.paths(op)}
    often = {path: count for path, count in times.items() if count != 1}
    doubts.allow(sum(often.values()) - len(often), doubts.reads, f"{op} of {often}")
    return set(times)


@shapes
def test_a_cold_import_on_all_nodes_at_once_asks_the_source_what_one_node_asks(
    started: Starter, standin: StandIn, package: str, flags: tuple[str, ...]
) -> None:
    alone = started(1, of=standin.mountpoint)
    alone.watch()  # reading the counts looks up the top, which the nodes then do as well
    standin.reset()
    import_at_once(package, alone.mountpoints)
    settled(standin)
    by_one = standin.counts()
    assert by_one.total("open") > 50, "the package is of some size"
    alone.remove()

    cluster = started(NODES, *flags, of=standin.mountpoint)
    watch = cluster.watch()
    standin.reset()
    import_at_once(package, cluster.mountpoints)
    settled(standin)
    by_many = standin.counts()
    check_asked_as_by_one(by_one, by_many, watch.doubts())
    assert not by_many.not_found, "after a directory was listed, no missing name is looked up"

    import_at_once(package, cluster.mountpoints)
    assert not differences(by_many, standin.counts()), "a repeated import adds nothing"


@shapes
def test_all_files_read_on_all_nodes_in_any_order_are_the_sources_and_are_read_once(
    started: Starter, standin: StandIn, package: str, source: Path, flags: tuple[str, ...]
) -> None:
    (source / "large").write_bytes(random.Random(1).randbytes(5_000_000))  # travels in many parts
    (source / "empty").touch()
    (source / "link").symlink_to("rich/console.py")
    files = [str(each.relative_to(source)) for each in source.rglob("*") if each.is_file()]
    directories = [source, *(each for each in source.rglob("*") if each.is_dir())]
    with_bytes = {each for each in files if (source / each).stat().st_size}
    cluster = started(NODES, *flags, of=standin.mountpoint)
    watch = cluster.watch()
    standin.reset()

    def read_all(node: int) -> None:
        shuffled = files.copy()
        random.Random(node).shuffle(shuffled)
        for each in shuffled:
            (cluster.mnt(node) / each).read_bytes()

    with ThreadPoolExecutor(NODES) as pool:
        list(pool.map(read_all, cluster.everywhere()))
    counts = standin.counts()
    doubts = watch.doubts()
    opened = check_each_once(counts, "open", doubts)
    assert opened == with_bytes - {"link"}, "what is empty is never opened"
    listed = check_each_once(counts, "opendir", doubts)
    assert listed == {str(each.relative_to(source)) for each in directories}
    extra = counts.total("open") + counts.total("opendir") - len(opened) - len(listed)
    doubts.allow(extra, doubts.reads, "both")
    of_daemons = [cluster.stats(node)["source"]["open"] for node in cluster.everywhere()]
    assert sum(of_daemons) == counts.total("open"), "the daemons count what the source does"

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
        cluster = started(nodes, *flags, of=standin.mountpoint)
        watch = cluster.watch()
        standin.reset()

        def read_all(node: int, cluster: Cluster = cluster) -> None:
            shuffled = asked.copy()
            random.Random(100 * seed + node).shuffle(shuffled)
            for each in shuffled:
                assert (cluster.mnt(node) / each).read_bytes() == (source / each).read_bytes()

        with ThreadPoolExecutor(nodes) as pool:
            list(pool.map(read_all, range(nodes)))
        settled(standin)
        found.append((standin.counts(), watch.doubts()))
        cluster.remove()
    (by_one, _), (by_many, doubts) = found
    check_asked_as_by_one(by_one, by_many, doubts)
    opened = {path: by_one.total("open", path) for path in by_one.paths("open")}
    assert set(opened.values()) == {1}
    assert set(opened) > set(asked), "some were read ahead"


def settled(standin: StandIn) -> None:
    """The read-ahead is done when the source has no operation for a while."""
    before = -1
    while (now := standin.counts().total()) != before:
        before = now
        time.sleep(0.5)


def test_who_follows_has_most_answered_without_python(started: Starter, source: Path) -> None:
    files = [f"d{number}/{each}.p" for number in range(10) for each in range(20)]
    for each in files:
        (source / each).parent.mkdir(exist_ok=True)
        (source / each).write_bytes(each.encode() * 100)
    cluster = started(3, "--fanout", "2")
    for each in files:
        assert (cluster.mnt(1) / each).read_bytes() == each.encode() * 100
    cluster.reset()
    for each in files:
        assert (cluster.mnt(2) / each).read_bytes() == each.encode() * 100
    stats = [cluster.stats(node) for node in cluster.everywhere()]
    # each request gets its reply before the next: offers come with it, or soon after
    assert stats[2]["node"]["asks"] - asks_around(stats[2]) < 60
    assert stats[2]["node"]["offered"] > 150
    assert stats[2]["handlers"]["requests"] < 80
    assert stats[0]["source"]["open"] == 0


def asks_around(stats: dict[str, Any]) -> int:
    members = stats["members"]
    return int(members["hedges"] + members["detours"] + members["resent"])


def test_who_is_level_with_another_is_sent_what_that_one_asks_for(
    started: Starter, source: Path
) -> None:
    files = [f"{number}.{number}" for number in range(60)]
    for each in files:
        (source / each).write_bytes(each.encode())
    cluster = started(3, "--fanout", "2", "--no-read-ahead")
    for node in (1, 2, 1):
        for each in files[:40]:
            (cluster.mnt(node) / each).read_bytes()
    cluster.reset()
    for each in files[40:]:
        (cluster.mnt(1) / each).read_bytes()
    # The root offers what it was asked for, not what node 1 read as a fallback.
    in_place = cluster.stats(1)["node"]["fallbacks"]
    wait_until(lambda: cluster.stats(2)["node"]["offered"] >= 20 - in_place)
    for each in files[40:]:
        assert (cluster.mnt(2) / each).read_bytes() == each.encode()
    stats = cluster.stats(2)
    assert stats["node"]["questions"] <= 20 - stats["node"]["offered"] <= in_place
    assert stats["node"]["asks"] - asks_around(stats) <= stats["node"]["questions"]


def wait_until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """The node wakes by its own deadlines alone."""
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
    cluster = started(NODES, "--trees", "4", "--fanout", "2")
    cluster.reset()
    watch = cluster.watch()

    def read_part(node: int) -> None:
        for index in range(node, directories, NODES):
            file = cluster.mnt(node) / f"d{index:04}" / "file"
            assert file.read_bytes() == b"%d" % index

    with ThreadPoolExecutor(NODES) as pool:
        list(pool.map(read_part, cluster.everywhere()))
    stats = [cluster.stats(node) for node in cluster.everywhere()]
    doubts = watch.doubts()
    status = cluster.status()["nodes"]
    roots = [node for node in cluster.everywhere() if None in status[node]["parents"]]
    assert len(roots) == 4
    # The root of a tree reads one file of each directory, and its names.
    as_root = {
        node: each["source"]["open"]
        + each["source"]["scandir"]
        - each["node"]["fallbacks"]
        - each["node"]["took_over"]
        for node, each in enumerate(stats)
    }
    even = 2 * directories / len(roots)
    for node, share in as_root.items():
        if node in roots:
            assert 0.8 * even <= share + doubts.reads, as_root
            assert share <= 1.2 * even, as_root
        else:
            assert not share, "what a node reads that is no root, it counts"
    for what, least in (("open", directories), ("scandir", directories + 1)):
        found = sum(each["source"][what] for each in stats)
        doubts.allow(found - least, doubts.reads, what)
