"""Threads that wait for the source, so that nobody else has to.

A fixed number work at a time. A thread that hangs in the source, on a disk that does not answer,
cannot be called back; once its caller has given up on it, it no longer counts, and another one is
started in its place, up to a limit. Beyond that the source as a whole has to be taken for hung, and
work for which no thread is idle fails at once with EIO.

trio's own ``to_thread`` is not used because its limiter counts a thread until it ends, so that 32
hung reads would stop all others for good.
"""

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.source.fetcher import PoolStats

log = logging.getLogger(__name__)

STUCK_MAX = 128
# Between two tries while descriptors or memory are used up.
PAUSE_FIRST_S, PAUSE_LAST_S = 0.002, 0.1
_OWN_TROUBLE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[], object]
    done: Callable[[object], None]
    deadline_s: float
    started: float | None = None
    abandoned: bool = False


@dataclass(slots=True)
class Pool:
    """Runs blocking work. *deliver* carries an outcome to where the caller lives."""

    concurrency: int
    deliver: Callable[[Callable[[], None]], None]
    make_room: Callable[[], object] = lambda: None
    """Gives up descriptors that can be spared."""
    left_behind: Callable[[], int] = lambda: 0
    """Threads that hang in the source and are none of the pool's."""
    _jobs: deque[_Job] = field(default_factory=deque)
    _running: set[_Job] = field(default_factory=set)
    _condition: threading.Condition = field(default_factory=threading.Condition)
    _threads: int = 0
    _idle: int = 0
    _stuck: int = 0
    _closed: bool = False

    def submit(
        self, work: Callable[[], object], done: Callable[[object], None], deadline_s: float
    ) -> None:
        """Call ``done`` with what *work* returns, or with the OSError that it raises."""
        job = _Job(work, done, deadline_s)
        with self._condition:
            self._give_up_on_stuck()
            if self._stuck + self.left_behind() >= STUCK_MAX and self._idle <= len(self._jobs):
                hung = OSError(errno.EIO, "the source does not answer")
                self.deliver(lambda: done(hung))
                return
            self._jobs.append(job)
            if not self._idle or len(self._jobs) > self._idle:
                self._start_thread()
            self._condition.notify()

    def replaces(self) -> bool:
        """Whether a thread that hangs is replaced by another one."""
        with self._condition:
            return self._stuck + self.left_behind() < STUCK_MAX

    def replace_stuck(self) -> None:
        """Start other threads for what waits behind those that hang."""
        with self._condition:
            self._give_up_on_stuck()

    def close(self) -> None:
        """Take on no more work. Threads that wait for the source end with the process."""
        with self._condition:
            self._closed = True
            self._jobs.clear()
            self._condition.notify_all()

    def statistics(self) -> PoolStats:
        with self._condition:
            stuck = self._stuck + self.left_behind()
            return PoolStats(self._threads, len(self._running), len(self._jobs), stuck)

    def _start_thread(self) -> None:
        all_threads = self._threads + self.left_behind()
        if (
            self._threads - self._stuck < self.concurrency
            and all_threads < self.concurrency + STUCK_MAX
        ):
            self._threads += 1
            threading.Thread(target=self._work, name="copperfs-source", daemon=True).start()

    def _give_up_on_stuck(self) -> None:
        now = time.monotonic()
        for job in list(self._running):
            if job.started is not None and now - job.started > job.deadline_s:
                self._running.discard(job)
                job.abandoned = True
                self._stuck += 1
        # work that waited behind them gets threads of its own
        for _ in range(min(len(self._jobs), self.concurrency)):
            self._start_thread()

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._jobs and not self._closed:
                    self._idle += 1
                    self._condition.wait()
                    self._idle -= 1
                if self._closed:
                    self._threads -= 1
                    return
                job = self._jobs.popleft()
                job.started = time.monotonic()
                self._running.add(job)
            result: object
            try:
                result = self._work_patiently(job)
            except OSError as error:
                result = error
            except Exception:
                log.exception("a bug: reading the source failed in an unforeseen way")
                result = OSError(errno.EIO, "internal error")
            with self._condition:
                self._running.discard(job)
                if job.abandoned:
                    self._stuck -= 1
                surplus = self._threads - self._stuck > self.concurrency
                if surplus:
                    self._threads -= 1
            self._hand_over(job, result)
            if surplus:
                return

    def _work_patiently(self, job: _Job) -> object:
        """If descriptors or memory are used up, the daemon is at fault and not the source. So the
        job waits until they come back; at its deadline it ends as one of a slow source does."""
        until = time.monotonic() + job.deadline_s
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                return job.work()
            except MemoryError:
                pass
            except OSError as error:
                if error.errno not in _OWN_TROUBLE:
                    raise
            if self._closed or time.monotonic() + pause_s > until:
                raise OSError(errno.ETIMEDOUT, "descriptors or memory are used up")
            self.make_room()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_LAST_S)

    def _hand_over(self, job: _Job, result: object) -> None:
        try:
            self.deliver(lambda: job.done(result))
        except RuntimeError:
            log.debug("an answer of the source came after the end")
