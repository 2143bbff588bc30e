"""Whether all nodes' clients of the source give a file the same inode number.

What a version is must be true on all nodes. Where clients have inode numbers of their own (sshfs),
these are left out of versions: on all nodes, whoever has noticed it.

- One node takes a *sample* of the source (``source/sample.py``): the first of those that live. It
  travels with the greetings, from node to node; each compares it with what it sees itself. A sample
  without names travels, too, so that nobody waits for one.
- Each filesystem is looked at in a thread of its own. One that hangs holds up the sample for
  ``LOOKS_S``; its names are added when it answers.
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

from copperfs.core.messages import SAMPLE_MAX, Hello, Seen
from copperfs.core.node import Node
from copperfs.core.peering import EPOCH_LEAP_MAX
from copperfs.core.policy import Place
from copperfs.source.sample import PREFIXES_MAX, names_of_each, other_number, take_names
from copperfs.types import ROOT, NodeId, Path, is_below

log = logging.getLogger(__name__)

# A node waits no longer for a source that hangs. The node that takes the sample waits less, so that
# the others have it in time.
WITHIN_S, LOOKS_S = 10.0, 4.0
# A filesystem that gives an error is looked at again.
AGAIN_S = 60.0
# Samples are as many as nodes have taken one, which is one, unless the first have ended.
COMPARED_MAX = 8 * SAMPLE_MAX
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
    is_sampled: bool = False
    """Somebody has taken it, whatever was found."""
    _taken: tuple[Seen, ...] | None = None
    """What was found here; None until this node has begun to look."""
    _known: set[Seen] = field(default_factory=set)
    """Names that need no comparing any more, or are under way."""
    _heard: list[tuple[Seen, ...]] = field(default_factory=list)
    """To be compared."""
    _compares: int = 0
    """Filesystems whose names are being compared."""
    _threads: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(2 * PREFIXES_MAX)
    )
    """Those in which a filesystem hangs are not missed elsewhere."""
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
        new = tuple(each for each in hello.sample if each not in self._known)
        if new and len(self._known) + len(new) <= COMPARED_MAX:
            self._known.update(new)
            self._heard.append(new)
            self.wake()
        is_longer = len(hello.sample) > len(self.sample)
        if is_longer and hello.sample[: len(self.sample)] == self.sample:
            self.sample = hello.sample
        elif not hello.is_sampled or self.is_sampled:
            return  # no news for others
        self.is_sampled = True
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
        if not self.is_wanted:
            return
        async with trio.open_nursery() as nursery:
            while not self.ignoring:
                if self._heard:
                    for names in self._by_filesystem(self._heard.pop(0)):
                        self._compares += 1
                        nursery.start_soon(self._compare, names)
                elif self._is_first() and self._taken is None and not self.is_sampled:
                    self._taken = ()
                    nursery.start_soon(self._take)
                else:
                    await self._woken.wait()
            nursery.cancel_scope.cancel()

    async def _take(self) -> None:
        some = self.prefixes[:PREFIXES_MAX]
        if len(some) < len(self.prefixes):
            log.info(
                "of %d filesystems the nodes compare inode numbers on %d",
                len(self.prefixes),
                len(some),
            )
        unseen = set(some)
        async with trio.open_nursery() as nursery:
            for each in some:
                nursery.start_soon(self._look, each, names_of_each(len(some)), unseen)
            with trio.move_on_after(LOOKS_S):
                while unseen:
                    await self._woken.wait()
            self.is_sampled = True
            if not self.sample:
                self.sample = self._taken or ()
            self.say_again(self.node.epoch)
            self.wake()
            for each in sorted(unseen):
                log.warning(
                    "%r does not answer: whether its inode numbers are the same on all nodes is "
                    "found out when it does",
                    each,
                )

    async def _look(self, prefix: Path, count: int, unseen: set[Path]) -> None:
        """Add names below *prefix* to the sample, as soon as they can be had."""
        take = partial(take_names, self.node.policy.source, prefix, self._is_shared, count)
        while (names := await self._in_a_thread(take)) is None:
            unseen.discard(prefix)
            self.wake()
            await trio.sleep(AGAIN_S)
        before = self._taken or ()
        self._taken = (*before, *names)
        self._known.update(names)
        unseen.discard(prefix)
        if names and self.is_sampled and self.sample == before:
            self.sample = self._taken
            self.say_again(self.node.epoch)
        self.wake()

    def _is_first(self) -> bool:
        """Of those that are believed to live."""
        return self.node.gone().issuperset(map(NodeId, range(self.me)))

    def _is_pending(self) -> bool:
        if not self.is_wanted or self.ignoring:
            return False
        if self._heard or self._compares:
            return True
        return self.all_have_met and not self.is_sampled and not self._is_first()

    def _by_filesystem(self, sample: tuple[Seen, ...]) -> list[tuple[Seen, ...]]:
        """As far as this node knows where they begin."""
        places = (*self.prefixes, *self.node.policy.shared, ROOT)
        found: dict[Path, list[Seen]] = {}
        for each in sample:
            around = max((place for place in places if is_below(each.path, place)), key=len)
            found.setdefault(around, []).append(each)
        return [tuple(each) for each in found.values()]

    async def _compare(self, names: tuple[Seen, ...]) -> None:
        other = await self._in_a_thread(
            partial(other_number, self.node.policy.source, names, self._is_shared)
        )
        self._compares -= 1
        self.wake()
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

    async def _in_a_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
