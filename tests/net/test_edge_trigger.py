"""Edge-triggered signals: no message stays unread because a call swallowed the signal of its
arrival.

Both ends of a connection send at once, from their own tasks and during deliveries, and tasks are
cancelled at random. Without the check of POLLIN after a send (``touched``) this stalls (tried).
"""

import random
from collections.abc import Callable

import pytest
import trio
import trio.testing
import zmq

from copperfs.node.peer.messages import Credit
from copperfs.transport.interface import Connected, ReceivedMessage
from copperfs.transport.socket_pump import Pump
from copperfs.transport.zeromq import ZeroTransport
from tests.net.world import Node, meet, trio_test, zero_world

MESSAGES = 3000


@pytest.mark.parametrize("disturbed", [False, True])
@pytest.mark.parametrize("seed", range(2))
@trio_test
async def test_a_flood_both_ways_with_random_cancellation_loses_and_doubles_nothing(
    seed: int, disturbed: bool
) -> None:
    """With *disturbed*, the pump's waits end at random as well."""
    dice = random.Random(seed)
    async with zero_world(3) as world:
        parent, *children = [await world.start(i) for i in range(3)]
        for child in children:
            await meet(child, parent)
        async with trio.open_nursery() as nursery:
            for child in children:
                nursery.start_soon(flood, child, parent, dice)
                nursery.start_soon(flood, parent, child, dice)
            if disturbed:
                nursery.start_soon(disturb, [parent, *children], dice)
            for child in children:
                await parent.until(lambda child=child: len(parent.received(child)) >= MESSAGES)  # type: ignore[misc]
                await child.until(lambda child=child: len(child.received(parent)) >= MESSAGES)  # type: ignore[misc]
            nursery.cancel_scope.cancel()
        expected = [Credit(number) for number in range(MESSAGES)]
        for child in children:
            assert parent.received(child) == expected
            assert child.received(parent) == expected


async def flood(sender: Node, receiver: Node, dice: random.Random) -> None:
    number = 0

    async def some() -> None:
        nonlocal number
        for _ in range(dice.randrange(1, 20)):
            if number < MESSAGES:
                assert sender.send(receiver, Credit(number))
                number += 1
            if dice.random() < 0.3:
                await trio.lowlevel.checkpoint()

    while number < MESSAGES:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(some)
            await trio.lowlevel.checkpoint()
            if dice.random() < 0.5:
                nursery.cancel_scope.cancel()


async def disturb(nodes: list[Node], dice: random.Random) -> None:
    while True:
        transport = dice.choice(nodes).transport
        assert isinstance(transport, ZeroTransport)
        transport.wake()
        for _ in range(dice.randrange(20)):
            await trio.lowlevel.checkpoint()


@trio_test
async def test_two_nodes_that_answer_each_message_with_a_message_never_stall() -> None:
    """At most one message is on its way: if any signal is lost, everything stops."""
    async with zero_world(2) as world:
        parent, child = await world.start(0), await world.start(1)

        def echo(node: Node) -> Callable[[object], None]:
            def answer(arrival: object) -> None:
                match arrival:
                    case ReceivedMessage(peer, Credit(count), _) if count < MESSAGES:
                        node.transport.send(peer, Credit(count + 1))

            return answer

        parent.answer, child.answer = echo(parent), echo(child)
        child.transport.connect(parent.id)
        await child.hears(Connected(parent.id))
        child.send(parent, Credit(0))
        await parent.until(lambda: len(parent.received()) > MESSAGES // 2)


@trio_test
async def test_a_send_that_takes_in_the_signal_of_a_message_wakes_the_pump() -> None:
    """The message is there, its signal is gone, the pump sleeps."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    one.bind("inproc://pair")
    other.connect("inproc://pair")
    got: list[bytes] = []
    came = trio.Event()

    def take() -> int:
        got.append(one.recv(zmq.NOBLOCK))
        came.set()
        return 1

    pump = Pump(one, take)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            await trio.testing.wait_all_tasks_blocked()
            other.send(b"a message")
            assert one.get(zmq.EVENTS), "any call takes the signal in"
            pump.touched()
            await came.wait()
            nursery.cancel_scope.cancel()
    finally:
        context.destroy(0)
    assert got == [b"a message"]
