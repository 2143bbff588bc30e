"""Daemon: the composition root, with the order in which its parts start and stop.

It is a fresh process, started by ``copperfs mount`` as ``python -m copperfs.daemon.daemon_main
FD``. The settings and the launch come as JSON through that descriptor, one line each. One line goes
back when the mount is ready or has failed.

At the end the mount goes first, so that no application is left waiting. A mount in use is detached,
and its users get ENOTCONN once the daemon is gone.

This module is longer than most, so that all parts and their order are in one place.
"""

import ctypes
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path as FilePath
from random import Random
from typing import NoReturn

import pyfuse3
import trio

from copperfs import __version__
from copperfs.chunkstore.disk_store import BACKLOG_BYTES_MAX, DiskStore
from copperfs.config.settings import Settings
from copperfs.daemon.attachment import Attachment, MountedHere, OverlayRenewal, TakenOver
from copperfs.daemon.chunk_disk import ChunkDisk, chunk_bytes_of, open_tier_store, placement_of
from copperfs.daemon.control_server import ControlServer
from copperfs.daemon.core_dump import leave_out_memory
from copperfs.daemon.domains_from_settings import domains_of, too_few
from copperfs.daemon.engine import Engine
from copperfs.daemon.failure_log import FailureLogWriter
from copperfs.daemon.handover import METRICS_PORT, TIER_LOCK, Handover, Takeover, launch_file
from copperfs.daemon.heap_trim import trim_heap
from copperfs.daemon.job_requests import JobMember, join_job, transport_of
from copperfs.daemon.log_file import LogFile, LogWatch, MemoryLog
from copperfs.daemon.path_policy_from_mounts import (
    OwnMounts,
    PathClasses,
    are_apart,
    check_shared,
    path_classes_for,
    policy_of,
    ring_prefix,
)
from copperfs.daemon.prometheus import close_port, open_port, port_of, render, serve, write
from copperfs.daemon.request_profile import Profiler
from copperfs.daemon.shared_mount_server import Users
from copperfs.daemon.statistics import Statistics
from copperfs.daemon.succession import Succession
from copperfs.daemon.upgrade import Upgrades
from copperfs.fuse.handlers import FrontHandlers
from copperfs.fuse.ioctl import IoctlRequest, TooLong
from copperfs.fuse.mounting import absolute
from copperfs.fuse.publication_index import PublicationIndex
from copperfs.fuse.statfs import FRESH_S, Statfs
from copperfs.launch.available_memory import oom_kills
from copperfs.launch.launch_method import Launch, trees_of
from copperfs.launch.node_identity import own_name
from copperfs.model.errors import CopperError, MountError
from copperfs.model.protection import Protection, split_class
from copperfs.model.roster import Roster
from copperfs.model.types import NodeId, Path
from copperfs.native import Front
from copperfs.node.actions import EntryKey, ListingKey, ObjectKey
from copperfs.node.events import RefusedPathsChanged
from copperfs.node.limits_and_counters import Limits
from copperfs.node.membership.failure_detector import Timeouts
from copperfs.node.node import Node
from copperfs.node.routing.trees import Trees
from copperfs.source.source_interface import Fetcher
from copperfs.source.source_pool import PoolFetcher

log = logging.getLogger(__name__)

