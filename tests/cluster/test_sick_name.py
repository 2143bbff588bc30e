"""A single name that the source cannot look up costs a job neither its directory nor a storm."""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from copperfs.node.cache.error_cache import BELIEVED_S
from tests.cluster.conftest import Starter
from tests.cluster.helpers import Cluster, fill
from tests.mount.doubts import Doubts
from tests.mount.helpers import errno_of, eventually, name_of
from tests.standin import StandIn

NODES = 3
FILES = 16
SICK = 7


def read_others(cluster: Cluster, source: Path, node: int) -> None:
    for index in range(FILES):
        if index != SICK:
            name = f"d/f{index}"
            assert (cluster.mnt(node) / name).read_bytes() == (source / name).read_bytes()
    assert sorted(os.listdir(cluster.mnt(node) / "d")) == sorted(f"f{i}" for i in range(FILES))


def is_well(path: Path) -> bool:
    return errno_of(path.lstat) is None


def check_healthy_cost(standin: StandIn, doubts: Doubts) -> None:
    """One scan, and one read of each file; more only in place of suspected nodes."""
    counts = standin.counts()
    healthy = [f"d/f{index}" for index in range(FILES) if index != SICK]
    scans = counts.total("opendir", "d")
    opens = {each: counts.total("open", each) for each in healthy}
    assert min(scans, *opens.values()) >= 1
    doubts.allow(scans - 1 + sum(opens.values()) - len(opens), doubts.reads, "listed, and opened")
    for each in healthy:
        assert counts.total("lookup", each) == scans + opens[each]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOTCONN], ids=errno.errorcode.get)
def test_a_sick_name_costs_the_job_one_scan_and_few_looks(
    started: Starter, source: Path, standin: StandIn, code: int
) -> None:
    fill(source, "d", FILES)
    standin.fail(f"d/f{SICK}", code, ops=["lookup", "getattr"])
    cluster = started(NODES, of=standin.mountpoint)
    watch = cluster.watch()
    standin.reset()
    began = time.monotonic()

    def play(node: int) -> None:
        for _ in range(10):
            assert name_of(errno_of((cluster.mnt(node) / f"d/f{SICK}").lstat)) == name_of(code)
        read_others(cluster, source, node)

    with ThreadPoolExecutor(NODES) as pool:
        list(pool.map(play, cluster.everywhere()))
    # each node believes its own result for a while; one lookup was that of the scan
    periods = 1 + int((time.monotonic() - began) / BELIEVED_S)
    doubts = watch.doubts()
    beyond = standin.counts().total("lookup", f"d/f{SICK}") - (1 + NODES * periods)
    doubts.allow(max(0, beyond), doubts.reads, "looks at the sick name")
    check_healthy_cost(standin, doubts)

    standin.heal()
    sick = f"d/f{SICK}"
    for node in cluster.everywhere():
        path = cluster.mnt(node) / sick
        eventually(partial(is_well, path), "it is looked at anew")
        assert path.read_bytes() == (source / sick).read_bytes()
    doubts = watch.doubts()
    doubts.allow(standin.counts().total("opendir", "d") - 1, doubts.reads, "listed")


def test_a_name_that_hangs_costs_the_job_one_scan_and_one_thread(
    started: Starter, source: Path, standin: StandIn
) -> None:
    fill(source, "d", FILES)
    standin.hang(f"d/f{SICK}", ops=["lookup", "getattr"])
    cluster = started(NODES, of=standin.mountpoint)
    watch = cluster.watch()
    standin.reset()
    with ThreadPoolExecutor(NODES) as pool:
        list(pool.map(lambda node: read_others(cluster, source, node), cluster.everywhere()))
    doubts = watch.doubts()
    doubts.allow(standin.counts().total("lookup", f"d/f{SICK}") - 1, doubts.reads, "looks at it")
    check_healthy_cost(standin, doubts)
    standin.heal()
    sick = f"d/f{SICK}"
    for node in cluster.everywhere():
        assert (cluster.mnt(node) / sick).read_bytes() == (source / sick).read_bytes()
    doubts = watch.doubts()
    doubts.allow(standin.counts().total("opendir", "d") - 1, doubts.reads, "listed")
