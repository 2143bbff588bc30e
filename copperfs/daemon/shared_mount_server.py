"""Shared mount server: counts the users of a ``copperfs run``, and decides when its daemon ends.

``launch/shared_mount_client.py`` and ``launch/join_socket.py`` have the messages. A user is a
connection. The daemon ends when there is none left, none is in the backlog, and

- as many have come as the launcher has put on this node (a rank that is done before another has
  started must not end the mount, since among several nodes it could not be started again); or
- a user was killed, since then the others are not likely to come; or
- no user has come for ``LINGER_S``.

A user that ends without saying so was killed. Its command dies with it (``PR_SET_PDEATHSIG``). This
module kills the command's children, by the token of their run in their environment.
"""

import contextlib
import json
import logging
import os
import re
import select
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TextIO

import trio

from copperfs.config.settings import Settings
from copperfs.daemon.attachment import MountedInside
from copperfs.daemon.join_messages import Ended, Inbox, JoinMessages
from copperfs.daemon.run_processes import kill_all_with
from copperfs.inplace.path_lookup import contains
from copperfs.launch.join_socket import JoinRequest, ResolvedRun
from copperfs.launch.launcher_variables import look_around
from copperfs.launch.shared_mount_client import LINE_MAX, is_own

log = logging.getLogger(__name__)

LINGER_S = 30.0
HELLO_WITHIN_S = 10.0
FAILED_TOLD_MAX = 10
# These may differ between processes.
FOUND_BY_THE_FIRST = ("memory_bytes", "tier_memory_bytes", "tier_size_bytes")
ACCEPTS_AGAIN_S = 0.1
_TOKEN = re.compile(r"[0-9a-f]{32}")


def _nothing_covered(directories: Sequence[str], writable: Sequence[str]) -> dict[str, Any]:
    return {"directories": [], "failed": {}}


