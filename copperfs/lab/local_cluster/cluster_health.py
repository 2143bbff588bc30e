"""Health of a cluster's nodes, observed from outside, without a request."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from copperfs.fuse.mounting import answers
from copperfs.lab.local_cluster.cluster_state import Cluster, ClusterNode
from copperfs.lab.local_cluster.node_networks import NodeNetworks


@dataclass(frozen=True, slots=True)
class NodeStatus:
    node: ClusterNode
    alive: bool
    mounted: bool
    answers: bool
    cut: bool
    """Only with ``--netns``."""
    loses: bool

    @property
    def is_well(self) -> bool:
        return self.alive and self.answers and not self.cut and not self.loses


def status_of(cluster: Cluster) -> list[NodeStatus]:
    cut: set[int] = set()
    bad: set[int] = set()
    if cluster.network is not None and cluster.is_running():
        network = NodeNetworks(cluster.network)
        cut, bad = network.cut_links(), network.bad_links()

    def look(index: int) -> NodeStatus:
        node = cluster.nodes[index]
        mounted = node.is_mounted()
        well = mounted and answers(node.mountpoint) is True
        return NodeStatus(node, node.is_alive(), mounted, well, index in cut, index in bad)

    # Each node that hangs takes a while to detect.
    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        return list(pool.map(look, range(len(cluster.nodes))))
