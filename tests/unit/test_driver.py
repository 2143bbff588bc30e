"""Driver: performs the node's actions in order, each at its port, before the next event."""

import errno
from dataclasses import dataclass, field

import pytest

from copperfs.driver.driver import Driver
from copperfs.model.types import (
    BlobId,
    CallId,
    ChunkKey,
    FetchId,
    NodeId,
    Path,
    PeerRequest,
    RequestId,
    Version,
)
from copperfs.node.actions import (
    Action,
    AnswerError,
    AnswerObject,
    Connect,
    EndCall,
    Evict,
    ListSource,
    LoadChunk,
    ObjectKey,
    Publish,
    ReadSource,
    ReleaseBlob,
    Send,
)
from copperfs.node.events import Event, Tick
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.peer.messages import Batch, CollectiveReply, Credit, Message
from copperfs.node.requests.path_policy import Policy
from tests.unit.ports_lab import NoPorts

PEER = NodeId(7)
KEY = ObjectKey(Path(b"a"), Version(3, 0, 0, 1))
BLOB = BlobId(1)


class Told(NoPorts):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.there = {BLOB}

    def wake_at(self, deadline: float | None) -> None:
        self.lines.append("wake")

    def answer_object(self, answer: AnswerObject, content: object) -> None:
        self.lines.append(f"answer {content}")

    def answer_error(self, request: RequestId, error: int) -> None:
        self.lines.append(errno.errorcode[error])

    def publish_object(self, key: ObjectKey, content: object) -> None:
        self.lines.append(f"publish {content}")

    def withdraw(self, key: object) -> None:
        self.lines.append("withdraw")

    def start(self, fetch: object, names_to_find: tuple[bytes, ...]) -> None:
        self.lines.append(type(fetch).__name__)

    def stop(self, call: CallId) -> None:
        self.lines.append("stop")

    def merge(self, results: tuple[bytes, ...]) -> bytes:
        return b"+".join(results)

    def end(self, request: RequestId, result: bytes) -> None:
        self.lines.append(f"end {result!r}")

    def send(self, peer: NodeId, message: Message, payload: object) -> None:
        self.lines.append(f"{type(message).__name__} with {payload}")

    def connect(self, peer: NodeId) -> None:
        self.lines.append("connect")

    def disconnect(self, peer: NodeId) -> None: ...
    def probe(self, peer: NodeId) -> None: ...

    # --- blobs -----------------------------------------------------------------------------------

    def content(self, blob: BlobId) -> object:
        assert blob in self.there
        return "bytes"

    def whole(self, blob: BlobId) -> object:
        assert blob in self.there
        return "payload"

    def release(self, blob: BlobId) -> None:
        self.there.remove(blob)
        self.lines.append("release")


@dataclass(slots=True)
class Scripted(Node):
    script: list[Action] = field(default_factory=list)

    def step(self, now: float, event: Event) -> list[Action]:
        return self.script


def driven(*script: Action) -> tuple[Driver[object, object], Told]:
    told = Told()
    node = Scripted(Policy(b"/src", b"/mnt"), Limits(1, 1, None, 10.0), script=list(script))
    driver = told.drive(node)
    driver.ports.network = told
    return driver, told


def test_an_answer_is_given_and_a_message_made_before_their_blob_is_released() -> None:
    batch = Batch(1, 0, 1, 0, ())
    driver, told = driven(
        AnswerObject(RequestId(1), KEY, BLOB),
        Publish(KEY, BLOB),
        Send(PEER, batch, BLOB),
        Evict(KEY),
        ReleaseBlob(BLOB),
    )
    driver.post(Tick())
    steps = ["answer bytes", "publish bytes", "Batch with payload", "withdraw", "release", "wake"]
    assert told.lines == steps


def test_each_kind_of_action_goes_to_its_port() -> None:
    driver, told = driven(
        ListSource(FetchId(1), Path(b"")),
        ReadSource(FetchId(2), *KEY),
        AnswerError(RequestId(1), errno.EIO),
        Connect(PEER),
        Send(PEER, Credit(5)),
    )
    driver.post(Tick())
    assert told.lines == ["ListSource", "ReadSource", "EIO", "connect", "Credit with None", "wake"]


@pytest.mark.parametrize(
    ("requester", "end"),
    [(RequestId(1), "end b'a+b'"), (PeerRequest(PEER, 4), "CollectiveReply with None")],
    ids=["here", "peer"],
)
def test_the_results_of_a_call_are_merged_for_whoever_asked(
    requester: RequestId | PeerRequest, end: str
) -> None:
    driver, told = driven(EndCall(CallId(1), requester, "x", (b"a", b"b")))
    driver.post(Tick())
    assert told.lines == ["stop", end, "wake"]


def test_a_node_without_a_data_tier_or_peers_has_no_such_ports() -> None:
    key = ChunkKey(KEY.path, KEY.version, 0)
    for action, missing in ((LoadChunk(FetchId(1), key), "disk"), (Connect(PEER), "peers")):
        driver, _ = driven(action)
        driver.ports.network = None
        with pytest.raises(AssertionError, match=missing):
            driver.post(Tick())


def test_the_result_for_a_peer_is_what_was_merged() -> None:
    driver, told = driven(EndCall(CallId(1), PeerRequest(PEER, 4), "x", (b"a", b"b")))
    sent: list[Message] = []
    told.send = lambda peer, message, payload: sent.append(message)  # type: ignore[method-assign]
    driver.post(Tick())
    assert sent == [CollectiveReply(4, b"a+b")]
