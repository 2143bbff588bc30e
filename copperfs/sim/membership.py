"""What the simulator needs of a core that knows who is alive, as long as not every core does.

Who connects to whom, and who is believed to be dead, is the core's as soon as it has the event
``Start``. Until then the world connects every node to its parents, as the daemon does. Scenarios
that need more say ``needs membership``.
"""

from random import Random
from typing import Any

from copperfs.core import events
from copperfs.core.node import Node
from copperfs.core.policy import Policy
from copperfs.core.state import Limits
from copperfs.core.trees import Trees

IS_THERE = hasattr(events, "Start")


def new_node(policy: Policy, limits: Limits, trees: Trees, seed: int) -> Node:
    extra: dict[str, Any] = {}
    if "random" in Node.__dataclass_fields__:
        extra["random"] = Random(seed)
    return Node(policy, limits, trees, **extra)


def event(name: str, *values: object) -> Any:
    """An event that only such a core has."""
    return getattr(events, name)(*values)


def believed_alive(node: Node) -> set[int]:
    """The nodes that this one believes to be alive, itself included."""
    assert node.trees is not None
    view: Any = getattr(node, "view", None)
    if view is None:
        return set(range(node.trees.nodes))
    return {each for each in range(node.trees.nodes) if view.is_alive(each)}
