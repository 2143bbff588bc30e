"""Hostile peers: nothing that a peer sends or does reaches others or brings a node down.

At the end of each test the node still serves an honest child over the connection that it had.
"""

import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from copperfs.model.types import NodeId
from copperfs.node.peer.messages import PART_BYTES, Credit, DataReply
from copperfs.transport.interface import Connected, Corrupt, Lost, ReceivedMessage, TransportStats
from copperfs.transport.zeromq import ZeroTransport
from copperfs.wire.codec import FRAME_BYTES_MAX, encode
from copperfs.wire.greeting import Greeting, encode_greeting, job_digest
from copperfs.wire.payload import payload_of
from copperfs.wire.wire_version import MAGIC, VERSION
from tests.net.raw import RawPeer, Tcp, polls
from tests.net.world import LIMITS, Node, ZeroWorld, ask, part, trio_test, zero_world

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
HOSTILE = NodeId(2)
HASTY = replace(LIMITS, handshake_s=0.2)


@dataclass
class Scene:
    world: ZeroWorld
    node: Node
    honest: Node

    @property
    def stats(self) -> TransportStats:
        return self.node.transport.statistics()

    def hostile(self) -> RawPeer:
        return RawPeer(self.world.roster.member(NodeId(0)))

    def greeting(self, serial: int = 1) -> bytes:
        return encode_greeting(
            Greeting(job_digest(self.world.roster), HOSTILE, self.node.id, serial)
        )


@asynccontextmanager
async def scene(*, hasty: bool = False) -> AsyncIterator[Scene]:
    """A node with an honest child. With *hasty* the node waits only briefly for a greeting; the
    child waits long, so that a busy machine decides nothing."""
    async with zero_world(3) as world:
        node, honest = await world.start(0, HASTY if hasty else None), await world.start(1)
        honest.transport.connect(node.id)
        await honest.hears(Connected(node.id))
        yield Scene(world, node, honest)
        assert honest.send(node, Credit(4711))
        await node.hears(ReceivedMessage(honest.id, Credit(4711), None))
        answer, payload = part(1, b"x" * 100_000)
        assert node.send(honest, answer, payload)
        await honest.hears(ReceivedMessage(node.id, answer, payload))
        assert node.said_of(honest) == [Connected(honest.id)]


async def greeted(the: Scene, peer: RawPeer, serial: int = 1) -> None:
    peer.send(the.greeting(serial))
    await the.node.until(lambda: Connected(HOSTILE) in the.node.heard)


@pytest.mark.parametrize(
    "stream",
    [path.read_bytes() for path in CORPUS],
    ids=[path.name for path in CORPUS],
)
@trio_test
async def test_noise_on_the_port_disturbs_nobody(stream: bytes) -> None:
    async with scene(hasty=True) as the:
        peer = Tcp(the.world.roster.member(NodeId(0)))
        peer.send(stream)
        await peer.ended()
        peer.close()
        assert the.node.said_of(the.honest) == [Connected(the.honest.id)]
        assert {arrival.peer for arrival in the.node.heard} == {the.honest.id}


frames = st.lists(
    st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda code, body: MAGIC + struct.pack("<BBI", VERSION, code, len(body)) + body,
            st.integers(0, 12),
            st.binary(max_size=100),
        ),
        st.sampled_from((encode(ask(1)), encode(*part(1, b"abc")), b"abc", encode(Credit(1)))),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("after_greeting", [False, True])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=st.lists(frames, min_size=1, max_size=30))
def test_nonsense_from_a_peer_disturbs_nobody(
    after_greeting: bool, messages: list[list[bytes]]
) -> None:
    @trio_test
    async def run() -> None:
        async with scene() as the, the.hostile() as peer:
            if after_greeting:
                await greeted(the, peer)
            for each in messages:
                peer.send(*each)
            if after_greeting:
                peer.send(encode(Credit(9999)))
                await the.node.hears(ReceivedMessage(HOSTILE, Credit(9999), None))
            else:
                await polls(lambda: the.stats.malformed + the.stats.strangers >= 1)
                await peer.ended()

    run()


@trio_test
async def test_malformed_messages_are_counted_and_dropped() -> None:
    async with scene() as the, the.hostile() as peer:
        await greeted(the, peer)
        header = encode(*part(1, b"abc"))
        bad = [
            (header,),
            (header, b"ab"),
            (header, b"abc", b"more"),
            (header[:-1], b"abc"),
            (header + b"abc", b"abc"),
            (header + b"ab",),
            (encode(Credit(1)) + b"x",),
            (MAGIC + bytes((VERSION - 1, 6)) + header[5:], b"abc"),
            (b"",),
            (the.greeting(),),
            (encode(Credit(1)), b""),
            (encode(ask(1, b"etc")).replace(b"etc", b"/..", 1),),
        ]
        for each in bad:
            peer.send(*each)
        peer.send(encode(Credit(1)))
        await the.node.hears(ReceivedMessage(HOSTILE, Credit(1), None))
        assert the.stats.malformed == len(bad)
        assert the.node.received() == [Credit(1)]


@trio_test
async def test_a_damaged_payload_is_told_as_such() -> None:
    async with scene() as the, the.hostile() as peer:
        await greeted(the, peer)
        message = DataReply(1, 0, 0, PART_BYTES)
        whole = bytes(PART_BYTES)
        peer.send(encode(message, payload_of(whole)), whole[:-1] + b"\1")
        await the.node.hears(Corrupt(HOSTILE, message))
        assert the.stats.corrupt == 1
        assert the.node.received() == []


