"""Inode numbers: decides whether all nodes' clients of the source number files alike.

All nodes must agree on what a version is. Where clients have inode numbers of their own (sshfs),
all nodes leave these out of versions, whichever node noticed it.

- One node takes a *sample* of the source: the first live one. The sample travels from node to node
  with the hellos, and each node compares it with what its own client shows. A sample without
  names travels, too, so that no node waits for one.
- A node that sees another number, or receives that inode numbers are ignored, ignores them from
  then on. It says hello to all its peers again and begins a new epoch, which drops all that is
  known by versions with numbers. All this happens before any later message of the sender is read.
  So no listing with numbers arrives after the decision.
- A node that returns, or starts later (``--hostfile``), learns of it from the first hello.

The attributes themselves say whether their number counts (``types.py``), so a node can read
another's listing without knowing its decision. A node that has just started may still ask for a
version with a number; a node that ignores numbers takes it as the version without.

This module decides; the driver's port to the comparison (``driver/ports.py``) looks names up, in
threads of the daemon (``daemon/inode_comparison.py``) or in virtual time of the simulator. The node
orders that by actions and gets the results as events. A hello comes here before any other part
of the node sees it, in the same step (``Node``).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from copperfs.model.types import NodeId, Version
from copperfs.node.actions import Action, CompareInodes, IgnoreInodes, SampleInodes
from copperfs.node.limits_and_counters import NodeStats
from copperfs.node.peer.messages import EPOCH_LEAP_MAX, SAMPLE_MAX, Hello, Seen

# There is one sample, unless the first nodes have ended.
COMPARED_MAX = 8 * SAMPLE_MAX


def has_other_number(here: Version, there: Version) -> bool:
    """Whether two clients show the same file with different inode numbers."""
    return here != there and here._replace(inode=there.inode) == there


@dataclass(slots=True)
class InodeNumbers:
    me: NodeId
    stats: NodeStats
    gone: Callable[[], Collection[NodeId]]
    say_hello_again: Callable[[int], list[Action]]
    """Says hello to all peers, in this epoch."""
    begin_epoch: Callable[[float, int], list[Action]]
    all_have_met: bool = True
    """Whether the first node is certain to be there."""
    is_wanted: bool = False
    """False: the setting decides."""
    ignoring: bool = False
    sample: tuple[Seen, ...] = ()
    is_sampled: bool = False
    """A node has taken the sample, even an empty one."""
    _taken: tuple[Seen, ...] | None = None
    """None until this node has begun to sample."""
    _known: set[Seen] = field(default_factory=set)
    """Names that were compared, or are being compared."""
    _comparing: int = 0

    def hear(self, now: float, hello: Hello) -> list[Action]:
        """A hello of a peer that was started with the same settings."""
        if not self.is_wanted:
            return []
        actions: list[Action] = []
        if hello.ignores_inodes and not self.ignoring:
            epoch = self.stats.epoch
            is_later = epoch < hello.epoch <= epoch + EPOCH_LEAP_MAX
            actions += self._ignore(now, hello.epoch if is_later else epoch, was_told=True)
        new = tuple(each for each in hello.sample if each not in self._known)
        if new and not self.ignoring and len(self._known) + len(new) <= COMPARED_MAX:
            self._known.update(new)
            self._comparing += 1
            actions.append(CompareInodes(new))
        is_longer = len(hello.sample) > len(self.sample)
        if is_longer and hello.sample[: len(self.sample)] == self.sample:
            self.sample = hello.sample
        elif not hello.is_sampled or self.is_sampled:
            return actions  # nothing new for the peers
        self.is_sampled = True
        return actions + self.say_hello_again(self.stats.epoch)

    def sample_if_first(self) -> list[Action]:
        """The node has started, or other nodes may be gone: take the sample if that is this node's
        task, and it has not begun."""
        if not self.is_wanted or self.ignoring or self.is_sampled or self._taken is not None:
            return []
        if not self._is_first():
            return []
        self._taken = ()
        return [SampleInodes()]

    def found(self, names: tuple[Seen, ...]) -> list[Action]:
        """A sample that was sent to the peers already grows by *names*."""
        before = self._taken or ()
        self._taken = (*before, *names)
        self._known.update(names)
        if not names or not self.is_sampled or self.sample != before:
            return []
        self.sample = self._taken
        return self.say_hello_again(self.stats.epoch)

    def sampled(self) -> list[Action]:
        """Declare the names found so far to be the sample, unless another node was faster."""
        if self.is_sampled and (self.sample or not self._taken):
            return []
        self.is_sampled = True
        if not self.sample:
            self.sample = self._taken or ()
        return self.say_hello_again(self.stats.epoch)

    def differ(self, now: float) -> list[Action]:
        """This node's client shows another number than the client of another node."""
        return [] if self.ignoring else self._ignore(now, self.stats.epoch + 1, was_told=False)

    def compared(self) -> None:
        """What a ``CompareInodes`` ordered is done."""
        self._comparing -= 1

    def _ignore(self, now: float, epoch: int, *, was_told: bool) -> list[Action]:
        self.ignoring = True
        hellos = self.say_hello_again(epoch)  # before any message of the new epoch
        return [IgnoreInodes(was_told), *hellos, *self.begin_epoch(now, epoch)]

    def _is_first(self) -> bool:
        return set(self.gone()).issuperset(map(NodeId, range(self.me)))

    def is_pending(self) -> bool:
        """Whether this node's numbers may still differ from those of the others."""
        if not self.is_wanted or self.ignoring:
            return False
        if self._comparing:
            return True
        return self.all_have_met and not self.is_sampled and not self._is_first()
