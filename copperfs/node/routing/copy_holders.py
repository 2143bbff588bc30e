"""Copy holders: the nodes that keep a chunk of a protected path, from its placement order.

The first living node of the order owns the chunk. The others that keep it are the next living nodes
in failure domains of which none was taken yet, as long as there are such domains, and then the next
ones in any domain.

With enough domains this is the greedy basis of a matroid, so a death or a return exchanges at most
one of the holders: of K holders K-1 are still holders, whichever node was lost. The owner is the
first of the order whatever its domain, because readers find it without knowing of copies. So a new
owner may have to get its chunks from a holder that comes later in the order.

ReStore places its copies by a permutation of the blocks, and probes another one where the next node
is lost (``rho_x(k)``). The ring's order is both: each group of chunks has its own, and the nodes
after one point of a lost node are spread like its points.
"""

from collections.abc import Sequence, Set

from copperfs.model.types import NodeId
from copperfs.node.routing.placement_order import NOBODY, Placement


def holders(
    placement: Placement,
    key: bytes,
    copies: int,
    gone: Set[NodeId] = NOBODY,
    domains: Sequence[int] = (),
) -> list[NodeId]:
    """The owner first; fewer than *copies* if fewer nodes are left. *domains*: that of each node;
    empty if each node is one by itself."""
    if not domains:
        return placement.owners(key, copies, gone)
    count = 2 * copies
    while True:
        order = placement.owners(key, count, gone)
        chosen = _of_different_domains(order, copies, domains)
        if len(chosen) == copies or len(order) < count:
            rest = [each for each in order if each not in chosen]
            return chosen + rest[: copies - len(chosen)]
        count *= 4


def _of_different_domains(
    order: Sequence[NodeId], copies: int, domains: Sequence[int]
) -> list[NodeId]:
    chosen: list[NodeId] = []
    taken: set[int] = set()
    for node in order:
        if domains[node] not in taken:
            taken.add(domains[node])
            chosen.append(node)
            if len(chosen) == copies:
                break
    return chosen
