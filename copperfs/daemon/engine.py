"""Engine: runs the driver in the real world, on trio's thread, one event at a time.

Its ports are the source's thread pool, the disk of the chunk cache, the transport (``peers.py``),
the handlers and the publication index (``application_port.py``), and the collective operations
(``collective_ops.py``). This module adds the node's alarm clock, the outcomes of the source, and
the daemon's requests to the node as a whole.
"""

import errno
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from copperfs.daemon.application_port import ApplicationPort, Publications
from copperfs.daemon.chunk_disk import ChunkDisk
from copperfs.daemon.collective_ops import Result, RunningCalls
from copperfs.daemon.daemon_blobs import DaemonBlobs
from copperfs.daemon.kernel_notifications import Notifications
from copperfs.daemon.peers import Peers
from copperfs.driver.driver import Driver
from copperfs.driver.ports import Ports
from copperfs.fuse.node_port import Deliver
from copperfs.model.listing import Listing
from copperfs.model.types import FetchId, NodeId, Path, RequestId
from copperfs.native.blob import Blob
from copperfs.node.actions import LogEvent, ObjectKey
from copperfs.node.events import (
    Clear,
    Event,
    Failed,
    FrontListed,
    FrontRead,
    Leave,
    NodeRequest,
    Replaced,
    SourceRead,
    Start,
    Tick,
    Used,
)
from copperfs.node.node import Node
from copperfs.source.source_interface import Arrived, BlobRead, Fetcher
from copperfs.wire.payload import Payload

log = logging.getLogger(__name__)
T = TypeVar("T")

# The kernel takes well below a millisecond unless a slow lookup in the same directory is under way.
KERNEL_TOLD_S = 1.0
HOUSEKEEPING_S = 1.0
CLEARS_AT_ONCE = 4
EIO_EVERY_S = 10.0
LEAVES_WITHIN_S = 1.0


@dataclass(slots=True)
class Alarm:
    wakes_at: float = math.inf
    _wake: trio.Event = field(default_factory=trio.Event)
    """The node needs an earlier wakeup than planned."""

    @staticmethod
    def now() -> float:
        return time.monotonic()

    def wake_at(self, deadline: float | None) -> None:
        if deadline is not None and deadline < self.wakes_at and not self._wake.is_set():
            self._wake.set()

    async def wait_until(self, deadline: float | None) -> bool:
        """True at the deadline; False if an earlier one was set meanwhile."""
        self.wakes_at = math.inf if deadline is None else deadline
        self._wake = trio.Event()
        left_s = self.wakes_at - self.now()
        with trio.move_on_after(max(0.0, left_s)) as sleep:
            await self._wake.wait()
        return sleep.cancelled_caught


