"""Node sets: expands and folds sets such as ``node[001-128]``, by ClusterShell.

Groups (``@name``) are left out: ClusterShell runs commands of its configuration for them.
"""

from collections.abc import Iterable

from copperfs.model.errors import LaunchError
from copperfs.model.roster import NODES_MAX

FOLDED_MAX = 300


def expand(text: str, where: str) -> tuple[str, ...]:
    if "[" not in text and "," not in text:
        return (text,)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        nodes = NodeSet(text, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise LaunchError(f"{where}: {text!r} is not a set of nodes: {error}") from None
    if len(nodes) > NODES_MAX:
        raise LaunchError(f"{where}: {len(nodes)} nodes are more than {NODES_MAX}")
    return tuple(str(each) for each in nodes)


def fold(names: Iterable[str]) -> str:
    """``node[1-3,7]``, for a message."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    text = str(NodeSet.fromlist(sorted(names), resolver=RESOLVER_NOGROUP))
    return text if len(text) <= FOLDED_MAX else text[:FOLDED_MAX] + "..."
