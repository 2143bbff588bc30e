"""Shared mount, client side: counts the ``copperfs run`` processes of a node that use one mount
(decision 70).

The first process binds the *counter*, a Unix socket in the abstract namespace that is named after
user and mount point, and hands it to the daemon that it starts. The others connect to it. The
daemon ends when the last connection closes.

The daemon keeps the counter until it has unmounted and ended. A process that connects meanwhile
finds that its connection ends without a word, and becomes the first of the next.

Each side writes lines of JSON:

    user     {"settings": ..., "token": ...,    its settings; the token of its processes; its
              "cwd": ...}                       working directory
    first    {"covered": ...}                   of an in-place run: its covers are in place
    daemon   {"ready": true}                    the mount can be used; of an in-place run with
                                                "in_place" and descriptors of its namespace
          or {"error": sentence}                it never will be, or has other settings
    user     {"cover": covers}                  of a further in-place run: what it needs as well
    daemon   {"failed": ...}                    the reasons for what could not be covered
    user     {"join": resolved run}             with the join socket (launch/join_socket.py)
    user     {"bye": true}                      its command has ended; kill nothing
    daemon   {"last": ..., "read": ...}         if true, the connection ends with the daemon;
                                                what was read through the mount up to now

A connection that ends without a bye belongs to a process that was killed.
"""

import contextlib
import hashlib
import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from copperfs.model.errors import MountError

# The system's somaxconn bounds it as well.
BACKLOG = 1024
# pid, uid, gid
_PEER = struct.Struct("iII")
# Another process may have bound the name and not listen yet.
TRY_AGAIN_S = 0.01
# An environment of a thousand prefixes is covered.
LINE_MAX = 1 << 20
DESCRIPTORS_MAX = 2
ANSWERS_BYE_WITHIN_S = 10.0
# umount waits as long.
ENDS_WITHIN_S = 30.0


class Vanished(Exception):  # no fault: the next daemon may begin
    """The connection ended before the mount could be used."""


@dataclass(slots=True)
class Line:
    sock: socket.socket
    fds: list[int] = field(default_factory=list)
    """Descriptors that came with lines."""
    _received: bytes = b""

    def answer(self, key: str, timeout_s: float) -> dict[str, Any]:
        """The one with *key*. A daemon that takes over may give the one before a second time."""
        deadline = time.monotonic() + timeout_s
        while key not in (said := self.hear(deadline - time.monotonic())):
            pass
        return said

    def wait_end(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(Vanished):
            while True:
                self.hear(deadline - time.monotonic())

    def say(self, **words: object) -> None:
        """An other end that has ended is noticed at the next ``hear``."""
        self.say_with((), **words)

    def say_with(self, fds: Sequence[int], **words: object) -> None:
        line = json.dumps(words).encode("ascii") + b"\n"
        with contextlib.suppress(OSError):
            sent = socket.send_fds(self.sock, [line], fds)
            self.sock.sendall(line[sent:])

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """Vanished at the end, TimeoutError if none comes."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            self.sock.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                more, fds, _, _ = socket.recv_fds(self.sock, LINE_MAX, DESCRIPTORS_MAX)
                self.fds += fds
            except ConnectionError:
                more = b""
            if not more:
                raise Vanished
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        words: dict[str, Any] = json.loads(line)
        return words


class Ending(Enum):
    SHARED = "others use it"
    UNMOUNTED = "this was the last use, and it is gone"
    SLOW = "the daemon has not answered in time, and may still end as it should"
    LOST = "the daemon had ended before"


@dataclass(slots=True)
class Use:
    line: Line
    read: dict[str, int] = field(default_factory=dict)
    """Bytes and files that were read through the mount, once this use has ended."""

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """What the daemon says of the mount. MountError says why it cannot be used."""
        try:
            said = self.line.hear(timeout_s)
        except TimeoutError:
            raise MountError(
                f"the mount of this node was not ready within {timeout_s:.0f} s; is the source "
                "hung?"
            ) from None
        if "error" in said:
            raise MountError(said["error"])
        return said

    def cover(self, timeout_s: float, **covers: Sequence[str]) -> dict[str, str]:
        """For a further in-place run. The reasons for directories that could not be covered."""
        self.line.say(cover=covers)
        try:
            failed: dict[str, str] = self.line.answer("failed", timeout_s)["failed"]
        except TimeoutError:
            reason = f"it took longer than {timeout_s:.0f} s; is the source hung?"
            failed = dict.fromkeys(covers["directories"], reason)
        return failed

    def leave(self) -> Ending:
        """If it was the last reference, return when the mount is gone."""
        self.line.say(bye=True)
        try:
            said = self.line.answer("last", ANSWERS_BYE_WITHIN_S)
            self.read = said.get("read", {})
            if not said["last"]:
                return Ending.SHARED
        except TimeoutError:
            return Ending.SLOW
        except Vanished:
            return Ending.LOST
        try:
            self.line.wait_end(ENDS_WITHIN_S)
        except TimeoutError:
            return Ending.SLOW
        return Ending.UNMOUNTED


@dataclass(frozen=True, slots=True)
class First:
    """This process has to start the daemon."""

    counter: socket.socket

    def refuse(self, sentence: str) -> None:
        """Tell the waiting processes that there will be no mount."""
        refuse_all(self.counter, json.dumps({"error": sentence}).encode("ascii") + b"\n")


def refuse_all(listener: socket.socket, answer: bytes) -> None:
    """Answer those who wait, and close."""
    listener.setblocking(False)
    with contextlib.suppress(OSError):
        while True:
            waiting, _ = listener.accept()
            with waiting, contextlib.suppress(OSError):
                if is_own(waiting):  # a sentence may have paths
                    waiting.setblocking(True)
                    waiting.sendall(answer)
    listener.close()


def counter_name(mountpoint: str) -> str:
    digest = hashlib.blake2b(os.fsencode(mountpoint), digest_size=12).hexdigest()
    return f"\0copperfs/run/{os.getuid()}/{digest}"


def come(mountpoint: str, hello: dict[str, object], within_s: float = 30.0) -> First | Use:
    """More processes may come than the backlog takes until the daemon accepts; hence *within_s*."""
    name = counter_name(mountpoint)
    in_the_way = MountError(
        f"another user or a hung process holds {mountpoint} on this node; give another --mountpoint"
    )
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(name)
        except ConnectionRefusedError:
            pass  # no listener, or not yet
        except OSError:
            # Mostly the backlog is full.
            sock.close()
            time.sleep(TRY_AGAIN_S)
            continue
        else:
            if not is_own(sock):
                sock.close()
                raise in_the_way
            sock.setblocking(True)
            use = Use(Line(sock))
            use.line.say(**hello)
            return use
        try:
            sock.bind(name)
        except OSError:
            sock.close()  # another process was faster
            time.sleep(TRY_AGAIN_S)
            continue
        sock.setblocking(True)
        sock.listen(BACKLOG)
        return First(sock)
    raise in_the_way


def is_own(sock: socket.socket) -> bool:
    """Any user may bind or connect to such a name."""
    _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(uid == os.getuid())


def line_of(
    counter: socket.socket,
    first: socket.socket,
    expected: int,
    *,
    remove: bool,
    in_place: dict[str, Any] | str | None = None,
) -> str:
    """*in_place* describes the namespace, or says why there is none."""
    return json.dumps(
        {
            "counter": counter.fileno(),
            "first": first.fileno(),
            "expected": expected,
            "remove": remove,
            "in_place": in_place,
        }
    )
