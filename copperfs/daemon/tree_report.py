"""Tree report: each node's place in each tree, and a collective's route, as this node sees them."""

from collections.abc import Collection
from dataclasses import replace

from copperfs.daemon.collective_ops import Result
from copperfs.model.types import NodeId
from copperfs.node.routing.trees import Trees

GONE = "gone"


def way_between(trees: Trees, here: int, there: int, gone: Collection[NodeId] = ()) -> list[int]:
    """The nodes between *here* and *there* in the first tree, which collectives use."""
    up, down = _way_up(trees, here, gone), _way_up(trees, there, gone)
    top = next((each for each in up if each in down), None)
    if top is None:
        return []
    way = [*up[: up.index(top)], *reversed(down[: down.index(top) + 1])]
    return [each for each in way if each not in (here, there)]


def _way_up(trees: Trees, number: int, gone: Collection[NodeId], tree: int = 0) -> list[int]:
    way = [number]
    if number in gone:
        return way  # a dead node has no parent
    while (above := replace(trees, me=NodeId(way[-1])).parent(tree, gone)) is not None:
        way.append(above)
    return way


def places_of(
    trees: Trees,
    number: int,
    gone: Collection[NodeId] = (),
    links: list[Result | None] | None = None,
) -> list[Result]:
    """The places of node *number*, with its reported links. For a moment it may believe in another
    parent than this node does."""
    own = replace(trees, me=NodeId(number))
    places: list[Result] = []
    for tree in range(trees.count):
        link = links[tree] if links is not None else None
        parent = own.parent(tree, gone)
        if link is not None and link["parent"] not in gone:
            parent = NodeId(link["parent"])
        if number in gone:
            role, parent = GONE, None
        elif parent is None:
            role = "root"
        else:
            role = "parent" if own.children(tree, gone) else "leaf"
        hops = len(_way_up(trees, number, gone, tree)) - 1
        places.append(
            {
                "tree": tree,
                "role": role,
                "depth": own.depth(tree) if role == GONE else hops,
                "parent": parent,
                "connected": None if link is None else link["connected"],
                "rtt_us": None if link is None else link["rtt_us"],
            }
        )
    return places
