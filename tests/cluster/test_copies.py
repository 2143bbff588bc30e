"""Copies in a cluster: a killed node costs no read of the source."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Starter
from tests.cluster.helpers import PATIENT, Cluster
from tests.mount.helpers import copperfs, eventually
from tests.standin import StandIn

MIB = 1 << 20
SIZE = 24 * MIB + 4321
NODES = 4
READER, DEAD = 0, 2
"""One node reads before the loss, and all others after it, which have nothing in page caches."""


@pytest.fixture
def content(source: Path) -> bytes:
    data = random.Random("protected").randbytes(SIZE)
    (source / "data").mkdir()
    (source / "data" / "large").write_bytes(data)
    os.utime(source / "data" / "large", ns=(10**18, 10**18))
    return data


def protected(started: Starter, standin: StandIn, *flags: str) -> Cluster:
    # A node that is late on a busy machine is not a second loss, which the class does not survive.
    prefix = f"{standin.mountpoint}/data"
    return started(
        NODES, "--protect", f"{prefix}=copies:2", *PATIENT, *flags, of=standin.mountpoint
    )


def tier(cluster: Cluster, node: int = READER) -> Any:
    done = copperfs("stats", "--all", "--json", cluster.mnt(node))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["total"]["tier"]


def await_copies(cluster: Cluster) -> None:
    chunks = SIZE // MIB + 1

    def are_made() -> bool:
        copies = tier(cluster)["copies"]
        return bool(copies["made"] >= chunks and not copies["due"])

    eventually(are_made, "all chunks are protected")


@contextmanager
def without_source(standin: StandIn) -> Iterator[None]:
    hung = standin.hang("**", ops=["read"])
    try:
        yield
    finally:
        standin.release(hung)


@pytest.mark.parametrize("flags", [(), ("--no-fallback",)], ids=["fallback", "no-fallback"])
def test_a_killed_node_costs_no_read_of_the_source(
    started: Starter, standin: StandIn, content: bytes, flags: tuple[str, ...]
) -> None:
    cluster = protected(started, standin, *flags)
    assert (cluster.mnt(READER) / "data" / "large").read_bytes() == content
    await_copies(cluster)
    before = dict(standin.counts().read_bytes)
    cluster.kill(DEAD)
    with without_source(standin):
        for node in {*range(NODES)} - {READER, DEAD}:
            assert (cluster.mnt(node) / "data" / "large").read_bytes() == content
    assert dict(standin.counts().read_bytes) == before


def test_a_node_that_returns_gets_its_chunks_from_copies(
    started: Starter, standin: StandIn, content: bytes
) -> None:
    cluster = protected(started, standin)
    assert (cluster.mnt(READER) / "data" / "large").read_bytes() == content
    await_copies(cluster)
    before = dict(standin.counts().read_bytes)
    held = cluster.stats(DEAD)["tier"]["memory"]["held"]
    assert held
    cluster.kill(DEAD)
    name = f"node{DEAD}"
    assert copperfs("cluster", "start", "--dir", cluster.directory, name).returncode == 0
    eventually(
        lambda: cluster.stats(DEAD)["tier"]["memory"]["held"] >= held and not due(cluster),
        "it has its chunks again",
    )
    with without_source(standin):
        assert (cluster.mnt(DEAD) / "data" / "large").read_bytes() == content
    assert dict(standin.counts().read_bytes) == before


def due(cluster: Cluster) -> int:
    return int(tier(cluster)["copies"]["due"])


def test_ring_shows_classes_and_whether_all_is_protected(
    started: Starter, standin: StandIn, content: bytes
) -> None:
    cluster = protected(started, standin)
    assert (cluster.mnt(READER) / "data" / "large").read_bytes() == content
    await_copies(cluster)
    shown = copperfs("ring", cluster.mnt(1)).stdout
    assert "/data=copies:2; all chunks that were read are protected" in shown
    path = cluster.mnt(1) / "data" / "large"
    found = json.loads(copperfs("ring", "--json", cluster.mnt(1), path).stdout)
    assert found["paths"][0]["copies"] == 2
    assert "2 copies of each" in copperfs("ring", cluster.mnt(1), path).stdout
