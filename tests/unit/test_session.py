"""Sessions: hellos, peers started with other settings, and when a connection counts."""

import pytest

from copperfs.model.types import NodeId, Path, RequestId, Version
from copperfs.node.actions import Action, Disagree, Send
from copperfs.node.events import (
    ConnectionLost,
    ConnectionMade,
    InodesFound,
    InodesSampled,
    ListRequest,
    MessageReceived,
    PeerDisagrees,
)
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.peer.hello_exchange import Agreement, Session
from copperfs.node.peer.messages import Echo, EchoReply, Hello, Message, Request, Seen
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.trees import Trees

PARENT, ME = NodeId(0), NodeId(1)
AGREED = Agreement("job", b"agreed", "--source and --trees", b"{}")


@pytest.fixture
def node() -> Node:
    node = Node(Policy(b"/src", b"/mnt"), Limits(1 << 30, 1 << 20, None, 10.0), Trees(2, ME))
    session_of(node).agreement = AGREED
    return node


def session_of(node: Node) -> Session:
    assert node.session is not None
    return node.session


def hello(*, is_answer: bool, digest: bytes = b"agreed", places: bytes = b"{}") -> Hello:
    return Hello(PARENT, "job", digest, 1, is_answer, places)


def hear(node: Node, message: Message) -> list[Action]:
    return node.step(0.0, MessageReceived(PARENT, message))


def sent(actions: list[Action]) -> list[Message]:
    return [each.message for each in actions if isinstance(each, Send)]


def hellos(actions: list[Action]) -> list[bool]:
    return [each.is_answer for each in sent(actions) if isinstance(each, Hello)]


def test_a_node_says_hello_first_and_is_connected_when_it_is_answered(node: Node) -> None:
    [first] = sent(node.step(0.0, ConnectionMade(PARENT)))
    assert first == Hello(ME, "job", b"agreed", 1, places=b"{}")
    assert not session_of(node).connected
    assert hellos(hear(node, hello(is_answer=True))) == []
    assert session_of(node).connected == {PARENT}


def test_a_node_answers_a_hello_before_it_says_anything_else(node: Node) -> None:
    node.step(0.0, ListRequest(RequestId(1), Path(b"d")))
    first, *rest = sent(hear(node, hello(is_answer=False)))
    assert isinstance(first, Hello)
    assert first.is_answer
    assert any(isinstance(each, Request) for each in rest), "what waited for the parent"


def test_a_peer_that_says_hello_again_has_begun_anew(node: Node) -> None:
    hear(node, hello(is_answer=True))
    assert hear(node, hello(is_answer=True)) == []
    assert hellos(hear(node, hello(is_answer=False))) == [True]
    assert session_of(node).losses[PARENT] == 1
    assert session_of(node).connected == {PARENT}


def test_a_new_connection_is_greeted_on_and_the_peer_is_lost_until_it_answers(node: Node) -> None:
    hear(node, hello(is_answer=True))
    assert hellos(node.step(0.0, ConnectionMade(PARENT)))[-1] is False
    assert not session_of(node).connected
    assert not node.flow.is_up(PARENT)


def test_a_node_does_not_listen_to_a_peer_that_has_not_said_hello(node: Node) -> None:
    node.step(0.0, ConnectionMade(PARENT))
    assert hear(node, Echo(7)) == []
    hear(node, hello(is_answer=True))
    assert sent(hear(node, Echo(7))) == [EchoReply(7)]
    node.step(0.0, ConnectionLost(PARENT))
    assert hear(node, Echo(8)) == []


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (hello(is_answer=False, digest=b"other"), "give all nodes the same --source and --trees"),
        (hello(is_answer=False, places=b'{"local": ["/tmp"]}'), "local on node 0 alone: /tmp"),
    ],
    ids=["settings", "places"],
)
def test_a_node_says_once_who_was_started_otherwise_and_does_not_talk_to_it(
    node: Node, other: Hello, sentence: str
) -> None:
    [said] = hear(node, other)
    assert isinstance(said, Disagree)
    assert sentence in said.sentence
    assert hear(node, other) == []
    assert not session_of(node).connected
    hear(node, hello(is_answer=False))
    assert not session_of(node).disagreeing, "it was started again"


def test_a_peer_of_another_version_disagrees(node: Node) -> None:
    event = PeerDisagrees(PARENT, "node 0 has version 1")
    assert node.step(0.0, event) == [Disagree(PARENT, "node 0 has version 1")]
    assert node.step(0.0, event) == []


def test_news_of_inode_numbers_is_said_to_all_connected_peers_and_is_no_hello_to_answer(
    node: Node,
) -> None:
    assert node.step(0.0, InodesSampled()) == []
    hear(node, hello(is_answer=True))
    found = (Seen(Path(b"name"), Version(1, 2, 3, 4)),)
    [again] = sent(node.step(0.0, InodesFound(found)))
    assert again == Hello(
        ME, "job", b"agreed", 1, is_answer=True, places=b"{}", sample=found, is_sampled=True
    )
