"""Transport contract: one suite for ZeroMQ, plain and with CURVE, and for the in-process fake."""

import functools

import pytest
import trio
import trio.testing

from copperfs.node.peer.messages import PART_BYTES, Credit, DataReply
from copperfs.transport.interface import Connected, Lost, Payload, ReceivedMessage
from copperfs.wire.payload import payload_of
from tests.net.world import (
    MakeWorld,
    Node,
    World,
    ask,
    meet,
    memory_world,
    part,
    trio_test,
    zero_world,
)

WORLDS: dict[str, MakeWorld] = {
    "zeromq": zero_world,
    "zeromq-curve": functools.partial(zero_world, curve=True),
    "memory": memory_world,
}


@pytest.fixture(params=list(WORLDS))
def make_world(request: pytest.FixtureRequest) -> MakeWorld:
    return WORLDS[request.param]


async def two(world: World) -> tuple[Node, Node]:
    parent, child = await world.start(0), await world.start(1)
    await meet(child, parent)
    return parent, child


@trio_test
async def test_messages_go_both_ways_over_the_connection_of_the_child(
    make_world: MakeWorld,
) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        assert child.send(parent, ask(1))
        await parent.hears(ReceivedMessage(child.id, ask(1), None))
        answer, payload = part(1, b"some bytes")
        assert parent.send(child, answer, payload)
        await child.hears(ReceivedMessage(parent.id, answer, payload))


