"""The view: which nodes of the roster this one believes to be gone.

Everybody starts with the same one, all are there, and only what differs from that is kept. It
changes by *fates*, which spread from node to node. Two of them about one node are ordered, so that
all come to believe the same, in whatever order they hear: the higher incarnation is true, and of
one incarnation that the node is gone. Who hears of its own end begins the next incarnation, and
says so: only the node itself can refute what is said of it.

There is no vote. Two nodes that believe different things for a while may both take themselves for
the root, and read something twice; nobody ever reads anything wrong, since the source is not
written to.
"""

from dataclasses import dataclass, field

import xxhash

from copperfs.core.messages import Fate
from copperfs.types import NodeId

INCARNATION_LEAP_MAX = 1 << 10
"""More at once is somebody's mistake. There are 2**63 of them, so that nobody can use them up."""


@dataclass(slots=True)
class View:
    me: NodeId
    nodes: int
    number: int = 0
    """Grows with each change."""
    gone: set[NodeId] = field(default_factory=set)
    digest: int = 0
    """The same for two nodes that believe the same, whatever they heard before."""
    leaving: bool = False
    """This node is on its way out, and lets them say so."""
    _fates: dict[NodeId, Fate] = field(default_factory=dict)

    def incarnation(self, node: NodeId) -> int:
        fate = self._fates.get(node)
        return 0 if fate is None else fate.incarnation

    def fates(self) -> tuple[Fate, ...]:
        """All that differs from what everybody believes at the start."""
        return tuple(self._fates.values())

    def is_news(self, fate: Fate) -> bool:
        """Whether *fate* is truer than what is believed of its node."""
        if fate.node >= self.nodes:
            return False
        known = self._fates.get(fate.node, Fate(fate.node, 0, is_gone=False))
        if not known.incarnation <= fate.incarnation <= known.incarnation + INCARNATION_LEAP_MAX:
            return False
        return fate.incarnation > known.incarnation or (fate.is_gone and not known.is_gone)

    def hear(self, fate: Fate) -> Fate | None:
        """Believe what is news, and the rest not; what is now to be told to others. Of this node
        itself that is that it is still there."""
        if not self.is_news(fate):
            return None
        if fate.node == self.me and fate.is_gone and not self.leaving:
            fate = Fate(self.me, fate.incarnation + 1, is_gone=False)
        self._believe(fate)
        return fate

    def end_of(self, node: NodeId) -> Fate:
        """What there is to tell of one that was found to be gone, or of this one when it leaves."""
        return Fate(node, self.incarnation(node), is_gone=True)

    def _believe(self, fate: Fate) -> None:
        known = self._fates.get(fate.node)
        if known is not None:
            self.digest ^= _digest(known)
        self.digest ^= _digest(fate)
        self._fates[fate.node] = fate
        self.number += 1
        if fate.is_gone:
            self.gone.add(fate.node)
        else:
            self.gone.discard(fate.node)

    def check_invariants(self) -> None:
        assert self.gone == {node for node, fate in self._fates.items() if fate.is_gone}
        assert self.leaving or self.me not in self.gone
        digest = 0
        for fate in self._fates.values():
            digest ^= _digest(fate)
        assert digest == self.digest


def _digest(fate: Fate) -> int:
    return xxhash.xxh3_64_intdigest(b"%d %d %d" % (fate.node, fate.incarnation, fate.is_gone))