@dataclass(slots=True)
class Engine:
    node: Node
    fetcher: Fetcher
    publications: Publications
    blobs: DaemonBlobs = field(default_factory=DaemonBlobs)
    driver: Driver[Blob, Payload] = field(init=False)
    applications: ApplicationPort = field(init=False)
    calls: RunningCalls = field(init=False)
    alarm: Alarm = field(default_factory=Alarm)
    nursery: trio.Nursery | None = None
    """Owns the tasks that outlive a request."""
    happened: Callable[[LogEvent], object] = lambda _: None
    """Gets the events from which a failure can be reconstructed; see ``failure_log.py``."""
    notifications: Notifications = field(default_factory=Notifications)
    _peers: Peers | None = None
    _tier: ChunkDisk | None = None
    _next: int = 1
    _stepped: trio.Event = field(default_factory=trio.Event)
    # When a clear gives up, its thread still waits for a lookup. So clears have their own limiters.
    _telling: trio.CapacityLimiter = field(init=False)
    _telling_rest: trio.CapacityLimiter = field(init=False)
    _eio: int = 0
    _eio_said_at: float = -math.inf

    def __post_init__(self) -> None:
        self._telling = trio.CapacityLimiter(CLEARS_AT_ONCE)
        self._telling_rest = trio.CapacityLimiter(CLEARS_AT_ONCE)
        self.calls = RunningCalls(self.post)
        self.applications = ApplicationPort(
            self.publications,
            self.notifications,
            self.post,
            self.fetcher.close_handle,
            self._remaining,
        )
        ports = Ports[Blob, Payload](
            self.alarm, self.fetcher, self.applications, self.calls, failure_log=self
        )
        self.driver = Driver(self.node, ports, self.blobs)

    @property
    def peers(self) -> Peers | None:
        return self._peers

    @peers.setter
    def peers(self, peers: Peers) -> None:
        self._peers = self.driver.ports.network = peers
        self.node.attach(self.blobs)

    @property
    def tier(self) -> ChunkDisk | None:
        return self._tier

    @tier.setter
    def tier(self, tier: ChunkDisk) -> None:
        self._tier = self.driver.ports.chunk_store = tier

    async def ask(self, make_request: Callable[[RequestId], NodeRequest], deliver: Deliver[T]) -> T:
        """Send a request to the node; returns what *deliver* made of the reply."""
        return await self.applications.ask(make_request(RequestId(self._number())), deliver)

    async def wait_kernel_told(self, path: Path) -> None:
        """Returns after ``KERNEL_TOLD_S`` at the latest."""
        await self.notifications.wait_told(path, KERNEL_TOLD_S)

    async def call(self, operation: str, argument: Result, within_s: float) -> Result:
        """The merged results of the nodes that replied in time."""
        return await self.calls.call(RequestId(self._number()), operation, argument, within_s)

    async def wait_backlog_below(self, size: int) -> None:
        """Wait until less than *size* bytes of batches wait for the credit of children."""
        await self.wait_until(lambda: self.node.flow.backlog_bytes < size)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._stepped.is_set():  # else other tasks already wait for it
                self._stepped = trio.Event()
            await self._stepped.wait()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.fetcher.run, self._arrived)
            nursery.start_soon(self._run_clock)
            nursery.start_soon(self._run_housekeeping)
            nursery.start_soon(self.notifications.run)
            nursery.start_soon(self.calls.run)
            self.nursery = nursery
            if self.tier is not None:
                nursery.start_soon(self.tier.run)
            if self.peers is not None:
                self.post(Start())
                self.peers.changed()  # the root needs no peer: it is ready at once
                nursery.start_soon(self.peers.run)

    async def leave(self) -> None:
        if self.peers is None:
            return
        with trio.move_on_after(LEAVES_WITHIN_S):
            for _ in range(2):  # the second pass confirms that the last parts have arrived
                self.post(Leave())
                await self.wait_until(self.node.is_drained)

    async def clear(self, epoch: int | None = None) -> int:
        """Drop all caches, the kernel's too; returns how many names the kernel was told to look up
        again. The epoch is the next one unless it is given."""
        self.applications.is_clearing = True
        self.post(Clear(epoch))
        self.applications.is_clearing = False
        told, tell_rest = await trio.to_thread.run_sync(
            self.publications.invalidate_all, abandon_on_cancel=True, limiter=self._telling
        )
        if tell_rest is not None:
            told += await trio.to_thread.run_sync(
                tell_rest, abandon_on_cancel=True, limiter=self._telling_rest
            )
        return told

    def take(self, key: ObjectKey, blob: Blob, *, ahead: bool, used: bool) -> None:
        """The front read a file without a request to the node."""
        self.post(FrontRead(key.path, key.version, self.blobs.keep_blob(blob), ahead, used))

    def take_listing(self, path: Path, listing: Listing, epoch: int, *, ahead: bool) -> None:
        self.post(FrontListed(path, listing, epoch, ahead))

    def replaced(self, path: Path) -> None:
        """By this path the kernel knows another directory than the listed one."""
        self.post(Replaced(path))

    def post(self, event: Event) -> None:
        self.driver.post(event)
        if not self._stepped.is_set():
            self._stepped.set()

    def note(self, happened: LogEvent) -> None:
        """The driver's failure log."""
        self.happened(happened)
        if self.peers is not None:
            self.peers.changed()

    def disagree(self, peer: NodeId, sentence: str) -> None:
        log.error("%s (it is not talked to)", sentence)
        if self.peers is not None:
            self.peers.changed()

    def _arrived(self, outcome: Arrived) -> None:
        if isinstance(outcome, Failed) and outcome.error == errno.EIO:
            self._note_eio(outcome.fetch)
        if isinstance(outcome, BlobRead):
            blob = self.blobs.keep_blob(outcome.blob)
            outcome = SourceRead(outcome.fetch, blob, outcome.mentioned)
        self.post(outcome)

    def _note_eio(self, fetch: FetchId) -> None:
        """Log an error of the source, or of a pool whose threads all hang."""
        path = self.node.path_of(fetch)
        if path is None:
            return
        self._eio += 1
        now = self.alarm.now()
        if now < self._eio_said_at + EIO_EVERY_S:
            return
        log.warning(
            "the source gave EIO, or does not answer at all, for %d names, the last of them %r",
            self._eio,
            path,
        )
        self._eio, self._eio_said_at = 0, now

    async def _run_clock(self) -> None:
        while True:
            if await self.alarm.wait_until(self.node.deadline()):
                self.post(Tick())

    async def _run_housekeeping(self) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING_S)
            self.fetcher.replace_stuck()
            self.fetcher.close_unused()
            used = self.publications.used()
            if used:
                self.post(Used(tuple(used)))

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _remaining(self, until: float | None) -> float | None:
        return None if until is None else until - self.alarm.now()

    def blob_bytes(self) -> int:
        return sum(len(blob) for blob in self.blobs.held.values())