@trio_test
async def test_a_frame_above_the_limit_ends_its_connection() -> None:
    async with scene() as the, the.hostile() as peer:
        await greeted(the, peer)
        peer.send(b"x" * (FRAME_BYTES_MAX + 1))
        await peer.ended()
        await the.node.hears(Lost(HOSTILE))


@trio_test
async def test_a_replayed_greeting_on_another_connection_replaces_only_its_own() -> None:
    async with scene() as the, the.hostile() as first, the.hostile() as second:
        await greeted(the, first, serial=5)
        second.send(the.greeting(serial=4))
        await second.ended()
        first.send(encode(Credit(1)))
        await the.node.hears(ReceivedMessage(HOSTILE, Credit(1), None))


@trio_test
async def test_a_newer_connection_of_the_same_node_ends_the_older_one() -> None:
    async with scene() as the, the.hostile() as first, the.hostile() as second:
        await greeted(the, first, serial=5)
        second.send(the.greeting(serial=6))
        await first.ended()
        await the.node.hears(Connected(HOSTILE), times=2)
        assert the.node.transport.send(HOSTILE, Credit(3))
        assert (await second.receive())[0].startswith(MAGIC)
        assert await second.receive() == [encode(Credit(3))]


@trio_test
async def test_a_peer_that_never_reads_is_cut_off_and_costs_no_more() -> None:
    limits = replace(LIMITS, unread=100)
    async with zero_world(3, limits=limits) as world:
        node, honest = await world.start(0), await world.start(1)
        honest.transport.connect(node.id)
        await node.hears(Connected(honest.id))
        async with RawPeer(world.roster.member(NodeId(0)), received_max=1) as peer:
            peer.send(encode_greeting(Greeting(job_digest(world.roster), HOSTILE, node.id, 1)))
            await node.hears(Connected(HOSTILE))
            answer, payload = part(1, b"x" * (64 << 10))
            sent = 0
            while node.transport.send(HOSTILE, answer, payload):
                sent += 1
                # Far more than the buffers of the kernel at both ends hold.
                assert sent < 10_000
                await trio.lowlevel.checkpoint()
            await node.hears(Lost(HOSTILE))
            await polls(lambda: node.transport.statistics().connections == 1)
            assert node.transport.statistics().unsendable == 1
        assert node.send(honest, Credit(1))
        await honest.hears(ReceivedMessage(node.id, Credit(1), None))


@pytest.mark.parametrize("greeted_at_all", [b"", struct.pack(">B", 255)])
@trio_test
async def test_a_connection_that_says_nothing_is_ended(greeted_at_all: bytes) -> None:
    async with scene(hasty=True) as the:
        peer = Tcp(the.world.roster.member(NodeId(0)))
        peer.send(greeted_at_all)
        await peer.ended()
        peer.close()


@trio_test
async def test_a_peer_that_does_not_greet_is_turned_out() -> None:
    async with scene(hasty=True) as the, the.hostile() as peer:
        await peer.ended()
        assert the.stats.connections == 1


@trio_test
async def test_a_node_that_does_not_greet_back_is_left() -> None:
    async with zero_world(2, limits=HASTY) as world:
        stopped = world.listener(0)
        child = await world.start(1)
        child.transport.connect(NodeId(0))
        connections = []
        stopped.setblocking(False)
        for _ in range(2):
            await trio.lowlevel.wait_readable(stopped)
            connections.append(stopped.accept()[0])
        assert not child.heard
        for each in connections:
            each.close()


@trio_test
async def test_nothing_is_left_of_hundreds_of_bad_connections() -> None:
    async with scene() as the:
        await nothing_new(the, 5)
        before = descriptors()
        await nothing_new(the, 200)
        await polls(lambda: descriptors() <= before)
        assert the.stats.connections == 1


async def nothing_new(the: Scene, count: int) -> None:
    for number in range(count):
        malformed = the.stats.malformed
        peer = Tcp(the.world.roster.member(NodeId(0)))
        peer.send(CORPUS[number % len(CORPUS)].read_bytes())
        peer.close()
        async with the.hostile() as raw:
            raw.send(b"no greeting")
            await raw.ended()
            await polls(lambda malformed=malformed: the.stats.malformed > malformed)  # type: ignore[misc]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_closing_leaves_no_thread_and_no_descriptor() -> None:
    @trio_test
    async def once() -> None:
        async with zero_world(2, curve=True) as world:
            parent, child = await world.start(0), await world.start(1)
            child.transport.connect(parent.id)
            await parent.hears(Connected(child.id))
            parent.send(child, *part(1, bytes(PART_BYTES)))
            await child.until(child.received)

    once()  # the process's first payload starts pyzmq's own thread, which stays
    before = descriptors(), len(os.listdir("/proc/self/task"))
    for _ in range(5):
        once()
    assert (descriptors(), len(os.listdir("/proc/self/task"))) == before


def test_a_transport_that_never_ran_closes() -> None:
    @trio_test
    async def make_and_close() -> None:
        async with zero_world(1) as world:
            transport: ZeroTransport = world.transport(0)
            transport.close()
            transport.close()

    make_and_close()
    before = descriptors()
    make_and_close()
    assert descriptors() == before
