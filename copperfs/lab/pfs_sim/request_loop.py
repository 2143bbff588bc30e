"""Request loop: reads requests, holds each until its servers are done with it, and performs it.

On arrival it counts a request and reserves its time at a server (``server_model.py``). The request
then waits in a heap until it is due, and after that for matching rules. So latencies run
concurrently. They are as accurate as a timerfd, since epoll's own timeout counts in milliseconds.
"""

import ctypes
import errno
import heapq
import itertools
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress

from copperfs.lab.pfs_sim import fuse_wire as wire
from copperfs.lab.pfs_sim.fuse_wire import Op
from copperfs.lab.pfs_sim.passthrough import FuseRequest, PassthroughClient
from copperfs.lab.pfs_sim.pfs_faults import OperationCounts, Rules
from copperfs.lab.pfs_sim.pfs_settings import PfsSettings
from copperfs.lab.pfs_sim.server_model import Load, Pipes, Servers

# How often it checks whether an interrupted request's process is being killed.
KILLED_EVERY_S = 0.1
SIGKILL_BIT = 1 << 8


class Loop:
    def __init__(self, settings: PfsSettings) -> None:
        self.settings = settings
        self.latency_s = settings.latency_s
        self.read_latency_s = settings.read_latency_s
        self.metadata = Servers(settings.servers)
        self.data = Pipes(settings.data_servers, settings.bandwidth_bytes)
        self.rules = Rules()
        self.counts = OperationCounts()
        self.clients: dict[int, PassthroughClient] = {}
        self.ended = False
        self._hung: dict[int, list[FuseRequest]] = {}
        self._due: list[tuple[float, int, Callable[[FuseRequest], None], FuseRequest]] = []
        self._order = itertools.count()
        self._timer = _Timer()
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._message = memoryview(bytearray(wire.REQUEST_MAX))
        self.watch(self._timer.fd, lambda _: self._timer.fired())

    # --- descriptors -----------------------------------------------------------------------------

    def watch(self, fd: int, callback: Callable[[int], None], events: int = select.EPOLLIN) -> None:
        if fd in self._callbacks:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        del self._callbacks[fd]
        self._epoll.unregister(fd)

    def add_client(self, client: PassthroughClient) -> None:
        self.clients[client.fuse_fd] = client
        self.watch(client.fuse_fd, lambda _: self._take(client))

    def run(self) -> None:
        due, callbacks, poll = self._due, self._callbacks, self._epoll.poll
        while self.clients and not self.ended:
            if due:
                self._timer.arm(due[0][0])
            for fd, events in poll():
                callback = callbacks.get(fd)
                if callback is not None:
                    callback(events)
            while due and due[0][0] <= time.monotonic():
                _, _, then, request = heapq.heappop(due)
                if not request.gone:
                    then(request)

    def close(self) -> None:
        for client in list(self.clients.values()):
            self._drop(client)
        self._epoll.close()
        self._timer.close()

    def _drop(self, client: PassthroughClient) -> None:
        self.unwatch(client.fuse_fd)
        del self.clients[client.fuse_fd]
        client.close()

    # --- requests --------------------------------------------------------------------------------

    def _take(self, client: PassthroughClient) -> None:
        try:
            size = os.readv(client.fuse_fd, [self._message])
        except OSError as error:
            # ENOENT: the request was interrupted; EAGAIN: no request is left
            if error.errno in (errno.ENOENT, errno.EAGAIN, errno.EINTR):
                return
            self._drop(client)  # ENODEV: unmounted
            return
        message = self._message[:size]
        request = client.parse(message)
        if request is not None:
            self._arrive(request)
        elif wire.IN_HEADER.unpack_from(message)[1] == Op.INTERRUPT:
            (unique,) = wire.INTERRUPT_IN.unpack_from(message, wire.IN_HEADER.size)
            waiting = client.waiting.get(unique)
            if waiting is not None:
                self._end_if_killed(waiting)

    def _arrive(self, request: FuseRequest) -> None:
        client, op = request.client, request.op
        self.counts.count(op, request.path)
        client.operations[op] = client.operations.get(op, 0) + 1
        now = time.monotonic()
        if op == "open":
            self.counts.opened(request.path, now, client.mountpoint)
        if op == "read":
            due = self.data.reserve(now, *client.bytes_wanted(request)) + self.read_latency_s
        else:
            due = self.metadata.reserve(now, self.latency_s)
        if due > now:
            client.waiting[request.unique] = request
            self._at(due, self._served, request)
        else:
            self._served(request)

    def _served(self, request: FuseRequest) -> None:
        if self.rules:
            server = self._data_server_of(request)
            if not request.delayed:
                request.delayed = True
                matching = self.rules.matching("delay", request.op, request.path, server)
                delay_s = sum(rule.seconds for rule in matching)
                if delay_s:
                    request.client.waiting[request.unique] = request
                    self._at(time.monotonic() + delay_s, self._served, request)
                    return
            for rule in self.rules.matching("hang", request.op, request.path, server):
                request.client.waiting[request.unique] = request
                self._hung.setdefault(rule.rule, []).append(request)
                return
            for rule in self.rules.matching("fail", request.op, request.path, server):
                self._forget(request)
                request.client.reply(wire.error(request.unique, rule.errno))
                return
        self._forget(request)
        request.client.perform(request)

    def _data_server_of(self, request: FuseRequest) -> int | None:
        number = request.client.number_of(request) if request.op == "read" else None
        return None if number is None else number % self.data.count

    def _at(self, due: float, then: Callable[[FuseRequest], None], request: FuseRequest) -> None:
        heapq.heappush(self._due, (due, next(self._order), then, request))

    @staticmethod
    def _forget(request: FuseRequest) -> None:
        request.client.waiting.pop(request.unique, None)

    def _end_if_killed(self, request: FuseRequest) -> None:
        """Release the request of a process that is being killed; other signals wait, as on a real
        mount that hangs. The kernel sends one interrupt, for the first signal, hence the repeated
        check."""
        if request.client.waiting.get(request.unique) is not request:
            return
        if not _is_being_killed(request.pid):
            self._at(time.monotonic() + KILLED_EVERY_S, self._end_if_killed, request)
            return
        request.gone = True
        self._forget(request)
        request.client.reply(wire.error(request.unique, errno.EINTR))

    # --- control ---------------------------------------------------------------------------------

    @property
    def hanging(self) -> int:
        return sum(not each.gone for waiting in self._hung.values() for each in waiting)

    def release(self, number: int) -> None:
        """Operations that hang on it go on. KeyError if there is none."""
        self.rules.remove(number)
        self._go_on(self._hung.pop(number, []))

    def heal(self) -> None:
        hung = [each for waiting in self._hung.values() for each in waiting]
        self._hung.clear()
        self.rules.clear()
        self._go_on(hung)

    def _go_on(self, requests: list[FuseRequest]) -> None:
        for request in requests:
            if not request.gone:
                self._served(request)

    def reset(self) -> None:
        self.counts.reset()
        self.metadata.load, self.data.load = Load(), Load()
        for client in self.clients.values():
            client.operations.clear()


def _is_being_killed(thread: int) -> bool:
    try:
        with open(f"/proc/{thread}/status", encoding="ascii", errors="replace") as lines:
            pending = [int(each.split()[1], 16) for each in lines if each[:6] in _PENDING]
    except OSError:
        return True
    return any(mask & SIGKILL_BIT for mask in pending)


_PENDING = ("SigPnd", "ShdPnd")


class _Timer:
    """A timerfd, which Python has from 3.13."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        # CLOCK_MONOTONIC; TFD_NONBLOCK | TFD_CLOEXEC
        self.fd = self._library.timerfd_create(1, 0o2004000)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._armed = 0.0
        self._when = (ctypes.c_long * 4)()
        self._set = self._library.timerfd_settime
        self._set.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]

    def arm(self, when: float) -> None:
        if when == self._armed:
            return
        self._armed = when
        seconds = int(when)
        self._when[2], self._when[3] = seconds, int((when - seconds) * 1e9) or 1
        self._set(self.fd, 1, self._when, None)  # TFD_TIMER_ABSTIME

    def fired(self) -> None:
        """Read it, or it stays readable until armed again."""
        self._armed = 0.0
        with suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)
