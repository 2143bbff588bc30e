"""The simulator against real daemons on this machine: both run the same job.

Nodes read one after the other, each in the opposite order of its parent, so nothing depends on
speed. Then simulated nodes have to reach the same counts as real ones: operations at the source,
requests and replies between nodes, and bytes. ``make bench ARGS=simulated`` compares durations.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from copperfs.lab.sim.world import MIB, Job, World
from copperfs.model.types import Path as SourcePath
from copperfs.node.prefetch.access_history import STEP_MAX
from copperfs.node.routing.tree_failover import depth_of
from tests.cluster.conftest import Starter
from tests.cluster.helpers import PATIENT, Cluster

FANOUT = 2
SIZES = (1, 300, 4096, 70_000, 1, 1, 100, 5000, 1 << 20, 7, (1 << 20) + 1, 3 * MIB + 17, 9)
# The kernel does not read an empty file. A directory has more files than a follower may skip.
FILES_IN_EACH = STEP_MAX + 8
FILES = {
    f"d{directory}/f.{number}": SIZES[number % len(SIZES)]
    for directory in range(3)
    for number in range(FILES_IN_EACH)
}
OF_NODES = ("asks", "answers", "peer_questions", "peers_refused", "offers", "fallbacks", "spoiled")


def order_of(node: int) -> list[str]:
    names = list(FILES)
    return names if depth_of(node, FANOUT) % 2 == 0 else names[::-1]


def done_by_real_nodes(cluster: Cluster, nodes: int) -> list[dict[str, Any]]:
    cluster.reset()  # for this the kernel looks up the top, and the node requests it
    cluster.reset()
    for node in range(nodes):
        for name in order_of(node):
            data = (cluster.mnt(node) / name).read_bytes()
            assert len(data) == FILES[name]
    return [cluster.stats(node) for node in range(nodes)]


def done_by_simulated_nodes(nodes: int) -> World:
    world = World(1, Job(nodes, fanout=FANOUT, memory_bytes=256 * MIB))
    for name, size in FILES.items():
        world.source.add(SourcePath(name.encode()), size)
    world.start()
    for node in range(nodes):
        for name in order_of(node):
            reading = world.read(node, SourcePath(name.encode()))
            assert world.run_until_read()
            assert reading.is_well
            assert reading.has_bytes
    return world


@pytest.mark.mount
@pytest.mark.parametrize("nodes", [4, 8, pytest.param(16, marks=pytest.mark.long)])
def test_simulated_nodes_do_what_real_ones_do(started: Starter, source: Path, nodes: int) -> None:
    for name, size in FILES.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    # No node of the simulated job is late.
    options = ("--fanout", str(FANOUT), "--no-read-ahead", "--memory", "256MiB", *PATIENT)
    real = done_by_real_nodes(started(nodes, *options), nodes)
    world = done_by_simulated_nodes(nodes)

    for node in range(nodes):
        stats = world[node].node.statistics()
        assert {key: real[node]["node"][key] for key in OF_NODES} == {
            key: getattr(stats, key) for key in OF_NODES
        }, f"node {node}"
        taken = real[node]["bytes"]["from_parents"]
        assert taken == world[node].peers.taken_bytes, f"node {node}"

    at_source: Counter[str] = Counter()
    for each in real:
        at_source.update(each["source"])
    simulated: Counter[str] = Counter()
    for (kind, _), count in world.source.counts.items():
        simulated[kind] += count
    assert at_source["scandir"] == simulated["scan"] == 4, "the top, and those in it"
    assert at_source["open"] == simulated["read"] == len(FILES)
    assert at_source["read_bytes"] == sum(FILES.values())
    assert simulated["look"] == 0
