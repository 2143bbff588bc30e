"""Member table: which nodes of the roster this node believes to be gone.

The rules are SWIM's. All nodes start with the same table, in which every node is alive; only
differences are stored. It changes by ``MemberStatus`` records, which spread from node to node. Two
records about one node are ordered, so all tables converge in whatever order the records arrive: the
higher incarnation wins, and within one incarnation *gone* wins. A node that receives its own death
starts its next incarnation and announces that. Only the node itself can refute its death.

There is no vote. Two nodes with different tables may both act as the root for a while and read a
file twice. No read is ever wrong, since the source is not written to.
"""

from dataclasses import dataclass, field

import xxhash

from copperfs.model.types import NodeId
from copperfs.node.peer.messages import MemberStatus

INCARNATION_LEAP_MAX = 1 << 10
"""A larger jump is a fault of the sender. There are 2**63 incarnations, so none can use them up."""


@dataclass(slots=True)
class MemberTable:
    me: NodeId
    nodes: int
    number: int = 0
    """The table's version: grows with each change."""
    gone: set[NodeId] = field(default_factory=set)
    digest: int = 0
    """The same for two nodes with equal tables, whatever they received before."""
    leaving: bool = False
    """This node is leaving, and does not refute its own death."""
    _fates: dict[NodeId, MemberStatus] = field(default_factory=dict)

    def incarnation(self, node: NodeId) -> int:
        fate = self._fates.get(node)
        return 0 if fate is None else fate.incarnation

    def fates(self) -> tuple[MemberStatus, ...]:
        """All records that differ from the initial table."""
        return tuple(self._fates.values())

    def is_news(self, fate: MemberStatus) -> bool:
        """Whether *fate* overrides the record of its node."""
        if fate.node >= self.nodes:
            return False
        known = self._fates.get(fate.node, MemberStatus(fate.node, 0, is_gone=False))
        if not known.incarnation <= fate.incarnation <= known.incarnation + INCARNATION_LEAP_MAX:
            return False
        return fate.incarnation > known.incarnation or (fate.is_gone and not known.is_gone)

    def hear(self, fate: MemberStatus) -> MemberStatus | None:
        """Apply *fate* if it is news; returns the record to announce, or None. For a death of this
        node that is its refutation."""
        if not self.is_news(fate):
            return None
        if fate.node == self.me and fate.is_gone and not self.leaving:
            fate = MemberStatus(self.me, fate.incarnation + 1, is_gone=False)
        self._believe(fate)
        return fate

    def end_of(self, node: NodeId) -> MemberStatus:
        """The record that announces a node's death, or that this node leaves."""
        return MemberStatus(node, self.incarnation(node), is_gone=True)

    def _believe(self, fate: MemberStatus) -> None:
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


def _digest(fate: MemberStatus) -> int:
    return xxhash.xxh3_64_intdigest(b"%d %d %d" % (fate.node, fate.incarnation, fate.is_gone))
