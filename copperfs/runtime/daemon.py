"""The daemon: the parts list, and the order in which they start and stop.

It is a fresh process, started by ``copperfs mount`` as ``python -m copperfs.runtime.daemon FD``.
The settings and the launch come as JSON through that descriptor, each on a line, and one line goes
back when the mount answers, or when it is clear why it never will.

Start: policy, mount, front, handlers. End, in the reverse order: the mount goes first, so that
nobody is left waiting. A mount that is in use when the daemon is told to end is detached, and those
who use it get ENOTCONN once the daemon is gone.

Longer than most modules, so that all parts and their order can be read in one place.
"""

import ctypes
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path as FilePath
from random import Random
from typing import TYPE_CHECKING

import pyfuse3
import trio

from copperfs.blob import BLOBS_ARE_SHARED
from copperfs.bootstrap.invitation import own_name
from copperfs.bootstrap.launch import Launch, trees_of
from copperfs.config import Settings
from copperfs.core.actions import EntryKey, ListingKey, ObjectKey
from copperfs.core.events import MountsMoved
from copperfs.core.node import Node
from copperfs.core.state import Limits
from copperfs.core.suspicion import Patience
from copperfs.core.trees import Trees
from copperfs.errors import CopperError, MountError
from copperfs.fuse.board import Board
from copperfs.fuse.handlers import FrontHandlers
from copperfs.fuse.inodes import Inodes
from copperfs.fuse.ioctl import Request, TooLong
from copperfs.fuse.mounting import (
    absolute,
    announce,
    clean_up_stale,
    mount_at,
    mount_options,
    mounts,
    open_channel,
    unmount,
)
from copperfs.fuse.plain import PlainHandlers, PlainPublications
from copperfs.fuse.statfs import FRESH_S, Statfs
from copperfs.roster import Roster
from copperfs.runtime.chronicle import Chronicle
from copperfs.runtime.control import ControlServer
from copperfs.runtime.coredump import leave_out_memory
from copperfs.runtime.engine import Engine
from copperfs.runtime.job import Job, join_job, transport_of
from copperfs.runtime.logfile import LogFile, LogWatch
from copperfs.runtime.metrics import open_port, render, serve, write
from copperfs.runtime.places import (
    OwnMounts,
    are_apart,
    check_shared,
    compared_prefixes,
    ignores_inodes,
    policy_for,
    ring_prefix,
)
from copperfs.runtime.profile import Profiler
from copperfs.runtime.statistics import Statistics
from copperfs.runtime.tier import TierDisk, chunk_bytes_of, open_tier_store, placement_of
from copperfs.runtime.trimming import trim_heap
from copperfs.runtime.users import Users
from copperfs.source.fetcher import Fetcher
from copperfs.source.threads import ThreadFetcher
from copperfs.store.disk import BACKLOG_BYTES_MAX, DiskStore
from copperfs.types import Path

if TYPE_CHECKING:
    from copperfs.fuse._front import Front

log = logging.getLogger(__name__)

# pyfuse3's own 99 would let 99 readers of a hung file block all other misses.
HANDLER_TASKS_MAX = 1024
# What one request or reply on the miss socket may take; without CAP_NET_ADMIN the system's limit
# (about 400 KiB) holds, and the front asks the kernel for smaller reads.
SOCKET_BYTES = 4 << 20
# A sequential reader then has two requests of 1 MiB under way. It is also what is read around each
# fault of a mapping, so more of it costs chunks that nobody wants (docs/hazards.md).
READ_AHEAD_KIB = 1024
# A node takes some 350 bytes in the front's tables; they may use a sixteenth of the budget.
NODE_BYTES = 350
NODES_MIN, NODES_MAX = 4096, 1 << 20
SHED_EVERY_S = 1.0
# Reads of the source in the place of others begin at a random moment of so long: nodes that notice
# a failure at the same time do not go there at the same time.
FALLBACK_JITTER_S = 0.1
# What the front may read before the core has heard of it: some milliseconds' worth.
CREDIT_MAX = 64 << 20
# Lustre's client has no more requests than this under way to one metadata server.
AHEAD_MAX = 8
# What is shown of what is held, each with its path; more are made into a list in a thread.
OBJECTS_MAX, OBJECTS_AT_ONCE = 1 << 20, 10_000
# The core is told of many files at once, so that trio is not woken for each.
FETCHED_EVERY_S = 0.005
# How soon directories are listed without asking again, if nobody asks after a mount was made.
MOUNTS_EVERY_S = 1.0
# ZeroMQ allocates for each message what it has, up to 1 MiB for a chunk. That is best found in
# memory that was used before: fresh pages of the kernel take 0.4 ms for each MiB (blob.h).
KEPT_FREE_BYTES = 32 << 20
ALLOCATED_BYTES_MAX = 4 << 20
"""Beyond this an allocation has a mapping of its own, which is never kept."""
# Of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


