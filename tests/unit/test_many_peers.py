"""Cost of one peer: it must not grow with the number of the others, because an owner of chunks may
have thousands of connections. The tests count lines of Python, not time."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from copperfs.model.types import NodeId
from copperfs.node.actions import Send
from copperfs.node.events import Event, PeerDown, PeerMessage, PeerUp, Probed, Start, Tick
from copperfs.node.limits_and_counters import Limits
from copperfs.node.membership.swim import ANNOUNCE_DELAY_S, STRANGERS_TOLD_MAX
from copperfs.node.node import Node
from copperfs.node.peer.messages import Heartbeat, MembershipUpdate
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.trees import Trees

NODES = 5000
LIMITS = Limits(1 << 30, 1 << 20, None, 60.0, chunk_bytes=1 << 20, tier_memory_bytes=1 << 30)


def lines_of(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, what: str, _: Any) -> Any:
        nonlocal count
        count += what == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def node_with(peers: int) -> Node:
    node = Node(Policy(b"/source", b"/mnt"), LIMITS, Trees(NODES, NodeId(0), fanout=2))
    node.step(1.0, Start())
    for number in range(1, peers + 1):
        node.step(1.0, PeerUp(NodeId(number)))
    return node


LAST = NodeId(NODES - 1)


def test_a_death_is_told_at_once_to_the_overlay_and_to_a_few_strangers() -> None:
    """The strangers hear of it from their own neighbours in the overlay."""
    node = node_with(200)
    dead = NodeId(200)
    node.step(2.0, PeerDown(dead))
    node.step(2.0, Probed(dead, refused=True))
    actions = node.step(2.0 + ANNOUNCE_DELAY_S, Tick())
    told = [
        each.peer
        for each in actions
        if isinstance(each, Send) and isinstance(each.message, MembershipUpdate)
    ]
    close = [peer for peer in told if node.membership.plan.is_close(peer)]  # type: ignore[union-attr]
    assert close == [1, 2]
    assert len(told) - len(close) == STRANGERS_TOLD_MAX


@pytest.mark.parametrize(
    "events",
    [
        [PeerUp(LAST)],
        [PeerUp(LAST), PeerDown(LAST)],
        [PeerUp(LAST), PeerDown(LAST), Probed(LAST, refused=True)],
        [PeerUp(LAST), PeerMessage(LAST, Heartbeat(1, 0, wants_answer=True))],
    ],
    ids=["comes", "goes", "has ended", "says something"],
)
def test_one_that_changes_costs_the_same_however_many_others_are_there(
    events: list[Event],
) -> None:
    def happens(node: Node) -> int:
        for event in events[:-1]:
            node.step(2.0, event)
        return lines_of(lambda: node.step(2.0, events[-1]))

    few, many = happens(node_with(20)), happens(node_with(2000))
    assert many <= few + 50, f"{few} lines with 20 others, {many} with 2000"