Serve = Callable[[socket.socket], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Run:
    token: str
    cwd: str
    joined: bool = False
    """By the join socket."""
    shows: bool = True
    """Whether it is the rank that prints the report, of those that joined."""


@dataclass(slots=True)
class Users:
    settings: Settings
    counter: socket.socket
    first: socket.socket | None
    """None in a successor: it goes on with those that its predecessor had welcomed."""
    expected: int = 1
    remove: bool = False
    """Whether the mount point was made for this run."""
    inside: MountedInside | None = None
    """For an in-place run."""
    why_not_inside: str = ""
    read: Callable[[], dict[str, int]] = dict
    """What was read through the mount."""
    cover_more: Callable[[Sequence[str], Sequence[str]], dict[str, Any]] = _nothing_covered
    """Blocks; in the namespace of the runs."""
    changed: Callable[[], None] = lambda: None
    """Called when a successor would need to know more, and before a user relies on it."""
    ready: trio.Event = field(default_factory=trio.Event)
    welcomed: trio.Event = field(default_factory=trio.Event)
    """A user relies on the mount, and all that the first one has to say was said."""
    _error: str | None = None
    _covered: dict[str, Any] | None = None
    """What the first user has covered."""
    _has_covered: trio.Event = field(default_factory=trio.Event)
    _covering: trio.Lock = field(default_factory=trio.Lock)
    _here: set[socket.socket] = field(default_factory=set)
    _runs: dict[socket.socket, Run] = field(default_factory=dict)
    """Those that were told that they can begin."""
    _inboxes: dict[socket.socket, Inbox] = field(default_factory=dict)
    _first_run: dict[str, Any] | None = None
    """What further runs are answered with."""
    _come: int = 0
    _killed: bool = False
    _is_abandoned: bool = False
    _is_kept: bool = False
    """Processes that a command has left in the background use the mount."""
    _ending: bool = False
    """A user was told that it is the last, and waits for the end."""
    _changed: trio.Event = field(default_factory=trio.Event)
    _join_sockets: list[socket.socket] = field(default_factory=list)
    _parting: list[socket.socket] = field(default_factory=list)
    """Their end tells the users that the daemon has ended."""

    @classmethod
    def receive_from(cls, lines: TextIO, settings: Settings) -> "Users | None":
        values = json.loads(lines.readline() or "null")
        if values is None:
            return None
        counter, first = _own_socket(values["counter"]), _own_socket(values["first"])
        words = values["in_place"]
        inside = MountedInside.of_line(words) if isinstance(words, dict) else None
        users = cls(settings, counter, first, values["expected"], values["remove"], inside)
        users.why_not_inside = words if isinstance(words, str) else ""
        return users

    async def run(self) -> None:
        """Return when the mount has no users. The last one waits for the daemon's end."""
        async with trio.open_nursery() as nursery:
            serve = partial(self._serve, nursery)
            if self.first is not None:
                self._take(self.first, serve, nursery)
            else:
                self._resume(nursery)
            if not _is_closed(self.counter):
                nursery.start_soon(self._accept, self.counter, serve, nursery)
            while not await self._nobody_comes():
                pass
            nursery.cancel_scope.cancel()
        if self.inside is not None:
            self.inside.let_go()
            if not self._ending:
                # Background processes keep the mount; who comes now is the first of the next.
                for each in self._listeners:
                    each.close()
            self.changed()

    @property
    def _listeners(self) -> list[socket.socket]:
        return [each for each in (self.counter, *self._join_sockets) if not _is_closed(each)]

    @property
    def covered(self) -> dict[str, Any]:
        """What the first run of the node has covered; empty until then."""
        covered: dict[str, Any] = (self._covered or {}).get("covered", {})
        return covered

    def refuse(self, sentence: str) -> None:
        self._error = sentence
        self.ready.set()
        self._has_covered.set()
        for each in self._here:
            _say(each, error=sentence)

    def clean_up(self) -> None:
        if self.remove:
            with contextlib.suppress(OSError):
                os.rmdir(self.settings.mountpoint)
        # The sockets close with the process, and not before: the last user waits for that.

    async def _nobody_comes(self) -> bool:
        while not self._ending and not self._is_empty():
            self._changed = trio.Event()
            await self._changed.wait()
        if self._ending or self._error is not None:
            return True
        if self._killed or self._come >= self.expected:
            return True
        self._changed = trio.Event()
        with trio.move_on_after(LINGER_S):
            await self._changed.wait()
        return self._is_empty()

    def _is_empty(self) -> bool:
        return not self._here and (self._is_abandoned or not self._is_anyone_waiting())

    def _is_anyone_waiting(self) -> bool:
        return any(map(_is_readable, self._listeners))

    async def _accept(self, listener: socket.socket, serve: Serve, nursery: trio.Nursery) -> None:
        while not self._is_abandoned:
            try:
                await trio.lowlevel.wait_readable(listener)
            except trio.ClosedResourceError:
                return
            if self._ending:
                return  # a user that comes now is the first of the next daemon
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionError):
                continue
            except OSError as error:  # the process has no free descriptor
                log.info("whoever comes has to wait: %s", error.strerror)
                await trio.sleep(ACCEPTS_AGAIN_S)
                continue
            sock.setblocking(False)
            if is_own(sock):
                self._take(sock, serve, nursery)
            else:
                sock.close()
                self._changed.set()

    def _take(self, sock: socket.socket, serve: Serve, nursery: trio.Nursery) -> None:
        self._here.add(sock)
        self._changed.set()
        nursery.start_soon(serve, sock)

    async def _serve(self, nursery: trio.Nursery, sock: socket.socket) -> None:
        token = None
        try:
            lines = _Lines(self._inbox(sock))
            with trio.move_on_after(HELLO_WITHIN_S):
                hello = await lines.next()
                token = _token_of(hello)
            if token is None:
                return
            if self.inside is not None and sock is self.first:
                self._covered = await self._next_of_first(lines)
                self._has_covered.set()
            if not await self._may_begin(sock, hello):
                return
            lines.inbox.answered()
            self._enter(sock, Run(token, str(hello.get("cwd", "/"))))
            self._say_ready(sock)
            await self._attend(sock, lines, nursery)
        except (Ended, ValueError):
            await self._lost(token)
        finally:
            self._gone(sock)

    def _enter(self, sock: socket.socket, run: Run) -> None:
        self._come += 1
        self._runs[sock] = run
        self.welcomed.set()
        self.changed()

    async def _attend(self, sock: socket.socket, lines: "_Lines", nursery: trio.Nursery) -> None:
        while not (said := await lines.next()).get("bye"):
            if "join" in said:
                self._first_run = said["join"]
                self._accept_joins(lines.inbox.fds, nursery)
            if "cover" in said:
                _say(sock, failed=await self._cover(said["cover"]))
        await self._look_for_background()
        last = self._part(sock)
        _say(sock, last=last, read=self.read())

    async def _lost(self, token: str | None) -> None:
        if token is not None:
            log.info("a user of the mount was killed")
            self._killed = True
            await trio.to_thread.run_sync(kill_all_with, token)

    def _gone(self, sock: socket.socket) -> None:
        self._here.discard(sock)
        self._inboxes.pop(sock, None)
        if self._runs.pop(sock, None) is not None:
            self.changed()
        if sock not in self._parting:
            sock.close()
        self._changed.set()

    def _inbox(self, sock: socket.socket) -> Inbox:
        """What it says is kept for a successor from when it is one of the runs."""

        def changed() -> None:
            if sock in self._runs:
                self.changed()

        inbox = self._inboxes.setdefault(sock, Inbox(sock))
        inbox.changed = changed
        return inbox

    async def _look_for_background(self) -> None:
        if self.inside is not None and len(self._here) == 1:
            self._is_kept = await trio.to_thread.run_sync(self.inside.is_used)

    # ---- further runs with other environments ----------------------------------------------------

    async def _cover(self, wanted: dict[str, Any]) -> dict[str, str]:
        """Cover what this run needs as well. The reasons for what could not be covered."""
        async with self._covering:
            covered = self.covered
            there = covered.get("directories", [])
            missing = [
                each
                for each in wanted["directories"]
                if not any(contains(one, each) for one in there)
            ]
            failed = {each: why for each in missing if (why := self._why_not(each)) is not None}
            missing = [each for each in missing if each not in failed]
            if missing:
                done = await trio.to_thread.run_sync(
                    self.cover_more, missing, wanted["writable"], abandon_on_cancel=True
                )
                failed |= done["failed"]
                covered["directories"] = [*there, *done["directories"]]
                covered["writable"] = sorted({*covered.get("writable", ()), *wanted["writable"]})
                self.changed()
        return dict(list(failed.items())[:FAILED_TOLD_MAX])

    def _why_not(self, directory: str) -> str | None:
        """Covers are read-only, and this one would be so for the programs that run already."""
        for run in self._runs.values():
            if contains(directory, run.cwd):
                return f"another program of this launch works in {run.cwd}"
        return None

    # ---- further runs, by the join socket --------------------------------------------------------

    def _accept_joins(self, fds: list[int], nursery: trio.Nursery) -> None:
        assert self._first_run is not None
        for fd in fds:
            listener = _own_socket(fd)
            self._join_sockets.append(listener)
            serve = partial(self._serve_further, ResolvedRun.of_line(self._first_run))
            nursery.start_soon(self._accept, listener, serve, nursery)
        fds.clear()
        self.changed()

    async def _serve_further(self, first_run: ResolvedRun, sock: socket.socket) -> None:
        token = None
        try:
            messages = JoinMessages(self._inbox(sock))
            with trio.fail_after(HELLO_WITHIN_S):
                request = JoinRequest.of(await messages.next())
            if not _TOKEN.fullmatch(request.token):
                return
            if not first_run.fits(request):
                log.info("a further run differs from the first one, and starts as that one did")
                await messages.say("python")
                return
            token = request.token
            fds = () if self.inside is None else self.inside.namespace_fds()
            shows = look_around(request.environ).rank in (None, 0)
            run = Run(token, first_run.cwd, joined=True, shows=shows)
            messages.inbox.answered()
            self._enter(sock, run)
            await messages.send(first_run.answer(request, len(fds)), fds)
            await self._attend_further(sock, messages, first_run, run)
        except (Ended, ValueError, trio.TooSlowError):
            await self._lost(token)
        finally:
            self._gone(sock)

    async def _attend_further(
        self, sock: socket.socket, messages: JoinMessages, first_run: ResolvedRun, run: Run
    ) -> None:
        await messages.next()
        await self._look_for_background()
        last = self._part(sock)
        lines = first_run.report.lines(self.read()) if run.shows else ()
        await messages.say("1" if last else "0", *(f"copperfs: {each}" for each in lines))

    # ---- in a successor --------------------------------------------------------------------------

    def _resume(self, nursery: trio.Nursery) -> None:
        self.welcomed.set()
        joins, self._join_sockets = self._join_sockets, []
        if joins:
            self._accept_joins([each.detach() for each in joins], nursery)
        for sock, run in self._runs.items():
            self._here.add(sock)
            nursery.start_soon(self._go_on, sock, run, nursery)

    async def _go_on(self, sock: socket.socket, run: Run, nursery: trio.Nursery) -> None:
        try:
            if run.joined:
                assert self._first_run is not None
                first_run = ResolvedRun.of_line(self._first_run)
                messages = JoinMessages(self._inbox(sock))
                await self._attend_further(sock, messages, first_run, run)
            else:
                await self._attend(sock, _Lines(self._inbox(sock)), nursery)
        except (Ended, ValueError):
            await self._lost(run.token)
        finally:
            self._gone(sock)

    def left(self) -> tuple[dict[str, Any], list[int]]:
        """What a successor goes on with, and descriptors of which its words have the numbers."""
        fds: list[int] = []

        def number(sock: socket.socket) -> int:
            fds.append(sock.fileno())
            return len(fds) - 1

        words = {
            "settings": self.settings.to_json(),
            "counter": None if _is_closed(self.counter) else number(self.counter),
            "expected": self.expected,
            "remove": self.remove,
            "why_not_inside": self.why_not_inside,
            "covered": self._covered,
            "come": self._come,
            "killed": self._killed,
            "kept": self._is_kept,
            "first_run": self._first_run,
            "joins": [number(each) for each in self._join_sockets if not _is_closed(each)],
            "runs": [[number(sock), asdict(run)] for sock, run in self._runs.items()],
            "received": [self._inbox(sock).data.decode("latin-1") for sock in self._runs],
            "inside": None if self.inside is None else self.inside.left(fds),
        }
        return words, fds

    @classmethod
    def resumed(cls, words: dict[str, Any], fds: Sequence[int], fuse_fd: int) -> "Users":
        inside = words["inside"]
        users = cls(
            Settings.from_json(words["settings"]),
            _closed_socket() if words["counter"] is None else _own_socket(fds[words["counter"]]),
            None,
            words["expected"],
            words["remove"],
            None if inside is None else MountedInside.resumed(inside, fds, fuse_fd),
            words["why_not_inside"],
        )
        users._covered, users._first_run = words["covered"], words["first_run"]
        users._has_covered.set()
        users._come, users._killed = words["come"], words["killed"]
        users._is_kept = words["kept"]
        users._join_sockets = [_own_socket(fds[each]) for each in words["joins"]]
        users._runs = {_own_socket(fds[each]): Run(**run) for each, run in words["runs"]}
        for sock, text in zip(users._runs, words.get("received", ()), strict=False):
            users._inboxes[sock] = Inbox(sock, data=bytearray(text, "latin-1"))
        return users

    # ---- answers ---------------------------------------------------------------------------------

    async def _next_of_first(self, lines: "_Lines") -> dict[str, Any]:
        """If the first run ends before it has covered, the others start over: their connections end
        without a word."""
        try:
            return await lines.next()
        except Ended:
            self._is_abandoned = True
            trio.lowlevel.notify_closing(self.counter)
            self.counter.close()
            others = {each for each in self._here if each is not self.first}
            for each in others:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._here -= others
            raise

    async def _may_begin(self, sock: socket.socket, hello: dict[str, Any]) -> bool:
        if wrong := self._difference(hello["settings"]):
            _say(sock, error=wrong)
            return False
        has_waited = False
        # A user that goes before the mount is ready must be noticed as well.
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await trio.lowlevel.wait_readable(sock)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await self.ready.wait()
            if self.inside is not None:
                await self._has_covered.wait()
            has_waited = True
            nursery.cancel_scope.cancel()
        if not has_waited:
            raise Ended
        return self._error is None

    def _say_ready(self, sock: socket.socket) -> None:
        if self.inside is None:
            _say(sock, ready=True)
            return
        # All else each run knows by itself. The line has to fit into an empty socket.
        failed = dict(list(self.covered.get("failed", {}).items())[:FAILED_TOLD_MAX])
        shown = {"mountpoint": self.inside.mountpoint, "failed": failed}
        self.inside.send(sock, _line(ready=True, in_place=shown))

    def _part(self, sock: socket.socket) -> bool:
        """Whether it is the last user, which stays until the mount is gone."""
        others = len(self._here) > 1 or self._is_anyone_waiting()
        last = not others and (self._killed or self._come >= self.expected)
        last = last and not self._is_kept
        if last:
            self._ending = True
            self._parting.append(sock)
        return last

    def _difference(self, wanted: dict[str, Any]) -> str | None:
        mine = json.loads(json.dumps(asdict(self.settings)))
        found = {key: mine[key] for key in FOUND_BY_THE_FIRST if wanted.get(key) is None}
        wanted = wanted | found
        keys = [key for key in mine if mine[key] != wanted.get(key)]
        if not keys:
            return None
        return (
            f"{self.settings.mountpoint} is in use by another copperfs run, with another "
            f"{', '.join(key.replace('_', '-') for key in keys)}; give the same, or another "
            "--mountpoint"
        )


def _own_socket(fd: int) -> socket.socket:
    """Of a descriptor that another process has passed."""
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def _closed_socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.close()
    return sock


def _is_closed(sock: socket.socket) -> bool:
    return sock.fileno() < 0


@dataclass(slots=True)
class _Lines:
    inbox: Inbox

    async def next(self) -> dict[str, Any]:
        self.inbox.answered()
        while (end := self.inbox.data.find(b"\n")) < 0:
            if len(self.inbox.data) > LINE_MAX:
                raise Ended
            await self.inbox.receive()
        words = json.loads(self.inbox.take(0, end + 1))
        if not isinstance(words, dict):
            raise Ended
        return words


def _token_of(hello: dict[str, Any]) -> str | None:
    """None if this is no hello of a run."""
    token, settings = hello.get("token"), hello.get("settings")
    sound = isinstance(token, str) and _TOKEN.fullmatch(token) and isinstance(settings, dict)
    return token if sound else None


def _say(sock: socket.socket, **words: object) -> None:
    """A short line fits into an empty socket; a user that does not read has ended."""
    with contextlib.suppress(OSError):
        sock.sendall(_line(**words))


def _line(**words: object) -> bytes:
    return json.dumps(words).encode("ascii") + b"\n"


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
