"""Version mismatch: nodes that run different versions both learn it, and exchange nothing else."""

from dataclasses import replace

import pytest
import trio

from copperfs.model.types import NodeId
from copperfs.transport.interface import Connected, Foreign, ReceivedMessage
from copperfs.transport.zeromq import ZeroTransport
from copperfs.wire.greeting import decode_greeting, encode_greeting
from copperfs.wire.wire_version import VERSION
from tests.net.raw import polls
from tests.net.world import LIMITS, Node, ask, meet, trio_test, zero_world

HASTY = replace(LIMITS, handshake_s=0.5)
OTHER = VERSION + 1


def make_other(node: Node) -> None:
    transport = node.transport
    assert isinstance(transport, ZeroTransport)
    greet = transport.greet

    def greet_otherwise(peer: NodeId, serial: int) -> bytes:
        mine = decode_greeting(greet(peer, serial))
        return encode_greeting(replace(mine, version=OTHER, release="9.9.1"))

    transport.greet = greet_otherwise  # type: ignore[method-assign]


@pytest.mark.parametrize("curve", [False, True])
@trio_test
async def test_who_is_connected_to_learns_of_another_version_and_answers(curve: bool) -> None:
    async with zero_world(3, curve=curve, limits=HASTY) as world:
        node, honest = await world.start(0), await world.start(2)
        await meet(honest, node)
        other = await world.start(1)
        make_other(other)
        other.transport.connect(node.id)
        await node.hears(Foreign(other.id, OTHER, "9.9.1"))
        assert Connected(other.id) not in node.heard
        assert honest.send(node, ask(1))
        await node.hears(ReceivedMessage(honest.id, ask(1), None))
        other.transport.disconnect(node.id)
        await polls(lambda: node.transport.statistics().connections == 1)


@pytest.mark.parametrize("curve", [False, True])
@trio_test
async def test_who_has_connected_learns_of_another_version(curve: bool) -> None:
    async with zero_world(2, curve=curve, limits=HASTY) as world:
        parent, child = await world.start(0), await world.start(1)
        make_other(parent)
        child.transport.connect(parent.id)
        await child.hears(Foreign(parent.id, OTHER, "9.9.1"))
        assert Connected(parent.id) not in child.heard


@trio_test
async def test_one_of_another_job_is_not_taken_for_a_node() -> None:
    async with zero_world(2) as world, zero_world(2) as elsewhere:
        node, other = await world.start(0), await elsewhere.start(1)
        make_other(other)
        port = world.roster.member(NodeId(0)).endpoint
        members = (replace(elsewhere.roster.members[0], endpoint=port), elsewhere.roster.members[1])
        other.transport._roster = replace(  # type: ignore[attr-defined]
            elsewhere.roster, members=members
        )
        # Their digests differ, and nothing authenticates the sender.
        other.transport._job = b"another job here"  # type: ignore[attr-defined]
        other.transport.connect(NodeId(0))
        await polls(lambda: node.transport.statistics().strangers >= 1)
        await trio.lowlevel.checkpoint()
        assert not node.heard
