"""Baselines: models, not simulations, of how long the same workload takes without copperfs.

Both are the asymptotic bounds of a closed network of queues. A job takes as long as one process
that never waits for another, or as long as the busiest server works for all, whichever is more. The
truth lies above, so these models favour the systems that copperfs is compared with.

*Lustre alone.* A node's client caches pages, and names that its processes have looked up. Each open
and each close goes to a metadata server.

*Copper*, by its paper and its 1.0 release: its mount turns off the kernel's caches, so all requests
go through FUSE to the node's daemon. The daemon requests each path in turn, up a tree of fan-out 2
to 7 with one root. Every node reads files above 10 MB on Lustre itself.
"""

from dataclasses import dataclass

from copperfs.lab.sim.costs import Costs
from copperfs.lab.sim.workload import MIB, Workload

LARGE_BYTES = 10 * MIB
COPPER_THREADS = 4
"""By section V of its paper."""
COPPER_REQUEST_S = 20e-6
"""libfuse, answered from a hash table (``passthrough_hp``: 10 to 22 us, docs/performance.md)."""
REQUESTS_PER_LOOKUP = 18
"""42,500 requests for 2,346 names in an import without kernel caching."""
# The fan-out of Copper 1.0 by the number of nodes: the largest job for each.
_COPPER_FANOUTS = ((31, 2), (121, 3), (341, 4), (781, 5), (1555, 6))
_COPPER_FANOUT_BEYOND = 7


@dataclass(frozen=True, slots=True)
class Modelled:
    cold_s: float
    warm_s: float


def lustre(workload: Workload, nodes: int, costs: Costs) -> Modelled:
    source = costs.source
    rate = source.servers / source.operation_s
    trip_s = source.latency_s + source.operation_s
    opens = 2 * workload.opens  # and closes
    node_bytes = _read_bytes(workload, above=0)
    alone_s = (workload.lookups + opens) * trip_s + node_bytes / source.client_bytes_per_s
    metadata_s = nodes * (workload.lookups + opens * workload.processes) / rate
    data_s = nodes * node_bytes / source.bytes_per_s
    cold_s = max(workload.compute_s + alone_s, metadata_s, data_s)
    again_s = nodes * opens * workload.processes / rate
    return Modelled(cold_s, max(workload.compute_s + opens * trip_s, again_s))


def copper(workload: Workload, nodes: int, costs: Costs) -> Modelled:
    source, network = costs.source, costs.network
    fanout = copper_fanout(nodes)
    depth = _depth(nodes, fanout)
    trip_s = source.latency_s + source.operation_s
    hop_s = 2 * (network.latency_s + network.send_s + network.receive_s)
    large = [w.size for w in workload.wants if w.size is not None and w.size > LARGE_BYTES]
    small_bytes = _read_bytes(workload, above=0) - _read_bytes(workload, above=LARGE_BYTES)
    asked = workload.lookups + workload.opens - len(large)
    requests = workload.lookups * REQUESTS_PER_LOOKUP * workload.processes
    here_s = requests * COPPER_REQUEST_S / COPPER_THREADS
    root_s = fanout * (asked * hop_s / 2 + small_bytes / network.bytes_per_s)
    way_s = asked * (depth * hop_s + trip_s) + small_bytes / source.client_bytes_per_s
    opens = 2 * len(large) * workload.processes
    beside = max(
        2 * len(large) * trip_s + _read_bytes(workload, LARGE_BYTES) / source.client_bytes_per_s,
        nodes * opens * source.operation_s / source.servers,
        nodes * _read_bytes(workload, LARGE_BYTES) / source.bytes_per_s,
    )
    warm_s = max(workload.compute_s, here_s) + beside
    return Modelled(max(workload.compute_s + way_s, here_s, root_s) + beside, warm_s)


def _read_bytes(workload: Workload, above: int) -> float:
    sizes = [w.size for w in workload.wants if w.size is not None and w.size > above]
    return sum(size * (workload.touched if size > LARGE_BYTES else 1.0) for size in sizes)


def copper_fanout(nodes: int) -> int:
    return next((k for most, k in _COPPER_FANOUTS if nodes <= most), _COPPER_FANOUT_BEYOND)


def _depth(nodes: int, fanout: int) -> int:
    depth, level = 0, 1
    while nodes > level:
        nodes -= level
        level *= fanout
        depth += 1
    return depth


LUSTRE_PUBLISHED_COLD = ((2048, 120.0),)
"""Figure 4 of the Copper paper: Copper takes 60 s less at 2,048 nodes, half the time."""
COPPER_PUBLISHED_COLD = ((32, 60.0), (2048, 60.0), (8300, 60.0))
"""Figure 4, too."""
LUSTRE_PUBLISHED_WARM = ((2048, 180.0),)
"""Figure 5."""
COPPER_PUBLISHED_WARM = ((32, 2.0), (2048, 2.0), (8300, 30.0))
