"""Whether all nodes' clients of the source give a file the same inode number.

What a version is must be true on all nodes. Where clients have inode numbers of their own (sshfs),
these are left out of versions: on all nodes, whoever has noticed it.

- One node takes a *sample* of the source (``source/sample.py``): the first of those that live. It
  travels with the greetings, from node to node; each compares it with what it sees itself.
- Who sees another number, or hears from somebody that inode numbers are ignored, ignores them from
  then on, says so to all that it is connected with, and begins a new epoch: what is known by
  versions with numbers is forgotten. All this happens before anything else is heard of the one who
  said it, so no listing with numbers comes after the word that they do not count.
- Who returns, or is started later (``--hostfile``), hears of it with the first greeting.

The attributes themselves say whether their number counts (``types.py``), so nobody has to know what
others have decided to read a listing of theirs.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from copperfs.core.messages import Hello, Seen
from copperfs.core.node import Node
from copperfs.core.peering import EPOCH_LEAP_MAX
from copperfs.core.policy import Place
from copperfs.source.sample import other_number, take_sample
from copperfs.types import ROOT, NodeId, Path

log = logging.getLogger(__name__)

# A source that hangs is not waited for; what it would have told comes too late then.
WITHIN_S = 10.0
# Samples are as many as nodes have taken one, which is one, unless the first have ended.
COMPARED_MAX = 8
LEFT_OUT = "inode numbers are left out of versions on all nodes (--inodes)"


T = TypeVar("T")


@dataclass(slots=True)
class Comparison:
    """This node's part."""

    node: Node
    ignore: Callable[[], None]
    """Has the source leave inode numbers out from now on."""
    say_again: Callable[[int], None]
    """Greets all who are connected once more, in this epoch."""
    begin_epoch: Callable[[int], None]
    me: NodeId
    all_have_met: bool = True
    """Whether the first node is certain to be there."""
    is_wanted: bool = True
    """False: the setting says what holds."""
    ignoring: bool = False
    """Also from the start, if the setting or the filesystem says so."""
    prefixes: tuple[Path, ...] = (ROOT,)
    """Where names are to be found."""
    sample: tuple[Seen, ...] = ()
    _heard: list[tuple[Seen, ...]] = field(default_factory=list)
    """To be compared."""
    _compared: set[tuple[Seen, ...]] = field(default_factory=set)
    _woken: trio.Event = field(default_factory=trio.Event)

    def hear(self, hello: Hello) -> None:
        """Before anything else is made of it."""
        if not self.is_wanted:
            return
        if hello.ignores_inodes and not self.ignoring:
            log.warning("a node's client of the source has its own inode numbers: %s", LEFT_OUT)
            epoch = self.node.epoch
            is_later = epoch < hello.epoch <= epoch + EPOCH_LEAP_MAX
            self._begin_to_ignore(hello.epoch if is_later else epoch)
        known = {*self._compared, *self._heard}
        if hello.sample and hello.sample not in known and len(known) < COMPARED_MAX:
            self._heard.append(hello.sample)
            if not self.sample:
                self.sample = hello.sample
                self.say_again(self.node.epoch)
            self.wake()

    def wake(self) -> None:
        """Something has happened that may matter."""
        self._woken.set()
        self._woken = trio.Event()

    async def wait(self) -> None:
        """Until it is known whether the numbers of this node are those of others; for a while."""
        with trio.move_on_after(WITHIN_S) as scope:
            while self._is_pending():
                await self._woken.wait()
        if scope.cancelled_caught:
            log.warning(
                "in %g s it could not be found out whether this node's client of the source gives "
                "files the same inode numbers as those of others; if it does not, give all nodes "
                "--inodes ignore",
                WITHIN_S,
            )

    async def run(self) -> None:
        """Take a sample, if that is this node's to do, and compare those of others."""
        while self.is_wanted and not self.ignoring:
            if self._heard:
                await self._compare(self._heard[0])
                self._heard.pop(0)
                self.wake()
            elif self._is_first() and not self.sample:
                await self._take()
            else:
                await self._woken.wait()

    async def _take(self) -> None:
        policy = self.node.policy
        taken = await self._in_a_thread(
            partial(take_sample, policy.source, self.prefixes, self._is_shared)
        )
        self._compared.add(taken or ())
        if taken and not self.sample:
            self.sample = taken
            self.say_again(self.node.epoch)

    def _is_first(self) -> bool:
        """Of those that are believed to live."""
        return not self._compared and self.node.gone().issuperset(map(NodeId, range(self.me)))

    def _is_pending(self) -> bool:
        if not self.is_wanted or self.ignoring or self._is_first():
            return False
        return bool(self._heard) or (self.all_have_met and not self._compared)

    async def _compare(self, sample: tuple[Seen, ...]) -> None:
        other = await self._in_a_thread(
            partial(other_number, self.node.policy.source, sample, self._is_shared)
        )
        self._compared.add(sample)
        if other is None or self.ignoring:
            return
        log.warning(
            "this node's client of the source gives %r another inode number than those of others: "
            "%s",
            other,
            LEFT_OUT,
        )
        self._begin_to_ignore(self.node.epoch + 1)

    def _begin_to_ignore(self, epoch: int) -> None:
        self.ignoring = True
        self.ignore()
        self.wake()
        self.say_again(epoch)  # before anything that is said in the new one
        self.begin_epoch(epoch)

    def _is_shared(self, path: Path) -> bool:
        policy = self.node.policy
        return policy.place(path) is Place.SHARED and path not in policy.pseudo

    @staticmethod
    async def _in_a_thread(work: Callable[[], T]) -> T | None:
        with trio.move_on_after(WITHIN_S):
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        return None
