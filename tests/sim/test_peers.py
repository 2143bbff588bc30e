"""A simulated node's handling of messages; ``tests/unit/test_session.py`` tests the rest."""

from copperfs.lab.sim.payload_pieces import content_of
from copperfs.lab.sim.sim_blobs import SimulatedBlobs
from copperfs.model.types import NodeId, Path, Version
from copperfs.node.actions import Send
from copperfs.node.events import MessageReceived
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.peer.flow_control import WINDOW_BYTES
from copperfs.node.peer.messages import ContentKind, Credit, Hello, Item, Offer
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.trees import Trees

ROOT, CHILD = NodeId(0), NodeId(1)
FILE, VERSION = Path(b"f"), Version(100, 0, 0, 1)


def test_the_credit_of_an_offer_by_a_stranger_goes_back() -> None:
    """Otherwise the sender could push nothing more over this connection."""
    node = Node(Policy(b"/src", b"/mnt"), Limits(1 << 30, 1 << 20, None, 10.0), Trees(2, ROOT))
    blobs = SimulatedBlobs()
    node.attach(blobs)
    node.step(0.0, MessageReceived(CHILD, Hello(CHILD, "", b"", 1)))
    pieces = content_of(FILE, VERSION, with_bytes=True)
    item = Item(ContentKind.OBJECT, FILE, VERSION, 100, 0, 100, None, pieces[0].digest)
    assert not node.is_upstream(CHILD)
    for _ in range(WINDOW_BYTES // 100):
        number = blobs.lend(pieces)
        actions = node.step(0.0, MessageReceived(CHILD, Offer(1, (item,)), number))
        blobs.take_back(number)
        if Send(CHILD, Credit(2097200)) in actions:
            return
    raise AssertionError("no credit came back")
