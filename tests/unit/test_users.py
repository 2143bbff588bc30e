"""Users of a shared mount: when the daemon of ``copperfs run`` ends. Users are sockets here, and
nothing is mounted."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict

import pytest
import trio
import trio.testing

from copperfs.config.settings import MIB, Settings
from copperfs.daemon import run_processes
from copperfs.daemon import shared_mount_server as module
from copperfs.daemon.attachment import MountedInside
from copperfs.daemon.shared_mount_server import Users
from copperfs.launch import shared_mount_client as said
from copperfs.launch.shared_mount_client import (
    Ending,
    First,
    Line,
    Use,
    Vanished,
    come,
    counter_name,
)
from copperfs.model.errors import MountError

WITHIN_S = 20.0


class Counter:
    def __init__(self, stack: ExitStack, expected: int, kind: type[Users] = Users) -> None:
        self.settings = Settings(mountpoint=f"/nowhere/{uuid.uuid4()}", memory_bytes=MIB)
        self._stack = stack
        came = come(self.settings.mountpoint, {})
        assert isinstance(came, First)
        self.socket = stack.enter_context(came.counter)
        ours, theirs = socket.socketpair()
        for each in (self.socket, theirs):
            each.setblocking(False)
        self.first = Line(stack.enter_context(ours))
        stack.enter_context(theirs)
        self.users = kind(self.settings, self.socket, theirs, expected)
        stack.callback(self._end)
        self.users.ready.set()
        self.greet(self.first)

    def _end(self) -> None:
        for each in self.users._parting:
            each.close()

    def greet(self, line: Line, **settings: object) -> None:
        line.say(settings=asdict(self.settings) | settings, token=uuid.uuid4().hex)

    def another(self, **settings: object) -> Line:
        sock = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        sock.connect(self.socket.getsockname())
        line = Line(sock)
        self.greet(line, **settings)
        return line


@contextmanager
def counter(expected: int = 1) -> Iterator[Counter]:
    with ExitStack() as stack:
        yield Counter(stack, expected)


async def hears(line: Line) -> dict[str, object]:
    return await trio.to_thread.run_sync(line.hear, WITHIN_S)


def run(shared: Counter, story: object) -> None:
    async def main() -> None:
        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(story)  # type: ignore[arg-type]  # an async function
                await shared.users.run()

    trio.run(main)


def test_the_last_one_is_told_so_and_waits_for_the_end() -> None:
    with counter() as shared:

        async def story() -> None:
            assert await hears(shared.first) == {"ready": True}
            second = shared.another()
            assert await hears(second) == {"ready": True}
            shared.first.say(bye=True)
            assert await hears(shared.first) == {"last": False, "read": {}}
            with pytest.raises(Vanished):
                await hears(shared.first)
            second.say(bye=True)
            assert await hears(second) == {"last": True, "read": {}}

        run(shared, story)


def test_who_comes_when_the_last_one_was_told_is_not_let_in() -> None:
    late: list[Line] = []

    class Watched(Users):
        def _part(self, sock: socket.socket) -> bool:
            last = super()._part(sock)
            late.append(shared.another())
            return last

    with ExitStack() as stack:
        shared = Counter(stack, 1, Watched)

        async def story() -> None:
            assert await hears(shared.first) == {"ready": True}
            shared.first.say(bye=True)
            assert await hears(shared.first) == {"last": True, "read": {}}

        run(shared, story)
        (line,) = late
        line.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            line.sock.recv(1)  # in the backlog, until the daemon's process has ended


def test_ranks_that_have_not_come_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", WITHIN_S)
    with counter(expected=2) as shared:

        async def story() -> None:
            assert await hears(shared.first) == {"ready": True}
            shared.first.say(bye=True)
            assert await hears(shared.first) == {"last": False, "read": {}}
            second = shared.another()
            assert await hears(second) == {"ready": True}
            second.say(bye=True)
            assert await hears(second) == {"last": True, "read": {}}

        run(shared, story)


def test_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.05)
    with counter(expected=2) as shared:

        async def story() -> None:
            shared.first.say(bye=True)
            assert await hears(shared.first) == {"ready": True}
            assert await hears(shared.first) == {"last": False, "read": {}}

        run(shared, story)


def test_when_one_was_killed_nobody_else_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 10 * WITHIN_S)
    with counter(expected=12) as shared:

        async def story() -> None:
            assert await hears(shared.first) == {"ready": True}
            shared.first.sock.close()

        run(shared, story)


def test_who_wants_something_else_is_refused_and_the_others_stay() -> None:
    with counter() as shared:

        async def story() -> None:
            other = shared.another(tree_max_bytes=1)
            said = await hears(other)
            assert "with another tree-max-bytes" in str(said["error"])
            assert await hears(shared.first) == {"ready": True}
            shared.first.say(bye=True)
            assert await hears(shared.first) == {"last": True, "read": {}}

        run(shared, story)


def test_what_follows_from_memory_is_compared_where_somebody_gave_it() -> None:
    with counter() as shared:

        async def story() -> None:
            second = shared.another(memory_bytes=None, tier_memory_bytes=None)
            assert await hears(second) == {"ready": True}
            third = shared.another(memory_bytes=2 * MIB)
            assert "with another memory-bytes" in str((await hears(third))["error"])
            for each in (shared.first, second):
                each.say(bye=True)
                await hears(each)

        run(shared, story)


def test_a_mount_that_fails_is_told_to_all() -> None:
    with counter() as shared:
        shared.users.ready = trio.Event()

        async def story() -> None:
            second = shared.another()
            await trio.testing.wait_all_tasks_blocked(0.1)
            shared.users.refuse("it is broken")
            for line in (shared.first, second):
                assert await hears(line) == {"error": "it is broken"}

        run(shared, story)


def test_who_comes_while_there_is_no_descriptor_is_let_in_later() -> None:
    class Exhausted:
        def __init__(self, counter: socket.socket) -> None:
            self.fileno, self._accept, self._failures = counter.fileno, counter.accept, 2

        def accept(self) -> object:
            self._failures -= 1
            if self._failures >= 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return self._accept()

    with counter(expected=2) as shared:
        shared.users.counter = Exhausted(shared.socket)  # type: ignore[assignment]  # all that is used

        async def story() -> None:
            second = shared.another()
            assert await hears(second) == {"ready": True}
            shared.first.say(bye=True)
            second.say(bye=True)

        run(shared, story)


def test_a_token_ends_what_was_started_with_it_and_nothing_else() -> None:
    token = uuid.uuid4().hex
    own, other = (
        subprocess.Popen(["sleep", "60"], env={**os.environ, "COPPERFS_RUN": value})
        for value in (token, token[:-1])
    )
    try:
        run_processes.kill_all_with(token)
        assert own.wait(WITHIN_S) == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(WITHIN_S)


def test_lines_that_come_in_pieces_are_put_together() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"ready"')
        theirs.sendall(b': true}\n{"last": false}\n')
        line = Line(ours)
        assert [line.hear(1), line.hear(1)] == [{"ready": True}, {"last": False}]
        with pytest.raises(TimeoutError):
            line.hear(0.01)
        theirs.close()
        with pytest.raises(Vanished):
            line.hear(1)


@pytest.mark.parametrize("listens", [False, True], ids=["bound", "takes nobody"])
def test_a_name_that_is_of_no_use_is_not_waited_for_for_ever(listens: bool) -> None:
    mountpoint = f"/nowhere/{uuid.uuid4()}"
    with ExitStack() as stack:
        other = stack.enter_context(socket.socket(socket.AF_UNIX))
        other.bind(counter_name(mountpoint))
        if listens:
            other.listen(0)
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.connect(counter_name(mountpoint))
        with pytest.raises(MountError, match="another user or a hung process holds"):
            come(mountpoint, {}, within_s=0.1)


def test_who_finds_the_backlog_full_is_let_in_later() -> None:
    mountpoint = f"/nowhere/{uuid.uuid4()}"
    with ExitStack() as stack:
        counter = stack.enter_context(socket.socket(socket.AF_UNIX))
        counter.bind(counter_name(mountpoint))
        counter.listen(0)
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
        waiting.connect(counter_name(mountpoint))
        came = []
        comes = threading.Thread(target=lambda: came.append(come(mountpoint, {}, WITHIN_S)))
        comes.start()
        for _ in range(2):
            stack.enter_context(counter.accept()[0])
        comes.join(WITHIN_S)
        (use,) = came
        assert isinstance(use, Use)
        stack.enter_context(use.line.sock)


def test_a_daemon_that_is_slow_is_not_taken_for_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``copperfs run`` unmounts the mount of a daemon that it believes to be gone."""
    monkeypatch.setattr(said, "ANSWERS_BYE_WITHIN_S", 0.01)
    monkeypatch.setattr(said, "ENDS_WITHIN_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        use = Use(Line(ours))
        assert use.leave() is Ending.SLOW
        theirs.sendall(b'{"last": true}\n')
        assert use.leave() is Ending.SLOW
        theirs.shutdown(socket.SHUT_RDWR)
        assert use.leave() is Ending.LOST


# ---- in place ------------------------------------------------------------------------------------


class Namespace(MountedInside):
    """Without descriptors, and without processes."""

    def __init__(self) -> None:
        super().__init__("/inside", "0:99", -1, -1, None, (0, 0))

    def send(self, sock: socket.socket, line: bytes) -> None:
        sock.sendall(line)

    def is_used(self) -> bool:
        return False


def in_place(stack: ExitStack, expected: int) -> Counter:
    shared = Counter(stack, expected)
    shared.users.inside = Namespace()
    return shared


def test_ranks_wait_until_the_first_run_has_covered() -> None:
    with ExitStack() as stack:
        shared = in_place(stack, 2)
        covered = {"directories": ["/env"], "failed": {"/more": "why"}, "overlay": True}

        async def story() -> None:
            second = shared.another()
            with trio.move_on_after(0.05):
                await trio.lowlevel.wait_readable(second.sock)
                raise AssertionError("it heard something")
            shared.first.say(covered=covered)
            ready = {
                "ready": True,
                "in_place": {"mountpoint": "/inside", "failed": {"/more": "why"}},
            }
            assert await hears(second) == ready
            assert await hears(shared.first) == ready
            assert shared.users.covered == covered
            for each, is_last in ((second, False), (shared.first, True)):
                each.say(bye=True)
                assert (await hears(each))["last"] is is_last

        run(shared, story)


def test_ranks_start_over_if_the_first_run_ends_before_it_has_covered() -> None:
    with ExitStack() as stack:
        shared = in_place(stack, 2)

        async def story() -> None:
            second = shared.another()
            await trio.testing.wait_all_tasks_blocked()
            shared.first.sock.close()
            with pytest.raises(Vanished):
                await hears(second)

        run(shared, story)
        came = come(shared.settings.mountpoint, {})
        assert isinstance(came, First), "whoever comes now begins anew"
        came.counter.close()
