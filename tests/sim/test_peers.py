"""What the simulated daemon does with what comes; ``tests/unit/test_peers.py`` has the real one."""

from dataclasses import dataclass, field

from copperfs.core.events import Event, OfferTaken
from copperfs.core.messages import Hello, Item, Message, Offer, What
from copperfs.core.node import Node
from copperfs.core.policy import Policy
from copperfs.core.state import Limits
from copperfs.core.trees import Trees
from copperfs.sim.peers import AGREEMENT, JOB, Blobs, Peers
from copperfs.sim.pieces import Piece, content_of
from copperfs.types import NodeId, Path, Version

ROOT, CHILD = NodeId(0), NodeId(1)
FILE, VERSION = Path(b"f"), Version(100, 0, 0, 1)


@dataclass
class Silent:
    """A port that keeps what is sent."""

    me: NodeId
    sent: list[Message] = field(default_factory=list)

    def send(self, peer: NodeId, message: Message, pieces: tuple[Piece, ...] = ()) -> bool:
        self.sent.append(message)
        return True


def test_the_credit_of_an_offer_by_a_stranger_goes_back() -> None:
    """As in the daemon: else its sender could offer nothing any more over this connection."""
    told: list[Event] = []
    node = Node(Policy(b"/src", b"/mnt"), Limits(1 << 30, 1 << 20, None, 10.0), Trees(2, ROOT))
    port = Silent(ROOT)
    peers = Peers(port, node, Blobs(), told.append, told.extend)  # type: ignore[arg-type]
    peers.connection(CHILD)
    peers.take(CHILD, Hello(CHILD, JOB, AGREEMENT, 1), ())
    pieces = content_of(FILE, VERSION, with_bytes=True)
    item = Item(What.OBJECT, FILE, VERSION, 100, 0, 100, None, pieces[0].digest)
    assert not node.looks_up_to(CHILD)
    peers.take(CHILD, Offer(1, (item,)), pieces)
    assert told[-1] == OfferTaken(CHILD, 100, 1)
