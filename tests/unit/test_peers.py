"""The engine's side of the overlay: what it keeps of what comes."""

from collections.abc import Callable

from copperfs.core.actions import Send
from copperfs.core.events import Clear, Event, List
from copperfs.core.messages import (
    PART_BYTES,
    Ask,
    Batch,
    GivePart,
    Hello,
    Item,
    Message,
    Offer,
    What,
)
from copperfs.core.node import Node
from copperfs.core.policy import Policy
from copperfs.core.state import Limits
from copperfs.core.trees import Trees
from copperfs.net.memory import MemoryNetwork
from copperfs.net.transport import Connected, Received
from copperfs.runtime.peers import Blobs, Peers
from copperfs.types import NodeId, Path, RequestId, Version
from copperfs.wire.payload import Payload, digest

PARENT, ME = NodeId(0), NodeId(1)


def test_of_a_listing_that_is_not_wanted_any_more_nothing_is_kept() -> None:
    sent: list[Message] = []

    def post(event: Event) -> None:
        sent.extend(a.message for a in node.step(0.0, event) if isinstance(a, Send))

    node = Node(Policy(b"/src", b"/mnt"), Limits(1 << 30, 1 << 20, None, 10.0), Trees(2, ME))
    peers = Peers(MemoryNetwork().transport(ME), node, Blobs(), post, "job", b"")
    peers.arrived(Connected(PARENT))
    peers.arrived(Received(PARENT, Hello(PARENT, "job", b"", 1), None))
    post(List(RequestId(1), Path(b"d")))
    part = bytes(PART_BYTES)
    for _ in range(5):
        ask = sent[-1]
        assert isinstance(ask, Ask)
        given = GivePart(ask.number, node.statistics().epoch, 0, 2 * PART_BYTES)
        peers.arrived(Received(PARENT, given, Payload(part, digest(part))))
        post(Clear())
    assert peers.kept_listing_bytes() <= PART_BYTES


def test_a_greeting_that_nobody_would_take_does_not_end_the_daemon(
    expected_warnings: Callable[[str], None],
) -> None:
    expected_warnings("no node would take this greeting")
    node = Node(Policy(b"/src", b"/mnt"), Limits(1 << 30, 1 << 20, None, 10.0), Trees(2, ME))

    peers = Peers(MemoryNetwork().transport(ME), node, Blobs(), lambda _: None, "job", b"")
    peers.arrived(Connected(PARENT))
    peers.arrived(Received(PARENT, Hello(PARENT, "job", b"", 1), None))
    peers.job = "job" * (64 << 10)
    peers.say_hello_again(1)


def test_whatever_comes_from_a_parent_is_counted() -> None:
    def post(event: Event) -> None:
        node.step(0.0, event)

    node = Node(Policy(b"/src", b"/mnt"), Limits(1 << 30, 1 << 20, None, 10.0), Trees(2, ME))
    peers = Peers(MemoryNetwork().transport(ME), node, Blobs(), post, "job", b"")
    peers.arrived(Connected(PARENT))
    peers.arrived(Received(PARENT, Hello(PARENT, "job", b"", 1), None))
    data = Payload(bytes(100), digest(bytes(100)))
    item = Item(What.OBJECT, Path(b"f"), Version(100, 1, 1, 1), 100, 0, 100, None, data.digest)
    batch = Batch(1, 0, 1, 0, (item,))
    for message in (GivePart(7, 1, 0, 100), Offer(1, (item,)), batch):
        peers.arrived(Received(PARENT, message, data))
    assert peers.taken_bytes == 300
