"""Users of a shared mount: when the daemon of ``copperfs run`` ends. Users are sockets here, and
nothing is mounted."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import pytest
import trio
import trio.testing

from copperfs.config.settings import MIB, Settings
from copperfs.daemon import run_processes
from copperfs.daemon import shared_mount_server as module
from copperfs.daemon.attachment import MountedInside
from copperfs.daemon.shared_mount_server import Run, Users
from copperfs.launch import shared_mount_client as said
from copperfs.launch.join_socket import LENGTH, message, strings_of
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
from tests.unit.test_join_socket import FIRST_RUN

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


# ---- in a successor ------------------------------------------------------------------------------


class Death:
    """A daemon dies, and another goes on with what it had left."""

    def __init__(self, shared: Counter, nursery: trio.Nursery) -> None:
        self.users = shared.users
        self._scope = trio.CancelScope()
        self.nursery = nursery
        self._has_ended = trio.Event()
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        with self._scope:
            await self.users.run()
        self._has_ended.set()

    async def successor(self) -> Users:
        words, fds = self.users.left()
        fds = [os.dup(each) for each in fds]
        self._scope.cancel()
        await self._has_ended.wait()
        return Users.resumed(json.loads(json.dumps(words)), fds, -1)

    def goes_on(self, users: Users) -> None:
        self.nursery.start_soon(users.run)


Story = Callable[[Counter, Death], Awaitable[Users]]


def dies(story: Story) -> None:
    """*story* returns the successor."""

    async def main() -> None:
        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as nursery:
                death = Death(shared, nursery)
                assert await hears(shared.first) == {"ready": True}
                users = await story(shared, death)
        for each in (*users._parting, users.counter):
            each.close()

    with counter() as shared:
        trio.run(main)


def test_what_a_daemon_was_asked_before_its_death_is_answered_by_its_successor() -> None:
    async def story(shared: Counter, death: Death) -> Users:
        began, ends = threading.Event(), threading.Event()

        def hangs(*_: object) -> dict[str, Any]:
            began.set()
            ends.wait(WITHIN_S)
            return {"directories": [], "failed": {}}

        def covers(directories: Sequence[str], _: object) -> dict[str, Any]:
            return {"directories": list(directories), "failed": {"/x": "why"}}

        shared.users.cover_more = hangs
        shared.first.say(cover={"directories": ["/env"], "writable": []})
        assert await trio.to_thread.run_sync(began.wait, WITHIN_S)
        successor = await death.successor()
        ends.set()
        successor.cover_more = covers
        death.goes_on(successor)
        assert await hears(shared.first) == {"failed": {"/x": "why"}}
        await trio.testing.wait_all_tasks_blocked()
        assert successor.left()[0]["received"] == [""]
        shared.first.say(bye=True)
        assert await hears(shared.first) == {"last": True, "read": {}}
        return successor

    dies(story)


def test_a_line_of_which_a_daemon_has_read_a_part_is_understood_by_its_successor() -> None:
    async def story(shared: Counter, death: Death) -> Users:
        told: list[None] = []
        shared.users.changed = lambda: told.append(None)
        shared.first.sock.sendall(b'{"bye": ')
        await trio.testing.wait_all_tasks_blocked()
        assert told, "the keeper is given it"
        successor = await death.successor()
        death.goes_on(successor)
        shared.first.sock.sendall(b"true}\n")
        assert await hears(shared.first) == {"last": True, "read": {}}
        return successor

    dies(story)


def test_a_joined_run_whose_end_a_daemon_has_read_is_let_go_by_its_successor() -> None:
    async def story(shared: Counter, death: Death) -> Users:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        users = shared.users
        users._first_run = FIRST_RUN.line()
        run = Run("0" * 32, "/", joined=True, shows=False)
        users._here.add(theirs)
        users._runs[theirs] = run
        scope = trio.CancelScope()

        async def attends() -> None:
            with scope:
                await users._go_on(theirs, run, death.nursery)

        # its end, but for one byte
        said = message("bye")
        ours.sendall(said[:-1])
        death.nursery.start_soon(attends)
        await trio.testing.wait_all_tasks_blocked()
        successor = await death.successor()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        death.goes_on(successor)
        with ours:
            ours.sendall(said[-1:])
            answer = await trio.to_thread.run_sync(ours.recv, 100)
        assert strings_of(answer[LENGTH.size :]) == ["0"]
        shared.first.say(bye=True)
        assert await hears(shared.first) == {"last": True, "read": {}}
        return successor

    dies(story)


def test_an_answer_that_comes_twice_is_not_taken_for_another() -> None:
    """The daemon died between an answer and the word of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"failed": {}}\n{"last": false, "read": {"bytes": 1}}\n')
        use = Use(Line(ours))
        assert use.leave() is Ending.SHARED
        assert use.read == {"bytes": 1}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(2 * b'{"last": true, "read": {}}\n')
        theirs.shutdown(socket.SHUT_WR)
        assert Use(Line(ours)).leave() is Ending.UNMOUNTED
