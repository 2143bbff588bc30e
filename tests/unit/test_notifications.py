"""Kernel notifications: ordered within each directory, independent between directories, and
bounded.
"""

import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from copperfs.daemon.kernel_notifications import (
    EACH_DIRECTORY_MAX,
    THREADS_MAX,
    WAITING_MAX,
    Notifications,
)
from copperfs.model.types import Path

WITHIN_S = 30.0


@dataclass
class Kernel:
    notifications: Notifications
    told: list[bytes] = field(default_factory=list)
    _pipes: dict[bytes, int] = field(default_factory=dict)

    def add(self, path: bytes, said: bytes | None = None) -> None:
        self.notifications.add(Path(path), lambda: self.told.append(said or path))

    async def hang(self, path: bytes) -> None:
        reading_end, self._pipes[path] = os.pipe()

        def tell() -> None:
            os.read(reading_end, 1)
            os.close(reading_end)
            self.told.append(path)

        self.notifications.add(Path(path), tell)
        await trio.testing.wait_all_tasks_blocked()

    def release(self, path: bytes) -> None:
        os.write(self._pipes[path], b"x")

    async def settle(self, waiting: int = 0) -> None:
        while self.notifications.waiting > waiting:
            await trio.lowlevel.checkpoint()

    def close(self) -> None:
        for writing_end in self._pipes.values():
            os.close(writing_end)  # which releases the calls that still hang


@asynccontextmanager
async def a_kernel() -> AsyncIterator[Kernel]:
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            kernel = Kernel(Notifications())
            nursery.start_soon(kernel.notifications.run)
            try:
                yield kernel
            finally:
                kernel.close()
            await kernel.settle()
            nursery.cancel_scope.cancel()


def test_one_directory_that_hangs_holds_up_no_other() -> None:
    async def main() -> None:
        async with a_kernel() as kernel:
            await kernel.hang(b"hung/name")
            kernel.add(b"hung/after it")
            kernel.add(b"other/name")
            kernel.add(b"name")
            await kernel.settle(waiting=2)
            assert sorted(kernel.told) == [b"name", b"other/name"]

    trio.run(main)


def test_what_is_said_of_one_directory_is_said_in_order() -> None:
    async def main() -> None:
        async with a_kernel() as kernel:
            paths = [b"directory/%d" % number for number in range(20)]
            for path in paths:
                kernel.add(path)
            await kernel.settle()
            assert kernel.told == paths

    trio.run(main)


def test_a_name_that_waits_is_not_queued_twice_and_its_latest_number_is_told() -> None:
    async def main() -> None:
        async with a_kernel() as kernel:
            await kernel.hang(b"d/hung")
            kernel.add(b"d/name", b"the old number")
            kernel.add(b"d/name", b"the new number")
            assert kernel.notifications.waiting == 2
            kernel.release(b"d/hung")
            await kernel.settle()
            assert kernel.told == [b"d/hung", b"the new number"]

    trio.run(main)


def tell_all(kernel: Kernel) -> None:
    kernel.told.append(b"everything")


def test_all_names_being_old_is_told_once_and_waits_for_no_directory() -> None:
    async def main() -> None:
        async with a_kernel() as kernel:
            await kernel.hang(b"d/hung")
            for _ in range(WAITING_MAX):
                kernel.notifications.add_everything(lambda: tell_all(kernel))
            assert kernel.notifications.waiting <= 3
            await kernel.settle(waiting=1)
            assert set(kernel.told) == {b"everything"}

    trio.run(main)


@pytest.mark.parametrize("spread", [False, True], ids=["one directory", "all"])
def test_what_has_no_room_is_dropped_counted_and_said_once(
    spread: bool, expected_warnings: Callable[[str], None]
) -> None:
    async def main() -> None:
        async with a_kernel() as kernel:
            for number in range(THREADS_MAX):
                await kernel.hang(b"%d/hung" % number)
            room = WAITING_MAX - THREADS_MAX if spread else EACH_DIRECTORY_MAX
            for number in range(room + 5):
                kernel.add(b"%d/%d" % (number % THREADS_MAX if spread else 0, number))
            assert kernel.notifications.dropped == 5
            assert kernel.notifications.waiting == THREADS_MAX + room

    expected_warnings("the kernel is not told to look")
    trio.run(main)


def test_who_waits_for_a_name_waits_for_what_was_said_of_it_and_above_it() -> None:
    async def main() -> None:
        async with a_kernel() as kernel:
            await kernel.hang(b"other/hung")
            await kernel.hang(b"a")
            kernel.add(b"a/b/c")
            done = trio.Event()

            async def wait() -> None:
                await kernel.notifications.wait_told(Path(b"a/b/c"), WITHIN_S)
                done.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await kernel.settle(waiting=2)
                assert not done.is_set()
                kernel.release(b"a")
                await done.wait()
            assert kernel.told == [b"a/b/c", b"a"]
            assert kernel.notifications.late == 0

    trio.run(main)


def test_one_that_fails_is_said_and_ends_nothing(
    expected_warnings: Callable[[str], None],
) -> None:
    def fail() -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    async def main() -> None:
        async with a_kernel() as kernel:
            await kernel.hang(b"d/hung")
            kernel.notifications.add(Path(b"d/failing"), fail)
            kernel.add(b"d/after it")
            kernel.release(b"d/hung")
            await kernel.notifications.wait_told(Path(b"d/failing"), WITHIN_S)
            assert kernel.notifications.late == 0
            await kernel.settle()
            assert kernel.told == [b"d/hung", b"d/after it"]
            for _ in range(THREADS_MAX + 1):  # one more than the threads that send
                kernel.notifications.add(Path(b"d/failing"), fail)
                await kernel.settle()

    expected_warnings("the kernel was not told to look")
    trio.run(main)
