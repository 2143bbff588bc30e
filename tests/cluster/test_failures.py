"""Daemons that are killed: no application on another node sees it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster.conftest import Starter
from tests.cluster.helpers import digests, digests_at_once, fill
from tests.mount.helpers import eventually
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
    """Two roots of four trees end while six other nodes read everything."""
    standin.set_latency(per_op_s=0.001)  # so that there is a middle
    cluster = started(8, "--fanout", "2", "--trees", "4", of=standin.mountpoint)
    survivors = [cluster.mnt(node) for node in cluster.everywhere() if node not in (0, 2)]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(digests_at_once, survivors)
        eventually(lambda: standin.counts().total("open") > 50, "they are in the middle")
        for node in (0, 2):
            cluster.kill(node)
        assert not reading.done()
        assert reading.result(timeout=120) == [digests(source)] * 6
