"""Authentication: which peers a node lets in, and in whose name they may speak."""

import dataclasses
from collections.abc import Callable

import pytest
import trio
import zmq

from copperfs.model.roster import BadRoster, Member, Roster
from copperfs.model.types import NodeId
from copperfs.node.peer.messages import Credit, Hello
from copperfs.transport.interface import Connected, Lost, ReceivedMessage
from copperfs.transport.zeromq import ZeroTransport
from copperfs.transport.zmq_sockets import ZAP_ENDPOINT
from copperfs.wire.codec import encode
from copperfs.wire.greeting import Greeting, encode_greeting, job_digest
from tests.net.make_corpus import STREAMS
from tests.net.raw import RawPeer, Tcp, polls
from tests.net.world import Node, ZeroWorld, meet, trio_test, zero_world


def greeting(roster: Roster, speaker: int, listener: int = 0, serial: int = 1) -> bytes:
    return encode_greeting(Greeting(job_digest(roster), NodeId(speaker), NodeId(listener), serial))


async def refused(node: Node, peer: RawPeer, *, strangers: int = 1) -> None:
    await peer.ended()
    await polls(lambda: node.transport.statistics().strangers >= strangers)
    # The node counts the peer before it closes the connection.
    await polls(lambda: node.transport.statistics().connections == 0)
    assert not node.heard


@trio_test
async def test_a_key_outside_the_roster_is_refused() -> None:
    async with zero_world(2, curve=True) as world:
        node = await world.start(0)
        async with RawPeer(world.roster.member(NodeId(0)), zmq.curve_keypair()) as peer:
            peer.send(greeting(world.roster, 1))
            await refused(node, peer)


@trio_test
async def test_a_client_without_curve_is_refused() -> None:
    async with zero_world(2, curve=True) as world:
        node = await world.start(0)
        member = dataclasses.replace(world.roster.member(NodeId(0)), public_key="")
        async with RawPeer(member) as peer:
            peer.send(greeting(world.roster, 1))
            await peer.ended()
            assert not node.heard
        # Either end may close first. This one leaves it to the node, which counts it.
        plain = Tcp(member)
        plain.send(STREAMS["no-greeting"])
        await plain.ended()
        plain.close()
        await polls(lambda: node.transport.statistics().strangers >= 1)
        await polls(lambda: node.transport.statistics().connections == 0)
        assert not node.heard


def keys_of(world: ZeroWorld, node: int) -> tuple[bytes, bytes]:
    secret = world.secret_keys[node]
    assert secret is not None
    return world.roster.member(NodeId(node)).public_key.encode(), secret.encode()


@trio_test
async def test_a_node_that_connects_in_the_name_of_another_is_refused() -> None:
    async with zero_world(3, curve=True) as world:
        node, honest = await world.start(0), await world.start(1)
        async with RawPeer(world.roster.member(NodeId(0)), keys_of(world, 2)) as peer:
            peer.send(greeting(world.roster, 1))
            await refused(node, peer)
        await meet(honest, node)


@trio_test
async def test_a_node_cannot_take_over_the_connection_of_another() -> None:
    async with zero_world(3, curve=True) as world:
        node, honest = await world.start(0), await world.start(1)
        await meet(honest, node)
        async with RawPeer(
            world.roster.member(NodeId(0)), keys_of(world, 2), routing_id=b"\0\0\0\0\1"
        ) as peer:
            peer.send(greeting(world.roster, 1, serial=(1 << 64) - 1))
            await peer.ended()
        assert honest.send(node, Credit(5))
        await node.hears(ReceivedMessage(honest.id, Credit(5), None))
        assert node.said_of(honest) == [Connected(honest.id)]


@trio_test
async def test_a_hello_in_the_name_of_another_ends_the_connection() -> None:
    async with zero_world(3, curve=True) as world:
        node = await world.start(0)
        async with RawPeer(world.roster.member(NodeId(0)), keys_of(world, 2)) as peer:
            peer.send(greeting(world.roster, 2))
            await node.hears(Connected(NodeId(2)))
            peer.send(encode(Hello(NodeId(1), "test", b"", 0)))
            await node.hears(Lost(NodeId(2)))
            await peer.ended()
            assert node.received() == []
            assert node.transport.statistics().strangers == 1


@trio_test
async def test_the_server_has_to_have_its_key_too() -> None:
    async with zero_world(3, curve=True) as world:
        child = await world.start(1)
        wrong = ZeroTransport(
            swapped(world.roster), NodeId(2), secret_key=world.secret_keys[2],
            listener=world.listener(0),
        )  # fmt: skip
        impostor = Node(NodeId(2), wrong)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(impostor.run)
            child.transport.connect(NodeId(0))
            await polls(lambda: impostor.transport.statistics().strangers >= 2)
            assert not child.heard
            impostor.transport.close()


def swapped(roster: Roster) -> Roster:
    members = list(roster.members)
    members[2] = dataclasses.replace(members[2], endpoint=members[0].endpoint)
    return Roster(roster.job, tuple(members))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda g: dataclasses.replace(g, job=bytes(16)),
        lambda g: dataclasses.replace(g, listener=NodeId(1)),
        lambda g: dataclasses.replace(g, speaker=NodeId(0)),
        lambda g: dataclasses.replace(g, speaker=NodeId(77)),
    ],
    ids=["another job", "another listener", "myself", "nobody"],
)
@trio_test
async def test_a_greeting_that_cannot_be_meant_is_refused(
    spoil: Callable[[Greeting], Greeting],
) -> None:
    async with zero_world(2) as world:
        node = await world.start(0)
        good = Greeting(job_digest(world.roster), NodeId(1), NodeId(0), 1)
        async with RawPeer(world.roster.member(NodeId(0))) as peer:
            peer.send(encode_greeting(spoil(good)))
            await refused(node, peer)


def test_a_key_that_is_not_the_one_of_the_roster_is_noticed_at_start() -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    other_secret = zmq.curve_keypair()[1].decode()
    with_key = Roster("j", (member(public), member(zmq.curve_keypair()[0].decode())))
    without = Roster("j", (member(""), member("")))
    for roster, key in ((with_key, other_secret), (with_key, None), (without, secret)):
        with pytest.raises(BadRoster):
            ZeroTransport(roster, NodeId(0), secret_key=key, listener="tcp://127.0.0.1:*")
    broken = Roster("j", (member(public), member("not z85 at all")))
    with pytest.raises(BadRoster):
        ZeroTransport(broken, NodeId(0), secret_key=secret, listener="tcp://127.0.0.1:*")


def member(key: str) -> Member:
    return Member("n", "tcp://127.0.0.1:1", key)


def test_the_fixed_name_of_the_key_check_is_the_one_of_the_standard() -> None:
    assert ZAP_ENDPOINT == "inproc://zeromq.zap.01"
