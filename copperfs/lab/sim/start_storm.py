"""Start storm: how long a shared filesystem takes to start copperfs itself on all nodes of a job.

The first process of a node reads copperfs, and further ones join it. The operations are those that
``copperfs pfs-sim`` counted for one node (``tests/mount/test_startup.py``). A process makes one
after the other, after a start that launchers spread over some time; metadata servers take
operations in the order in which they come, and all data shares one bandwidth. Computing time and
the filesystem's other users are left out.
"""

import heapq
import statistics
from dataclasses import dataclass
from random import Random

from copperfs.lab.sim.sim_source import SourceCosts


@dataclass(frozen=True, slots=True)
class StartOperations:
    """Of a node whose client knows no name yet, but for opening and closing of files all by its
    cache. Reads of data are counted as bytes."""

    first: int
    first_bytes: int
    further: int


BUNDLED = StartOperations(first=20, first_bytes=2_723_115, further=1)
"""Counted on 2026-11-20: 26 operations, 6 of them reads."""
MODULES = StartOperations(first=1_175, first_bytes=8_809_677, further=80)
"""The same with Python, module by module, as before decision 97: 1,448, of them 273 reads."""


@dataclass(frozen=True, slots=True)
class StormResult:
    operations: int
    read_bytes: int
    median_s: float
    """Until a node has started, the last process of it."""
    last_s: float


def start_all(
    start: StartOperations, nodes: int, ranks: int, costs: SourceCosts, *, skew_s: float, seed: int
) -> StormResult:
    dice = Random(seed)
    # Each process: when it asks for its next operation, its node, the operations it has left, and
    # whether it is the first of its node.
    asking = [
        (dice.uniform(0, skew_s), node, start.further if rank else start.first, not rank)
        for node in range(nodes)
        for rank in range(ranks)
    ]
    heapq.heapify(asking)
    free = [0.0] * costs.servers
    data_free_s = 0.0
    ended = [0.0] * nodes
    while asking:
        now, node, left, is_first = heapq.heappop(asking)
        if left:
            done = max(now, free[0]) + costs.operation_s
            heapq.heapreplace(free, done)
            heapq.heappush(asking, (done + costs.latency_s, node, left - 1, is_first))
            continue
        if is_first:
            begun = max(now, data_free_s)
            data_free_s = begun + start.first_bytes / costs.bytes_per_s
            now = max(begun + start.first_bytes / costs.client_bytes_per_s, data_free_s)
        ended[node] = max(ended[node], now)
    return StormResult(
        nodes * (start.first + (ranks - 1) * start.further),
        nodes * start.first_bytes,
        statistics.median(ended),
        max(ended),
    )
