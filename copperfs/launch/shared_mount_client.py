"""Shared mount, client side: counts the ``copperfs run`` processes of a node that use one mount.

The first process binds the *counter*, a Unix socket in the abstract namespace that is named after
user and mount point, and hands it to the daemon that it starts; the others connect to it. A
connection is a reference to the mount: the daemon ends when the last one closes. Binding is atomic
and the kernel removes the name with its process. So there is no lock, no file, and nothing to clean
up after a ``kill -9`` at any moment. A pid file would have had all three.

The daemon keeps the counter until its process ends, which is after unmounting. So a process that
connects meanwhile finds that its connection ends without a word, and becomes the first of the next.

Each side writes lines of JSON:

    user     {"settings": ..., "token": ...}    its settings; the token of its processes
    daemon   {"ready": true}                    the mount can be used
          or {"error": sentence}                it never will be, or has other settings
    user     {"bye": true}                      its command has ended; kill nothing
    daemon   {"last": ...}                      if true, the connection ends with the daemon

A connection that ends without a bye belongs to a process that was killed.
"""

import contextlib
import hashlib
import json
import os
import socket
import struct
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

from copperfs.model.errors import MountError

# A burst of ranks; the system's somaxconn bounds it as well.
BACKLOG = 1024
# pid, uid, gid
_PEER = struct.Struct("iII")
# Another process may have bound the name and not listen yet.
TRY_AGAIN_S = 0.01
LINE_MAX = 64 * 1024
ANSWERS_BYE_WITHIN_S = 10.0
# The time the daemon takes to unmount and end: umount waits as long.
ENDS_WITHIN_S = 30.0


class Vanished(Exception):  # no fault: the daemon ended, and the next may begin
    """The connection ended before the mount could be used."""


@dataclass(slots=True)
class Line:
    """One end of a connection, blocking, with a deadline for each wait."""

    sock: socket.socket
    _received: bytes = b""

    def say(self, **words: object) -> None:
        """Write a line. An other end that has ended is noticed at the next ``hear``."""
        with contextlib.suppress(OSError):
            self.sock.sendall(json.dumps(words).encode("ascii") + b"\n")

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """The next line; Vanished at the end, TimeoutError if none comes."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            self.sock.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                more = self.sock.recv(LINE_MAX)
            except ConnectionError:
                more = b""
            if not more:
                raise Vanished
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        words: dict[str, Any] = json.loads(line)
        return words


class Ending(Enum):
    """What became of the mount when its user left."""

    SHARED = "others use it"
    UNMOUNTED = "this was the last use, and it is gone"
    SLOW = "the daemon has not answered in time, and may still end as it should"
    LOST = "the daemon had ended before"


@dataclass(slots=True)
class Use:
    """A reference to the mount, for as long as this process lives or until it says bye."""

    line: Line

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the mount can be used. MountError says why it cannot."""
        try:
            said = self.line.hear(timeout_s)
        except TimeoutError:
            raise MountError(
                f"the mount of this node was not ready within {timeout_s:.0f} s; is the source "
                "hung?"
            ) from None
        if "error" in said:
            raise MountError(said["error"])

    def leave(self) -> Ending:
        """Release the reference. If it was the last, return when the mount is gone."""
        self.line.say(bye=True)
        try:
            if not self.line.hear(ANSWERS_BYE_WITHIN_S)["last"]:
                return Ending.SHARED
        except TimeoutError:
            return Ending.SLOW
        except Vanished:
            return Ending.LOST
        try:
            self.line.hear(ENDS_WITHIN_S)
        except Vanished:
            return Ending.UNMOUNTED
        except TimeoutError:
            pass
        return Ending.SLOW


@dataclass(frozen=True, slots=True)
class First:
    """The first process, which has to start the daemon."""

    counter: socket.socket

    def refuse(self, sentence: str) -> None:
        """Tell the waiting processes that there will be no mount, and close the counter."""
        self.counter.setblocking(False)
        with contextlib.suppress(OSError):
            while True:
                waiting, _ = self.counter.accept()
                with waiting:
                    waiting.setblocking(True)
                    Line(waiting).say(error=sentence)
        self.counter.close()


def counter_name(mountpoint: str) -> str:
    digest = hashlib.blake2b(os.fsencode(mountpoint), digest_size=12).hexdigest()
    return f"\0copperfs/run/{os.getuid()}/{digest}"


def come(mountpoint: str, hello: dict[str, object], within_s: float = 30.0) -> First | Use:
    """Become a user of *mountpoint*, the first or another one. Any user may bind such a name. And
    where the system's somaxconn is small, more processes may come than the backlog takes until the
    daemon accepts; hence *within_s*."""
    name = counter_name(mountpoint)
    in_the_way = MountError(
        f"another user, or a process that hangs, stands in the way of {mountpoint} on this node; "
        "give another --mountpoint"
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
    """Whether the other side is of the same user: any user may bind or connect to such a name."""
    _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(uid == os.getuid())


def line_of(counter: socket.socket, first: socket.socket, expected: int, *, remove: bool) -> str:
    """The line that tells the daemon of its users, with descriptors that it inherits."""
    return json.dumps(
        {
            "counter": counter.fileno(),
            "first": first.fileno(),
            "expected": expected,
            "remove": remove,
        }
    )
