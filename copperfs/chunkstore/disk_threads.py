"""Disk threads: a fixed number of threads wait for the disk, so that trio's thread does not.

trio's ``to_thread`` does not report when an abandoned call returns in the end, and a chunk may not
be evicted before its reader has ended. A job here tells trio's thread that it is over, even if no
task waits for it. Threads that hang are not replaced: the store is then not used.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

T = TypeVar("T")

QUEUED_MAX = 4
"""With 2 s a read, 8 s: less than the 10 s that a peer waits for a chunk owner."""


@dataclass(slots=True, eq=False)
class DiskJob(Generic[T]):
    work: Callable[[], T]
    over: Callable[[], None]
    """On trio's thread, when the job has ended, or will never begin."""
    _result: list[T] = field(default_factory=list)
    _error: BaseException | None = None
    _ended: trio.Event = field(default_factory=trio.Event)

    async def wait(self) -> T:
        await self._ended.wait()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # breaks a cycle with this frame, which keeps all that the work used
        return self._result[0]

    def perform(self) -> None:
        try:
            self._result.append(self.work())
        except BaseException as error:  # noqa: BLE001  # it is raised where the job is waited for
            self._error = error

    def end(self) -> None:
        self._ended.set()
        self.over()


@dataclass(slots=True)
class DiskThreads:
    """Made on trio's thread."""

    count: int
    name: str
    late: int = 0
    """They took too long, and still run."""
    _stuck: bool = False
    """A job timed out before a thread took it, and none has ended since."""
    _ended: int = 0
    _jobs: deque[DiskJob] = field(default_factory=deque)  # type: ignore[type-arg]  # of any result
    _condition: threading.Condition = field(default_factory=threading.Condition)
    _trio: trio.lowlevel.TrioToken = field(default_factory=trio.lowlevel.current_trio_token)
    _unfinished: int = 0
    _all_done: trio.Event = field(default_factory=trio.Event)
    _threads: int = 0
    _idle: int = 0
    _closed: bool = False

    def start(self, work: Callable[[], T], over: Callable[[], None] | None = None) -> DiskJob[T]:
        def ended() -> None:
            self._unfinished -= 1
            if not self._unfinished:
                self._all_done.set()
            if over is not None:
                over()

        job = DiskJob(work, ended)
        self._unfinished += 1
        if self._all_done.is_set():
            self._all_done = trio.Event()
        with self._condition:
            assert not self._closed
            self._jobs.append(job)
            if len(self._jobs) > self._idle and self._threads < self.count:
                self._threads += 1
                threading.Thread(target=self._work, name=self.name, daemon=True).start()
            self._condition.notify()
        return job

    async def run(
        self, work: Callable[[], T], deadline_s: float, over: Callable[[], None] | None = None
    ) -> T:
        """TimeoutError if *work* takes too long, and at once while all threads are at jobs that
        did. A job may wait for a thread up to ``QUEUED_MAX`` times *deadline_s* while others
        end."""
        if self._stuck or self.late >= self.count:
            if over is not None:
                over()
            raise TimeoutError
        given_up = False

        def ended() -> None:
            self.late -= given_up
            self._stuck = False
            self._ended += 1
            if over is not None:
                over()

        job = self.start(work, ended)
        was_queued = self._unfinished > self.count
        try:
            for _ in range(QUEUED_MAX):
                ended_before = self._ended
                with trio.move_on_after(deadline_s):
                    return await job.wait()
                is_queued = self._is_queued(job)
                if not was_queued or (is_queued and self._ended == ended_before):
                    break
                was_queued = is_queued
        except trio.Cancelled:
            self._withdraw(job)
            raise
        if self._withdraw(job):
            self._stuck = True
        else:
            given_up = True
            self.late += 1
        raise TimeoutError

    def close(self) -> None:
        """Begin no more jobs."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    async def wait_idle(self) -> None:
        while self._unfinished:
            await self._all_done.wait()

    def _is_queued(self, job: DiskJob[T]) -> bool:
        with self._condition:
            return job in self._jobs

    def _withdraw(self, job: DiskJob[T]) -> bool:
        with self._condition:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
        stuck, ended = self._stuck, self._ended
        job.end()
        self._stuck, self._ended = stuck, ended  # no thread has come back
        return True

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._jobs and not self._closed:
                    self._idle += 1
                    self._condition.wait()
                    self._idle -= 1
                if not self._jobs:
                    self._threads -= 1
                    return
                job = self._jobs.popleft()
            job.perform()
            # Once trio has ended, no task waits.
            with suppress(trio.RunFinishedError):
                self._trio.run_sync_soon(job.end)
            del job  # its result is not kept until the next job
