"""Nodes with networks of their own, whose links are cut: no application sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.conftest import Starter
from tests.cluster.helpers import (
    Cluster,
    digests,
    digests_at_once,
    fill,
    import_at_once,
    stopped_in_the_middle,
)
from tests.mount.helpers import copperfs, eventually
from tests.standin import StandIn


def networks_can_be_made() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        return False
    probe = f"copperfs-probe-{os.getpid()}"
    added = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    if added.returncode == 0:
        subprocess.run(["ip", "netns", "delete", probe], check=True)
    return added.returncode == 0


pytestmark = pytest.mark.skipif(
    not networks_can_be_made(), reason="network namespaces need root and iproute2"
)


def namespaces() -> set[str]:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines() if line.strip()}


def link(cluster: Cluster, do: str, node: int) -> None:
    done = copperfs("cluster", do, f"node{node}", "--dir", cluster.directory)
    assert done.returncode == 0, done.stderr


def test_each_node_has_an_address_of_its_own_and_they_share_as_ever(
    started: Starter, source: Path, package: str
) -> None:
    cluster = started(4, "--netns", "--fanout", "2")
    nodes = cluster.status()["nodes"]
    assert len({each["endpoint"].rpartition(":")[0] for each in nodes}) == 4
    own = {os.readlink("/proc/self/ns/net")}
    assert len({os.readlink(f"/proc/{each['pid']}/ns/net") for each in nodes} | own) == 5
    import_at_once(package, cluster.mountpoints)
    opened = [cluster.stats(node)["source"]["open"] for node in cluster.everywhere()]
    assert opened[0] > 50
    assert opened[1:] == [0, 0, 0]


def test_nothing_of_the_networks_is_left(tmp_path: Path, source: Path) -> None:
    interfaces = sorted(os.listdir("/sys/class/net"))
    before = namespaces()
    with Cluster(tmp_path / "cluster", 3, source, "--netns") as cluster:
        name = cluster.status()["network"]
        assert len([each for each in namespaces() if each.startswith(name)]) == 4
        assert sorted(os.listdir("/sys/class/net")) == interfaces, "none on the machine itself"
        cluster.kill(2)
    assert not [each for each in namespaces() - before if each.startswith(name)]
    failed = copperfs(
        *("cluster", "up", "-n", "3", "--netns", "--dir", tmp_path / "cluster"),
        *("--source", tmp_path / "missing"),
    )
    assert failed.returncode == 4
    assert sorted(os.listdir("/sys/class/net")) == interfaces


def test_a_node_whose_link_is_cut_reads_the_source_itself_and_comes_back(
    started: Starter, source: Path
) -> None:
    for name in ("before", "during", "after"):
        fill(source, name)
    cluster = started(3, "--netns", "--fanout", "1")  # a chain: 2 asks 1, which asks 0
    assert digests(cluster.mnt(2) / "before") == digests(source / "before")
    assert cluster.stats(2)["source"]["open"] == 0
    link(cluster, "cut", 2)
    status = cluster.status()
    assert [each["cut"] for each in status["nodes"]] == [False, False, True]
    # Its first request still goes to the parent, and is lost.
    found = digests_at_once([each / "during" for each in cluster.mountpoints])
    assert found == [digests(source / "during")] * 3
    assert cluster.stats(2)["source"]["open"] == 20
    assert cluster.stats(2)["node"]["fallbacks"] > 0
    assert cluster.stats(1)["source"]["open"] == 0, "the others share as before"
    assert digests(cluster.mnt(2) / "before") == digests(source / "before")

    link(cluster, "heal", 2)
    eventually(
        lambda: cluster.stats(2)["transport"]["connections"] > 0, "it is connected again", 60
    )
    assert digests(cluster.mnt(2) / "after") == digests(source / "after")
    assert cluster.status()["well"]


def test_links_that_are_cut_in_the_middle_are_seen_by_no_application(
    started: Starter, standin: StandIn, package: str, source: Path
) -> None:
    """Two roots of four trees are cut off while all nodes read everything."""
    standin.set_latency(per_op_s=0.001)  # so that there is a middle
    cluster = started(8, "--netns", "--fanout", "2", "--trees", "4", of=standin.mountpoint)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(digests_at_once, cluster.mountpoints)
        with stopped_in_the_middle(standin):
            for node in (0, 2):
                link(cluster, "cut", node)
            assert not reading.done()
        assert reading.result(timeout=120) == [digests(source)] * 8
