"""Client of the control socket: queries and steers a running stand-in.

    from copperfs.lab.pfs_sim.pfs_client import PfsSim

    sim = PfsSim.at("/tmp/lustre")        # any of its mount points
    sim.reset()
    ...
    counts = sim.counts()
    assert counts.total("open", "env/torch/__init__.py") == 1
    rule = sim.hang("env/**", ops=["read"])
    ...
    sim.release(rule)

Paths are relative to the shown directory ("." is itself); in rules, "x/**" is x and all below it.
The client finds the control socket in mountinfo and never touches the mount, so queries work while
everything hangs, and are not counted.
"""

import json
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from copperfs.fuse.mounting import PFS_SIM_FSTYPE, absolute, mount_at
from copperfs.model.errors import ControlError

CONTROL_TIMEOUT_S = 10.0
STOPS_WITHIN_S = 10.0
POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    operations: int
    served_s: float
    queued_s: float
    queued_max_s: float


@dataclass(frozen=True, slots=True)
class ReportedCounts:
    operations: dict[str, dict[str, int]]
    not_found: dict[str, int]
    """Lookups that found nothing, by path."""
    read_bytes: dict[str, int]
    opened_again: dict[str, list[tuple[float, str]]]
    """Of files that were opened more than once: the times, by the monotonic clock, and the mount
    points."""
    clients: dict[str, dict[str, int]]
    """By mount point and operation."""
    metadata: ReportedLoad
    data: ReportedLoad
    hanging: int

    def total(self, op: str | None = None, path: str | None = None) -> int:
        """None means any."""
        return sum(
            count
            for kind, paths in self.operations.items()
            if op is None or kind == op
            for where, count in paths.items()
            if path is None or where == path
        )

    def paths(self, op: str) -> set[str]:
        return set(self.operations.get(op, {}))


class PfsSim:
    """A running stand-in. Failures raise ControlError."""

    def __init__(self, control: str | os.PathLike[str]) -> None:
        self.control = os.fspath(control)

    @classmethod
    def at(cls, mountpoint: str | os.PathLike[str]) -> "PfsSim":
        path = absolute(os.fspath(mountpoint))
        mounted = mount_at(path)
        if mounted is None or mounted.fstype != PFS_SIM_FSTYPE:
            raise ControlError(f"{path} is not a mount of copperfs pfs-sim")
        return cls(mounted.source)

    def hello(self) -> dict[str, Any]:
        return self.ask("hello")

    def counts(self) -> ReportedCounts:
        reply = self.ask("counts")
        return ReportedCounts(
            reply["operations"],
            reply["not_found"],
            reply["read_bytes"],
            {path: [(at, by) for at, by in each] for path, each in reply["opened_again"].items()},
            reply["clients"],
            ReportedLoad(**reply["metadata"]),
            ReportedLoad(**reply["data"]),
            reply["hanging"],
        )

    def reset(self) -> None:
        self.ask("reset")

    def set(
        self,
        *,
        latency_s: float | None = None,
        servers: int | None = None,
        read_latency_s: float | None = None,
        bandwidth_bytes: float | None = None,
        data_servers: int | None = None,
    ) -> None:
        """Change these for later operations; 0 means no limit."""
        chosen = {
            "latency_s": latency_s,
            "servers": servers,
            "read_latency_s": read_latency_s,
            "bandwidth_bytes": bandwidth_bytes,
            "data_servers": data_servers,
        }
        self.ask("set", **{key: value for key, value in chosen.items() if value is not None})

    def fail(
        self,
        path: str,
        errno: int,
        *,
        ops: Iterable[str] = (),
        times: int | None = None,
        server: int | None = None,
    ) -> int:
        """Fail these operations from now on, or the next `times`; returns the rule.

        With *server* only reads of files on that data server (inode number modulo ``data_servers``)
        match; the same for ``hang`` and ``delay``.
        """
        return self._rule("fail", path=path, errno=errno, ops=list(ops), times=times, server=server)

    def hang(
        self,
        path: str,
        *,
        ops: Iterable[str] = (),
        times: int | None = None,
        server: int | None = None,
    ) -> int:
        """Let these operations wait until the rule is released."""
        return self._rule("hang", path=path, ops=list(ops), times=times, server=server)

    def delay(
        self,
        path: str,
        seconds: float,
        *,
        ops: Iterable[str] = (),
        times: int | None = None,
        server: int | None = None,
    ) -> int:
        return self._rule(
            "delay", path=path, seconds=seconds, ops=list(ops), times=times, server=server
        )

    def rules(self) -> list[dict[str, Any]]:
        return list(self.ask("rules")["rules"])

    def release(self, rule: int) -> None:
        """Remove a rule of any kind; operations that hang on it go on."""
        self.ask("release", rule=rule)

    def heal(self) -> None:
        self.ask("heal")

    def stop(self) -> None:
        """Returns when it has unmounted."""
        self.ask("stop")
        deadline = time.monotonic() + STOPS_WITHIN_S
        while os.path.exists(self.control):
            if time.monotonic() > deadline:
                raise ControlError(f"pfs-sim at {self.control} does not end; kill it")
            time.sleep(POLL_S)

    def wait_for_hanging(self, at_least: int = 1, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while self.counts().hanging < at_least:
            if time.monotonic() > deadline:
                raise ControlError(f"fewer than {at_least} operations hang after {timeout_s} s")
            time.sleep(POLL_S)

    def ask(self, do: str, **details: object) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(CONTROL_TIMEOUT_S)
                connection.connect(self.control)
                connection.sendall(json.dumps({"do": do, **details}).encode() + b"\n")
                with connection.makefile("rb") as replies:
                    line = replies.readline()
        except TimeoutError:
            raise ControlError(f"pfs-sim at {self.control} did not answer in time") from None
        except OSError as error:
            raise ControlError(
                f"pfs-sim at {self.control} cannot be asked: {error.strerror}"
            ) from None
        if not line:
            raise ControlError(f"pfs-sim at {self.control} hung up; it answers only its own user")
        reply: dict[str, Any] = json.loads(line)
        if not reply.pop("ok"):
            raise ControlError(f"pfs-sim refuses to {do}: {reply['error']}")
        return reply

    def _rule(self, kind: str, **details: object) -> int:
        return int(self.ask(kind, **details)["rule"])
