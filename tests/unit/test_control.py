"""Control server, over a socket like the front end's, with a clock of the test's own."""

import errno
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from copperfs.daemon import control_server as control
from copperfs.daemon.control_server import (
    KEPT_FOR_S,
    KEPT_MAX,
    REPLY_WITHIN_S,
    TASKS_MAX,
    Answerer,
    ControlServer,
)
from copperfs.fuse.ioctl import DATA_BYTES, HEADER, WHO_MAY, IoctlRequest, may_ask
from tests.unit.test_ioctl_protocol import OUT, message, parts_of

OWNER = os.getuid()
STRANGER = OWNER + 1
LONG = "x" * (2 * DATA_BYTES)


@dataclass
class Client:
    sock: socket.socket
    server: ControlServer

    async def send(self, request: bytes) -> None:
        await trio.lowlevel.wait_writable(self.sock)
        self.sock.send(request)

    async def receive(self) -> bytes:
        await trio.lowlevel.wait_readable(self.sock)
        return self.sock.recv(1 << 16)

    async def ask(self, request: bytes) -> bytes:
        await self.send(request)
        return await self.receive()

    async def errno_of(self, request: bytes) -> int:
        length, error, _ = OUT.unpack(await self.ask(request))
        assert length == OUT.size
        return -int(error)


@dataclass
class Answers:
    values: dict[IoctlRequest, object] = field(default_factory=dict)
    asked: list[IoctlRequest] = field(default_factory=list)

    def all(self) -> Mapping[IoctlRequest, Answerer]:
        def answerer(request: IoctlRequest) -> Answerer:
            async def answer() -> object:
                self.asked.append(request)
                await trio.lowlevel.checkpoint()
                return self.values.get(request, request.name)

            return answer

        return {request: answerer(request) for request in IoctlRequest}