# pyfuse3's own 99 would let 99 readers of a hung file block all other misses.
HANDLER_TASKS_MAX = 1024
# The largest request or reply on the miss socket. Without CAP_NET_ADMIN the system's limit (about
# 400 KiB) applies, and the front asks the kernel for smaller reads.
SOCKET_BYTES = 4 << 20
# A sequential reader then has two requests of 1 MiB under way. Around each fault of a mapping a
# larger value would fetch chunks that no application reads (docs/hazards.md).
READ_AHEAD_KIB = 1024
# An inode takes 350 bytes in the front's tables, and 192 in its record for a successor. These may
# use a sixteenth of the budget.
INODE_BYTES = 350 + 192
INODES_MIN, INODES_MAX = 4096, 1 << 20
# The kernel keeps directories, which are never shed, so a try may leave too many names.
SHED_AGAIN_S = 1.0
OWN_ERRORS_EVERY_S = 5.0
OWN_ERRORS = (
    "requests failed with EIO, because what came for them could not be kept for long enough to "
    "answer them; please report this, with the output of 'copperfs bugreport'",
    "requests or replies made no sense; requests failed with EIO for that; please report this, "
    "with the output of 'copperfs bugreport'",
    "requests failed with ENOMEM, because no memory was left, or too many were under way",
    "requests were not answered within --source-deadline, and failed with ETIMEDOUT; where holes "
    "were asked for, all was taken for data",
)
"""In the order of ``Front.own_errors``."""
# Nodes that notice a failure at the same time must not all read the source at the same time.
FALLBACK_JITTER_S = 0.1
# The front's reads of some milliseconds, before the node learns of them.
ALLOWANCE_MAX = 64 << 20
# Lustre's client has no more requests under way to one metadata server.
AHEAD_MAX = 8
# The most cached objects that are listed; above the second number a thread makes the list.
OBJECTS_MAX, OBJECTS_AT_ONCE = 1 << 20, 10_000
# The front's fetches are reported in batches, so that trio is not woken for each.
FETCHED_EVERY_S = 0.005
# The front may list directories again this soon after a mount was made.
MOUNTS_EVERY_S = 1.0
# ZeroMQ allocates memory for each message, up to 1 MiB for a chunk. Fresh pages of the kernel take
# 0.4 ms for each MiB (blob.h).
KEPT_FREE_BYTES = 32 << 20
ALLOCATED_BYTES_MAX = 4 << 20
"""A larger allocation has its own mapping, which is never kept."""
# From mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


