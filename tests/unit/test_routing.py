"""``route`` is a pure query: it returns a route, and changes nothing."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from copperfs.model.types import ChunkKey, NodeId, Path, Version
from copperfs.node.cache.blob_refs import BlobRefs
from copperfs.node.limits_and_counters import FetchKind, NodeStats, Subject
from copperfs.node.membership.failure_detector import Timeouts
from copperfs.node.membership.swim import Membership
from copperfs.node.peer.flow_control import FlowControl
from copperfs.node.peer.messages import MemberStatus
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.chunk_owners import TIMEOUTS_MAX, Owners
from copperfs.node.routing.hash_ring import Ring
from copperfs.node.routing.route import Role, Route, Routing
from copperfs.node.routing.trees import Trees

NODES = 16
PATH = Path(b"lib/large")
VERSION = Version(1 << 30, 1, 2, 3)


def routing_of(me: int = 11) -> Routing:
    node, stats, flow = NodeId(me), NodeStats(), FlowControl(BlobRefs())
    trees = Trees(NODES, node, fanout=2, count=2)
    membership = Membership(trees, Timeouts(), stats, flow, Random(1))
    owners = Owners(Ring([f"n{n}" for n in range(NODES)]), node, 1 << 20, stats)
    membership.start()
    membership.settle(0.0)
    return Routing(Policy(b"/", b"/mnt"), trees, flow, membership, owners)


def everything(routing: Routing) -> str:
    return repr(routing)


def chunk(index: int) -> Subject:
    return (FetchKind.CHUNK, PATH, ChunkKey(PATH, VERSION, index))


happenings = st.lists(
    st.tuples(
        st.sampled_from(("up", "down", "refused", "gone", "reached", "silent", "done without")),
        st.integers(0, NODES - 1).map(NodeId),
        st.floats(0.0, 0.5),
    ),
    max_size=40,
)


def happen(routing: Routing, what: str, now: float, peer: NodeId) -> None:
    membership, owners = routing.membership, routing.owners
    assert membership is not None
    assert owners is not None
    if peer == membership.members.me:
        return
    match what:
        case "up":
            routing.flow.up(peer)
            membership.up(now, peer)
        case "down":
            routing.flow.down(peer)
            membership.down(now, peer)
        case "refused":
            membership.probed(now, peer, refused=True)
        case "gone":
            membership.members.hear(MemberStatus(peer, 0, True))
        case "reached":
            routing.reach(now, (peer,))
        case "silent":
            membership.await_reply(now, peer)
        case "done without":
            for _ in range(TIMEOUTS_MAX):
                owners.timed_out(now, peer)
    membership.tick(now)
    membership.settle(now)


@given(
    happened=happenings,
    subject=st.one_of(
        st.integers(0, 200).map(chunk), st.just((FetchKind.LISTING, Path(b"lib"), None))
    ),
    skipped=st.sets(st.integers(0, NODES - 1).map(NodeId), max_size=3),
    chunk_up_tree=st.booleans(),
    is_silent=st.booleans(),
    is_second_opinion=st.booleans(),
    later_s=st.sampled_from((0.0, 0.2, 70.0)),
)
def test_two_calls_give_the_same_route_and_change_nothing(
    happened: list[tuple[str, NodeId, float]],
    subject: Subject,
    skipped: set[NodeId],
    chunk_up_tree: bool,
    is_silent: bool,
    is_second_opinion: bool,
    later_s: float,
) -> None:
    routing, now = routing_of(), 0.0
    for what, peer, after_s in happened:
        now += after_s
        happen(routing, what, now, peer)
    now += later_s

    def route() -> Route:
        return routing.route(
            now,
            subject,
            routing.tree_of(subject),
            skipped,
            chunk_up_tree=chunk_up_tree,
            silent_at=now - 0.1 if is_silent else None,
            is_second_opinion=is_second_opinion,
        )

    before = everything(routing)
    first = route()
    assert route() == first
    assert everything(routing) == before
    # Connections to the peers make no difference.
    routing.reach(now, first.connect_to)
    assert route() == first


def test_an_owner_that_is_not_connected_is_reached_by_who_takes_the_route() -> None:
    routing = routing_of()
    membership = routing.membership
    assert membership is not None
    subject = next(chunk(n) for n in range(0, 800, 8) if not routing.is_owned_elsewhere(chunk(n)))
    assert routing.route(1.0, subject, 0) == Route(role=Role.OWNER)
    other = next(chunk(n) for n in range(0, 800, 8) if routing.is_owned_elsewhere(chunk(n)))
    route = routing.route(1.0, other, 0)
    assert route.peer is None
    assert route.is_connecting
    assert route.connect_to
    assert not membership.plan.reached
    routing.reach(1.0, route.connect_to)
    assert tuple(membership.plan.reached) == route.connect_to
