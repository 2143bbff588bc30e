"""Company: with whom a node keeps in touch.

It keeps connections to those above it in the trees of the roster; to those that it asks now because
others are gone; for each tree to the one that it would ask next, so that no connection has to be
made when a parent fails; and, while anybody is believed to be gone, to one of them after the other.

The first and the last let a network that fell apart become one again: whichever nodes were parted,
some connection between both sides is made when it heals, and both hear what the other believes. The
first alone is not enough: when the one above two others is dead, neither has the other above it.

Beside that it keeps connections to the owners of chunks that it asked lately (``reach``), the least
recently asked going first. Any node may be one of them, so these are no part of the overlay: of
what befalls others they are not told, and no sign of life is asked of them before they owe one.

It also knows who should ask this node: they are gone if they do not come, and nobody else would
notice.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from copperfs.core.actions import Action, Connect, Disconnect, Happened
from copperfs.core.links import Links
from copperfs.core.state import NodeStats
from copperfs.core.suspicion import Patience, Seen, Standing, doubted_until
from copperfs.core.trees import Trees
from copperfs.core.view import View
from copperfs.types import NodeId

# Whoever would be asked after so many others is not asked: the source is read.
CANDIDATES_MAX = 4
# A connection that is not made within this time is no reason to wait for it with the next one.
CONNECTS_WITHIN_S = 1.0
# Owners of chunks to whom connections are kept. One costs a socket at each end; a new one costs a
# handshake of some milliseconds.
REACHED_MAX = 512


@dataclass(slots=True)
class Peer:
    """One that is watched."""

    seen: Seen
    standing: Standing = Standing.LOST
    look_at: float | None = None
    """When to see what has become of it."""
    dropped: bool = False
    """This node itself has ended the connection."""
    probed: bool = False
    """Whether anybody listens there is being tried."""
    told_all_at: float = float("-inf")
    asked_last_at: float = float("-inf")
    """For a sign of life."""


@dataclass(slots=True)
class Company:
    trees: Trees
    patience: Patience
    stats: NodeStats
    links: Links
    random: Random
    view: View
    peers: dict[NodeId, Peer]
    """All that are watched; whoever is wanted is among them."""
    parents: list[NodeId | None] = field(init=False)
    """Whom this node asks in each tree, as it believes now."""
    wanted: set[NodeId] = field(default_factory=set)
    """To whom it keeps a connection."""
    overlay: set[NodeId] = field(default_factory=set)
    """Those of them who are above it in the trees, or may be."""
    reached: OrderedDict[NodeId, None] = field(default_factory=OrderedDict)
    """Owners of chunks to whom it keeps one, those asked last at the end."""
    near: set[NodeId] = field(default_factory=set)
    """Those of them whom it asks, or is pushed to by."""
    expected: set[NodeId] = field(default_factory=set)
    """Those who should ask this node, as it believes now."""
    new: list[NodeId] = field(default_factory=list)
    """Those who are watched since ``settle``."""
    away: set[NodeId] = field(default_factory=set)
    """Those who are watched and not connected: only they are ever forgotten. Thousands may be
    connected, and each that comes or goes must not cost a look at all of them."""
    try_gone_at: float = 0.0
    _trial: NodeId | None = None
    _found: int = -1
    """The number of the view by which parents and children were found."""

    def __post_init__(self) -> None:
        self.parents = [self.trees.parent(tree) for tree in range(self.trees.count)]

    def is_good(self, peer: NodeId) -> bool:
        """Whether to ask it."""
        found = self.peers.get(peer)
        return (
            found is not None
            and found.standing is Standing.GOOD
            and found.seen.up
            and peer not in self.view.gone
        )

    def reach(self, now: float, peer: NodeId) -> bool:
        """Be in touch with an owner of a chunk; whether that is new."""
        if peer in self.reached:
            self.reached.move_to_end(peer)
            return False
        self.reached[peer] = None
        self._watch(peer, Seen(now))
        if len(self.reached) > REACHED_MAX:
            # One that is asked stays, and so does one that is about to be: whoever waits for the
            # connection would begin to wait anew. If there are no others they are more for a while.
            idle = [each for each in self.reached if self._is_idle(now, each)]
            for each in idle[: len(self.reached) - REACHED_MAX]:
                del self.reached[each]
        return True

    def _is_idle(self, now: float, peer: NodeId) -> bool:
        return not self.links[peer].asked and self.connects_until(now, peer) is None

    def connects_until(self, now: float, peer: NodeId) -> float | None:
        """How long to wait for a connection that is being made; None if there is nothing to wait
        for."""
        found = self.peers.get(peer)
        if found is None or found.seen.up or found.seen.was_up or peer in self.view.gone:
            return None
        until = doubted_until(found.seen, self.patience, 0.0)
        return until if now < until else None

    def is_close(self, peer: NodeId) -> bool:
        """Whether this node and *peer* look after each other in the overlay."""
        return peer in self.overlay or peer in self.expected

    def settle(self, now: float) -> list[Action]:
        """Connect to whom this node needs now, and no longer to whom it does not."""
        actions: list[Action] = []
        if self._found != self.view.number:
            self._found = self.view.number
            actions += self._find_place(now)
        wanted = set(self.trees.parents()) | self.near
        for tree in range(self.trees.count):
            wanted.update(self._candidates(now, tree))
        if self._trial is not None:
            wanted.add(self._trial)
        self.overlay = set(wanted)
        for peer in self.view.gone & set(self.reached):
            del self.reached[peer]
        wanted.update(self.reached)
        for peer in sorted(wanted - self.wanted):
            actions.append(Connect(peer))
            self._watch(peer, Seen(now))
            self.peers[peer].dropped = False
        kept = {each for each in self.wanted - wanted if self.links[each].asked}
        for peer in sorted(self.wanted - wanted - kept):
            self.peers[peer].dropped = True
            actions.append(Disconnect(peer))
        self.wanted = wanted | kept
        self._forget_strangers()
        return actions

    def view_changed(self, now: float) -> None:
        """Whoever is gone now may be back in a moment, and is not tried before."""
        if self.try_gone_at <= now:
            self.try_gone_at = now + self.patience.try_gone_s

    def try_the_gone(self, now: float) -> bool:
        """While anybody is believed to be gone, try to reach one after the other; whether it is
        another one now."""
        if not self.view.gone:
            self._trial = None
        elif now >= self.try_gone_at:
            self.try_gone_at = now + self.patience.try_gone_s
            self._trial = self.random.choice(sorted(self.view.gone))
            return True
        return False

    def try_again(self, peer: NodeId) -> list[Action]:
        """It is there again. One that it tried to reach all the while is tried less and less often,
        so that who asks it now would wait for the next time, up to a second."""
        if peer not in self.wanted or self.links.is_up(peer):
            return []
        return [Disconnect(peer), Connect(peer)]

    def _find_place(self, now: float) -> list[Action]:
        """Who is above and below this node among those that are there."""
        trees, gone = self.trees, self.view.gone
        actions: list[Action] = []
        self.near.clear()
        self.expected.clear()
        for tree in range(trees.count):
            parent, push_parent = trees.parent(tree, gone), trees.push_parent(tree, gone)
            self.near.update(each for each in (parent, push_parent) if each is not None)
            if parent != self.parents[tree]:
                self.stats.reparentings += 1
                actions.append(Happened("has another parent", parent, f"in tree {tree}"))
                self.parents[tree] = parent
            of_roster = trees.children(tree)
            for child in trees.children(tree, gone):
                self.expected.add(child)
                # Those of the roster may not have been started yet.
                self._watch(child, Seen(now, was_up=child not in of_roster))
        return actions

    def _watch(self, peer: NodeId, seen: Seen) -> None:
        if peer not in self.peers:
            self.peers[peer] = Peer(seen)
            self.away.add(peer)
            self.new.append(peer)

    def _candidates(self, now: float, tree: int) -> Iterator[NodeId]:
        """Whom to ask, the one after it, and more while none of them answers."""
        passed = set(self.view.gone)
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
        """Of those whom nobody needs nothing is believed, unless they are connected."""
        for peer in list(self.away):
            needed = peer in self.wanted or peer in self.expected
            if not needed and not self.peers[peer].probed:
                self.away.discard(peer)
                del self.peers[peer]
