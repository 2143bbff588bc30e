"""Session: which peers this node talks to. It alone decides which peers are connected; flow control
and membership hear of it by ``PeerUp`` and ``PeerDown``.

Both ends of a connection begin with a hello (``Hello``), and no other message counts before it.
So a node knows the other's epoch, and that it was started with the same settings, before any other
part of the node sees the peer.

A hello that is no reply gets a reply, because it may have been sent before the other end noticed
the loss of the previous connection. When it comes from a connected peer, the other end has begun
anew, and what was under way is lost. A reply gets none.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from copperfs.model.types import NodeId
from copperfs.node.actions import Action, Disagree, Send
from copperfs.node.limits_and_counters import NodeStats
from copperfs.node.peer.inode_agreement import InodeNumbers
from copperfs.node.peer.messages import Hello

KINDS = ("shared", "local", "ring")
_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Agreement:
    """If these settings differed, nodes' replies would be wrong for each other."""

    job: str = ""
    digest: bytes = b""
    settings: str = ""
    """Their names, for the user."""
    places: bytes = b""
    """JSON of the shared and local places, and those in the ring: where a filesystem is missing,
    the same settings mean something else."""

    def difference(self, me: NodeId, peer: NodeId, hello: Hello) -> str | None:
        """One sentence for the user, or None."""
        if hello.job != self.job or hello.agreement != self.digest:
            return (
                f"node {peer} was started with other settings: give all nodes the same "
                f"{self.settings}"
            )
        return difference(me, self.places, peer, hello.places)


@dataclass(slots=True)
class Session:
    me: NodeId
    stats: NodeStats
    agreement: Agreement = field(default_factory=Agreement)
    numbers: InodeNumbers | None = None
    """What a hello says of inode numbers; None: nothing."""
    connected: set[NodeId] = field(default_factory=set)
    disagreeing: dict[NodeId, str] = field(default_factory=dict)
    """With the sentence for the user."""
    losses: Counter[NodeId] = field(default_factory=Counter)

    def is_connected(self, peer: NodeId) -> bool:
        return peer in self.connected

    def made(self, peer: NodeId, lose: Callable[[NodeId], list[Action]]) -> list[Action]:
        actions = self._lose(peer, lose) if peer in self.connected else []
        return [*actions, self._say_hello(peer, is_answer=False)]

    def lost(self, peer: NodeId, lose: Callable[[NodeId], list[Action]]) -> list[Action]:
        return self._lose(peer, lose)

    def say_hello_again(self, epoch: int) -> list[Action]:
        """Send what this node knows by now; no peer replies."""
        return [
            self._say_hello(peer, is_answer=True, epoch=epoch) for peer in sorted(self.connected)
        ]

    def differs(self, peer: NodeId, hello: Hello) -> str | None:
        return self.agreement.difference(self.me, peer, hello)

    def hear(
        self,
        peer: NodeId,
        hello: Hello,
        lose: Callable[[NodeId], list[Action]],
        begin: Callable[[NodeId, Hello], list[Action]],
    ) -> list[Action]:
        """*begin* follows when both ends have been heard."""
        if (wrong := self.differs(peer, hello)) is not None:
            return self.disagree(peer, wrong)
        self.disagreeing.pop(peer, None)
        actions: list[Action] = []
        if peer in self.connected:
            if hello.is_answer:
                return []
            actions += self._lose(peer, lose)  # the other end has begun anew
        if not hello.is_answer:
            actions.append(self._say_hello(peer, is_answer=True))
        self.connected.add(peer)
        return actions + begin(peer, hello)

    def disagree(self, peer: NodeId, sentence: str) -> list[Action]:
        if self.disagreeing.get(peer) == sentence:
            return []
        self.disagreeing[peer] = sentence
        return [Disagree(peer, sentence)]

    def _lose(self, peer: NodeId, lose: Callable[[NodeId], list[Action]]) -> list[Action]:
        self.connected.discard(peer)
        self.losses[peer] += 1
        return lose(peer)

    def _say_hello(self, peer: NodeId, *, is_answer: bool, epoch: int | None = None) -> Action:
        agreement = self.agreement
        hello = Hello(
            self.me,
            agreement.job,
            agreement.digest,
            self.stats.epoch if epoch is None else epoch,
            is_answer,
            places=agreement.places,
        )
        if self.numbers is not None:
            hello = replace(
                hello,
                ignores_inodes=self.numbers.ignoring,
                sample=self.numbers.sample,
                is_sampled=self.numbers.is_sampled,
            )
        return Send(peer, hello)


def difference(me: int, mine: bytes, peer: int, theirs: bytes) -> str | None:
    if mine == theirs:
        return None
    ours, others = _parsed(mine), _parsed(theirs)
    found = []
    for kind in KINDS:
        for node, here, there in ((peer, others, ours), (me, ours, others)):
            if only := sorted(set(here.get(kind, ())) - set(there.get(kind, ()))):
                more = ", ..." if len(only) > _NAMED_MAX else ""
                found.append(f"{kind} on node {node} alone: {', '.join(only[:_NAMED_MAX])}{more}")
    return (
        f"node {peer} does not show the same places as this node, {me} "
        f"({'; '.join(found) or 'too many to name'}): mount the same filesystems on all nodes, or "
        "name with --shared what all of them see alike"
    )


def _parsed(places: bytes) -> dict[str, list[str]]:
    """*places* come from another node; a value that is no list of names is ignored."""
    try:
        found = json.loads(places)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        kind: [each for each in found[kind] if isinstance(each, str)]
        for kind in KINDS
        if isinstance(found.get(kind), list)
    }