@trio_test
async def test_messages_arrive_once_and_in_order(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        for number in range(2000):
            assert child.send(parent, ask(number))
            assert parent.send(child, Credit(number))
        await parent.until(lambda: len(parent.received()) >= 2000)
        await child.until(lambda: len(child.received()) >= 2000)
        assert parent.received() == [ask(number) for number in range(2000)]
        assert child.received() == [Credit(number) for number in range(2000)]


@trio_test
async def test_a_node_may_connect_before_its_peer_listens(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        child = await world.start(1)
        child.transport.connect(0)  # type: ignore[arg-type]
        await trio.testing.wait_all_tasks_blocked()
        assert not child.heard
        parent = await world.start(0)
        await child.hears(Connected(parent.id))
        assert child.send(parent, ask(1))
        await parent.hears(ReceivedMessage(child.id, ask(1), None))
        assert parent.heard[0] == Connected(child.id)


@trio_test
async def test_connecting_before_run_is_remembered(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        parent, child = await world.start(0), await world.start(1)
        child.transport.connect(parent.id)
        child.transport.connect(parent.id)
        await child.hears(Connected(parent.id))
        assert child.transport.statistics().connections == 1


@trio_test
async def test_a_send_without_a_connection_is_refused_and_counted(make_world: MakeWorld) -> None:
    async with make_world(3) as world:
        parent, child = await two(world)
        stranger = await world.start(2)
        assert not parent.send(stranger, ask(1))
        assert not stranger.send(parent, ask(1))
        assert parent.transport.statistics().unsendable == 1
        assert parent.send(child, Credit(1))


@trio_test
async def test_the_death_and_the_return_of_a_parent_are_told(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        await parent.stop()
        await child.hears(Lost(parent.id))
        assert not child.send(parent, ask(1))
        parent = await world.start(0)
        await child.hears(Connected(parent.id), times=2)
        assert child.send(parent, ask(2))
        await parent.until(parent.received)
        assert parent.received() == [ask(2)], "what was asked of the dead is not for its successor"


@trio_test
async def test_who_has_ended_refuses_and_who_runs_does_not(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        assert not await child.transport.refuses(parent.id)
        assert not await parent.transport.refuses(child.id)
        await parent.stop()
        await child.hears(Lost(parent.id))
        assert await child.transport.refuses(parent.id)
        assert not child.send(parent, ask(1)), "that it was tried makes no connection"
        await world.start(0)
        await child.hears(Connected(parent.id), times=2)
        assert not await child.transport.refuses(parent.id)


@trio_test
async def test_the_death_and_the_return_of_a_child_are_told(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        await child.stop()
        await parent.hears(Lost(child.id))
        assert not parent.send(child, Credit(1))
        child = await world.start(1)
        child.transport.connect(parent.id)
        await parent.hears(Connected(child.id), times=2)
        assert parent.send(child, Credit(2))
        await child.hears(ReceivedMessage(parent.id, Credit(2), None))
        assert parent.said_of(child) == [Connected(child.id), Lost(child.id), Connected(child.id)]


@trio_test
async def test_what_was_sent_before_an_orderly_end_comes_before_lost(
    make_world: MakeWorld,
) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        for number in range(100):
            child.send(parent, ask(number))
        await parent.until(parent.received)
        await child.stop()
        await parent.hears(Lost(child.id))
        received = parent.received()
        assert parent.heard[-1] == Lost(child.id)
        assert received == [ask(number) for number in range(len(received))]


@trio_test
async def test_after_disconnect_nothing_goes_until_connect(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        child.transport.disconnect(parent.id)
        assert not child.send(parent, ask(1))
        await parent.hears(Lost(child.id))
        await child.hears(Lost(parent.id))
        child.transport.connect(parent.id)
        await child.hears(Connected(parent.id), times=2)
        assert child.send(parent, ask(2))
        await parent.until(parent.received)
        assert parent.received() == [ask(2)]


@trio_test
async def test_two_nodes_that_connect_to_each_other_keep_order_and_know_of_loss_once(
    make_world: MakeWorld,
) -> None:
    async with make_world(2) as world:
        one, other = await world.start(0), await world.start(1)
        one.transport.connect(other.id)
        await meet(other, one)
        for number in range(1000):
            assert one.send(other, ask(number))
            assert other.send(one, ask(number))
            if number % 100 == 0:
                await trio.lowlevel.checkpoint()
        await one.until(lambda: len(one.received()) >= 1000)
        await other.until(lambda: len(other.received()) >= 1000)
        assert one.received() == other.received() == [ask(number) for number in range(1000)]
        await other.stop()
        await one.hears(Lost(other.id))
        # The node hears the loss of the first of two connections as a change to the second.
        told = one.said_of(other)
        assert told.count(Lost(other.id)) == 1
        assert told[-1] == Lost(other.id)
        other = await world.start(1)
        await one.until(lambda: one.said_of(other)[len(told) :] == [Connected(other.id)])
        assert one.send(other, ask(1))
        await other.until(other.received)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, PART_BYTES])
@trio_test
async def test_payloads_of_any_size_arrive_with_their_digest(
    make_world: MakeWorld, size: int
) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        answer, payload = part(1, bytes(range(256)) * (size // 256) + bytes(size % 256))
        assert parent.send(child, answer, payload)
        await child.until(child.received)
        arrival = child.heard[-1]
        assert isinstance(arrival, ReceivedMessage)
        assert arrival.payload is not None
        assert bytes(arrival.payload.data) == payload.data
        assert arrival.payload.digest == payload.digest


@trio_test
async def test_a_part_of_a_larger_buffer_is_sent_alone(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        whole = memoryview(bytes(100_000) + b"x" * 100_000)
        answer, payload = part(1, whole[100_000:])
        parent.send(child, answer, payload)
        await child.until(child.received)
        arrival = child.heard[-1]
        assert isinstance(arrival, ReceivedMessage)
        assert arrival.payload is not None
        assert bytes(arrival.payload.data) == b"x" * 100_000


@pytest.mark.parametrize("size", [10, 300_000])
@trio_test
async def test_a_payload_is_passed_on_with_its_digest(make_world: MakeWorld, size: int) -> None:
    async with make_world(3) as world:
        root, middle = await two(world)
        leaf = await world.start(2)
        leaf.transport.connect(middle.id)
        await middle.hears(Connected(leaf.id))

        def pass_on(arrival: object) -> None:
            if isinstance(arrival, ReceivedMessage):
                assert middle.transport.send(leaf.id, arrival.message, arrival.payload)

        middle.answer = pass_on
        answer, payload = part(7, b"r" * size)
        for _ in range(20):
            root.send(middle, answer, payload)
        await leaf.until(lambda: len(leaf.received()) == 20)
        expected = ReceivedMessage(middle.id, answer, Payload(payload.data, payload.digest))
        assert leaf.heard.count(expected) == 20


@trio_test
async def test_statistics_count_what_passed_and_can_be_reset(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        parent.send(child, DataReply(1, 0, 0, 5), payload_of(b"12345"))
        await child.until(child.received)
        sent, received = parent.transport.statistics(), child.transport.statistics()
        assert (sent.sent, sent.connections) == (1, 1)
        assert (received.received, received.connections) == (1, 1)
        assert sent.sent_bytes == received.received_bytes > 5
        child.transport.reset_statistics()
        after = child.transport.statistics()
        assert (after.received, after.received_bytes, after.connections) == (0, 0, 1)


@trio_test
async def test_closing_twice_is_closing_once_and_run_ends(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        child.transport.close()
        child.transport.close()
        await child.ended.wait()
        child.transport.close()
        assert not child.send(parent, ask(1))
        await parent.hears(Lost(child.id))
        await child.transport.run(child.deliver)


@trio_test
async def test_a_closed_transport_sends_to_nobody_and_says_nothing(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        heard = list(parent.heard)
        parent.transport.close()
        assert not parent.send(child, ask(1))
        await parent.ended.wait()
        assert not parent.send(child, ask(1))
        assert parent.heard == heard


@trio_test
async def test_what_is_done_while_delivering_is_said_afterwards(make_world: MakeWorld) -> None:
    async with make_world(2) as world:
        parent, child = await two(world)
        depth: list[int] = []
        deepest = 0

        def answer(arrival: object) -> None:
            nonlocal deepest
            depth.append(1)
            deepest = max(deepest, len(depth))
            if isinstance(arrival, ReceivedMessage):
                child.transport.disconnect(parent.id)
                child.transport.send(parent.id, ask(1))
                child.transport.connect(parent.id)
            depth.pop()

        child.answer = answer
        parent.send(child, Credit(1))
        await child.until(lambda: len(child.said_of(parent)) >= 3)
        assert child.said_of(parent) == [
            Connected(parent.id),
            Lost(parent.id),
            Connected(parent.id),
        ]
        assert deepest == 1
