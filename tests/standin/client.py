"""`StandIn`: starts the stand-in's process, steers it, and always gets rid of it.

Getting rid of it has three steps, each bounded in time: ask it to stop; kill the process by its
pid, which closes `/dev/fuse` and so fails everything that waits on the mount; unmount lazily what
is then left.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROJECT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 20.0
CONTROL_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.002


class StandInError(Exception):
    """The stand-in did not start, or refused a request."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What the source was asked, by operation and path ("." is the root)."""

    operations: dict[str, dict[str, int]]
    read_bytes: dict[str, int]
    hanging: int

    def total(self, op: str | None = None, path: str | None = None) -> int:
        """How many operations of this kind on this path; None means any."""
        return sum(
            count
            for kind, paths in self.operations.items()
            if op is None or kind == op
            for where, count in paths.items()
            if path is None or where == path
        )

    def paths(self, op: str) -> set[str]:
        return set(self.operations.get(op, {}))


class StandIn:
    """A running stand-in for `source`, mounted at `mountpoint` (by default a new directory)."""

    def __init__(
        self,
        source: str | os.PathLike[str],
        mountpoint: str | os.PathLike[str] | None = None,
        *,
        per_op_s: float = 0.0,
        per_read_s: float = 0.0,
        timeout_s: float = 0.0,
        page_cache: bool = False,
    ) -> None:
        self._own = Path(tempfile.mkdtemp(prefix="standin-"))
        self.source = Path(source)
        self.mountpoint = Path(mountpoint) if mountpoint is not None else self._own / "mnt"
        self._control = self._own / "control"
        self._log = self._own / "log"
        self._process: subprocess.Popen[str] | None = None
        self._command = [
            sys.executable, "-m", "tests.standin", str(self.source), str(self.mountpoint),
            "--control", str(self._control), "--exit-with-stdin",
            "--per-op", str(per_op_s), "--per-read", str(per_read_s), "--timeout", str(timeout_s),
            *(["--page-cache"] if page_cache else []),
        ]  # fmt: skip

    # -- life ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        assert self._process is None, "already started"
        self.mountpoint.mkdir(exist_ok=True)
        try:
            with self._log.open("w") as log:
                self._process = subprocess.Popen(
                    self._command, cwd=PROJECT, text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    start_new_session=True,  # Ctrl-C is for the tests, which then stop it
                )  # fmt: skip
            assert self._process.stdout is not None
            ready, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT_S)
            if not ready or self._process.stdout.readline() != "ready\n":
                raise StandInError(f"the stand-in did not start: {self._log.read_text()}")
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """End the process at once, as a crash would; the mount then answers ENOTCONN."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def unmount(self) -> None:
        """Take the mount point away, whether or not anything answers behind it."""
        command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz", "--"]
        while _is_mounted(self.mountpoint):
            done = subprocess.run(
                [*command, str(self.mountpoint)], stderr=subprocess.PIPE, text=True, check=False
            )
            if done.returncode != 0 and _is_mounted(self.mountpoint):
                raise StandInError(f"cannot unmount {self.mountpoint}: {done.stderr}")

    def stop(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(OSError, StandInError):
                self._ask("stop")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        self.kill()
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._process = None
        self.unmount()
        # Never rmtree a directory on which something may be mounted.
        with contextlib.suppress(FileNotFoundError, OSError):
            (self._own / "mnt").rmdir()
        if not (self._own / "mnt").exists():
            shutil.rmtree(self._own, ignore_errors=True)

    # -- steering -----------------------------------------------------------------------------

    def set_latency(
        self, *, per_op_s: float | None = None, per_read_s: float | None = None
    ) -> None:
        chosen = {"per_op_s": per_op_s, "per_read_s": per_read_s}
        self._ask("latency", **{key: value for key, value in chosen.items() if value is not None})

    def fail(
        self, path: str, errno: int, *, ops: Iterable[str] = (), times: int | None = None
    ) -> int:
        """From now on (or for the next `times`) these operations fail; returns the rule."""
        return self._rule("fail", path=path, errno=errno, ops=list(ops), times=times)

    def hang(self, path: str, *, ops: Iterable[str] = (), times: int | None = None) -> int:
        """From now on these operations wait until the rule is released."""
        return self._rule("hang", path=path, ops=list(ops), times=times)

    def delay(
        self, path: str, seconds: float, *, ops: Iterable[str] = (), times: int | None = None
    ) -> int:
        """From now on these operations take `seconds` longer."""
        return self._rule("delay", path=path, seconds=seconds, ops=list(ops), times=times)

    def release(self, rule: int) -> None:
        """Remove a rule of any kind; operations that hang on it go on."""
        self._ask("remove", rule=rule)

    def heal(self) -> None:
        """Remove all rules and all latency."""
        self._ask("heal")

    def counts(self) -> Counts:
        reply = self._ask("counts")
        return Counts(reply["operations"], reply["read_bytes"], reply["hanging"])

    def reset_counts(self) -> None:
        self._ask("reset")

    def wait_for_hanging(self, at_least: int = 1, timeout_s: float = 5.0) -> None:
        """Return when so many operations hang."""
        deadline = time.monotonic() + timeout_s
        while self.counts().hanging < at_least:
            if time.monotonic() > deadline:
                raise StandInError(f"fewer than {at_least} operations hang after {timeout_s} s")
            time.sleep(POLL_S)

    def _rule(self, kind: str, **details: object) -> int:
        return int(self._ask(kind, **details)["rule"])

    def _ask(self, what: str, **details: object) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CONTROL_TIMEOUT_S)
            connection.connect(str(self._control))
            connection.sendall(json.dumps({"do": what, **details}).encode() + b"\n")
            with connection.makefile("rb") as replies:
                line = replies.readline()
        reply: dict[str, Any] = json.loads(line) if line else {"ok": False, "error": "hung up"}
        if not reply["ok"]:
            raise StandInError(f"{what}: {reply['error']}")
        return reply


def _is_mounted(mountpoint: Path) -> bool:
    """By the kernel's table, never by a stat that a hung filesystem would not answer."""
    escaped = str(mountpoint.absolute()).replace("\\", "\\134").replace(" ", "\\040")
    with open("/proc/self/mountinfo") as table:
        return any(line.split(" ")[4] == escaped for line in table)
