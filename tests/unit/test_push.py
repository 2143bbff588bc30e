"""Push at a node that has children; ``test_warmup.py`` tests what becomes of the files."""

from dataclasses import dataclass, field, replace

from copperfs.daemon.daemon_blobs import DaemonBlobs
from copperfs.model.listing import pack_listing
from copperfs.model.types import BlobId, NodeId, Path, Version
from copperfs.node.actions import Action, Send
from copperfs.node.events import ConnectionMade, MessageCorrupt, MessageReceived
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.peer.messages import Batch, ContentKind, Hello, Item
from copperfs.node.peer.push_receiver import Push
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.trees import Trees
from copperfs.wire.payload import payload_of

PARENT, ME, CHILD = NodeId(0), NodeId(1), NodeId(3)
VERSION = Version(3, 0, 0, 1)
FILE = Item(ContentKind.OBJECT, Path(b"f"), VERSION, 3, 0, 3)
BATCH = Batch(push=7, tree=0, epoch=1, sequence=0, items=(FILE,))


def node_with_a_child() -> Node:
    limits = Limits(1 << 24, 1 << 20, None, 10.0)
    node = Node(Policy(b"/src", b"/mnt"), limits, Trees(7, ME, fanout=2, push_fanout=2))
    for peer in (PARENT, CHILD):
        node.step(0.0, ConnectionMade(peer))
        node.step(0.0, MessageReceived(peer, Hello(peer, "", b"", 1, is_answer=True)))
    return node


@dataclass
class Receiver:
    node: Node = field(default_factory=node_with_a_child)
    blobs: DaemonBlobs = field(default_factory=DaemonBlobs)

    def __post_init__(self) -> None:
        self.node.attach(self.blobs)

    def takes(self, batch: Batch, data: bytes = b"abc") -> list[Action]:
        payload = self.blobs.lend(payload_of(data))
        actions = self.node.step(0.0, MessageReceived(PARENT, batch, payload))
        self.blobs.take_back(payload)
        return actions

    def push(self) -> Push:
        return self.node.pushes.running[BATCH.push]

    def holds(self) -> bool:
        return self.node.holds(FILE.path, VERSION)


def passed_on(actions: list[Action]) -> list[Batch]:
    sent = [each for each in actions if isinstance(each, Send)]
    return [each.message for each in sent if isinstance(each.message, Batch)]


def test_a_node_passes_a_batch_on_to_its_child_and_takes_it_in() -> None:
    receiver = Receiver()
    assert passed_on(receiver.takes(BATCH)) == [BATCH]
    assert receiver.holds()
    assert not receiver.push().is_over


def test_a_node_does_not_pass_on_a_batch_that_it_has_had() -> None:
    """The pushing peer may change, and the next may begin with batches that came already."""
    receiver = Receiver()
    receiver.takes(BATCH)
    assert passed_on(receiver.takes(BATCH)) == []
    assert receiver.node.flow[PARENT].unreturned_credit_bytes == 2 * len(b"abc")


def test_a_damaged_last_batch_ends_the_push_here_and_below() -> None:
    receiver = Receiver()
    last = replace(BATCH, last=True)
    actions = receiver.node.step(0.0, MessageCorrupt(PARENT, last))
    assert passed_on(actions) == [replace(last, items=())]
    assert receiver.push().is_over
    assert not receiver.holds()
    assert receiver.node.stats.spoiled == 1


def test_a_damaged_batch_in_the_middle_is_only_missing() -> None:
    receiver = Receiver()
    assert passed_on(receiver.node.step(0.0, MessageCorrupt(PARENT, BATCH))) == []
    assert not receiver.node.pushes.running


def test_the_sender_of_a_damaged_batch_gets_its_credit_back() -> None:
    receiver = Receiver()
    receiver.node.step(0.0, MessageCorrupt(PARENT, BATCH))
    assert receiver.node.flow[PARENT].unreturned_credit_bytes == len(b"abc")
    assert receiver.node.epoch == BATCH.epoch


def test_a_digest_that_nobody_checked_is_not_passed_on() -> None:
    receiver = Receiver()
    receiver.takes(replace(BATCH, items=(replace(FILE, digest=b"x" * 16),)))
    [(_, blob, _)] = receiver.node._cache._lru.items()
    assert isinstance(blob, int)
    assert receiver.blobs.part(BlobId(blob), 0, 3).digest == payload_of(b"abc").digest


def test_a_piece_that_is_longer_than_its_file_is_dropped() -> None:
    receiver = Receiver()
    wanted = replace(FILE, version=Version(5, 0, 0, 1), total_bytes=5)
    receiver.takes(replace(BATCH, items=(wanted,)))
    assert receiver.push().unfinished is not None
    receiver.takes(replace(BATCH, items=(replace(wanted, offset=3),), sequence=1))
    assert receiver.push().unfinished is None
    assert not receiver.node.held()


def test_a_push_counts_the_bytes_of_files_and_not_those_of_listings() -> None:
    receiver = Receiver()
    packed = pack_listing([]).packed
    size = len(packed)
    listing = Item(ContentKind.LISTING, Path(b"d"), None, size, 0, size)
    receiver.takes(replace(BATCH, items=(FILE, listing)), b"abc" + packed)
    assert receiver.node.held_listing(Path(b"d")) is not None
    assert receiver.push().bytes == 3


def test_a_push_that_ends_early_leaves_nothing_of_an_unfinished_file() -> None:
    receiver = Receiver()
    wanted = replace(FILE, version=Version(5, 0, 0, 1), total_bytes=5)
    receiver.takes(replace(BATCH, items=(wanted,)))
    assert len(receiver.blobs.held) == 2, "the batch for the child, and the piece"
    receiver.node.pushes.end(BATCH.push)
    assert len(receiver.blobs.held) == 1


def test_a_batch_that_is_shorter_than_its_items_gives_only_those_that_are_whole() -> None:
    receiver = Receiver()
    other = replace(FILE, path=Path(b"g"))
    assert passed_on(receiver.takes(replace(BATCH, items=(FILE, other)), b"abcd"))
    assert receiver.holds()
    assert not receiver.node.holds(other.path, VERSION)
