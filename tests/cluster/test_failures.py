"""Daemons that are killed: no application on another node sees it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster.conftest import Starter
from tests.cluster.helpers import digests, digests_at_once, fill, stopped_in_the_middle
from tests.standin import StandIn


def test_when_the_root_is_killed_the_others_read_the_source(started: Starter, source: Path) -> None:
    for name in ("before", "after"):
        fill(source, name)
    cluster = started(3, "--fanout", "2")
    wanted = digests(source / "before")
    assert digests_at_once([each / "before" for each in cluster.mountpoints]) == [wanted] * 3
    cluster.kill(0)
    survivors = cluster.mountpoints[1:]
    for name in ("before", "after"):
        found = digests_at_once([each / name for each in survivors])
        assert found == [digests(source / name)] * 2


def test_roots_that_are_killed_in_the_middle_are_missed_by_nobody(
    started: Starter, standin: StandIn, package: str, source: Path
) -> None:
    standin.set_latency(per_op_s=0.001)  # so that there is a middle
    cluster = started(8, "--fanout", "2", "--trees", "4", of=standin.mountpoint)
    survivors = [cluster.mnt(node) for node in cluster.everywhere() if node not in (0, 2)]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(digests_at_once, survivors)
        with stopped_in_the_middle(standin):
            for node in (0, 2):
                cluster.kill(node)
            assert not reading.done()
        assert reading.result(timeout=120) == [digests(source)] * 6


def test_what_a_node_on_the_way_holds_is_not_read_again_when_the_root_is_killed(
    started: Starter, standin: StandIn, source: Path
) -> None:
    """The next root reads the rest once. With fan-out 2, nodes 1 and 2 ask 0, nodes 3 and 4 ask 1,
    and nodes 5 and 6 ask 2; later 2 asks 1."""
    left, right, later = "left", "right", "later"
    for name in (left, right, later):
        fill(source, name)
    cluster = started(7, "--fanout", "2", of=standin.mountpoint)

    def read(name: str, *nodes: int) -> None:
        found = digests_at_once([cluster.mnt(node) / name for node in nodes])
        assert found == [digests(source / name)] * len(nodes)

    def opened(name: str) -> set[int]:
        counts = standin.counts().operations.get("open", {})
        assert all(counts[f"{name}/{file.name}"] for file in (source / name).iterdir())
        return {count for path, count in counts.items() if path.startswith(f"{name}/")}

    read(left, 3)  # nodes 0 and 1 hold it, too
    read(right, 5)  # 0 and 2
    assert opened(left) == opened(right) == {1}
    cluster.kill(0)
    read(left, 1, 2, 3, 4, 5, 6)
    assert opened(left) == {1}, "all of them ask 1, who has it"
    read(right, 2, 5, 6)
    assert opened(right) == {1}, "2 has it"
    read(right, 1, 3, 4)
    assert opened(right) == {2}, "1 is the root, and never had it"
    read(later, 1, 2, 3, 4, 5, 6)
    assert opened(later) == {1}
    assert sum(cluster.stats(node)["node"]["fallbacks"] for node in range(1, 7)) == 0
