"""Whom to ask: the one place of the core that knows how the nodes are arranged.

Everybody else asks here, at the time when they need it, and remembers at most whom they asked. A
node asks its parent in the tree of the directory; if that one is doubted, the one that it would ask
if that one were gone, and so on. Where nobody is left above it is the root, and reads the source.
If that is so only because others are doubted, it waits for as long as they may yet answer.
"""

from collections.abc import Collection
from dataclasses import dataclass

from copperfs.core.company import CANDIDATES_MAX
from copperfs.core.links import Links
from copperfs.core.membership import Membership
from copperfs.core.messages import PATH_BYTES_MAX
from copperfs.core.policy import Place, Policy
from copperfs.core.state import Kind, Subject
from copperfs.core.trees import Trees
from copperfs.types import NodeId, Path, split


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
    many_might: bool = False
    """Other nodes may do the same at this time: it is not the one that would be the root next."""


_SOURCE = Way()


@dataclass(slots=True)
class Routing:
    policy: Policy
    trees: Trees | None
    """None for a node that is a job by itself."""
    links: Links
    membership: Membership | None

    def tree_of(self, subject: Subject) -> int:
        """A directory and what is in it are asked for in one tree."""
        if self.trees is None:
            return 0
        kind, path, _ = subject
        return self.trees.tree_of(path if kind is Kind.SCAN else split(path)[0])

    def way(self, subject: Subject, tree: int, passed: Collection[NodeId] = ()) -> Way:
        """How to get this now, not by those who are *passed* over."""
        kind, path, _ = subject
        membership = self.membership
        if (
            membership is None
            or kind is Kind.OPEN
            or len(path) > PATH_BYTES_MAX
            or self.policy.place(path) is not Place.SHARED
        ):
            return _SOURCE
        parent = membership.parents[tree]
        if parent is None:
            return _SOURCE
        if parent not in passed and membership.is_good(parent):
            return Way(parent)
        return self._way_around(membership, tree, passed)

    def _way_around(self, membership: Membership, tree: int, passed: Collection[NodeId]) -> Way:
        assert self.trees is not None
        excluded = membership.view.gone | set(passed)
        not_before, meanwhile, skipped = float("-inf"), None, False
        for _ in range(CANDIDATES_MAX):
            peer = self.trees.parent(tree, excluded)
            if peer is None:
                # The next root, if only those are not there who were passed over.
                others = bool(passed) and skipped
                return Way(None, not_before, meanwhile, in_place=True, many_might=others)
            if membership.is_good(peer):
                return Way(peer)
            not_before = max(not_before, membership.doubted_until(peer))
            if meanwhile is None and self.links.is_up(peer):
                meanwhile = peer
            excluded.add(peer)
            skipped = True
        return Way(None, not_before, meanwhile, in_place=True, many_might=True)

    def is_good(self, peer: NodeId) -> bool:
        return self.membership is not None and self.membership.is_good(peer)

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
