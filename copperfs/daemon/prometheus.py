"""Prometheus exporter: the statistics over HTTP on the loopback address, or in a file.

A client library would keep its own counters, while ours are in C and are collected on request.

All processes on this node can connect. The document has counts and the path of the mount, and no
paths of files.
"""

import errno
import logging
import os
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from copperfs import __version__
from copperfs.config.settings import Settings
from copperfs.fuse.safe_open import check_ours
from copperfs.model.errors import MountError

log = logging.getLogger(__name__)

FILE_EVERY_S = 15.0
REQUEST_MAX = 8192
REQUEST_WITHIN_S = 5.0
CONNECTIONS_MAX = 16
REMOVED_WITHIN_S = 1.0
# Gauges, not counters; docs/statistics.md marks them (now).
_STATES = {
    "node": {"fetching"},
    "members": {"gone", "suspects", "max_detection_ms"},
    "transport": {"connections"},
    "front": {"nodes", "nodes_max", "idle_nodes", "pending", "max_pages", "bypass_threads"},
    "process": {"tasks", "threads", "descriptors", "resident_bytes"},
    "kernel": {"waiting"},
    "pool": {"threads", "busy", "queued", "stuck"},
    "cache": {"budget_bytes", "held_bytes", "reserved_bytes", "held", "object_bytes"},
    "source": set[str](),
    "bytes": set[str](),
    "job": {"roster", "connected"},
    "tier": {
        *("memory_budget_bytes", "memory_held_bytes", "memory_held"),
        *("disk_budget_bytes", "disk_held_bytes", "disk_held", "disk_backlog"),
        *("disk_backlog_bytes", "disk_degraded", "disk_max_degraded_s", "disk_waiting"),
        *("disk_owed", "disk_owed_bytes", "disk_outgrown", "copies_due"),
    },
}


@dataclass(slots=True)
class _Family:
    name: str
    kind: str
    about: str
    samples: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} {self.kind}"
        for suffix, labels, value in self.samples:
            inner = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            yield f"{self.name}{suffix}{'{' + inner + '}' if inner else ''} {value:.10g}"


def _escaped(text: str) -> str:
    shown = text.encode("utf-8", "backslashreplace").decode()
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def render(document: Mapping[str, Any], settings: Settings, name: str) -> str:
    families = [
        _info(document, settings, name),
        _Family(
            "copperfs_start_time_seconds",
            "gauge",
            "When the daemon started, since 1970.",
            [("", {}, document["started"])],
        ),
        _Family("copperfs_epoch", "gauge", "Snapshots begun.", [("", {}, document["epoch"])]),
        *_operations(document),
        _Family(
            "copperfs_negative_total",
            "counter",
            "Lookups answered with: there is no such name.",
            [("", {}, document["negative"])],
        ),
    ]
    families += _takeovers(document["takeovers"])
    for group, states in _STATES.items():
        families += _group(group, document[group], states)
    return "".join(f"{line}\n" for family in families for line in family.lines())


def _info(document: Mapping[str, Any], settings: Settings, name: str) -> _Family:
    labels = {
        "version": __version__,
        "mountpoint": settings.mountpoint,
        "source": settings.source,
        "node": name,
        "number": f"{document['job']['number']}",
    }
    return _Family("copperfs_info", "gauge", "What runs; always 1.", [("", labels, 1)])


def _operations(document: Mapping[str, Any]) -> list[_Family]:
    requests = _Family(
        "copperfs_requests_total", "counter", "Requests of the kernel, by kind and answer."
    )
    waits = _Family(
        "copperfs_request_seconds",
        "gauge",
        "How long they took, by quantile, since counting began.",
    )
    for kind, answers in document["operations"].items():
        for answer, each in answers.items():
            labels = {"operation": kind, "answer": answer}
            requests.samples.append(("", labels, each["count"]))
            for share in ("50", "90", "99"):
                if (taken := each.get(f"p{share}_us")) is not None:
                    waits.samples.append(
                        ("", labels | {"quantile": f"0.{share}".rstrip("0")}, taken / 1e6)
                    )
    return [requests, waits]


def _takeovers(takeovers: Mapping[str, Any]) -> list[_Family]:
    return [
        _Family(
            "copperfs_takeovers_total",
            "counter",
            "How often another daemon went on with the mount, by the end of the one before.",
            [("", {"cause": cause}, count) for cause, count in takeovers["by_cause"].items()],
        ),
        _Family(
            "copperfs_takeovers_last_s",
            "gauge",
            "How long no daemon had answered before the last of them.",
            [("", {}, takeovers["last_s"])],
        ),
        _Family(
            "copperfs_takeovers_standbys_fail",
            "gauge",
            "1 while the standbys end by themselves.",
            [("", {}, takeovers["standbys_fail"])],
        ),
    ]


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers under the joined names of their groups."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}_")
        else:
            yield f"{before}{key}", value


