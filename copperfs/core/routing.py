"""Whom to ask: the one place of the core that knows how the nodes are arranged.

There are two arrangements, which are used in one way. In the trees a node asks its parent, in the
ring of owners (``owners.py``) the owner of a chunk; who has nobody above reads the source.

Everybody else asks here, at the time when they need it, and remembers at most whom they asked. A
node asks its parent in the tree of the directory; if that one is doubted, the one that it would ask
if that one were gone, and so on. Where nobody is left above it is the root, and reads the source.
If that is so only because others are doubted, it waits for as long as they may yet answer.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from copperfs.core.actions import Action
from copperfs.core.company import CANDIDATES_MAX
from copperfs.core.links import Links
from copperfs.core.membership import Membership
from copperfs.core.messages import PATH_BYTES_MAX
from copperfs.core.owners import Owners
from copperfs.core.policy import Place, Policy
from copperfs.core.state import Kind, Subject
from copperfs.core.trees import Trees
from copperfs.types import ChunkKey, NodeId, Path, split


@dataclass(frozen=True, slots=True)
class Way:
    """To what a fetch is after."""

    peer: NodeId | None = None
    """Whom to ask; None is the source."""
    not_before: float = float("-inf")
    """Until then the source is left alone: those who should be asked may yet answer."""
    meanwhile: NodeId | None = None
    """Until then this one may be asked: it is connected, and silent."""
    in_place: bool = False
    """The source is read in the place of others, who may be there."""
    goes_up: bool = False
    """The peer is asked as the one above in the tree, though the chunk has an owner."""
    skips: bool = False
    """Those who should be asked before are there, as far as all know, and silent or lost."""
    many_might: bool = False
    """Other nodes may do the same at this time: it is not the one that would be the root next."""
    takes_over: bool = False
    """It is the next owner of a chunk, and no other node is: all before it are gone, silent or done
    without, or all were passed over."""


_SOURCE = Way()
_AS_OWNER = Way(takes_over=True)


@dataclass(slots=True)
class Routing:
    policy: Policy
    trees: Trees | None
    """None for a node that is a job by itself."""
    links: Links
    membership: Membership | None
    owners: Owners | None = None
    """None where there is no data tier, or no other node."""

    def tree_of(self, subject: Subject) -> int:
        """A directory and what is in it are asked for in one tree."""
        if self.trees is None:
            return 0
        kind, path, _ = subject
        return self.trees.tree_of(path if kind is Kind.SCAN else split(path)[0])

    def way(
        self,
        now: float,
        subject: Subject,
        tree: int,
        passed: Collection[NodeId] = (),
        *,
        goes_up: bool = False,
        silent_at: float | None = None,
        is_doubted: bool = False,
    ) -> Way:
        """How to get this now, not by those who are *passed* over. *goes_up*: a chunk is to come
        from above in the tree, if this node is not its owner, nor the root. *silent_at*: when the
        first of those who should be asked was found silent. *is_doubted*: another node does not
        reach them, either."""
        kind, path, key = subject
        membership = self.membership
        if (
            membership is None
            or kind is Kind.OPEN
            or len(path) > PATH_BYTES_MAX
            or self.policy.place(path) is not Place.SHARED
        ):
            return _SOURCE
        if isinstance(key, ChunkKey):
            if goes_up and not self.is_mine(key):
                above = self._way_up(now, membership, tree, passed, None).peer
                if above is not None:
                    return Way(above, goes_up=True)
            return self._way_to_owner(
                now, membership, key, passed, silent_at, is_doubted=is_doubted
            )
        return self._way_up(now, membership, tree, passed, silent_at)

    def _way_up(
        self,
        now: float,
        membership: Membership,
        tree: int,
        passed: Collection[NodeId],
        silent_at: float | None,
    ) -> Way:
        parent = membership.parents[tree]
        if parent is None:
            return _SOURCE
        if parent not in passed and membership.is_good(parent):
            return Way(parent)
        assert self.trees is not None
        above = partial(self.trees.parent, tree)
        return self._way_around(now, membership, above, passed, membership.view.gone, silent_at)

    def _way_to_owner(
        self,
        now: float,
        membership: Membership,
        key: ChunkKey,
        passed: Collection[NodeId],
        silent_at: float | None,
        *,
        is_doubted: bool,
    ) -> Way:
        owners, gone = self.owners, membership.view.gone
        if owners is None:
            return _SOURCE
        if owners.from_source and gone and owners.owner(key, ()) in gone:
            return Way(in_place=True)
        gone = gone.union(owners.without(now))
        first = owners.before_me(key, gone)
        if first is None and not passed:
            return _AS_OWNER
        above = partial(owners.before_me, key)
        return self._way_around(
            now, membership, above, passed, gone, silent_at, reach=True, is_doubted=is_doubted
        )

    def _way_around(
        self,
        now: float,
        membership: Membership,
        above: Callable[[Collection[NodeId]], NodeId | None],
        passed: Collection[NodeId],
        gone: Collection[NodeId],
        silent_at: float | None,
        *,
        reach: bool = False,
        is_doubted: bool = False,
    ) -> Way:
        """*above* says whom to ask if those are gone. *reach*: this node is not in touch with them
        anyway. *is_doubted*: whoever does not answer is not waited for longer."""
        excluded = set(gone) | set(passed)
        not_before, meanwhile, skipped = float("-inf"), None, False
        at_most = float("inf") if silent_at is None else membership.silent_until(silent_at)
        for _ in range(CANDIDATES_MAX):
            peer = above(excluded)
            if peer is None:
                # The next root, if only those are not there who were passed over.
                others = bool(passed) and skipped
                return Way(
                    None,
                    not_before,
                    meanwhile,
                    in_place=True,
                    skips=skipped,
                    many_might=others,
                    takes_over=not others,
                )
            if reach:
                membership.reach(now, peer)
            if membership.is_good(peer):
                return Way(peer, skips=skipped)
            connects_until = membership.connects_until(now, peer) if reach else None
            if connects_until is not None:
                if skipped:
                    # Those after it are reached meanwhile: they may be stuck as well.
                    self._reach_next(now, membership, above, {peer, *excluded})
                until = max(not_before, connects_until)
                return Way(None, until, meanwhile, in_place=True, skips=skipped)
            if not is_doubted:
                until = membership.doubted_until(peer)
                not_before = max(not_before, min(until, at_most)) if skipped else until
            if meanwhile is None and self.links.is_up(peer):
                meanwhile = peer
            excluded.add(peer)
            skipped = True
        return Way(None, not_before, meanwhile, in_place=True, skips=True, many_might=True)

    def _reach_next(
        self,
        now: float,
        membership: Membership,
        above: Callable[[Collection[NodeId]], NodeId | None],
        excluded: set[NodeId],
    ) -> None:
        for _ in range(CANDIDATES_MAX - 1):
            peer = above(excluded)
            if peer is None:
                return
            membership.reach(now, peer)
            excluded.add(peer)

    def is_asked_in_place(self, subject: Subject) -> bool:
        """Whether another node is the owner of a chunk, as this one believes: then who takes this
        one for it does not reach that."""
        key = subject[2]
        return isinstance(key, ChunkKey) and not self.is_mine(key)

    def sound(self, now: float, key: ChunkKey, excluded: set[NodeId]) -> list[Action]:
        """Ask those who would be asked next for a chunk for a sign of life, as far as they are
        connected."""
        if self.owners is None or self.membership is None:
            return []
        actions: list[Action] = []
        gone = excluded.union(self.gone(), self.owners.without(now))
        for _ in range(CANDIDATES_MAX):
            peer = self.owners.before_me(key, gone)
            if peer is None:
                break
            actions += self.membership.sound(now, peer)
            gone.add(peer)
        return actions

    def sound_one(self, now: float, peer: NodeId) -> list[Action]:
        """The same for one that is being asked in the place of others."""
        assert self.membership is not None
        return self.membership.sound(now, peer)

    def is_good(self, peer: NodeId) -> bool:
        return self.membership is not None and self.membership.is_good(peer)

    def reaches(self, now: float, peer: NodeId) -> float | None:
        """Be in touch with one that another named; until when to wait for it if it is not good,
        None if that is in vain."""
        assert self.membership is not None
        self.membership.reach(now, peer)
        return self.membership.connects_until(now, peer)

    def is_other(self, node: NodeId) -> bool:
        """Whether it is a node of this job, and not this one."""
        return self.trees is not None and node < self.trees.nodes and node != self.trees.me

    def gone(self) -> Collection[NodeId]:
        """Those whom this node believes to be gone."""
        return () if self.membership is None else self.membership.view.gone

    def not_asked(
        self, now: float, key: ChunkKey, passed: Collection[NodeId]
    ) -> Collection[NodeId]:
        """Of the owners of a chunk, those who did not answer: what the next one is told. *passed*:
        for this one; others this node does without."""
        if self.owners is None:
            return passed
        return {*passed, *self.owners.done_without(now, key, {*self.gone(), *passed})}

    def is_mine(self, key: ChunkKey) -> bool:
        """Whether this node is the one to keep it, as far as it knows."""
        if self.owners is None or self.membership is None:
            return True
        return self.owners.is_mine(key, self.membership.view.gone)

    def owes(self, now: float, peer: NodeId) -> None:
        """It is being asked."""
        assert self.membership is not None
        self.membership.owes(now, peer)

    def is_root(self, file: Path) -> bool:
        """Whether this node is the one that reads *file* from the source while nobody is gone. Who
        takes its place reads only what is asked for: others may hold the rest."""
        if self.trees is None:
            return True
        return self.trees.parent(self.trees.tree_of(split(file)[0])) is None

    def neighbours(self) -> list[NodeId]:
        """All that can be talked to in the first tree, which is how a call reaches everybody."""
        if self.trees is None or self.membership is None:
            return []
        parent = self.membership.parents[0]
        children = self.trees.children(0, self.membership.view.gone)
        around = [*([] if parent is None else [parent]), *children]
        return [each for each in around if self.links.is_up(each)]

    def push_children(self, tree: int) -> list[NodeId]:
        """Those to whom a batch is passed on. *tree* is what its sender said."""
        assert self.trees is not None
        gone = () if self.membership is None else self.membership.view.gone
        return self.trees.push_children(tree % self.trees.count, gone)
