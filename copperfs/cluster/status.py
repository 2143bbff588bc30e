"""How the nodes of a cluster are, seen from outside: none of them is asked anything."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from copperfs.cluster.network import Network
from copperfs.cluster.state import Cluster, ClusterNode
from copperfs.fuse.mounting import answers


@dataclass(frozen=True, slots=True)
class NodeStatus:
    node: ClusterNode
    alive: bool
    """Its daemon runs."""
    mounted: bool
    answers: bool
    cut: bool
    """Its link, which only ``--netns`` can cut."""
    loses: bool
    """Its link loses packets on purpose."""

    @property
    def is_well(self) -> bool:
        return self.alive and self.answers and not self.cut and not self.loses


def status_of(cluster: Cluster) -> list[NodeStatus]:
    cut: set[int] = set()
    bad: set[int] = set()
    if cluster.network is not None and cluster.is_running():
        network = Network(cluster.network)
        cut, bad = network.cut_links(), network.bad_links()

    def look(index: int) -> NodeStatus:
        node = cluster.nodes[index]
        mounted = node.is_mounted()
        well = mounted and answers(node.mountpoint) is True
        return NodeStatus(node, node.is_alive(), mounted, well, index in cut, index in bad)

    # Each that hangs takes a while to be found out.
    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        return list(pool.map(look, range(len(cluster.nodes))))
