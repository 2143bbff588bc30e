"""Silent connections: peers that connect and never greet take some descriptors, but never all, and
none from peers that have greeted.
"""

import socket
from collections.abc import Callable
from dataclasses import replace

import pytest

from copperfs.model.roster import Member
from copperfs.node.peer.connection_limits import RESERVE_MAX, UNGREETED_MIN
from copperfs.transport.descriptor_limits import room_for
from copperfs.transport.interface import Connected, ReceivedMessage
from tests.descriptors import no_descriptor_left
from tests.net.raw import Tcp
from tests.net.world import LIMITS, Node, ask, meet, trio_test, zero_world

PATIENT = replace(LIMITS, handshake_s=600.0)
FULL = "too many connections that do not greet"


async def is_served(node: Node, peer: Node, number: int) -> None:
    assert peer.send(node, ask(number))
    await node.hears(ReceivedMessage(peer.id, ask(number), None))


@trio_test
@pytest.mark.usefixtures("expects_a_crowd")
async def test_of_those_that_do_not_greet_the_oldest_go_first() -> None:
    few = replace(PATIENT, descriptors=4 * UNGREETED_MIN)
    most = room_for(3, few.descriptors).ungreeted
    async with zero_world(3, limits=few) as world:
        node, honest = await world.start(0), await world.start(1)
        await meet(honest, node)
        silent = [Tcp(world.roster.member(node.id)) for _ in range(5 * most)]
        for each in silent[:-most]:
            await each.ended()
        await is_served(node, honest, 1)
        assert node.said_of(honest) == [Connected(honest.id)]
        late = await world.start(2)
        await meet(late, node)
        await silent[-most].ended()
        assert not has_ended(silent[-1])
        assert node.transport.statistics().crowded == 4 * most + 1
        for each in silent:
            each.close()


def has_ended(peer: Tcp) -> bool:
    try:
        return not peer.socket.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False


@trio_test
@pytest.mark.usefixtures("expects_a_crowd")
async def test_who_comes_while_no_descriptor_is_left_is_turned_away_and_let_in_later() -> None:
    """Otherwise ZeroMQ would retry accept without a pause."""
    async with zero_world(3, limits=PATIENT) as world:
        node, honest, late = await world.start(0), await world.start(1), world.transport(2)
        await meet(honest, node)
        waiting = [socket.socket() for _ in range(20)]
        with no_descriptor_left():
            for each in waiting:
                each.connect(address(world.roster.member(node.id)))
                each.setblocking(False)
            for each in waiting:
                await Tcp.of(each).ended()
            await is_served(node, honest, 1)
        assert node.transport.statistics().crowded >= len(waiting)
        assert node.said_of(honest) == [Connected(honest.id)]
        late.close()
        comer = await world.start(2)
        await meet(comer, node)
        for each in waiting:
            each.close()


def address(member: Member) -> tuple[str, int]:
    host, port = member.endpoint.removeprefix("tcp://").split(":")
    return host, int(port)


@pytest.fixture
def expects_a_crowd(expected_warnings: Callable[[str], None]) -> None:
    expected_warnings(FULL)


@pytest.mark.parametrize("limit", [64, 256, 1024, 4096, 1 << 20])
@pytest.mark.parametrize("nodes", [2, 100, 10_000])
def test_half_of_a_low_limit_is_kept_for_the_source(limit: int, nodes: int) -> None:
    room = room_for(nodes, limit)
    assert limit - room.descriptors == min(limit // 2, RESERVE_MAX)
    assert UNGREETED_MIN <= room.ungreeted <= max(UNGREETED_MIN, room.descriptors)
    assert room.ungreeted <= 64 + 2 * nodes


def test_a_job_may_come_all_at_once() -> None:
    assert room_for(4000, 1 << 20).ungreeted >= 4000
