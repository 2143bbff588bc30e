"""Engine's side of the overlay: what it keeps of the messages that arrive."""

from collections.abc import Callable

from copperfs.daemon.daemon_blobs import DaemonBlobs
from copperfs.daemon.peers import Peers
from copperfs.model.types import NodeId, Path, RequestId, Version
from copperfs.node.actions import Send
from copperfs.node.events import Clear, Event, ListRequest
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.peer.messages import (
    PART_BYTES,
    Batch,
    ContentKind,
    DataReply,
    Hello,
    Item,
    Message,
    Offer,
    Request,
)
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.trees import Trees
from copperfs.transport.interface import Connected, ReceivedMessage
from copperfs.wire.payload import Payload, digest
from tests.net.memory_network import MemoryNetwork

PARENT, ME = NodeId(0), NodeId(1)


def peers_of(post: Callable[[Event], None], node: Node) -> Peers:
    peers = Peers(MemoryNetwork().transport(ME), node, DaemonBlobs(), post)
    node.attach(peers.blobs)
    peers.arrived(Connected(PARENT))
    peers.arrived(ReceivedMessage(PARENT, Hello(PARENT, "", b"", 1), None))
    return peers


def node_of_two() -> Node:
    return Node(Policy(b"/src", b"/mnt"), Limits(1 << 30, 1 << 20, None, 10.0), Trees(2, ME))


def test_of_a_listing_that_is_not_wanted_any_more_nothing_is_kept() -> None:
    sent: list[Message] = []

    def post(event: Event) -> None:
        sent.extend(a.message for a in node.step(0.0, event) if isinstance(a, Send))

    node = node_of_two()
    peers = peers_of(post, node)
    post(ListRequest(RequestId(1), Path(b"d")))
    part = bytes(PART_BYTES)
    for _ in range(5):
        ask = sent[-1]
        assert isinstance(ask, Request)
        given = DataReply(ask.number, node.statistics().epoch, 0, 2 * PART_BYTES)
        peers.arrived(ReceivedMessage(PARENT, given, Payload(part, digest(part))))
        post(Clear())
    assert 0 < peers.blobs.held_bytes() <= PART_BYTES


def test_a_message_that_nobody_would_take_does_not_end_the_daemon(
    expected_warnings: Callable[[str], None],
) -> None:
    expected_warnings("no node would take this message")
    peers = peers_of(lambda _: None, node_of_two())
    peers.send(PARENT, Hello(ME, "job" * (64 << 10), b"", 1), None)


def test_whatever_comes_from_a_parent_is_counted() -> None:
    def post(event: Event) -> None:
        node.step(0.0, event)

    node = node_of_two()
    peers = peers_of(post, node)
    data = Payload(bytes(100), digest(bytes(100)))
    item = Item(
        ContentKind.OBJECT, Path(b"f"), Version(100, 1, 1, 1), 100, 0, 100, None, data.digest
    )
    batch = Batch(1, 0, 1, 0, (item,))
    for message in (DataReply(7, 1, 0, 100), Offer(1, (item,)), batch):
        peers.arrived(ReceivedMessage(PARENT, message, data))
    assert peers.taken_bytes == 300