# What tells a daemon to end; SIGHUP has another meaning where there is a log (``_reopens_log``).
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Daemon:
    """One mount, from the settings to its end."""

    def __init__(
        self, settings: Settings, launch: Launch | None = None, users: Users | None = None
    ) -> None:
        self.launch = launch
        """The other nodes; None if there are none."""
        self.users = users
        """For whom alone it runs (``copperfs run``); None if it runs until it is told to end."""
        self.settings = replace(settings, mountpoint=absolute(settings.mountpoint))
        self.source_root = os.path.realpath(os.fsencode(settings.source))
        self._front_wanted = settings.front_threads > 0
        self._cleanup = ExitStack()
        self._failed: MountError | None = None
        self._sockets: list[socket.socket] = []
        """Shutting these down ends the server, and with it the daemon."""
        self._announcement: socket.socket | None = None
        self._logs = LogWatch()
        self._ignoring = False
        """Whether inode numbers are no part of versions, from the start."""
        self._compared: tuple[Path, ...] = ()
        """Where names are that nodes compare, to find out."""

    def run(self, ready: Callable[[], None]) -> None:
        """Mount, serve until unmounted or told to end, and leave nothing behind."""
        with self._cleanup:
            for number in ENDING:
                self._cleanup.callback(signal.signal, number, signal.getsignal(number))
            if self._reopens_log:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is who sees to it
            if self.users is not None:
                self._cleanup.callback(self.users.clean_up)
            if self.launch is not None:
                self._cleanup.callback(self.launch.listener.close)
                me, roster = self.launch.me, self.launch.roster
                name = roster.member(me).name
                log.info("node %d of %d, %s, in job %s", me, len(roster), name, roster.job)
            trio.run(self._main, ready)

    # --- the parts -------------------------------------------------------------------------------

    async def _main(self, ready: Callable[[], None]) -> None:
        settings = self.settings
        self._check()
        _raise_descriptor_limit()
        if self.launch is not None:
            _keep_freed_memory()
        grants: list[_Grants] = []
        use_front = self._front_wanted and self._native_is_there()
        all_mounts = mounts()
        apart = self.launch is not None and are_apart(self.launch.roster)
        policy = policy_for(settings, all_mounts, self.source_root, apart=apart)
        store = await open_tier_store(settings, self.source_root)
        trees = trees_of(settings, self.launch) if self.launch is not None else None
        limits = self._limits(credit=use_front and trees is None, trees=trees)
        placement = placement_of(settings, self.launch)
        node = Node(policy, limits, trees, self._patience(), Random(), placement)
        fetcher = self._fetcher(
            use_front, lambda: grants[0].renew() if grants else node.policy.refused
        )
        self._cleanup.callback(fetcher.close)
        self._ignoring = ignores_inodes(settings, all_mounts, policy)
        self._compared = compared_prefixes(all_mounts, policy)
        if self._ignoring:
            log.info("inode numbers are no part of versions (--inodes)")
            fetcher.ignore_inodes()

        if clean_up_stale(settings.mountpoint):
            log.info("cleaned up what a killed daemon had left at %s", settings.mountpoint)
        # It may hang, and then has to be killed: so before anything is mounted.
        statfs = Statfs(self._ask_statfs)
        parts = _Parts(node, fetcher, store, statfs, grants)
        for number in ENDING:
            # Once it ends it cleans up, however often it is told.
            signal.signal(number, signal.SIG_IGN)
        with trio.open_signal_receiver(*ENDING) as told:
            run = self._run_front if use_front else self._run_plain
            await run(parts, told, ready)
        if self._failed is not None:
            raise self._failed

    async def _run_front(
        self, parts: "_Parts", told: AsyncIterator[int], ready: Callable[[], None]
    ) -> None:
        """The mount with the front."""
        node, fetcher, grants, settings = parts.node, parts.fetcher, parts.grants, self.settings
        metrics = settings.metrics
        listener = open_port(int(metrics)) if metrics is not None and metrics.isdecimal() else None
        if listener is not None:
            self._cleanup.callback(listener.close)

        from copperfs.fuse._front import Front  # may not be there

        fuse_fd = open_channel(settings.mountpoint, self._options())
        self._cleanup.callback(os.close, fuse_fd)
        self._cleanup.callback(self._unmount_at_last)
        own = self._watch_own_mounts(node, trio.lowlevel.current_trio_token())
        miss, handlers_end = self._socketpair()
        control, server_end = self._socketpair()
        front = Front(
            fuse_fd,
            miss.fileno(),
            control.fileno(),
            settings.front_threads,
            nodes_max=self._nodes_max(),
            deadline_s=settings.source_deadline_s,
            kernel_cache=settings.kernel_cache,
        )
        self._cleanup.callback(front.stop)
        limits = node.limits
        front.set_reader(
            fetcher.reader(self._own_device()),
            limits.whole_max_bytes,
            limits.credit_bytes,
            limits.ahead_max,
            self._finds_holes(),
        )
        grants.append(_Grants(node, fetcher, front, own, node.policy.refused))
        board = Board(front)
        engine = Engine(node, fetcher, board)
        self._equip(engine, parts.store)
        self._join(engine)
        statfs = parts.statfs
        statfs.publish = partial(_publish_statfs, front)
        handlers = FrontHandlers(engine, board, statfs, allow_other=self.settings.allow_other)
        # libfuse closes its end itself
        pyfuse3.init(handlers, f"/dev/fd/{handlers_end.detach()}", set())
        self._cleanup.callback(pyfuse3.close, unmount=False)
        statistics = Statistics(engine, front)
        job = Job(engine, settings, statistics.document, statistics.reset, self._roster)
        profiler = Profiler(front, engine, board)
        self._sockets.append(server_end)
        server = ControlServer(
            server_end,
            {
                **self._answerers(job, statistics, board),
                Request.PROFILE_END: profiler.end,
            },
            {
                Request.WARM_UP: job.warm_up,
                Request.SCRUB: job.scrub,
                Request.SCRUB_STATE: job.scrub_state,
                Request.RING: job.ring,
                Request.PROFILE_BEGIN: profiler.begin,
            },
        )
        front.start()
        _raise_read_ahead(settings.mountpoint)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            nursery.start_soon(self._run_trimming, node)
            nursery.start_soon(self._run_shedding, front)
            nursery.start_soon(_hear_of_fetched, engine, board)
            nursery.start_soon(grants[0].run)
            nursery.start_soon(profiler.run)
            if listener is not None:
                nursery.start_soon(serve, listener, partial(self._metrics, statistics))
            elif metrics is not None:
                nursery.start_soon(write, metrics, partial(self._metrics, statistics))
            nursery.start_soon(self._logs.run)
            nursery.start_soon(self._run_signals, told)
            nursery.start_soon(self._run_users)
            nursery.start_soon(self._serve_handlers)
            _publish_statfs(front, statfs.known)
            nursery.start_soon(_withdraw_statfs, front)
            if os.environ.get("COPPERFS_BENCH_BUSY"):
                threading.Thread(target=_keep_busy, daemon=True).start()
            nursery.start_soon(self._become_ready, job, ready, nursery)
            await server.run()  # until the mount is gone
            log.info("%s was unmounted", settings.mountpoint)
            await engine.leave()
            await self._finish_writing(engine)
            pyfuse3.terminate()
            nursery.cancel_scope.cancel()

    async def _run_plain(
        self, parts: "_Parts", told: AsyncIterator[int], ready: Callable[[], None]
    ) -> None:
        """The mount without the front."""
        if self.settings.metrics is not None:
            log.warning("--metrics is left out: there are no statistics without the C front")
        inodes, node = Inodes(), parts.node
        engine = Engine(node, parts.fetcher, PlainPublications(inodes))
        self._equip(engine, parts.store)
        self._join(engine)
        job = Job(engine, self.settings, dict, node.reset_statistics, self._roster)
        handlers = PlainHandlers(
            engine,
            inodes,
            parts.statfs,
            kernel_cache=self.settings.kernel_cache,
            allow_other=self.settings.allow_other,
        )
        pyfuse3.init(handlers, self.settings.mountpoint, set(self._options()))
        self._cleanup.callback(pyfuse3.close, unmount=False)
        self._cleanup.callback(self._unmount_at_last)
        mounted = mount_at(self.settings.mountpoint)
        assert mounted is not None, "mounted a moment ago"
        # Closed by the end of the process, and not before: umount waits for that.
        self._announcement = announce(mounted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            nursery.start_soon(self._run_trimming, node)
            nursery.start_soon(self._logs.run)
            nursery.start_soon(self._run_signals, told)
            nursery.start_soon(self._run_users)
            nursery.start_soon(self._become_ready, job, ready, nursery)
            await pyfuse3.main(max_tasks=HANDLER_TASKS_MAX)
            await engine.leave()
            await self._finish_writing(engine)
            nursery.cancel_scope.cancel()

    @property
    def _reopens_log(self) -> bool:
        """Whether SIGHUP is the word of who rotates logs, and not of a terminal that hangs up."""
        return self.settings.log_file is not None and not self.settings.foreground

    def _options(self) -> list[str]:
        return mount_options(self.settings.source, allow_other=self.settings.allow_other)

    @staticmethod
    def _equip(engine: Engine, store: DiskStore | None) -> None:
        """With the disk of the data tier, if there is one."""
        if store is not None:
            engine.tier = TierDisk(store, engine.blobs, engine.post)

    def _join(self, engine: Engine) -> None:
        """Take part in the job, if there are other nodes."""
        if self.launch is None:
            return
        chronicle = Chronicle(self.launch.me, self.launch.roster, self.settings.events)
        chronicle.open()
        self._cleanup.callback(chronicle.close)
        engine.happened = chronicle.note
        transport = transport_of(self.launch)
        self._cleanup.callback(transport.close)
        comparison = join_job(self.settings, self.launch, engine, transport)
        comparison.ignoring, comparison.prefixes = self._ignoring, self._compared

    @staticmethod
    async def _finish_writing(engine: Engine) -> None:
        """What was read from the source is there for the next job."""
        if engine.tier is not None:
            await engine.tier.wait_moved()

    @property
    def _roster(self) -> Roster | None:
        return None if self.launch is None else self.launch.roster

    # --- tasks -----------------------------------------------------------------------------------

    async def _become_ready(
        self, job: Job, ready: Callable[[], None], nursery: trio.Nursery
    ) -> None:
        """Say so when the mount answers, which it does when the nodes that it asks do."""
        if job.engine.tier is not None:
            await job.engine.tier.wait_begun()
        try:
            await job.readiness.wait()
            log.info("%s is mounted at %s", self.settings.source, self.settings.mountpoint)
            ready()
        except MountError as error:
            self._failed = error
            if self.users is not None:
                self.users.refuse(str(error))
            nursery.cancel_scope.cancel()
            return
        if self.users is not None:
            self.users.ready.set()

    async def _run_users(self) -> None:
        """End when the last one has gone."""
        if self.users is None:
            return
        await self.users.run()
        log.info("nobody uses %s any more: unmounting", self.settings.mountpoint)
        await trio.to_thread.run_sync(self._unmount_or_detach)

    async def _serve_handlers(self) -> None:
        await pyfuse3.main(max_tasks=HANDLER_TASKS_MAX)

    async def _run_signals(self, told: AsyncIterator[int]) -> None:
        async for number in told:
            if number == signal.SIGHUP and self._reopens_log:
                self._logs.reopen()
                continue
            log.info("%s: unmounting", signal.Signals(number).name)
            # In a thread: the kernel may have to be answered while it unmounts.
            await trio.to_thread.run_sync(self._unmount_or_detach)

    @staticmethod
    async def _run_shedding(front: "Front") -> None:
        """Keep the front's tables within their bound: the kernel is told to forget names."""
        while True:
            await trio.sleep(SHED_EVERY_S)
            counts = front.statistics()
            excess = counts["nodes"] - counts["nodes_max"]
            if excess > 0:
                await trio.to_thread.run_sync(front.shed, excess + counts["nodes_max"] // 8)

    async def _run_trimming(self, node: Node) -> None:
        """In a job the heap keeps the free memory that ZeroMQ uses again."""
        kept_bytes = 0 if self.launch is None else KEPT_FREE_BYTES
        await trim_heap(lambda: node.left_bytes, node.limits.memory_bytes, kept_bytes)

    def _metrics(self, statistics: Statistics) -> str:
        return render(statistics.document(), self.settings, own_name(self.settings))

    # --- what can be asked -----------------------------------------------------------------------

    def _answerers(
        self, job: Job, statistics: Statistics, board: Board
    ) -> dict[Request, Callable[[], Awaitable[object]]]:
        engine = job.engine

        async def hello() -> object:
            return {
                "copperfs": 1,
                "versions": [1],
                "pid": os.getpid(),
                "uid": os.getuid(),
                "mountpoint": self.settings.mountpoint,
                "source": self.settings.source,
            }

        async def show_statistics() -> object:
            return statistics.document()

        async def reset() -> object:
            statistics.reset()
            return {"reset": True}

        async def configuration() -> object:
            return asdict(self.settings)

        async def objects() -> object:
            board.hear(engine)  # of what was read up to now
            held = engine.node.held()
            if len(held) <= OBJECTS_AT_ONCE:
                return [_shown(key, size) for key, size in held]
            if len(held) > OBJECTS_MAX:
                raise TooLong
            # No list of hundreds of thousands is made while others wait for trio's thread.
            return await trio.to_thread.run_sync(
                lambda: [_shown(key, size) for key, size in held], abandon_on_cancel=True
            )

        return {
            Request.HELLO: hello,
            Request.STATISTICS: show_statistics,
            Request.RESET: reset,
            Request.RESET_ALL: job.reset_all,
            Request.CLEAR: job.clear,
            Request.CLEAR_LOCAL: job.clear_local,
            Request.ALL_STATISTICS: job.all_statistics,
            Request.TREE: job.tree,
            Request.WARM_UP_STATE: job.warm_up_state,
            Request.CONFIGURATION: configuration,
            Request.OBJECTS: objects,
        }

    # --- odds and ends ---------------------------------------------------------------------------

    def _check(self) -> None:
        source, mountpoint = self.settings.source, self.settings.mountpoint
        if not os.path.isdir(self.source_root):
            raise MountError(f"the source {source} is not a directory that can be read")
        mounted = mount_at(mountpoint)
        if mounted is None and not os.path.isdir(mountpoint):
            raise MountError(f"{mountpoint} is not a directory; make it with: mkdir {mountpoint}")
        patience = self._patience()
        if patience.dead_s < 2 * patience.heartbeat_s + patience.silent_s:
            raise MountError(
                "--dead-after has to be at least twice --heartbeat and --hedge-after together, or "
                "nodes that are well are taken for gone"
            )
        check_shared(self.settings, self.source_root)
        for each in self.settings.ring:
            if ring_prefix(self.settings, self.source_root, each) is None:
                raise MountError(f"--ring {each} is not below the source, {source}")
        if os.path.realpath(source) == mountpoint:
            raise MountError(f"{mountpoint} cannot show itself; mount it somewhere else")

    def _limits(self, *, credit: bool, trees: Trees | None) -> Limits:
        memory_bytes = self.settings.memory_bytes
        return Limits(
            memory_bytes=memory_bytes,
            credit_bytes=min(CREDIT_MAX, memory_bytes // 4) if credit else 0,
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
            lost_from_source=self.settings.on_failure == "source",
            takers_max=1 if trees is None else trees.fanout,
        )

    def _patience(self) -> Patience:
        return Patience(
            silent_s=self.settings.hedge_after_s,
            heartbeat_s=self.settings.heartbeat_s,
            dead_s=self.settings.dead_after_s,
            reach_s=self.settings.launch_timeout_s,
        )

    def _ahead_max(self) -> int:
        """How many files at a time: who asks for one finds a thread free, and a server that is not
        busy with many others."""
        half = max(1, self.settings.source_concurrency // 2)
        return min(AHEAD_MAX, half) if self.settings.read_ahead else 0

    def _finds_holes(self) -> bool:
        """Whether this node may look where large files of the source have data: not if others read
        them for it, and it must not do so in their place."""
        others_read = self.launch is not None and chunk_bytes_of(self.settings, self.launch) > 0
        return self.settings.fallback or not others_read

    def _own_device(self) -> int:
        mounted = mount_at(self.settings.mountpoint)
        assert mounted is not None, "mounted a moment ago"
        major, _, minor = mounted.device.partition(":")
        return os.makedev(int(major), int(minor))

    def _nodes_max(self) -> int:
        return min(NODES_MAX, max(NODES_MIN, self.settings.memory_bytes // 16 // NODE_BYTES))

    @staticmethod
    def _native_is_there() -> bool:
        try:
            import copperfs.fuse._front
            import copperfs.source._native  # noqa: F401
        except ImportError as error:
            log.warning(
                "the C extensions cannot be used (%s): running on plain pyfuse3, slower, and "
                "without 'copperfs stats' and 'copperfs clear'",
                error,
            )
            return False
        return BLOBS_ARE_SHARED

    def _fetcher(self, native: bool, untouchable: Callable[[], frozenset[Path]]) -> Fetcher:
        kind: type[Fetcher] = ThreadFetcher
        if native:
            from copperfs.source.native import NativeFetcher

            kind = NativeFetcher
        return kind(
            self.source_root,
            listing_max=self.settings.listing_max,
            concurrency=self.settings.source_concurrency,
            deadline_s=self.settings.source_deadline_s,
            untouchable=untouchable,
        )

    def _watch_own_mounts(self, node: Node, token: trio.lowlevel.TrioToken) -> OwnMounts:
        mounted = mount_at(self.settings.mountpoint)
        assert mounted is not None, "mounted a moment ago"

        def refuse(paths: frozenset[Path]) -> None:
            def apply() -> None:
                node.step(time.monotonic(), MountsMoved(paths))  # which wants nothing done

            with suppress(trio.RunFinishedError):
                token.run_sync_soon(apply)

        own = OwnMounts(self.source_root, mounted.device, refuse)
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
        mountpoint = self.settings.mountpoint
        try:
            unmount(mountpoint)
        except MountError as error:
            log.info("%s; detaching it", error)
            with suppress(MountError):
                unmount(mountpoint, lazy=True)
            # Whoever uses it keeps the connection open, so nothing would tell the server.
            trio.from_thread.run_sync(self._end_server)

    def _end_server(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _unmount_at_last(self) -> None:
        """When something failed after mounting. Usually there is nothing mounted any more."""
        mounted = mount_at(self.settings.mountpoint)
        if mounted is not None and mounted.fstype == "fuse.copperfs":
            with suppress(MountError):
                unmount(self.settings.mountpoint, lazy=True)


def _publish_statfs(front: "Front", found: os.statvfs_result) -> None:
    front.publish_statfs(
        max(found.f_blocks, 1),
        found.f_bfree,
        found.f_bavail,
        max(found.f_files, 1),
        found.f_ffree,
        found.f_bsize,
        found.f_namemax,
        found.f_frsize,
    )


async def _withdraw_statfs(front: "Front") -> None:
    """Who wants to know then asks the handlers, and they the source."""
    while True:
        await trio.sleep(FRESH_S)
        front.withdraw_statfs()


async def _hear_of_fetched(engine: Engine, board: Board) -> None:
    """Tell the core what the front has fetched without asking."""
    while True:
        await trio.lowlevel.wait_readable(board.front.fetched_fileno())
        await trio.sleep(FETCHED_EVERY_S)
        board.hear(engine)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What there is before anything is mounted, with the front or without."""

    node: Node
    fetcher: Fetcher
    store: DiskStore | None
    statfs: Statfs
    grants: "list[_Grants]"
    """One, as soon as there is a front."""


@dataclass(slots=True)
class _Grants:
    """Lets the source be listed without asking, but only while it is known where the daemon's own
    mount shows up in it: the source's threads stop by themselves when anything is mounted."""

    node: Node
    fetcher: Fetcher
    front: "Front"
    own: OwnMounts
    granted_for: frozenset[Path]

    def renew(self) -> frozenset[Path]:
        """Look where the own mount is now. Also done for each fetch of the core's, so that only the
        first request after a mount takes the long way."""
        if not self.fetcher.watch_mounts():
            return self.own()
        paths = self.own()
        if paths != self.granted_for:
            self.front.revoke_below()
            self.granted_for = paths
        if paths == self.node.policy.refused:
            self.fetcher.trust_mounts()
            self.front.add_credit(0)  # what was to be listed ahead waits
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


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """glibc gives back to the system what is free at the end of a heap, and maps what is large."""
    with suppress(AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, ALLOCATED_BYTES_MAX)


def _raise_read_ahead(mountpoint: str) -> None:
    """The kernel reads 128 KiB ahead unless root raises it."""
    mounted = mount_at(mountpoint)
    if mounted is None:
        return
    knob = FilePath(f"/sys/class/bdi/{mounted.device}/read_ahead_kb")
    with suppress(OSError):
        knob.write_text(str(READ_AHEAD_KIB))


def _keep_busy() -> None:
    """For benchmarks: a thread of the daemon that computes, as a large job's daemon may."""
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def set_up_logging(settings: Settings, *, to_stderr: bool) -> None:
    """Messages of this process; nowhere unless there is a file, or a terminal that is kept."""
    handler: logging.Handler = logging.NullHandler()
    if settings.log_file is not None:
        handler = LogFile(settings.log_file)
    elif to_stderr:
        handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)


def main() -> int:
    """``python -m copperfs.runtime.daemon FD``: settings in, one line of outcome out."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    with channel.makefile("r", encoding="ascii") as lines:
        settings = Settings.from_json(lines.readline())
        launch = Launch.receive_from(lines)
        users = Users.receive_from(lines, settings)

    def tell(**outcome: object) -> bool:
        """Whether anybody is there to hear it."""
        try:
            channel.sendall(json.dumps(outcome).encode() + b"\n")
        except OSError:
            return False
        finally:
            channel.close()
        return True

    def ready() -> None:
        # Nobody would know of the mount, or unmount it. Those of a run come and go by themselves.
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


if __name__ == "__main__":
    sys.exit(main())
