"""Member table: which nodes of the roster this node believes to be gone.

The rules are SWIM's. All nodes start with the same table, and exchange what differs from it as
``MemberStatus`` records. Two records about one node are ordered, so all tables converge in whatever
order the records arrive. Only the node itself can refute its death, by its next incarnation.

There is no vote. Two nodes with different tables may both act as the root for a while and read a
file twice. No read is ever wrong, since the source is not written to.
"""

from dataclasses import dataclass, field

import xxhash

from copperfs.model.types import NodeId
from copperfs.node.peer.messages import MemberStatus

INCARNATION_LEAP_MAX = 1 << 10
"""A larger jump is a fault of the sender. So none can use up the 2**63 incarnations."""


@dataclass(slots=True)
class MemberTable:
    me: NodeId
    nodes: int
    number: int = 0
    """Grows with each change of the table."""
    gone: set[NodeId] = field(default_factory=set)
    digest: int = 0
    """Equal for equal tables."""
    leaving: bool = False
    """This node does not refute its own death."""
    _records: dict[NodeId, MemberStatus] = field(default_factory=dict)

    def incarnation(self, node: NodeId) -> int:
        record = self._records.get(node)
        return 0 if record is None else record.incarnation

    def records(self) -> tuple[MemberStatus, ...]:
        """All that differ from the initial table."""
        return tuple(self._records.values())

    def is_news(self, record: MemberStatus) -> bool:
        """Whether *record* overrides the record of its node."""
        if record.node >= self.nodes:
            return False
        known = self._records.get(record.node, MemberStatus(record.node, 0, is_gone=False))
        if not known.incarnation <= record.incarnation <= known.incarnation + INCARNATION_LEAP_MAX:
            return False
        return record.incarnation > known.incarnation or (record.is_gone and not known.is_gone)

    def hear(self, record: MemberStatus) -> MemberStatus | None:
        """Apply *record* if it is news; returns the record to announce, or None. For a death of
        this node that is its refutation."""
        if not self.is_news(record):
            return None
        if record.node == self.me and record.is_gone and not self.leaving:
            record = MemberStatus(self.me, record.incarnation + 1, is_gone=False)
        self._believe(record)
        return record

    def death_of(self, node: NodeId) -> MemberStatus:
        """The record that announces a node's death, or that this node leaves."""
        return MemberStatus(node, self.incarnation(node), is_gone=True)

    def _believe(self, record: MemberStatus) -> None:
        known = self._records.get(record.node)
        if known is not None:
            self.digest ^= _digest(known)
        self.digest ^= _digest(record)
        self._records[record.node] = record
        self.number += 1
        if record.is_gone:
            self.gone.add(record.node)
        else:
            self.gone.discard(record.node)

    def check_invariants(self) -> None:
        assert self.gone == {node for node, record in self._records.items() if record.is_gone}
        assert self.leaving or self.me not in self.gone
        digest = 0
        for record in self._records.values():
            digest ^= _digest(record)
        assert digest == self.digest


def _digest(record: MemberStatus) -> int:
    return xxhash.xxh3_64_intdigest(b"%d %d %d" % (record.node, record.incarnation, record.is_gone))
