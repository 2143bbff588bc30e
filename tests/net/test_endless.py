"""Unfinished messages: the node disconnects a peer that begins a message and never ends it, and no
other peer.
"""

import socket
from dataclasses import replace

import pytest
import trio

from copperfs.model.types import NodeId
from copperfs.node.peer.messages import PART_BYTES, Credit, DataReply
from copperfs.transport.endless_message_guard import GREETING_BYTES_MAX, MESSAGE_BYTES_MAX, Watch
from copperfs.transport.interface import Connected, Lost, ReceivedMessage
from copperfs.transport.zmq_sockets import read_bytes
from copperfs.wire.codec import encode
from copperfs.wire.greeting import Greeting, encode_greeting, job_digest
from copperfs.wire.payload import payload_of
from tests.net.make_corpus import NULL, READY, frame
from tests.net.raw import Tcp, polls
from tests.net.world import LIMITS, Node, ZeroWorld, meet, trio_test, zero_world

HASTY = replace(LIMITS, look_s=0.01)
HOSTILE = NodeId(2)
TOO_MUCH = MESSAGE_BYTES_MAX + 10_000


async def send_all(peer: Tcp, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[peer.socket.send(view) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(peer.socket)
        except ConnectionError:
            return


async def flood(peer: Tcp, piece: bytes, node: Node) -> None:
    """Sends until the node has disconnected the peer, which the kernel may not report."""

    async def write() -> None:
        while True:
            await send_all(peer, piece)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await polls(lambda: node.transport.statistics().malformed == 1)
        nursery.cancel_scope.cancel()


async def shake_hands(peer: Tcp) -> None:
    """ZeroMQ treats a message before its own READY as an error."""
    peer.send(NULL + READY)
    came = 0
    while came <= len(NULL) + len(b"\x04\x29\x05READY"):
        await trio.lowlevel.wait_readable(peer.socket)
        came += len(peer.socket.recv(4096))


def greeting(world: ZeroWorld, node: Node) -> bytes:
    return encode_greeting(Greeting(job_digest(world.roster), HOSTILE, node.id, 1))


@pytest.mark.parametrize("greeted", [False, True])
@trio_test
async def test_who_never_ends_a_message_is_cut_off_and_others_are_not(greeted: bool) -> None:
    async with zero_world(3, limits=HASTY) as world:
        node, honest = await world.start(0), await world.start(1)
        await meet(honest, node)
        peer = Tcp(world.roster.member(node.id))
        await shake_hands(peer)
        if greeted:
            peer.send(frame(greeting(world, node)))
            await node.hears(Connected(HOSTILE))
        piece = frame(bytes(1000), more=True) * 100
        await flood(peer, piece, node)
        if greeted:
            await node.hears(Lost(HOSTILE))
        await polls(lambda: node.transport.statistics().connections == 1)
        peer.close()
        assert honest.send(node, Credit(1))
        await node.hears(ReceivedMessage(honest.id, Credit(1), None))
        assert node.said_of(honest) == [Connected(honest.id)]


@trio_test
async def test_a_node_leaves_a_parent_that_never_ends_a_message() -> None:
    async with zero_world(2, limits=HASTY) as world:
        listener = world.listener(0)
        child = await world.start(1)
        child.transport.connect(NodeId(0))
        await trio.lowlevel.wait_readable(listener)
        connection, _ = listener.accept()
        with connection:
            connection.setblocking(False)
            peer = Tcp.of(connection)
            await shake_hands(peer)
            piece = frame(bytes(1000), more=True) * 100
            await flood(peer, piece, child)
            await peer.ended()
        assert not child.heard


@trio_test
async def test_a_message_that_comes_slowly_is_taken() -> None:
    async with zero_world(3, limits=HASTY) as world:
        node = await world.start(0)
        peer = Tcp(world.roster.member(node.id))
        await shake_hands(peer)
        peer.send(frame(greeting(world, node)))
        await node.hears(Connected(HOSTILE))
        part, payload = DataReply(1, 0, 0, PART_BYTES), payload_of(bytes(PART_BYTES))
        whole = frame(encode(part, payload), more=True) + frame(bytes(payload.data))
        half = len(whole) // 2
        await send_all(peer, whole[:half])
        for _ in range(10):
            await trio.sleep(HASTY.look_s)
        await send_all(peer, whole[half:])
        await node.hears(ReceivedMessage(HOSTILE, part, payload))
        peer.close()


def test_what_no_message_can_have_is_endless_once_all_that_came_was_taken() -> None:
    watch = Watch(taken=1)
    assert not watch.is_endless(0.0, 100, 0, 2.0)
    assert not watch.is_endless(0.1, MESSAGE_BYTES_MAX, 1, 2.0)
    assert not watch.is_endless(0.2, TOO_MUCH, 2, 2.0), "it may be the node that was busy"
    assert not watch.is_endless(0.3, TOO_MUCH, 2, 2.0), "still"
    assert watch.is_endless(0.4, TOO_MUCH, 3, 2.0)
    assert not watch.is_endless(0.5, TOO_MUCH, 4, 2.0), "said once"


def test_who_gives_messages_is_never_endless_however_much_comes() -> None:
    watch = Watch(taken=1)
    for turn in range(100):
        assert not watch.is_endless(turn * 0.1, turn * 10 * TOO_MUCH, turn, 2.0)
        if turn % 2:
            watch.taken += 1


def test_before_a_greeting_less_is_too_much() -> None:
    watch = Watch()
    assert not watch.is_endless(0.0, 0, 0, 2.0)
    assert not watch.is_endless(0.1, GREETING_BYTES_MAX + 1000, 1, 2.0)
    assert watch.is_endless(0.2, GREETING_BYTES_MAX + 1000, 2, 2.0)


def test_years_of_heartbeats_are_no_message() -> None:
    watch, ping_and_pong = Watch(taken=1), 2 * (9 + 33)
    for beat in range(200_000):
        assert not watch.is_endless(2.0 * beat, beat * ping_and_pong, beat, 2.0)


def test_the_kernel_says_what_was_read() -> None:
    """Bytes that wait in the kernel do not count."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        one.sendall(bytes(5000))
        assert read_bytes(other.fileno()) == 0
        assert len(other.recv(2000, socket.MSG_WAITALL)) == 2000
        assert read_bytes(other.fileno()) == 2000
        assert read_bytes(one.fileno()) == 0
    assert read_bytes(999_999) is None
