"""Whom to ask: the one place of the core that knows how the nodes are arranged.

Everybody else asks here, at the time when they need it, and remembers at most whom they asked. So
what changes when nodes come and go has its place here: today a parent that cannot be talked to is
passed over for the source; who climbs to the next ancestor instead, or asks the owner of a key,
does it in ``whom``.
"""

from dataclasses import dataclass

from copperfs.core.links import Links
from copperfs.core.messages import PATH_BYTES_MAX
from copperfs.core.policy import Place, Policy
from copperfs.core.state import Kind, NodeStats, Subject
from copperfs.core.trees import Trees
from copperfs.types import NodeId, Path, split


@dataclass(slots=True)
class Routing:
    policy: Policy
    stats: NodeStats
    trees: Trees | None
    """None for a node that is a job by itself."""
    links: Links

    def tree_of(self, subject: Subject) -> int:
        """A directory and what is in it are asked for in one tree."""
        if self.trees is None:
            return 0
        kind, path, _ = subject
        return self.trees.tree_of(path if kind is Kind.SCAN else split(path)[0])

    def whom(self, subject: Subject, tree: int) -> NodeId | None:
        """The node to ask for this now; None is the source. For whoever asks at once: a parent that
        is passed over is counted."""
        kind, path, _ = subject
        if (
            self.trees is None
            or kind is Kind.OPEN
            or len(path) > PATH_BYTES_MAX
            or self.policy.place(path) is not Place.SHARED
        ):
            return None
        parent = self.trees.parent(tree)
        if parent is not None and not self.links.is_up(parent):
            self.stats.fallbacks += 1
            return None
        return parent

    def is_root(self, file: Path) -> bool:
        """Whether this node is the one that reads *file* from the source, unless something is
        wrong."""
        if self.trees is None:
            return True
        return self.trees.parent(self.trees.tree_of(split(file)[0])) is None

    def neighbours(self) -> list[NodeId]:
        """All that can be talked to in the first tree, which is how a call reaches everybody."""
        if self.trees is None:
            return []
        parent = self.trees.parent(0)
        around = [*([] if parent is None else [parent]), *self.trees.children(0)]
        return [each for each in around if self.links.is_up(each)]

    def push_children(self, tree: int) -> list[NodeId]:
        """Those to whom a batch is passed on. *tree* is what its sender said."""
        assert self.trees is not None
        return self.trees.push_children(tree % self.trees.count)
