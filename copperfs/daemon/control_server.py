"""Control server: answers ioctls, which the front forwards over a separate socket.

Each request is a task, since a clear waits for the kernel. The client fetches a reply longer than
one buffer in parts, under a token that only the same user can use.
"""

import errno
import json
import logging
import os
import secrets
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import trio

from copperfs.fuse.ioctl import (
    Asked,
    IoctlRequest,
    MalformedIoctl,
    TooLong,
    is_owner,
    may_ask,
    parse,
    refusal,
    reply,
)

log = logging.getLogger(__name__)

MESSAGE_MAX = 64 * 1024
TASKS_MAX = 64
REPLY_WITHIN_S = 30.0
KEPT_MAX = 32
# The list of all cached paths may be 100 MB. The latest reply is kept even if it exceeds this.
KEPT_BYTES_MAX = 64 << 20
ANSWER_BYTES_MAX = 256 << 20
KEPT_FOR_S = 60.0
LONG_LIST = 10_000

Answerer = Callable[[], Awaitable[object]]
Taker = Callable[[Asked], Awaitable[object]]


async def _packed(answer: object) -> bytes:
    """A thread writes a long list, because that would block other requests."""
    if isinstance(answer, list) and len(answer) > LONG_LIST:
        whole = await trio.to_thread.run_sync(json.dumps, answer, abandon_on_cancel=True)
    else:
        whole = json.dumps(answer)
    if len(whole) > ANSWER_BYTES_MAX:
        raise TooLong
    return whole.encode()


@dataclass(frozen=True, slots=True)
class _Kept:
    uid: int
    whole: bytes
    until: float


@dataclass(slots=True)
class ControlServer:
    sock: socket.socket
    answerers: Mapping[IoctlRequest, Answerer]
    takers: Mapping[IoctlRequest, Taker] = field(default_factory=dict)
    """These need its data, or look at who asks."""
    refused: int = 0
    _kept: OrderedDict[int, _Kept] = field(default_factory=OrderedDict)

    async def run(self) -> None:
        """Serve until the front closes the socket because the mount is gone."""
        limiter = trio.CapacityLimiter(TASKS_MAX)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forget_old)
            while True:
                await trio.lowlevel.wait_readable(self.sock)
                try:
                    message = self.sock.recv(MESSAGE_MAX)
                except BlockingIOError:
                    continue
                if not message:
                    nursery.cancel_scope.cancel()
                    return
                nursery.start_soon(self._serve, message, limiter)

    async def _serve(self, message: bytes, limiter: trio.CapacityLimiter) -> None:
        try:
            asked = parse(message)
        except MalformedIoctl as error:
            self.refused += 1
            if error.unique is not None:
                await self._send(refusal(error.unique, error.errno))
            return
        answer = refusal(asked.unique, errno.ETIMEDOUT)
        with trio.move_on_after(REPLY_WITHIN_S):
            async with limiter:
                answer = await self._answer(asked)
        await self._send(answer)

    async def _answer(self, asked: Asked) -> bytes:
        if not may_ask(asked.request, asked.uid, os.getuid()):
            self.refused += 1
            return refusal(asked.unique, errno.EPERM)
        if asked.token:
            kept = self._kept.get(asked.token)
            if kept is None or kept.uid != asked.uid:
                return refusal(asked.unique, errno.EINVAL)
            return reply(asked, asked.token, kept.whole)
        try:
            whole = await _packed(await self._found(asked))
        except TooLong:
            self.refused += 1
            return refusal(asked.unique, errno.EFBIG)
        except Exception:
            log.exception("a bug: %s could not be answered", asked.request.name)
            return refusal(asked.unique, errno.EIO)
        token = 0
        if len(whole) > asked.room:
            token = self._keep(asked.uid, whole)
        return reply(asked, token, whole)

    def _found(self, asked: Asked) -> Awaitable[object]:
        if asked.request in self.takers:
            return self.takers[asked.request](asked)
        return self.answerers[asked.request]()

    def _keep(self, uid: int, whole: bytes) -> int:
        self._drop_old(KEPT_MAX - 1, KEPT_BYTES_MAX - len(whole))
        token = secrets.randbits(63) | 1
        self._kept[token] = _Kept(uid, whole, trio.current_time() + KEPT_FOR_S)
        return token

    def _drop_old(self, count_max: int, bytes_max: int) -> None:
        """Drop expired replies, then the oldest until the rest is within these bounds, those for
        other users first."""
        held_bytes = sum(len(each.whole) for each in self._kept.values())

        def goes_before(token: int) -> tuple[bool, bool]:
            kept = self._kept[token]
            return kept.until > trio.current_time(), is_owner(kept.uid, os.getuid())

        for token in sorted(self._kept, key=goes_before):
            young, _ = goes_before(token)
            if young and len(self._kept) <= count_max and held_bytes <= bytes_max:
                return
            held_bytes -= len(self._kept.pop(token).whole)

    async def _forget_old(self) -> None:
        while True:
            await trio.sleep(KEPT_FOR_S)
            self._drop_old(KEPT_MAX, KEPT_BYTES_MAX)

    async def _send(self, message: bytes) -> None:
        while True:
            try:
                self.sock.send(message)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.sock)
            except (BrokenPipeError, ConnectionResetError):
                return
            else:
                return
