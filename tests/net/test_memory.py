"""In-process transport: the faults that the fake can cause, so that other tests may rely on it."""

from copperfs.transport.interface import Connected, Corrupt, Lost, ReceivedMessage
from tests.net.world import MemoryWorld, Node, ask, meet, memory_world, part, trio_test


async def two(world: MemoryWorld) -> tuple[Node, Node]:
    parent, child = await world.start(0), await world.start(1)
    await meet(child, parent)
    return parent, child


@trio_test
async def test_a_severed_pair_is_lost_to_each_other_until_it_heals() -> None:
    async with memory_world(2) as world:
        parent, child = await two(world)
        world.network.sever(parent.id, child.id)
        assert not child.send(parent, ask(1))
        await parent.hears(Lost(child.id))
        await child.hears(Lost(parent.id))
        world.network.heal(child.id, parent.id)
        await child.hears(Connected(parent.id), times=2)
        assert child.send(parent, ask(2))
        await parent.until(parent.received)
        assert parent.received() == [ask(2)]


@trio_test
async def test_a_broken_connection_is_renewed() -> None:
    async with memory_world(2) as world:
        parent, child = await two(world)
        world.network.break_connection(parent.id, child.id)
        await child.hears(Connected(parent.id), times=2)
        told = [Connected(parent.id), Lost(parent.id), Connected(parent.id)]
        assert child.said_of(parent) == told


@trio_test
async def test_one_payload_is_damaged_and_the_next_is_whole() -> None:
    async with memory_world(2) as world:
        parent, child = await two(world)
        world.network.damage_next(parent.id, child.id)
        answer, payload = part(1, b"some bytes")
        parent.send(child, answer, payload)
        parent.send(child, answer, payload)
        await child.hears(ReceivedMessage(parent.id, answer, payload))
        assert child.heard[1:] == [
            Corrupt(parent.id, answer),
            ReceivedMessage(parent.id, answer, payload),
        ]
        assert child.transport.statistics().corrupt == 1