@asynccontextmanager
async def serving(answerers: Mapping[IoctlRequest, Answerer]) -> AsyncIterator[Client]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        server = ControlServer(ours, answerers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            yield Client(theirs, server)
            theirs.close()  # unmounted: the server ends on its own


def test_every_request_has_its_answer() -> None:
    async def main() -> None:
        async with serving(Answers().all()) as client:
            for request in IoctlRequest:
                answer = await client.ask(message(request, uid=OWNER, unique=11))
                unique, token, _, data = parts_of(answer)
                assert (unique, token, json.loads(data)) == (11, 0, request.name)

    trio.run(main)


FOR_ANYBODY = {IoctlRequest.HELLO, IoctlRequest.STATISTICS}


@pytest.mark.parametrize("request_", list(IoctlRequest))
def test_others_may_ask_for_counts_and_nothing_else(request_: IoctlRequest) -> None:
    async def main() -> None:
        answers = Answers()
        async with serving(answers.all()) as client:
            if request_ in FOR_ANYBODY:
                parts_of(await client.ask(message(request_, uid=STRANGER)))
                assert answers.asked == [request_]
                return
            assert await client.errno_of(message(request_, uid=STRANGER)) == errno.EPERM
            assert answers.asked == []
            assert client.server.refused == 1
            parts_of(await client.ask(message(request_, uid=OWNER)))
            assert answers.asked == [request_]

    trio.run(main)


def test_for_each_request_it_is_said_who_may_and_what_is_not_said_only_the_owner_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(WHO_MAY) == set(IoctlRequest)
    monkeypatch.delitem(WHO_MAY, IoctlRequest.HELLO)
    assert not may_ask(IoctlRequest.HELLO, 1001, 1000)
    assert may_ask(IoctlRequest.HELLO, 1000, 1000)


def test_root_may_ask_what_the_owner_may(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving(Answers().all()) as client:
            for request in IoctlRequest:
                parts_of(await client.ask(message(request, uid=0)))
                parts_of(await client.ask(message(request, uid=1000)))
            assert await client.errno_of(message(IoctlRequest.CLEAR, uid=1001)) == errno.EPERM

    monkeypatch.setattr(os, "getuid", lambda: 1000)
    trio.run(main)


def test_what_would_be_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ANSWER_BYTES_MAX", len(json.dumps(LONG)))
    monkeypatch.setattr(control, "LONG_LIST", 2)  # so a thread writes it

    async def main() -> None:
        answers = Answers({IoctlRequest.OBJECTS: LONG, IoctlRequest.RING: [*LONG, "more"]})
        async with serving(answers.all()) as client:
            await token_of_a_long_answer(client)
            assert await client.errno_of(message(IoctlRequest.RING, uid=OWNER)) == errno.EFBIG
            assert client.server.refused == 1

    trio.run(main)


def test_what_others_ask_takes_no_answer_from_the_owner() -> None:
    async def main() -> None:
        answers = Answers({IoctlRequest.OBJECTS: LONG, IoctlRequest.STATISTICS: LONG})
        async with serving(answers.all()) as client:
            token, theirs = await token_of_a_long_answer(client), 0
            for _ in range(KEPT_MAX + 1):
                _, theirs, _, _ = parts_of(
                    await client.ask(message(IoctlRequest.STATISTICS, uid=STRANGER))
                )
            parts_of(await client.ask(message(IoctlRequest.OBJECTS, token=token, uid=OWNER)))
            parts_of(await client.ask(message(IoctlRequest.STATISTICS, token=theirs, uid=STRANGER)))
            assert len(client.server._kept) == KEPT_MAX

    trio.run(main)


def test_a_long_answer_is_kept_and_fetched_in_parts() -> None:
    async def main() -> None:
        answers = Answers({IoctlRequest.OBJECTS: LONG})
        async with serving(answers.all()) as client:
            received, token = b"", 0
            while True:
                request = message(
                    IoctlRequest.OBJECTS, token=token, offset=len(received), uid=OWNER
                )
                _, token, total, data = parts_of(await client.ask(request))
                assert token
                received += data
                if len(received) == total:
                    break
            assert json.loads(received) == LONG
            assert answers.asked == [IoctlRequest.OBJECTS], "put together once"

    trio.run(main)


async def token_of_a_long_answer(client: Client, uid: int = OWNER) -> int:
    answer = await client.ask(message(IoctlRequest.OBJECTS, uid=uid))
    _, token, _, _ = parts_of(answer)
    assert token
    return token


def test_a_token_is_for_its_askers_user_alone() -> None:
    async def main() -> None:
        async with serving(Answers({IoctlRequest.OBJECTS: LONG}).all()) as client:
            token = await token_of_a_long_answer(client)
            other = message(IoctlRequest.STATISTICS, token=token, uid=STRANGER)
            assert await client.errno_of(other) == errno.EINVAL
            parts_of(await client.ask(message(IoctlRequest.OBJECTS, token=token, uid=OWNER)))

    trio.run(main)


def test_an_unknown_token_is_refused() -> None:
    async def main() -> None:
        async with serving(Answers().all()) as client:
            unknown = message(IoctlRequest.OBJECTS, token=12345, uid=OWNER)
            assert await client.errno_of(unknown) == errno.EINVAL

    trio.run(main)


def test_large_answers_are_kept_within_a_bound_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "KEPT_BYTES_MAX", 3 * len(LONG))

    async def main() -> None:
        async with serving(Answers({IoctlRequest.OBJECTS: LONG}).all()) as client:
            tokens = [await token_of_a_long_answer(client) for _ in range(3)]
            first, last = (
                message(IoctlRequest.OBJECTS, token=token, uid=OWNER)
                for token in (tokens[0], tokens[-1])
            )
            assert await client.errno_of(first) == errno.EINVAL
            parts_of(await client.ask(last))
            for _ in range(2):
                clock.jump(KEPT_FOR_S)
                await trio.testing.wait_all_tasks_blocked()
            assert not client.server._kept

    clock = trio.testing.MockClock()
    trio.run(main, clock=clock)


def test_only_so_many_answers_are_kept_and_the_oldest_go_first() -> None:
    async def main() -> None:
        async with serving(Answers({IoctlRequest.OBJECTS: LONG}).all()) as client:
            tokens = [await token_of_a_long_answer(client) for _ in range(KEPT_MAX + 1)]
            first, second = (
                message(IoctlRequest.OBJECTS, token=token, uid=OWNER) for token in tokens[:2]
            )
            assert await client.errno_of(first) == errno.EINVAL
            parts_of(await client.ask(second))

    trio.run(main)


def test_answers_are_not_kept_for_ever() -> None:
    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        async with serving(Answers({IoctlRequest.OBJECTS: LONG}).all()) as client:
            old = await token_of_a_long_answer(client)
            clock.jump(KEPT_FOR_S)
            await token_of_a_long_answer(client)
            expired = message(IoctlRequest.OBJECTS, token=old, uid=OWNER)
            assert await client.errno_of(expired) == errno.EINVAL

    trio.run(main, clock=trio.testing.MockClock())


def test_malformed_requests_are_refused_and_the_next_one_is_served() -> None:
    async def main() -> None:
        async with serving(Answers().all()) as client:
            assert await client.errno_of(message(0x7F)) == errno.ENOTTY
            assert await client.errno_of(message(version=9)) == errno.EPROTO
            for size in range(HEADER.size):
                assert await client.errno_of(message(data=bytes(size))) == errno.EINVAL
            await client.send(b"too short to have a number")
            parts_of(await client.ask(message(IoctlRequest.HELLO)))
            assert client.server.refused == 3 + HEADER.size

    trio.run(main)


def test_a_request_that_takes_too_long_is_told_so() -> None:
    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        answerers = {**Answers().all(), IoctlRequest.CLEAR: trio.sleep_forever}
        async with serving(answerers) as client:
            await client.send(message(IoctlRequest.CLEAR, uid=OWNER))
            # the server answers others meanwhile
            parts_of(await client.ask(message(IoctlRequest.HELLO)))
            clock.jump(REPLY_WITHIN_S)
            _, error, _ = OUT.unpack(await client.receive())
            assert error == -errno.ETIMEDOUT

    trio.run(main, clock=trio.testing.MockClock())


def test_only_so_many_are_answered_at_a_time() -> None:
    async def main() -> None:
        started = 0
        go = trio.Event()

        async def wait() -> object:
            nonlocal started
            started += 1
            await go.wait()
            return "done"

        async with serving({IoctlRequest.CLEAR: wait}) as client:
            for _ in range(TASKS_MAX + 5):
                await client.send(message(IoctlRequest.CLEAR, uid=OWNER))
            await trio.testing.wait_all_tasks_blocked()
            while client.server.sock in (await readable(client.server.sock)):
                await trio.testing.wait_all_tasks_blocked()
            assert started == TASKS_MAX
            go.set()
            for _ in range(TASKS_MAX + 5):
                parts_of(await client.receive())
            assert started == TASKS_MAX + 5

    async def readable(sock: socket.socket) -> list[socket.socket]:
        try:
            sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return []
        return [sock]

    trio.run(main)


def test_a_bug_is_told_as_an_error_and_logged(
    expected_warnings: Callable[[str], None],
) -> None:
    expected_warnings("a bug: STATISTICS could not be answered")

    async def fail() -> object:
        raise RuntimeError("broken")

    async def main() -> None:
        async with serving({**Answers().all(), IoctlRequest.STATISTICS: fail}) as client:
            assert await client.errno_of(message(IoctlRequest.STATISTICS)) == errno.EIO
            parts_of(await client.ask(message(IoctlRequest.HELLO)))

    trio.run(main)


def test_the_server_ends_when_the_front_closes_the_socket() -> None:
    async def main() -> None:
        with trio.fail_after(20):
            async with serving({IoctlRequest.CLEAR: trio.sleep_forever}) as client:
                await client.send(message(IoctlRequest.CLEAR, uid=OWNER))

    trio.run(main)
