"""Connection plan: decides to which peers this node stays connected.

It keeps connections to:

- its ancestors in the trees of the roster
- the parents it uses now because other nodes are gone
- in each tree the candidate after the parent, so that a failing parent costs no new connection
- one gone node after the other
- the owners of chunks it asked lately (``reach``), an LRU apart from the trees

The first and the fourth heal a partition: whichever nodes were parted, some connection crosses the
cut when it heals, and both sides exchange their member tables. The first alone is not enough: when
the common parent of two nodes is dead, neither has the other above it.

The plan also holds the children that should connect to this node. A child that does not come is
gone, and no other node would notice.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from copperfs.model.types import NodeId
from copperfs.node.actions import Action, Connect, Disconnect, LogEvent
from copperfs.node.limits_and_counters import NodeStats
from copperfs.node.membership.failure_detector import (
    PeerObservations,
    PeerState,
    Timeouts,
    doubted_until,
)
from copperfs.node.membership.member_table import MemberTable
from copperfs.node.peer.flow_control import FlowControl
from copperfs.node.routing.trees import Trees

# After this many candidates the node reads the source instead.
CANDIDATES_MAX = 4
# After this time the next candidate is connected as well.
CONNECTS_WITHIN_S = 1.0
# A connection costs a socket at each end; a new one costs a handshake of some milliseconds.
REACHED_MAX = 512


@dataclass(slots=True)
class Peer:
    seen: PeerObservations
    state: PeerState = PeerState.LOST
    check_at: float | None = None
    """When to check its state again."""
    dropped: bool = False
    """This node closed the connection."""
    probing: bool = False
    table_sent_at: float = float("-inf")
    ping_last_sent_at: float = float("-inf")
    """When it was last asked for a heartbeat."""


@dataclass(slots=True)
class ConnectionPlan:
    trees: Trees
    timeouts: Timeouts
    stats: NodeStats
    flow: FlowControl
    random: Random
    members: MemberTable
    peers: dict[NodeId, Peer]
    """All watched peers, also those of ``wanted``."""
    parents: list[NodeId | None] = field(init=False)
    """By the present member table."""
    wanted: set[NodeId] = field(default_factory=set)
    upstream: set[NodeId] = field(default_factory=set)
    """Peers that this node asks or may come to ask, and those that push to it."""
    reached: OrderedDict[NodeId, None] = field(default_factory=OrderedDict)
    """The most recently asked last."""
    near: set[NodeId] = field(default_factory=set)
    """Parents, and peers that push to this node."""
    expected: set[NodeId] = field(default_factory=set)
    """Children that should connect to this node."""
    new: list[NodeId] = field(default_factory=list)
    """Watched since the last ``settle``."""
    away: set[NodeId] = field(default_factory=set)
    """Watched and not connected. Only these are ever forgotten: thousands may be connected, and a
    connect or disconnect must not scan all of them."""
    try_gone_at: float = 0.0
    _trial: NodeId | None = None
    _found: int = -1
    """The member table's version behind parents and children."""

    def __post_init__(self) -> None:
        self.parents = [self.trees.parent(tree) for tree in range(self.trees.count)]

    def is_good(self, peer: NodeId) -> bool:
        """Whether the peer takes requests."""
        found = self.peers.get(peer)
        return (
            found is not None
            and found.state is PeerState.GOOD
            and found.seen.up
            and peer not in self.members.gone
        )

    def reach(self, now: float, peer: NodeId) -> bool:
        """Returns whether the owner is new here."""
        if peer in self.reached:
            self.reached.move_to_end(peer)
            return False
        self.reached[peer] = None
        self._watch(peer, PeerObservations(now))
        if len(self.reached) > REACHED_MAX:
            # An owner with outstanding requests stays. So does one that is connecting: a fetch that
            # waits for the connection would start its wait anew. The limit may be exceeded for a
            # while.
            idle = [each for each in self.reached if self._is_idle(now, each)]
            for each in idle[: len(self.reached) - REACHED_MAX]:
                del self.reached[each]
        return True

    def _is_idle(self, now: float, peer: NodeId) -> bool:
        return not self.flow[peer].outstanding and self.connects_until(now, peer) is None

    def connects_until(self, now: float, peer: NodeId) -> float | None:
        """None if there is no connection to wait for, being made or from now on."""
        found = self.peers.get(peer)
        seen = PeerObservations(now) if found is None else found.seen
        if seen.up or seen.was_up or peer in self.members.gone:
            return None
        until = doubted_until(seen, self.timeouts, 0.0)
        return until if now < until else None

    def is_close(self, peer: NodeId) -> bool:
        """Whether both watch each other as neighbours in a tree."""
        return peer in self.upstream or peer in self.expected

    def settle(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if self._found != self.members.number:
            self._found = self.members.number
            actions += self._find_place(now)
        wanted = set(self.trees.parents()) | self.near
        for tree in range(self.trees.count):
            wanted.update(self._candidates(now, tree))
        if self._trial is not None:
            wanted.add(self._trial)
        self.upstream = set(wanted)
        for peer in self.members.gone & set(self.reached):
            del self.reached[peer]
        wanted.update(self.reached)
        for peer in sorted(wanted - self.wanted):
            actions.append(Connect(peer))
            self._watch(peer, PeerObservations(now))
            self.peers[peer].dropped = False
        kept = {each for each in self.wanted - wanted if self.flow[each].outstanding}
        for peer in sorted(self.wanted - wanted - kept):
            self.peers[peer].dropped = True
            actions.append(Disconnect(peer))
        self.wanted = wanted | kept
        self._forget_strangers()
        return actions

    def members_changed(self, now: float) -> None:
        """A node that has just gone may be back in a moment, so wait before the first attempt."""
        if self.try_gone_at <= now:
            self.try_gone_at = now + self.timeouts.try_gone_s

    def try_the_gone(self, now: float) -> bool:
        """Try to reach one gone node after the other; returns whether a new attempt begins."""
        if not self.members.gone:
            self._trial = None
        elif now >= self.try_gone_at:
            self.try_gone_at = now + self.timeouts.try_gone_s
            self._trial = self.random.choice(sorted(self.members.gone))
            return True
        return False

    def try_again(self, peer: NodeId) -> list[Action]:
        """The socket's reconnect attempts have become rare, so a request would wait for up to a
        second."""
        if peer not in self.wanted or self.flow.is_up(peer):
            return []
        return [Disconnect(peer), Connect(peer)]

    def _find_place(self, now: float) -> list[Action]:
        trees, gone = self.trees, self.members.gone
        actions: list[Action] = []
        self.near.clear()
        self.expected.clear()
        for tree in range(trees.count):
            parent, push_parent = trees.parent(tree, gone), trees.push_parent(tree, gone)
            self.near.update(each for each in (parent, push_parent) if each is not None)
            if parent != self.parents[tree]:
                self.stats.reparentings += 1
                actions.append(LogEvent("has another parent", parent, f"in tree {tree}"))
                self.parents[tree] = parent
            of_roster = trees.children(tree)
            for child in trees.children(tree, gone):
                self.expected.add(child)
                # Children of the full roster may not have started yet.
                self._watch(child, PeerObservations(now, was_up=child not in of_roster))
        return actions

    def _watch(self, peer: NodeId, seen: PeerObservations) -> None:
        if peer not in self.peers:
            self.peers[peer] = Peer(seen)
            self.away.add(peer)
            self.new.append(peer)

    def _candidates(self, now: float, tree: int) -> Iterator[NodeId]:
        """The peer to ask, the one after it, and further ones while none replies."""
        passed = set(self.members.gone)
        last = False
        for _ in range(CANDIDATES_MAX):
            peer = self.trees.parent(tree, passed)
            if peer is None:
                return
            yield peer
            if last:
                return
            found = self.peers.get(peer)
            connecting = found is None or (
                not found.seen.was_up and now < found.seen.since + CONNECTS_WITHIN_S
            )
            last = connecting or self.is_good(peer)
            passed.add(peer)

    def _forget_strangers(self) -> None:
        for peer in list(self.away):
            needed = peer in self.wanted or peer in self.expected
            if not needed and not self.peers[peer].probing:
                self.away.discard(peer)
                del self.peers[peer]
