"""Process pool: runs several simulations at once, each in a process of its own.

A simulation uses one core, and leaves memory behind. Each fork has its input without pickling, and
sends back its result. Results come in the order in which they are ready.
"""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar

T = TypeVar("T")


class Broken(RuntimeError):
    """The traceback of a simulation that ended without a result."""


def run_all(
    tasks: Sequence[Callable[[], T]], processes: int | None = None
) -> Iterator[tuple[int, T]]:
    """Each task's number and result. Closing the iterator ends the tasks that still run."""
    crew = _Crew(tasks)
    at_once = max(1, processes or os.cpu_count() or 1)
    try:
        waiting = list(range(len(tasks)))[::-1]
        while waiting or crew.running:
            while waiting and len(crew.running) < at_once:
                crew.begin(waiting.pop())
            yield from crew.ended()
    finally:
        crew.end()


class _Crew(Generic[T]):
    def __init__(self, tasks: Sequence[Callable[[], T]]) -> None:
        self._tasks = tasks
        self._context = multiprocessing.get_context("fork")
        self.running: dict[Connection, tuple[int, multiprocessing.process.BaseProcess]] = {}

    def begin(self, number: int) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        worker = self._context.Process(target=_work, args=(self._tasks[number], theirs))
        worker.start()
        theirs.close()
        self.running[ours] = number, worker

    def ended(self) -> Iterator[tuple[int, T]]:
        for ready in wait(list(self.running)):
            assert isinstance(ready, Connection)
            number, worker = self.running.pop(ready)
            try:
                result, fault = ready.recv()
            except EOFError:
                result, fault = None, "the process is gone; was there enough memory?"
            ready.close()
            worker.join()
            if fault is not None:
                raise Broken(fault)
            yield number, result

    def end(self) -> None:
        for connection, (_, worker) in self.running.items():
            worker.kill()
            worker.join()
            connection.close()


def _work(task: Callable[[], T], theirs: Connection) -> None:
    try:
        theirs.send((task(), None))
    except Exception:  # noqa: BLE001 - the other process raises it
        theirs.send((None, traceback.format_exc()))
    theirs.close()
