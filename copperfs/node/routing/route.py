"""Routing: which peer a fetch asks next, or in which role this node reads the source itself.

Two overlays are used in one way. In the trees a node asks its parent; on the ring it asks the owner
of a chunk (``chunk_owners.py``). A node with no node above it reads the source.

How a route is found, from the nearest node above to the farthest (``_route_around``):

1. A peer above that is *good* is asked.
2. A peer that is only suspected (silent or lost) is passed over, and the one above it is next. The
   source is not read before the suspect's time to reply is over.
3. Where no node is left above, this node is the root or the owner. If that is so only because
   suspects were passed over, it waits for as long as they may still reply, and then reads the
   source in their place.

The other parts of the node ask here each time they need a route, and remember at most which peers
they asked. ``route`` is a pure query: two calls at one time give the same route and change nothing.
A route names the peers to which the caller then has to keep a connection (``connect_to``).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from functools import partial

from copperfs.model.types import ChunkKey, NodeId, Path, split
from copperfs.node.actions import Action
from copperfs.node.limits_and_counters import FetchKind, Subject
from copperfs.node.membership.connection_plan import CANDIDATES_MAX
from copperfs.node.membership.swim import Membership
from copperfs.node.peer.flow_control import FlowControl
from copperfs.node.peer.messages import PATH_BYTES_MAX
from copperfs.node.requests.path_policy import Place, Policy
from copperfs.node.routing.chunk_owners import Owners
from copperfs.node.routing.trees import Trees


class Role(Enum):
    ROOT = "root"
    """The root of the tree; for what is not shared each node is its own root."""
    OWNER = "owner"
    """All nodes before this one are gone or excluded."""
    SUCCESSOR = "successor"
    """The next root or owner, while those before it may live; it is the only one."""
    ONE_OF_MANY = "one of many"
    """A node that falls back, as others may do at this time."""
    SUBSTITUTE = "substitute"
    """A node that falls back for itself alone: the owner is gone or being connected to."""

    @property
    def is_fallback(self) -> bool:
        """The root or owner, which should read the source, may live."""
        return self not in (Role.ROOT, Role.OWNER)

    @property
    def keeps_result(self) -> bool:
        """This node is the next owner of a chunk."""
        return self in (Role.OWNER, Role.SUCCESSOR)


@dataclass(frozen=True, slots=True)
class Route:
    """What a fetch does next. One of three things:

    - ask ``peer``
    - read the source now, in ``role``: ``peer`` is None, and ``wait_until`` is over
    - wait until ``wait_until``, then read the source in ``role``: ``peer`` is None
    """

    peer: NodeId | None = None
    """The peer to ask; None if there is none."""
    role: Role = Role.ROOT
    """As what this node reads the source. It counts only if there is no peer to ask."""
    wait_until: float = float("-inf")
    """Suspected peers above may reply before this time, or a connection may be made."""
    ask_meanwhile: NodeId | None = None
    """While it waits: a silent peer that is still connected, and may be asked."""
    is_connecting: bool = False
    """It waits for a connection that is being made, and not for a suspected peer."""
    chunk_up_tree: bool = False
    """The parent is asked although the chunk has an owner."""
    skips_suspects: bool = False
    """Peers that come before are suspected, and not known to be gone."""
    connect_to: tuple[NodeId, ...] = ()
    """Peers that are asked, or may be asked next, in this order: keep a connection to them."""


SOURCE_ROUTE = Route(role=Role.ROOT)
"""Read the source now, as a root does."""
_AS_OWNER = Route(role=Role.OWNER)


@dataclass(slots=True)
class Routing:
    policy: Policy
    trees: Trees | None
    flow: FlowControl
    membership: Membership | None
    owners: Owners | None = None
    """None without a data tier or another node."""
    lost_from_source: bool = False

    def tree_of(self, subject: Subject) -> int:
        if self.trees is None:
            return 0
        kind, path, _ = subject
        return self.trees.tree_of(path if kind is FetchKind.LISTING else split(path)[0])

    def route(
        self,
        now: float,
        subject: Subject,
        tree: int,
        skipped: Collection[NodeId] = (),
        *,
        chunk_up_tree: bool = False,
        silent_at: float | None = None,
        is_second_opinion: bool = False,
    ) -> Route:
        """*chunk_up_tree*: get a chunk from the parent in the tree, unless this node is its owner
        or the root. *silent_at*: when the first peer that should be asked was found silent.
        *is_second_opinion*: another node does not reach these peers, either."""
        kind, path, key = subject
        membership = self.membership
        if (
            membership is None
            or kind is FetchKind.HANDLE
            or len(path) > PATH_BYTES_MAX
            or self.policy.place(path) is not Place.SHARED
        ):
            return SOURCE_ROUTE
        if isinstance(key, ChunkKey):
            if chunk_up_tree and not self.is_mine(key):
                above = self._route_up(now, membership, tree, skipped, None).peer
                if above is not None:
                    return Route(above, chunk_up_tree=True)
            return self._route_to_owner(
                now, membership, key, skipped, silent_at, is_second_opinion=is_second_opinion
            )
        return self._route_up(now, membership, tree, skipped, silent_at)

    def _route_up(
        self,
        now: float,
        membership: Membership,
        tree: int,
        skipped: Collection[NodeId],
        silent_at: float | None,
    ) -> Route:
        parent = membership.parents[tree]
        if parent is None:
            return SOURCE_ROUTE
        if parent not in skipped and membership.is_good(parent):
            return Route(parent)
        assert self.trees is not None
        above = partial(self.trees.parent, tree)
        return self._route_around(
            now, membership, above, skipped, membership.members.gone, silent_at
        )

    def _route_to_owner(
        self,
        now: float,
        membership: Membership,
        key: ChunkKey,
        skipped: Collection[NodeId],
        silent_at: float | None,
        *,
        is_second_opinion: bool,
    ) -> Route:
        owners, gone = self.owners, membership.members.gone
        assert owners is not None, "a job that has chunks has owners of them"
        if self.lost_from_source and gone and owners.owner(key, ()) in gone:
            return Route(role=Role.SUBSTITUTE)
        gone = gone.union(owners.excluded(now))
        first = owners.before_me(key, gone)
        if first is None and not skipped:
            return _AS_OWNER
        above = partial(owners.before_me, key)
        return self._route_around(
            now,
            membership,
            above,
            skipped,
            gone,
            silent_at,
            of_owners=True,
            is_second_opinion=is_second_opinion,
        )

    def _route_around(
        self,
        now: float,
        membership: Membership,
        above: Callable[[Collection[NodeId]], NodeId | None],
        skipped: Collection[NodeId],
        gone: Collection[NodeId],
        silent_at: float | None,
        *,
        of_owners: bool = False,
        is_second_opinion: bool = False,
    ) -> Route:
        """Go up from peer to peer until one can be asked, or none is left. *above* gives the peer
        to ask without these. *of_owners*: this node is connected to the peers above only if routes
        name them (``connect_to``). *is_second_opinion*: it does not wait longer for silent
        peers."""
        excluded = set(gone) | set(skipped)
        connect_to: list[NodeId] = []
        wait_until, ask_meanwhile, skips_suspects = float("-inf"), None, False
        at_most = float("inf") if silent_at is None else membership.silent_until(silent_at)
        role = Role.ONE_OF_MANY
        for _ in range(CANDIDATES_MAX):
            peer = above(excluded)
            if peer is None:
                # This node is the next root or owner, unless the fetch skipped peers and others are
                # suspected.
                is_next = not (skipped and skips_suspects)
                role = Role.SUCCESSOR if is_next else Role.ONE_OF_MANY
                break
            if of_owners:
                connect_to.append(peer)
            if membership.is_good(peer):
                return Route(peer, skips_suspects=skips_suspects, connect_to=tuple(connect_to))
            connects_until = membership.connects_until(now, peer) if of_owners else None
            if connects_until is not None:
                if skips_suspects:
                    # Connect to the next candidates as well: this one may be stuck, too.
                    connect_to += _next_ones(above, {peer, *excluded})
                return Route(
                    None,
                    Role.SUBSTITUTE,
                    max(wait_until, connects_until),
                    ask_meanwhile,
                    is_connecting=True,
                    skips_suspects=skips_suspects,
                    connect_to=tuple(connect_to),
                )
            # The peer is suspected: pass it over, but give it the time in which it may reply.
            if not is_second_opinion:
                until = membership.doubted_until(peer)
                wait_until = max(wait_until, min(until, at_most)) if skips_suspects else until
            if ask_meanwhile is None and self.flow.is_up(peer):
                ask_meanwhile = peer
            excluded.add(peer)
            skips_suspects = True
        return Route(
            None,
            role,
            wait_until,
            ask_meanwhile,
            skips_suspects=skips_suspects,
            connect_to=tuple(connect_to),
        )

    def reach(self, now: float, peers: Collection[NodeId]) -> None:
        for peer in peers:
            assert self.membership is not None
            self.membership.reach(now, peer)

    def is_owned_elsewhere(self, subject: Subject) -> bool:
        """Whether this node believes another one to own the chunk. A peer that asks this node as
        the owner then does not reach that one."""
        key = subject[2]
        return isinstance(key, ChunkKey) and not self.is_mine(key)

    def is_takeover(self, subject: Subject, tree: int) -> bool:
        """Whether this node is the root or the owner only because another node is gone or
        excluded."""
        kind, path, key = subject
        if (
            self.trees is None
            or kind is FetchKind.HANDLE
            or self.policy.place(path) is not Place.SHARED
        ):
            return False
        if len(path) > PATH_BYTES_MAX:
            return False
        if isinstance(key, ChunkKey):
            return self.owners is not None and not self.owners.is_mine(key, ())
        return self.trees.parent(tree) is not None

    def ping_next(self, now: float, key: ChunkKey, excluded: set[NodeId]) -> list[Action]:
        if self.owners is None or self.membership is None:
            return []
        actions: list[Action] = []
        gone = excluded.union(self.gone(), self.owners.excluded(now))
        for _ in range(CANDIDATES_MAX):
            peer = self.owners.before_me(key, gone)
            if peer is None:
                break
            actions += self.membership.ping(now, peer)
            gone.add(peer)
        return actions

    def ping(self, now: float, peer: NodeId) -> list[Action]:
        assert self.membership is not None
        return self.membership.ping(now, peer)

    def is_good(self, peer: NodeId) -> bool:
        return self.membership is not None and self.membership.is_good(peer)

    def connects_until(self, now: float, peer: NodeId) -> float | None:
        assert self.membership is not None
        return self.membership.connects_until(now, peer)

    def returns_until(self, now: float, peer: NodeId) -> float | None:
        """Until when to wait for a connection to *peer*, which is being made or was lost a moment
        ago. None if there is none to wait for."""
        assert self.membership is not None
        if self.flow.is_up(peer):
            return None
        until = self.membership.connects_until(now, peer)
        if until is None:
            until = self.membership.doubted_until(peer)
        return until if until > now else None

    def is_other(self, node: NodeId) -> bool:
        """Whether it is another node of this job."""
        return self.trees is not None and node < self.trees.nodes and node != self.trees.me

    def gone(self) -> Collection[NodeId]:
        return () if self.membership is None else self.membership.members.gone

    def skipped_owners(
        self, now: float, key: ChunkKey, skipped: Collection[NodeId]
    ) -> Collection[NodeId]:
        """The owners that did not reply, to be named in the request to the next one: *skipped*, and
        the excluded ones."""
        if self.owners is None:
            return skipped
        return {*skipped, *self.owners.excluded_before(now, key, {*self.gone(), *skipped})}

    def copies_of(self, subject: Subject) -> int:
        """How many nodes should keep it: 1 unless it is a chunk of a protected path."""
        key = subject[2]
        if not isinstance(key, ChunkKey) or self.owners is None or self.membership is None:
            return 1
        if len(key.path) > PATH_BYTES_MAX or self.policy.place(key.path) is not Place.SHARED:
            return 1
        return self.policy.protection.copies_of(key.path)

    def has_copies(self, subject: Subject) -> bool:
        return self.copies_of(subject) > 1

    def holders(self, key: ChunkKey) -> list[NodeId]:
        """The nodes that should keep the chunk, its owner first."""
        assert self.owners is not None
        copies = self.copies_of((FetchKind.CHUNK, key.path, key))
        return self.owners.holders(key, copies, self.gone())

    def is_copy_holder(self, subject: Subject) -> bool:
        """Whether this node should keep the chunk, as its owner or not."""
        key = subject[2]
        if not isinstance(key, ChunkKey) or not self.has_copies(subject):
            return False
        assert self.owners is not None
        return self.owners.me in self.holders(key)

    def copy_holders(self, subject: Subject) -> list[NodeId]:
        """The other nodes that may keep a copy: those that should, and for a moment after a death
        or a return the next one."""
        key = subject[2]
        if not isinstance(key, ChunkKey) or not self.has_copies(subject):
            return []
        assert self.owners is not None
        copies = self.copies_of(subject) + 1
        found = self.owners.holders(key, copies, self.gone())
        return [each for each in found if each != self.owners.me]

    def is_mine(self, key: ChunkKey) -> bool:
        if self.owners is None or self.membership is None:
            return True
        return self.owners.is_mine(key, self.membership.members.gone)

    def await_reply(self, now: float, peer: NodeId) -> None:
        assert self.membership is not None
        self.membership.await_reply(now, peer)

    def is_root(self, file: Path) -> bool:
        """Whether this node reads *file* from the source while no node is gone. A node that takes
        over reads only what is requested: others may hold the rest."""
        if self.trees is None:
            return True
        return self.trees.parent(self.trees.tree_of(split(file)[0])) is None

    def neighbours(self) -> list[NodeId]:
        """The connected neighbours in the first tree, over which a collective reaches every
        node."""
        if self.trees is None or self.membership is None:
            return []
        parent = self.membership.parents[0]
        children = self.trees.children(0, self.membership.members.gone)
        around = [*([] if parent is None else [parent]), *children]
        return [each for each in around if self.flow.is_up(each)]

    def push_children(self, tree: int) -> list[NodeId]:
        """*tree* is what the sender of a batch said."""
        assert self.trees is not None
        gone = () if self.membership is None else self.membership.members.gone
        return self.trees.push_children(tree % self.trees.count, gone)


def _next_ones(
    above: Callable[[Collection[NodeId]], NodeId | None], excluded: set[NodeId]
) -> list[NodeId]:
    found: list[NodeId] = []
    while len(found) < CANDIDATES_MAX - 1:
        peer = above(excluded)
        if peer is None:
            break
        found.append(peer)
        excluded.add(peer)
    return found
