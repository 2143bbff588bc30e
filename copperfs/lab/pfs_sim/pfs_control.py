"""Control server: the daemon's end of the control socket, with one JSON object a line each way.

Every request has "do"; every reply has "ok", and "error" when that is false. The loop serves it
without blocking, so it answers however hung the mount is. It answers only root and the user that
the daemon runs as: only they can enter the socket's directory, and the kernel reports the peer's
user.
"""

import json
import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from copperfs.lab.pfs_sim.request_loop import Loop

LINE_BYTES_MAX = 1 << 16
CONNECTIONS_MAX = 64
Answerer = Callable[[dict[str, Any]], dict[str, Any]]


class PfsControlServer:
    def __init__(self, loop: Loop, path: str, stop: Callable[[], None]) -> None:
        self.path = path
        self._loop = loop
        self._stop = stop
        self._connections: set[_Connection] = set()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.setblocking(False)
        before = os.umask(0o177)
        try:
            self._listening.bind(path)
        finally:
            os.umask(before)
        self._listening.listen(16)
        loop.watch(self._listening.fileno(), lambda _: self._accept())
        self._answerers: dict[str, Answerer] = {
            "hello": self._hello,
            "counts": self._counts,
            "reset": self._reset,
            "set": self._set,
            "rules": lambda _: {"rules": [rule.document() for rule in loop.rules]},
            "fail": self._rule,
            "hang": self._rule,
            "delay": self._rule,
            "release": self._release,
            "heal": self._heal,
            "stop": self._end,
        }

    def close(self) -> None:
        for connection in list(self._connections):
            connection.close()
        self._listening.close()
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def answer(self, line: bytes) -> bytes:
        try:
            request = json.loads(line)
            answerer = self._answerers.get(request["do"])
            if answerer is None:
                raise ValueError(f"no such request: {request['do']!r}")
            reply = {"ok": True, **answerer(request)}
        except KeyError as error:
            reply = {"ok": False, "error": f"there is no {error}"}
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            reply = {"ok": False, "error": str(error)}
        return json.dumps(reply).encode() + b"\n"

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, _ = struct.unpack("iII", credentials)
        if uid not in (os.geteuid(), 0) or len(self._connections) >= CONNECTIONS_MAX:
            connection.close()
            return
        self._connections.add(_Connection(self._loop, connection, self.answer, self._connections))

    # --- requests --------------------------------------------------------------------------------

    def _hello(self, _: dict[str, Any]) -> dict[str, Any]:
        loop = self._loop
        return {
            "pid": os.getpid(),
            "directory": loop.settings.directory,
            "mountpoints": [client.mountpoint for client in loop.clients.values()],
            **self._settings(),
        }

    def _settings(self) -> dict[str, Any]:
        loop = self._loop
        return {
            "latency_s": loop.latency_s,
            "servers": loop.metadata.count,
            "read_latency_s": loop.read_latency_s,
            "bandwidth_bytes": loop.data.bytes_per_s,
            "data_servers": loop.data.count,
            "cache_s": loop.settings.cache_s,
            "page_cache": loop.settings.page_cache,
        }

    def _counts(self, _: dict[str, Any]) -> dict[str, Any]:
        loop = self._loop
        return {
            "totals": loop.counts.totals(),
            "operations": loop.counts.operations,
            "not_found": loop.counts.not_found,
            "read_bytes": loop.counts.read_bytes,
            "opened_again": loop.counts.opened_again(),
            "clients": {each.mountpoint: each.operations for each in loop.clients.values()},
            "metadata": asdict(loop.metadata.load),
            "data": asdict(loop.data.load),
            "hanging": loop.hanging,
        }

    def _reset(self, _: dict[str, Any]) -> dict[str, Any]:
        self._loop.reset()
        return {}

    def _set(self, request: dict[str, Any]) -> dict[str, Any]:
        loop = self._loop
        # all are checked before any is changed
        numbers = {
            name: _number(name, request[name], whole=name.endswith("servers"))
            for name in request
            if name != "do"
        }
        if unknown := numbers.keys() - {
            *("latency_s", "servers", "read_latency_s", "bandwidth_bytes", "data_servers")
        }:
            raise ValueError(f"cannot be set while it runs: {', '.join(sorted(unknown))}")
        loop.latency_s = numbers.get("latency_s", loop.latency_s)
        loop.read_latency_s = numbers.get("read_latency_s", loop.read_latency_s)
        loop.data.bytes_per_s = numbers.get("bandwidth_bytes", loop.data.bytes_per_s)
        if "servers" in numbers:
            loop.metadata.resize(int(numbers["servers"]))
        if "data_servers" in numbers:
            loop.data.resize(int(numbers["data_servers"]))
        return self._settings()

    def _rule(self, request: dict[str, Any]) -> dict[str, Any]:
        times = request.get("times")
        number = self._loop.rules.add(
            request["do"],
            str(request["path"]),
            [str(op) for op in request.get("ops", [])],
            errno=int(request.get("errno", 0)),
            seconds=float(request.get("seconds", 0.0)),
            times=None if times is None else int(times),
            server=None if request.get("server") is None else int(request["server"]),
        )
        return {"rule": number}

    def _release(self, request: dict[str, Any]) -> dict[str, Any]:
        number = int(request["rule"])
        if number not in self._loop.rules:
            raise ValueError(f"there is no rule {number}")
        self._loop.release(number)
        return {}

    def _heal(self, _: dict[str, Any]) -> dict[str, Any]:
        self._loop.heal()
        return {}

    def _end(self, _: dict[str, Any]) -> dict[str, Any]:
        self._stop()
        return {}


class _Connection:
    """Replies that the client has not read yet wait here, and so do its next requests."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        answer: Callable[[bytes], bytes],
        others: "set[_Connection]",
    ) -> None:
        self._loop, self._socket, self._answer, self._others = loop, connection, answer, others
        self._in, self._out = b"", b""
        connection.setblocking(False)
        loop.watch(connection.fileno(), self._ready)

    def close(self) -> None:
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._others.discard(self)

    def _ready(self, events: int) -> None:
        try:
            if self._out:
                self._send()
            elif not self._receive():
                self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()  # the client has closed it

    def _receive(self) -> bool:
        piece = self._socket.recv(LINE_BYTES_MAX)
        self._in += piece
        if not piece or len(self._in) > LINE_BYTES_MAX:
            return False
        *lines, self._in = self._in.split(b"\n")
        self._out = b"".join(self._answer(line) for line in lines)
        if self._out:
            self._send()
        return True

    def _send(self) -> None:
        with suppress(BlockingIOError):
            self._out = self._out[self._socket.send(self._out) :]
        self._loop.watch(
            self._socket.fileno(), self._ready, select.EPOLLOUT if self._out else select.EPOLLIN
        )


def _number(name: str, value: object, *, whole: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} has to be a number")
    if not 0 <= value < 1e15 or (whole and value != int(value)):
        raise ValueError(f"{name} cannot be {value}")
    if whole and value > SERVERS_MAX:
        raise ValueError(f"{name} cannot be more than {SERVERS_MAX}")
    return value


SERVERS_MAX = 100_000
