"""Daemons that are stopped, stuck or slow: no reader waits for them, and no live one is declared
dead.

A node that hangs continues only when the test lets it, so whatever was read before that did not
wait for it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.stuck import Stuck
from tests.cluster.conftest import Starter
from tests.cluster.helpers import Cluster, digests, digests_at_once, fill
from tests.mount.helpers import eventually
from tests.standin import StandIn

# Never declare a hanging peer dead, however long the test holds it. All else is the default.
NEVER = ("--dead-after", "600")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def stuck(pid: int) -> Iterator[None]:
    held = Stuck(pid)
    try:
        yield
    finally:
        held.release()


def members(cluster: Cluster, node: int) -> dict[str, int]:
    found: dict[str, int] = cluster.stats(node)["members"]
    return found


@pytest.mark.parametrize("hangs", [stopped, stuck])
@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_hangs_is_asked_around(
    started: Starter, source: Path, node: int, hangs: object
) -> None:
    """With fan-out 2, nodes 1 and 2 ask 0, and 3 and 4 ask 1."""
    for name in ("before", "after"):
        fill(source, name)
    cluster = started(5, "--fanout", "2", *NEVER)
    others = [number for number in range(5) if number != node]
    digests_at_once([cluster.mnt(number) / "before" for number in others])
    with hangs(cluster.pid(node)):  # type: ignore[operator]
        found = digests_at_once([cluster.mnt(number) / "after" for number in others])
        assert found == [digests(source / "after")] * 4
        assert sum(members(cluster, number)["gone"] for number in others) == 0
        assert sum(members(cluster, number)["suspects"] for number in others) > 0
    eventually(
        lambda: sum(members(cluster, number)["suspects"] for number in range(5)) == 0,
        "it is asked again",
    )


def test_a_slow_source_makes_nobody_suspect(
    started: Starter, standin: StandIn, source: Path
) -> None:
    """It takes five times as long as a node may be silent before it counts as dead."""
    (source / "slow").write_bytes(b"at last")
    cluster = started(4, "--fanout", "1", "--dead-after", "1.5", of=standin.mountpoint)
    for node in range(4):
        os.listdir(cluster.mnt(node))
    rule = standin.hang("slow", ops=["read"])
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit((cluster.mnt(3) / "slow").read_bytes)
        standin.wait_for_hanging(1)
        with pytest.raises(TimeoutError):
            reading.result(timeout=5)
        counts = [members(cluster, node) for node in range(4)]
        standin.release(rule)
        assert reading.result(timeout=60) == b"at last"
    assert [each["deaths"] + each["gone"] + each["hedges"] for each in counts] == [0] * 4
    assert standin.counts().total("open", "slow") == 1


def test_a_loop_that_is_a_second_and_a_half_late_is_no_death(
    started: Starter, source: Path
) -> None:
    fill(source, "set")
    cluster = started(5, "--fanout", "2")
    digests_at_once([each / "set" for each in cluster.mountpoints])
    for node in (0, 1):
        with stuck(cluster.pid(node)):
            threading.Event().wait(1.5)
    eventually(
        lambda: sum(members(cluster, node)["suspects"] for node in range(5)) == 0, "all is well"
    )
    counts = [members(cluster, node) for node in range(5)]
    assert [each["deaths"] + each["returns"] for each in counts] == [0] * 5


def test_who_leaves_is_not_waited_for(started: Starter, source: Path) -> None:
    for name in ("before", "after"):
        fill(source, name)
    cluster = started(5, "--fanout", "2")
    others = [0, 2, 3, 4]
    digests_at_once([cluster.mnt(number) / "before" for number in others])
    cluster.kill(1, signal.SIGTERM)
    eventually(lambda: [members(cluster, each)["gone"] for each in others] == [1] * 4, "all know")
    found = digests_at_once([cluster.mnt(number) / "after" for number in others])
    assert found == [digests(source / "after")] * 4
    counts = [members(cluster, each) for each in others]
    assert [each["deaths"] + each["hedges"] for each in counts] == [0] * 4, "it had told them"
    assert sum(cluster.stats(each)["node"]["fallbacks"] for each in others) == 0