def _group(group: str, values: Mapping[str, Any], states: set[str]) -> Iterator[_Family]:
    for key, value in flat(values):
        if group == "job" and key not in states:
            continue  # the number identifies the node
        about = f"{group}.{key} in docs/statistics.md."
        if key in states:
            yield _Family(f"copperfs_{group}_{key}", "gauge", about, [("", {}, value)])
        else:
            yield _Family(f"copperfs_{group}_{key}_total", "counter", about, [("", {}, value)])


def open_port(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(CONNECTIONS_MAX)
    except OSError as error:
        listener.close()
        raise MountError(
            f"metrics cannot be given at port {port} of 127.0.0.1: {error.strerror}; give another "
            "--metrics"
        ) from None
    return listener


def port_of(inherited: int, port: int) -> socket.socket | None:
    """The listener of a predecessor if it is at that port."""
    listener = socket.socket(fileno=inherited)
    listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if listens and listener.getsockname()[1] == port:
        return listener
    listener.close()
    return None


def close_port(listener: socket.socket) -> None:
    """For all processes that have it: the keeper ends after the daemon."""
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


async def serve(listener: socket.socket, text: Callable[[], str]) -> None:
    limiter = trio.CapacityLimiter(CONNECTIONS_MAX)
    own = trio.SocketListener(trio.socket.from_stdlib_socket(_nonblocking(listener)))

    async def answer(stream: trio.SocketStream) -> None:
        with trio.move_on_after(REQUEST_WITHIN_S):
            async with stream, limiter:
                try:
                    await stream.send_all(_reply(await _request(stream), text))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return

    await trio.serve_listeners(answer, [own])


def _nonblocking(listener: socket.socket) -> socket.socket:
    listener.setblocking(False)
    return listener


async def _request(stream: trio.SocketStream) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < REQUEST_MAX:
        more = await stream.receive_some(REQUEST_MAX)
        if not more:
            break
        head += more
    return head


def _reply(request: bytes, text: Callable[[], str]) -> bytes:
    method, path = [*request.split(b" ", 2), b"", b""][:2]
    if method not in (b"GET", b"HEAD"):
        status, kind, body = "405 Method Not Allowed", "text/plain", b"only GET\n"
    elif path.partition(b"?")[0] != b"/metrics":
        status, kind, body = "404 Not Found", "text/plain", b"see /metrics\n"
    elif (whole := _put_together(text)) is None:
        status, kind, body = "500 Internal Server Error", "text/plain", b"see the daemon's log\n"
    else:
        status, kind, body = "200 OK", "text/plain; version=0.0.4", whole.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else body)


async def write(path: str, text: Callable[[], str]) -> None:
    """Write again and again, and remove the file at the end."""
    failing, ended = False, _Ended()
    try:
        while True:
            if (whole := _put_together(text)) is not None:
                # A filesystem that hangs must not keep the daemon from ending.
                problem = await trio.to_thread.run_sync(
                    _write_once, path, whole, ended, abandon_on_cancel=True
                )
                if problem and not failing:
                    log.info("metrics cannot be written to %s: %s", path, problem)
                failing = problem is not None
            await trio.sleep(FILE_EVERY_S)
    finally:
        removing = threading.Thread(target=_remove, args=(path, ended), daemon=True)
        removing.start()
        removing.join(REMOVED_WITHIN_S)


def _put_together(text: Callable[[], str]) -> str | None:
    """None on failure: a daemon without a free descriptor still serves its mount."""
    try:
        return text()
    except OSError as error:
        log.info("there are no metrics at present: %s", error.strerror)
    except Exception:
        log.exception("a bug: the metrics cannot be put together")
    return None


@dataclass(slots=True)
class _Ended:
    """A thread may still be about to write a file that is no longer wanted."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    is_so: bool = False
    written: os.stat_result | None = None


def _write_once(path: str, text: str, ended: "_Ended") -> str | None:
    """Replace our previous file, or create it; the reason if that fails."""
    # The name is random, so that others cannot prepare it, and O_EXCL opens no existing file.
    temporary = f"{path}.{os.getpid()}.{secrets.token_hex(8)}"
    try:
        _check_ours(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o666)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                written = os.fstat(fd)
            with ended.lock:
                if not ended.is_so:
                    os.replace(temporary, path)
                    ended.written = written
        finally:
            with suppress(FileNotFoundError):  # it was renamed
                os.unlink(temporary)
    except OSError as error:
        return error.strerror
    return None


def _check_ours(path: str) -> None:
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        check_ours(found, path)


def _remove(path: str, ended: "_Ended") -> None:
    with ended.lock, suppress(OSError):
        ended.is_so = True
        if ended.written is not None and os.path.samestat(os.lstat(path), ended.written):
            os.unlink(path)
