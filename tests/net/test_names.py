"""Host names of nodes: the resolver looks them up beside all other work, and an address may
change.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import trio

from copperfs.model.types import NodeId
from copperfs.transport import resolver as names
from copperfs.transport.interface import Connected, Lost, ReceivedMessage
from tests.net.world import Node, ZeroWorld, ask, meet, trio_test, zero_world


class Resolver:
    """Answers a held name only once the test releases it."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.held: dict[str, threading.Event] = {}
        self.asked: list[str] = []

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if host in self.held:
            self.held[host].wait()
        if not self.addresses.get(host):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return list(self.addresses[host])

    def hold(self, host: str) -> None:
        self.held[host] = threading.Event()

    def let_go(self) -> None:
        for each in self.held.values():
            each.set()
        self.held.clear()


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    found = Resolver()
    monkeypatch.setattr(names, "look_up", found)
    yield found
    found.let_go()


def name_all(world: ZeroWorld, resolver: Resolver, address: str = "127.0.0.1") -> None:
    members = []
    for each in world.roster.members:
        port = each.endpoint.rpartition(":")[2]
        members.append(replace(each, endpoint=f"tcp://{each.name}:{port}"))
        resolver.addresses[each.name] = [address]
    world.roster = replace(world.roster, members=tuple(members))


async def serves(node: Node, peer: Node, number: int) -> None:
    assert peer.send(node, ask(number))
    await node.hears(ReceivedMessage(peer.id, ask(number), None))


@trio_test
async def test_a_resolver_that_hangs_stops_no_connection_that_is_there(resolver: Resolver) -> None:
    async with zero_world(3) as world:
        name_all(world, resolver)
        parent, node = await world.start(0), await world.start(1)
        await meet(node, parent)
        resolver.hold("node2")
        node.transport.connect(NodeId(2))
        await node.until(lambda: True)
        while "node2" not in resolver.asked:
            await trio.lowlevel.checkpoint()
        for number in range(100):
            await serves(parent, node, number)
        resolver.let_go()
        other = await world.start(2)
        await other.hears(Connected(node.id))


@trio_test
async def test_a_connection_is_renewed_at_the_last_address_while_the_resolver_hangs(
    resolver: Resolver,
) -> None:
    async with zero_world(2) as world:
        name_all(world, resolver)
        parent, child = await world.start(0), await world.start(1)
        await meet(child, parent)
        resolver.hold("node0")
        await parent.stop()
        await child.hears(Lost(parent.id))
        again = await world.start(0)
        await again.hears(Connected(child.id))


@trio_test
async def test_a_node_that_comes_back_elsewhere_is_found(resolver: Resolver) -> None:
    async with zero_world(2) as world:
        name_all(world, resolver)
        parent, child = await world.start(0), await world.start(1)
        await meet(child, parent)
        await parent.stop()
        await child.hears(Lost(parent.id))
        await moved(world, resolver, "127.0.0.2", socket.AF_INET, child)


async def moved(
    world: ZeroWorld, resolver: Resolver, address: str, family: int, child: Node
) -> None:
    port = int(world.roster.member(NodeId(0)).endpoint.rpartition(":")[2])
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        world.listener = lambda node: listener  # type: ignore[method-assign]
        again = await world.start(0)
        resolver.addresses["node0"] = [address]
        await again.hears(Connected(child.id))


@trio_test
@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
async def test_a_name_may_stand_for_an_address_of_ipv6(resolver: Resolver) -> None:
    async with zero_world(2) as world:
        name_all(world, resolver)
        child = await world.start(1)
        child.transport.connect(NodeId(0))
        await moved(world, resolver, "::1", socket.AF_INET6, child)


@trio_test
async def test_of_several_addresses_one_that_answers_is_found(resolver: Resolver) -> None:
    async with zero_world(2) as world:
        name_all(world, resolver)
        resolver.addresses["node0"] = ["127.0.0.3", "::1", "127.0.0.1"]
        parent, child = await world.start(0), await world.start(1)
        await meet(child, parent)


@trio_test
async def test_a_name_that_is_unknown_is_asked_for_again_and_told_of_once(
    resolver: Resolver, expected_warnings: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    expected_warnings("the address of node0 cannot be found")
    async with zero_world(2) as world:
        name_all(world, resolver)
        resolver.addresses["node0"] = []
        parent, child = await world.start(0), await world.start(1)
        child.transport.connect(parent.id)
        while resolver.asked.count("node0") < 3:
            await trio.lowlevel.checkpoint()
        assert not await child.transport.refuses(parent.id)
        resolver.addresses["node0"] = ["127.0.0.1"]
        await parent.hears(Connected(child.id))
        await child.hears(Connected(parent.id))
        assert caplog.text.count("cannot be found") == 1


@pytest.mark.parametrize(
    ("endpoint", "host", "is_address"),
    [
        ("tcp://10.0.0.1:4711", "10.0.0.1", True),
        ("tcp://[fd00::1]:4711", "fd00::1", True),
        ("tcp://[fe80::1%eth0]:4711", "fe80::1%eth0", True),
        ("tcp://node1.site:4711", "node1.site", False),
        ("tcp://10.example:4711", "10.example", False),
    ],
)
def test_an_address_is_told_from_a_name(endpoint: str, host: str, is_address: bool) -> None:
    assert names.split(endpoint) == (host, "4711")
    assert names.is_address(host) is is_address
    if is_address:
        assert names.joined(host, "4711") == endpoint
