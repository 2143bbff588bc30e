"""Inode comparison: takes and compares samples of inode numbers from the nodes' source clients.

The driver's port for that: ``node/peer/inode_agreement.py`` orders it and decides what follows.
Each filesystem is sampled in its own thread. One that hangs holds up the sample for ``LOOKS_S``;
its names are added when it answers.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from copperfs.model.types import ROOT, Path, is_below
from copperfs.node.events import Event, InodesCompared, InodesDiffer, InodesFound, InodesSampled
from copperfs.node.node import Node
from copperfs.node.peer.inode_agreement import InodeNumbers
from copperfs.node.peer.messages import Seen
from copperfs.node.requests.path_policy import Place
from copperfs.source.inode_sample import PREFIXES_MAX, names_of_each, other_number, take_names

log = logging.getLogger(__name__)

# The sampling node waits less, so that the others have the sample in time.
WITHIN_S, LOOKS_S = 10.0, 4.0
# A filesystem that gives an error is tried again after this time.
AGAIN_S = 60.0
LEFT_OUT = "inode numbers are left out of versions on all nodes (--inodes)"


T = TypeVar("T")


@dataclass(slots=True)
class Comparison:
    """This node's part in the comparison."""

    node: Node
    ignore_inodes: Callable[[], None]
    """Makes the source leave inode numbers out from now on."""
    post: Callable[[Event], None]
    prefixes: tuple[Path, ...] = (ROOT,)
    """The directories from which names are sampled."""
    _orders: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    _is_over: bool = False
    _threads: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(2 * PREFIXES_MAX)
    )
    """Threads that hang must not use up trio's own limiter."""
    _woken: trio.Event = field(default_factory=trio.Event)

    # --- the port of the driver ------------------------------------------------------------------

    def take_sample(self) -> None:
        self._begin(self._take)

    def compare(self, names: tuple[Seen, ...]) -> None:
        self._begin(partial(self._compare, names))

    def ignore(self, *, was_told: bool) -> None:
        if was_told:
            log.warning("a node's client of the source has its own inode numbers: %s", LEFT_OUT)
        self._is_over = True
        self.ignore_inodes()
        self.wake()

    def _begin(self, order: Callable[[], Awaitable[None]]) -> None:
        self._orders.append(order)
        self.wake()

    # --- its life --------------------------------------------------------------------------------

    @property
    def numbers(self) -> InodeNumbers:
        assert self.node.inode_numbers is not None, "a job of one compares nothing"
        return self.node.inode_numbers

    def wake(self) -> None:
        """The node may have learned something, or has ordered something."""
        self._woken.set()
        self._woken = trio.Event()

    async def wait(self) -> None:
        """Wait for the result of the comparison; for ``WITHIN_S`` at most."""
        with trio.move_on_after(WITHIN_S) as scope:
            while self.numbers.is_pending():
                await self._woken.wait()
        if scope.cancelled_caught:
            log.warning(
                "in %g s it could not be found out whether this node's client of the source gives "
                "files the same inode numbers as those of others; if it does not, give all nodes "
                "--inodes ignore",
                WITHIN_S,
            )

    async def run(self) -> None:
        """Do what the node orders, until inode numbers are ignored."""
        if not self.numbers.is_wanted:
            return
        async with trio.open_nursery() as nursery:
            while not self._is_over:
                if self._orders:
                    nursery.start_soon(self._orders.pop(0))
                else:
                    await self._woken.wait()
            nursery.cancel_scope.cancel()

    def _tell(self, event: Event) -> None:
        if not self._is_over:
            self.post(event)
            self.wake()

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
                nursery.start_soon(self._sample_below, each, names_of_each(len(some)), unseen)
            with trio.move_on_after(LOOKS_S):
                while unseen:
                    await self._woken.wait()
            self._tell(InodesSampled())
            for each in sorted(unseen):
                log.warning(
                    "%r does not answer: whether its inode numbers are the same on all nodes is "
                    "found out when it does",
                    each,
                )

    async def _sample_below(self, prefix: Path, count: int, unseen: set[Path]) -> None:
        """Add names below *prefix* to the sample as soon as the filesystem gives them."""
        take = partial(take_names, self.node.policy.source, prefix, self._is_shared, count)
        while (names := await self._in_a_thread(take)) is None:
            unseen.discard(prefix)
            self.wake()
            await trio.sleep(AGAIN_S)
        unseen.discard(prefix)
        self._tell(InodesFound(names))

    def _by_filesystem(self, sample: tuple[Seen, ...]) -> list[tuple[Seen, ...]]:
        """Group the names by filesystem, as far as this node knows the boundaries."""
        places = (*self.prefixes, *self.node.policy.shared, ROOT)
        found: dict[Path, list[Seen]] = {}
        for each in sample:
            around = max((place for place in places if is_below(each.path, place)), key=len)
            found.setdefault(around, []).append(each)
        return [tuple(each) for each in found.values()]

    async def _compare(self, names: tuple[Seen, ...]) -> None:
        async with trio.open_nursery() as nursery:
            for each in self._by_filesystem(names):
                nursery.start_soon(self._compare_in_one, each)
        self._tell(InodesCompared())

    async def _compare_in_one(self, names: tuple[Seen, ...]) -> None:
        other = await self._in_a_thread(
            partial(other_number, self.node.policy.source, names, self._is_shared)
        )
        if other is not None and not self._is_over:
            log.warning(
                "this node's client of the source gives %r another inode number than those of "
                "others: %s",
                other,
                LEFT_OUT,
            )
            self._tell(InodesDiffer())

    def _is_shared(self, path: Path) -> bool:
        policy = self.node.policy
        return policy.place(path) is Place.SHARED and path not in policy.pseudo

    async def _in_a_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
