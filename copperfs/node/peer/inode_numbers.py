"""Inode numbers: decides whether all nodes' clients of the source number files alike.

All nodes must agree on what a version is. Where clients have inode numbers of their own (sshfs),
all nodes leave these out of versions, whichever node noticed it.

- One node takes a *sample* of the source: the first live one. The sample travels from node to node
  with the greetings, and each node compares it with what its own client shows. A sample without
  names travels, too, so that no node waits for one.
- A node that sees another number, or receives that inode numbers are ignored, ignores them from
  then on. It greets all its peers again and begins a new epoch, which drops all that is known by
  versions with numbers. All this happens before any later message of the sender is read. So no
  listing with numbers arrives after the decision.
- A node that returns, or starts later (``--hostfile``), learns of it from the first greeting.

The attributes themselves say whether their number counts (``types.py``), so a node can read
another's listing without knowing its decision. A node that has just started may still ask for a
version with a number; a node that ignores numbers takes it as the version without.

The comparison itself is done elsewhere: by the daemon in threads (``daemon/inode_comparison.py``),
by the simulator in virtual time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.model.types import NodeId, Version
from copperfs.node.node import Node
from copperfs.node.peer.messages import SAMPLE_MAX, Hello, Seen
from copperfs.node.peer.protocol import EPOCH_LEAP_MAX

# Only the first live node takes a sample, so there is one, unless the first nodes have ended.
COMPARED_MAX = 8 * SAMPLE_MAX


def has_other_number(here: Version, there: Version) -> bool:
    """Whether two clients show the same file with different inode numbers."""
    return here != there and here._replace(inode=there.inode) == there


@dataclass(slots=True)
class InodeNumbers:
    """This node's state of the comparison."""

    node: Node
    ignore: Callable[[], None]
    """Makes the source leave inode numbers out from now on."""
    say_again: Callable[[int], None]
    """Greets all connected peers again, in this epoch."""
    begin_epoch: Callable[[int], None]
    me: NodeId
    all_have_met: bool = True
    """Whether the first node is certain to be there."""
    is_wanted: bool = True
    """False: the setting decides."""
    ignoring: bool = False
    """True from the start if the setting or the filesystem requires it."""
    sample: tuple[Seen, ...] = ()
    is_sampled: bool = False
    """A node has taken the sample, whatever it found."""
    _taken: tuple[Seen, ...] | None = None
    """What this node found; None until it has begun to sample."""
    _known: set[Seen] = field(default_factory=set)
    """Names that need no more comparing, or are being compared."""
    _heard: list[tuple[Seen, ...]] = field(default_factory=list)
    """Samples to compare."""
    _compares: int = 0
    """How many comparisons are under way."""

    def wake(self) -> None:
        """Called when there may be work; the driver replaces it."""

    def hear(self, hello: Hello) -> None:
        """Takes a greeting, before any other part of the node sees it."""
        if not self.is_wanted:
            return
        if hello.ignores_inodes and not self.ignoring:
            epoch = self.node.epoch
            is_later = epoch < hello.epoch <= epoch + EPOCH_LEAP_MAX
            self.begin_to_ignore(hello.epoch if is_later else epoch)
        new = tuple(each for each in hello.sample if each not in self._known)
        if new and len(self._known) + len(new) <= COMPARED_MAX:
            self._known.update(new)
            self._heard.append(new)
            self.wake()
        is_longer = len(hello.sample) > len(self.sample)
        if is_longer and hello.sample[: len(self.sample)] == self.sample:
            self.sample = hello.sample
        elif not hello.is_sampled or self.is_sampled:
            return  # nothing new for the peers
        self.is_sampled = True
        self.say_again(self.node.epoch)
        self.wake()

    # --- the sample ------------------------------------------------------------------------------

    def begins_to_take(self) -> bool:
        """Whether this node has to take the sample, and has not begun."""
        if self._taken is not None or self.is_sampled or not self.is_first():
            return False
        self._taken = ()
        return True

    def found(self, names: tuple[Seen, ...]) -> None:
        """Names found in the source. A sample that was sent to the peers already grows by them."""
        before = self._taken or ()
        self._taken = (*before, *names)
        self._known.update(names)
        if names and self.is_sampled and self.sample == before:
            self.sample = self._taken
            self.say_again(self.node.epoch)

    def sampled(self) -> None:
        """Declare the names found so far to be the sample."""
        self.is_sampled = True
        if not self.sample:
            self.sample = self._taken or ()
        self.say_again(self.node.epoch)
        self.wake()

    # --- comparing -------------------------------------------------------------------------------

    def next_heard(self) -> tuple[Seen, ...]:
        """The next names to compare; empty if there are none."""
        return self._heard.pop(0) if self._heard else ()

    def begins_to_compare(self) -> None:
        self._compares += 1

    def compared(self, *, is_other: bool) -> None:
        """A comparison that ``begins_to_compare`` counted has ended."""
        self._compares -= 1
        self.wake()
        if is_other and not self.ignoring:
            self.begin_to_ignore(self.node.epoch + 1)

    def begin_to_ignore(self, epoch: int) -> None:
        self.ignoring = True
        self.node.ignore_inodes()
        self.ignore()
        self.wake()
        self.say_again(epoch)  # before any message of the new epoch
        self.begin_epoch(epoch)

    def is_first(self) -> bool:
        """Whether all nodes before this one are gone."""
        return self.node.gone().issuperset(map(NodeId, range(self.me)))

    def is_pending(self) -> bool:
        """Whether it is still unknown if this node's numbers are those of the others."""
        if not self.is_wanted or self.ignoring:
            return False
        if self._heard or self._compares:
            return True
        return self.all_have_met and not self.is_sampled and not self.is_first()