# With a log file SIGHUP reopens the log instead (``_reopens_log``).
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Daemon:
    def __init__(
        self,
        settings: Settings,
        launch: Launch | None = None,
        users: Users | None = None,
        takeover: Takeover | None = None,
        keeper: socket.socket | None = None,
    ) -> None:
        """*keeper* is the channel to the one that has let this process take over."""
        self.launch = launch
        self.succession = Succession(settings, takeover, keeper)
        if users is not None:
            users.changed = self.succession.changed
        self.users = users
        """The daemon ends with the users of a ``copperfs run``."""
        self.inside = inside = None if users is None else users.inside
        mountpoint = absolute(settings.mountpoint) if inside is None else inside.mountpoint
        # At their own paths, links lead where they should.
        symlinks = settings.symlinks if inside is None else "keep"
        self.settings = replace(settings, mountpoint=mountpoint, symlinks=symlinks)
        self.attachment: Attachment = inside or MountedHere(self.settings)
        self._source_device: int | None = None
        """Of the root, once it is known."""
        if takeover is None:
            self.source_root = os.path.realpath(os.fsencode(settings.source))
        else:  # the source may hang or fail now, and caches and peers serve on
            before = takeover.handover
            if inside is None:
                self.attachment = TakenOver(self.settings, before.device, before.fuse_fd)
            self.source_root = before.source_root
            self._source_device = before.source_device
        self._cleanup = ExitStack()
        self._failed: MountError | None = None
        self._launch_fd = None if takeover is None else takeover.handover.launch_fd
        self._inherited = {} if takeover is None else takeover.handover.exclusives
        self._store: DiskStore | None = None
        self._metrics_port: socket.socket | None = None
        self._sockets: list[socket.socket] = []
        """Shutting these down ends the server, and with it the daemon."""
        self._logs = LogWatch(self.succession.follow_log)
        self._path_classes: PathClasses | None = None
        self._domains: tuple[int, ...] = ()

    def run(self, ready: Callable[[], None]) -> None:
        with self._cleanup:
            for number in ENDING:
                self._cleanup.callback(signal.signal, number, signal.getsignal(number))
            if self._reopens_log:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the task that handles it runs
            if self.users is not None:
                self._cleanup.callback(self.users.clean_up)
                if self.inside is None:
                    log.info("files are not shown in place: %s", self.users.why_not_inside)
            if self.launch is not None:
                self._cleanup.callback(self.launch.listener.close)
                me, roster = self.launch.me, self.launch.roster
                name = roster.member(me).name
                log.info("node %d of %d, %s, in job %s", me, len(roster), name, roster.job)
            try:
                trio.run(self._main, ready)
            except BaseException as error:
                if not self.succession.has_successor():
                    raise
                # Nothing is unmounted: a successor goes on.
                if isinstance(error, CopperError):
                    log.error("%s", error)
                else:
                    log.exception("a bug: the daemon failed in an unforeseen way")
                logging.shutdown()
                os._exit(1)

    async def _main(self, ready: Callable[[], None]) -> None:
        settings = self.settings
        takeover = self.succession.takeover
        if takeover is None:
            self._check()
        _raise_descriptor_limit()
        if self.launch is not None:
            _keep_freed_memory()
        grants: list[_Grants] = []
        before = None if takeover is None else takeover.handover
        self._path_classes = classes = self._path_classes_now(before)
        policy = policy_of(settings, self.source_root, classes)
        self._store = store = await open_tier_store(settings, self.source_root, before)
        trees = trees_of(settings, self.launch) if self.launch is not None else None
        limits = self._limits(trees)
        placement = placement_of(settings, self.launch)
        self._domains = domains = self._domains_now(before)
        self._warn_of_domains(domains, policy.protection)
        timeouts = timeouts_of(settings)
        node = Node(policy, limits, trees, timeouts, Random(), placement, domains)
        fetcher = self._fetcher(lambda: grants[0].renew() if grants else node.policy.refused)
        self._cleanup.callback(fetcher.close)
        if classes.ignores_inodes:
            log.info("inode numbers are no part of versions (--inodes)")
            fetcher.ignore_inodes()
            node.ignore_inodes()

        # statfs may hang, and its process must then be killed: so it starts before anything is
        # mounted.
        statfs = Statfs(self._ask_statfs, None if before is None else before.statfs)
        parts = _Parts(node, fetcher, store, statfs, grants)
        for number in ENDING:
            # Once the daemon ends it cleans up, however many signals come.
            signal.signal(number, signal.SIG_IGN)
        with trio.open_signal_receiver(*ENDING) as told:
            if store is not None:
                store.opened = self.succession.changed
            await self._serve(parts, told, ready)
        if self._failed is not None:
            raise self._failed

    async def _serve(
        self, parts: "_Parts", told: AsyncIterator[int], ready: Callable[[], None]
    ) -> None:
        node, fetcher, grants, settings = parts.node, parts.fetcher, parts.grants, self.settings
        metrics = settings.metrics
        listener = self._metrics_port = self._open_metrics_port()
        if listener is not None:
            self._cleanup.callback(close_port, listener)

        fuse_fd = self.attachment.open()
        self._cleanup.callback(os.close, fuse_fd)
        self._cleanup.callback(self.attachment.unmount_at_last)
        own = self._watch_own_mounts(node, trio.lowlevel.current_trio_token())
        miss, handlers_end = self._socketpair()
        control, server_end = self._socketpair()
        front = Front(
            fuse_fd,
            miss.fileno(),
            control.fileno(),
            settings.front_threads,
            inodes_max=self._inodes_max(),
            deadline_s=settings.source_deadline_s,
        )
        self._cleanup.callback(front.stop)
        limits = node.limits
        self.succession.keep_connection(front, node)
        front.set_reader(
            fetcher.reader(self._own_device()),
            node.files.whole_max_bytes,
            limits.allowance_bytes,
            limits.ahead_max,
            self._finds_holes(),
        )
        grants.append(_Grants(node, fetcher, front, own, node.policy.refused))
        publications = PublicationIndex(front)
        engine = Engine(node, fetcher, publications)
        renewal = self._show_in_place(front, engine, publications)
        self._equip(engine, parts.store)
        failure_log = self._log_events(engine)
        self._join(engine)
        statfs = parts.statfs
        handlers = FrontHandlers(
            engine, publications, statfs, allow_other=self.settings.allow_other
        )
        # libfuse closes its end itself
        pyfuse3.init(handlers, f"/dev/fd/{handlers_end.detach()}", set())
        self._cleanup.callback(pyfuse3.close, unmount=False)
        statistics = Statistics(engine, front, self.succession)
        job = JobMember(
            engine,
            settings,
            statistics.document,
            statistics.reset,
            self._roster,
            self.succession.takeovers,
        )
        if self.users is not None:
            self.users.read = statistics.read
        profiler = Profiler(front, engine, publications)
        self._sockets.append(server_end)
        upgrades = Upgrades(
            self.settings, self.succession, self.launch is not None, self.inside is not None
        )
        server = ControlServer(
            server_end,
            {
                **self._answerers(job, statistics, publications),
                IoctlRequest.PROFILE_END: profiler.end,
                IoctlRequest.UPGRADE_STATE: upgrades.state,
            },
            {
                IoctlRequest.WARM_UP: job.warm_up,
                IoctlRequest.SCRUB: job.scrub,
                IoctlRequest.SCRUB_STATE: job.scrub_state,
                IoctlRequest.RING: job.ring,
                IoctlRequest.PROFILE_BEGIN: profiler.begin,
                IoctlRequest.UPGRADE: upgrades.begin,
            },
        )
        front.start()
        self.succession.go_on(front, settings.mountpoint, failure_log.record)
        _raise_read_ahead(self.attachment.device)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            nursery.start_soon(self._run_trimming, node)
            nursery.start_soon(self._run_shedding, front)
            nursery.start_soon(log_own_errors, front)
            nursery.start_soon(_pass_on_fetched, engine, publications)
            nursery.start_soon(grants[0].run)
            nursery.start_soon(profiler.run)
            if listener is not None:
                nursery.start_soon(serve, listener, partial(self._metrics, statistics))
            elif metrics is not None:
                nursery.start_soon(write, metrics, partial(self._metrics, statistics))
            nursery.start_soon(self._logs.run)
            if renewal is not None:
                nursery.start_soon(renewal.run)
            nursery.start_soon(self._run_signals, told)
            nursery.start_soon(self._run_users)
            nursery.start_soon(self._serve_handlers)
            publications.publish_statfs(statfs.known)
            nursery.start_soon(_withdraw_statfs, front)
            nursery.start_soon(self._become_ready, job, ready, nursery)
            describe = partial(self._handover, fuse_fd, statfs)
            nursery.start_soon(self._run_succession, front, engine, describe)
            await server.run()  # until the mount is gone
            log.info("%s was unmounted", settings.mountpoint)
            self.succession.end()
            await engine.leave()
            await self._finish_writing(engine)
            pyfuse3.terminate()
            nursery.cancel_scope.cancel()

    def _open_metrics_port(self) -> socket.socket | None:
        metrics, inherited = self.settings.metrics, self._inherited.get(METRICS_PORT)
        if metrics is None or not metrics.isdecimal():
            if inherited is not None:
                os.close(inherited)  # an upgrade has given the port up
            return None
        before = None if inherited is None else port_of(inherited, int(metrics))
        return before or open_port(int(metrics))

    def _exclusives(self) -> dict[str, int]:
        """Descriptors of what only one process can have."""
        lock = None if self._store is None else self._store.lock_fd
        port = None if self._metrics_port is None else self._metrics_port.fileno()
        named = {TIER_LOCK: lock, METRICS_PORT: port}
        return {name: fd for name, fd in named.items() if fd is not None and fd >= 0}

    @property
    def _reopens_log(self) -> bool:
        """Whether SIGHUP comes from a log rotation and not from a terminal that hangs up."""
        return self.settings.log_file is not None and not self.settings.foreground

    @staticmethod
    def _equip(engine: Engine, store: DiskStore | None) -> None:
        if store is not None:
            engine.tier = ChunkDisk(store, engine.blobs, engine.post)

    def _log_events(self, engine: Engine) -> FailureLogWriter:
        me, events = NodeId(0), self.settings.events
        if self.launch is not None:
            me = self.launch.me
        elif not self.settings.takeover:
            events = None  # nothing happens to a node alone
        failure_log = FailureLogWriter(me, self._roster, events)
        try:
            failure_log.open()
        except MountError as error:
            if self.succession.takeover is None:
                raise
            log.warning("no events: %s", error)  # a mount is not ended for them
        self._cleanup.callback(failure_log.close)
        engine.happened = failure_log.note
        return failure_log

    def _join(self, engine: Engine) -> None:
        if self.launch is None:
            return
        assert self._path_classes is not None
        transport = transport_of(self.launch)
        self._cleanup.callback(transport.close)
        join_job(self.settings, self.launch, engine, transport, self._path_classes.compared)

    @staticmethod
    async def _finish_writing(engine: Engine) -> None:
        """The next job finds on disk what was read from the source."""
        if engine.tier is not None:
            await engine.tier.wait_moved()

    @property
    def _roster(self) -> Roster | None:
        return None if self.launch is None else self.launch.roster

    async def _become_ready(
        self, job: JobMember, ready: Callable[[], None], nursery: trio.Nursery
    ) -> None:
        """The mount answers when the node has its parents."""
        if job.engine.tier is not None:
            await job.engine.tier.wait_begun()
        try:
            if self.succession.takeover is None:  # else applications use it already
                await job.readiness.wait()
                log.info("%s is mounted at %s", self.settings.source, self.settings.mountpoint)
            ready()
            self.succession.is_mounted.set()
        except MountError as error:
            self._failed = error
            if self.users is not None:
                self.users.refuse(str(error))
            nursery.cancel_scope.cancel()
            return
        if self.users is not None:
            self.users.ready.set()

    async def _run_users(self) -> None:
        if self.users is None:
            return
        await self.users.run()
        log.info("nobody uses %s any more: unmounting", self.settings.mountpoint)
        if self.inside is None:
            self.succession.end()
            await trio.to_thread.run_sync(self._unmount_or_detach)

    def _handover(self, fuse_fd: int, statfs: Statfs) -> Handover:
        """What a successor needs now."""
        connection_fd = self.succession.connection_fd
        assert connection_fd is not None
        assert self._source_device is not None
        if self.launch is not None and self._launch_fd is None:
            self._launch_fd = launch_file(self.launch)
        words, fds = (None, []) if self.users is None else self.users.left()
        return Handover(
            self.settings,
            self.launch,
            self.source_root,
            self._source_device,
            statfs.known,
            self.attachment.device,
            connection_fd,
            fuse_fd,
            self._launch_fd,
            oom_kills(),
            self.succession.oom_score,
            words,
            fds,
            os.getpid(),
            self._exclusives(),
            self.succession.upgraded_by,
            takeovers=self.succession.takeovers,
            domains=self._domains,
            path_classes=self._path_classes,
            tier_device=None if self._store is None else self._store.device,
        )

    async def _run_succession(
        self, front: Front, engine: Engine, describe: Callable[[], Handover]
    ) -> None:
        if self.users is not None:
            await self.users.welcomed.wait()
        await self.succession.run(front, engine, describe)

    async def _serve_handlers(self) -> None:
        await pyfuse3.main(max_tasks=HANDLER_TASKS_MAX)

    async def _run_signals(self, told: AsyncIterator[int]) -> None:
        async for number in told:
            if number == signal.SIGHUP and self._reopens_log:
                self._logs.reopen()
                continue
            log.info("%s: unmounting", signal.Signals(number).name)
            self.succession.end()
            # In a thread: the kernel may send requests while it unmounts.
            await trio.to_thread.run_sync(self._unmount_or_detach)

    @staticmethod
    async def _run_shedding(front: Front) -> None:
        inodes_max = front.statistics()["nodes_max"]
        while True:
            await trio.lowlevel.wait_readable(front.crowded_fileno())
            excess = front.crowded()
            if not excess:
                continue
            told = await trio.to_thread.run_sync(front.shed, excess + inodes_max // 8)
            if told < excess:
                await trio.sleep(SHED_AGAIN_S)

    async def _run_trimming(self, node: Node) -> None:
        """In a job the heap keeps free memory for ZeroMQ to reuse."""
        kept_bytes = 0 if self.launch is None else KEPT_FREE_BYTES
        await trim_heap(lambda: node.left_bytes, node.limits.memory_bytes, kept_bytes)

    def _metrics(self, statistics: Statistics) -> str:
        return render(statistics.document(), self.settings, own_name(self.settings))

    def _answerers(
        self, job: JobMember, statistics: Statistics, publications: PublicationIndex
    ) -> dict[IoctlRequest, Callable[[], Awaitable[object]]]:
        engine = job.engine

        async def hello() -> object:
            return {
                "copperfs": 1,
                "versions": [1],
                "pid": os.getpid(),
                "uid": os.getuid(),
                "mountpoint": self.settings.mountpoint,
                "source": self.settings.source,
                "release": __version__,
            }

        async def show_statistics() -> object:
            return statistics.document()

        async def reset() -> object:
            statistics.reset()
            return {"reset": True}

        async def configuration() -> object:
            return asdict(self.settings)

        async def objects() -> object:
            publications.pass_on_fetched(engine)  # of what was read up to now
            held = engine.node.held()
            if len(held) <= OBJECTS_AT_ONCE:
                return [_shown(key, size) for key, size in held]
            if len(held) > OBJECTS_MAX:
                raise TooLong
            # A list of hundreds of thousands of objects would block trio's thread.
            return await trio.to_thread.run_sync(
                lambda: [_shown(key, size) for key, size in held], abandon_on_cancel=True
            )

        return {
            IoctlRequest.HELLO: hello,
            IoctlRequest.STATISTICS: show_statistics,
            IoctlRequest.RESET: reset,
            IoctlRequest.RESET_ALL: job.reset_all,
            IoctlRequest.CLEAR: job.clear,
            IoctlRequest.CLEAR_LOCAL: job.clear_local,
            IoctlRequest.ALL_STATISTICS: job.all_statistics,
            IoctlRequest.TREE: job.tree,
            IoctlRequest.WARM_UP_STATE: job.warm_up_state,
            IoctlRequest.CONFIGURATION: configuration,
            IoctlRequest.OBJECTS: objects,
        }

    def _check(self) -> None:
        source, mountpoint = self.settings.source, self.settings.mountpoint
        if not os.path.isdir(self.source_root):
            raise MountError(f"the source {source} is not a directory that can be read")
        self.attachment.check()
        check_timeouts(self.settings)
        check_shared(self.settings, self.source_root)
        for each in self.settings.ring:
            if ring_prefix(self.settings, self.source_root, each) is None:
                raise MountError(f"--ring {each} is not below the source, {source}")
        for each in self.settings.protect:
            if ring_prefix(self.settings, self.source_root, split_class(each)[0]) is None:
                raise MountError(f"--protect {each} is not below the source, {source}")
        if os.path.realpath(source) == mountpoint:
            raise MountError(f"{mountpoint} cannot show itself; mount it somewhere else")

    def _path_classes_now(self, before: Handover | None) -> PathClasses:
        return path_classes_for(
            self.settings,
            self.source_root,
            apart=self.launch is not None and are_apart(self.launch.roster),
            before=None if before is None else before.path_classes,
            changed=() if before is None else before.changes,
        )

    def _domains_now(self, before: Handover | None) -> tuple[int, ...]:
        """Later they may be others, or cannot be had."""
        return domains_of(self.settings, self.launch) if before is None else before.domains

    def _warn_of_domains(self, domains: tuple[int, ...], protection: Protection) -> None:
        if self.launch is None:
            return
        copies = max((each for _, each in protection.classes), default=1)
        sentence = too_few(self.settings, domains, len(self.launch.roster), copies)
        if sentence is not None:
            log.warning(sentence)

    def _limits(self, trees: Trees | None) -> Limits:
        memory_bytes = self.settings.memory_bytes
        return Limits(
            memory_bytes=memory_bytes,
            allowance_bytes=min(ALLOWANCE_MAX, memory_bytes // 4) if trees is None else 0,
            tree_max_bytes=self.settings.tree_max_bytes,
            bypass_above_bytes=self.settings.bypass_above_bytes,
            fetch_deadline_s=self.settings.source_deadline_s,
            ahead_max=self._ahead_max(),
            trees=1 if trees is None else trees.count,
            ask_deadline_s=self.settings.fetch_deadline_s,
            fallbacks_max=self.settings.fallback_concurrency if self.settings.fallback else 0,
            fallback_jitter_s=FALLBACK_JITTER_S,
            chunk_bytes=chunk_bytes_of(self.settings, self.launch),
            tier_memory_bytes=self.settings.tier_memory_bytes,
            tier_has_disk=self.settings.tier_dir is not None,
            tier_waits=self.settings.tier_write == "wait",
            tier_backlog_bytes=BACKLOG_BYTES_MAX,
            takers_max=1 if trees is None else trees.fanout,
        )

    def _ahead_max(self) -> int:
        """A request must still find a free thread, and a server with capacity left."""
        half = max(1, self.settings.source_concurrency // 2)
        return min(AHEAD_MAX, half) if self.settings.read_ahead else 0

    def _finds_holes(self) -> bool:
        """Not if peers read large files for this node and fallback is off."""
        others_read = self.launch is not None and chunk_bytes_of(self.settings, self.launch) > 0
        return self.settings.fallback or not others_read

    def _own_device(self) -> int:
        major, _, minor = self.attachment.device.partition(":")
        return os.makedev(int(major), int(minor))

    def _inodes_max(self) -> int:
        return min(INODES_MAX, max(INODES_MIN, self.settings.memory_bytes // 16 // INODE_BYTES))

    def _fetcher(self, untouchable: Callable[[], frozenset[Path]]) -> Fetcher:
        if self._source_device is None:
            self._source_device = os.stat(self.source_root).st_dev
        return PoolFetcher(
            self.source_root,
            listing_max=self.settings.listing_max,
            concurrency=self.settings.source_concurrency,
            deadline_s=self.settings.source_deadline_s,
            untouchable=untouchable,
            device=self._source_device,
        )

    def _watch_own_mounts(self, node: Node, token: trio.lowlevel.TrioToken) -> OwnMounts:
        def refuse(paths: frozenset[Path]) -> None:
            def apply() -> None:
                # this event causes no actions
                node.step(time.monotonic(), RefusedPathsChanged(paths))

            with suppress(trio.RunFinishedError):
                token.run_sync_soon(apply)

        own = OwnMounts(self.source_root, self.attachment.device, refuse)
        self._cleanup.callback(own.close)
        return own

    def _socketpair(self) -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setblocking(False)
            for option in ("SO_SNDBUFFORCE", "SO_SNDBUF"):
                # FORCE, 32 on Linux, needs CAP_NET_ADMIN
                with suppress(OSError):
                    end.setsockopt(
                        socket.SOL_SOCKET,
                        32 if option == "SO_SNDBUFFORCE" else socket.SO_SNDBUF,
                        SOCKET_BYTES,
                    )
                    break
            self._cleanup.callback(end.close)
        return ours, theirs

    def _ask_statfs(self) -> os.statvfs_result:
        return os.statvfs(self.source_root)

    def _unmount_or_detach(self) -> None:
        if not self.attachment.unmount():
            # A user of the detached mount keeps the connection open, so the server would see no
            # end.
            trio.from_thread.run_sync(self._end_server)

    def _show_in_place(
        self, front: Front, engine: Engine, publications: PublicationIndex
    ) -> OverlayRenewal | None:
        """Tell the parts that an in-place run looks at them, and whether through an overlay."""
        if self.inside is None:
            return None
        has_overlay = self.settings.revalidate_s is None  # else bind mounts cover
        front.set_in_place(*self.inside.groups(), has_overlay)
        assert self.users is not None
        self.users.cover_more = partial(
            self.inside.cover_more, source=os.fsdecode(self.source_root)
        )
        if not has_overlay:
            return None
        renewal = OverlayRenewal(self._renew_overlay)
        publications.invalidated = self._renew_overlay
        engine.applications.renamed = renewal.ask
        return renewal

    def _renew_overlay(self) -> None:
        assert self.users is not None
        assert self.inside is not None
        try:
            self.inside.renew(self.users.covered, os.fsdecode(self.source_root))
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("the covers could not be renewed after a clear: %s", error)

    def _end_server(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


async def log_own_errors(front: Front) -> None:
    """Log errors that come from neither the source nor the node."""
    before = front.own_errors()
    while True:
        try:
            await trio.sleep(OWN_ERRORS_EVERY_S)
        finally:
            now = front.own_errors()
            for kind, was, is_ in zip(OWN_ERRORS, before, now, strict=True):
                count = is_ - was if is_ >= was else is_  # "copperfs stats --reset" in between
                if count:
                    log.warning("%d %s", count, kind)
            before = now


async def _withdraw_statfs(front: Front) -> None:
    """Make statfs calls go to the handlers again, which ask the source."""
    while True:
        await trio.sleep(FRESH_S)
        front.withdraw_statfs()


async def _pass_on_fetched(engine: Engine, publications: PublicationIndex) -> None:
    while True:
        await trio.lowlevel.wait_readable(publications.front.fetched_fileno())
        await trio.sleep(FETCHED_EVERY_S)
        publications.pass_on_fetched(engine)


@dataclass(frozen=True, slots=True)
class _Parts:
    node: Node
    fetcher: Fetcher
    store: DiskStore | None
    statfs: Statfs
    grants: "list[_Grants]"
    """One element, as soon as there is a front."""


@dataclass(slots=True)
class _Grants:
    """Lets the front list the source by itself, but only while it is known where the daemon's own
    mount shows up in the source. The source's threads stop by themselves when a mount is made."""

    node: Node
    fetcher: Fetcher
    front: Front
    own: OwnMounts
    granted_for: frozenset[Path]

    def renew(self) -> frozenset[Path]:
        """Each fetch of the node calls this, so that only the first request after a mount takes the
        slow path."""
        if not self.fetcher.watch_mounts():
            return self.own()
        paths = self.own()
        if paths != self.granted_for:
            self.front.revoke_below()
            self.granted_for = paths
        if paths == self.node.policy.refused:
            self.fetcher.trust_mounts()
            self.front.add_allowance(0)  # resume the listings that were waiting
        return paths

    async def run(self) -> None:
        while True:
            self.renew()
            await trio.sleep(MOUNTS_EVERY_S)


def _shown(key: EntryKey | ListingKey | ObjectKey, size: int) -> dict[str, object]:
    kind = {EntryKey: "entry", ListingKey: "listing", ObjectKey: "object"}[type(key)]
    shown: dict[str, object] = {"kind": kind, "path": os.fsdecode(key.path), "bytes": size}
    if isinstance(key, ObjectKey):
        shown["version"] = key.version._asdict()
    return shown


def timeouts_of(settings: Settings) -> Timeouts:
    return Timeouts(
        silent_s=settings.hedge_after_s,
        heartbeat_s=settings.heartbeat_s,
        dead_s=settings.dead_after_s,
        reach_s=settings.launch_timeout_s,
    )


def check_timeouts(settings: Settings) -> None:
    timeouts = timeouts_of(settings)
    if timeouts.dead_s < 2 * timeouts.heartbeat_s + timeouts.silent_s:
        raise MountError(
            "--dead-after has to be at least twice --heartbeat and --hedge-after together, or "
            "nodes that are well are taken for gone"
        )


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """glibc returns the free end of a heap and maps large blocks, unless told otherwise."""
    with suppress(AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, ALLOCATED_BYTES_MAX)


def _raise_read_ahead(device: str) -> None:
    """The kernel reads 128 KiB ahead unless root raises it."""
    with suppress(OSError):
        FilePath(f"/sys/class/bdi/{device}/read_ahead_kb").write_text(str(READ_AHEAD_KIB))


def set_up_logging(settings: Settings, *, to_stderr: bool, takes_over: bool = False) -> None:
    """To the file, else to the terminal, else to memory that a successor has, too."""
    handler: logging.Handler = logging.NullHandler()
    if settings.log_file is not None:
        handler = LogFile(settings.log_file, goes_on=takes_over)
    elif to_stderr:
        handler = logging.StreamHandler()
    elif settings.takeover:
        handler = MemoryLog()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    if takes_over and isinstance(handler, LogFile):
        handler.look_briefly()  # a file that cannot be opened now ends no mount


def main() -> int:
    """``python -m copperfs.daemon.daemon_main FD``: settings in, one line of outcome out."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    with channel.makefile("r", encoding="ascii") as lines:
        settings = Settings.from_json(lines.readline())
        launch = Launch.receive_from(lines)
        users = Users.receive_from(lines, settings)

    def tell(**outcome: object) -> bool:
        """Whether the parent process is there to read it."""
        try:
            channel.sendall(json.dumps(outcome).encode() + b"\n")
        except OSError:
            return False
        finally:
            channel.close()
        return True

    def ready() -> None:
        # The parent was killed: no process would unmount. A run's daemon ends with its
        # users.
        if not tell(pid=os.getpid()) and users is None:
            log.info("whoever has started this daemon was killed meanwhile: unmounting")
            raise MountError("whoever has started this daemon was killed meanwhile")

    try:
        set_up_logging(settings, to_stderr=settings.foreground)
        leave_out_memory()
        Daemon(settings, launch, users).run(ready)
    except CopperError as error:
        tell(error=str(error))
        return 1
    except BaseException as error:
        log.exception("a bug: the daemon failed in an unforeseen way")
        tell(error=f"the daemon failed: {error!r}; its log has more")
        return 1
    return 0


def end(code: int) -> NoReturn:
    """Python would tear its modules down one by one, which takes a sixth of the processor time of
    an idle daemon's life."""
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    end(main())
