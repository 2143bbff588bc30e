"""A mount to use in a ``with`` statement, a read-only bind mount to compare it with, and waiting.

``Mount`` runs the real command, so what is tested is what a user runs. Leaving the ``with`` always
unmounts: politely if possible, lazily if a test has left something open or killed the daemon.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

PROJECT = Path(__file__).resolve().parents[2]
COPPERFS = [sys.executable, "-P", "-m", "copperfs.cli.main"]
COMMAND_TIMEOUT_S = 60.0
WAIT_S = 15.0
NOBODY = 65534


# ---- waiting and asking --------------------------------------------------------------------------


def eventually(
    condition: Callable[[], object], what: str | Callable[[], str], within_s: float = WAIT_S
) -> None:
    """Return when *condition* holds; fail with *what* if it never does."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"after {within_s} s still not: {said}")
        time.sleep(0.01)


def errno_of(action: Callable[[], object]) -> int | None:
    """The errno that *action* fails with, None if it does not fail."""
    try:
        action()
    except OSError as error:
        return error.errno
    return None


def outcome_of(action: Callable[[], object]) -> str:
    """The name of the errno that *action* fails with, or "success"."""
    return name_of(errno_of(action))


def name_of(code: int | None) -> str:
    """An errno as people say it."""
    return "success" if code is None else errno.errorcode.get(code, str(code))


def is_mounted(path: Path) -> bool:
    """By the kernel's table, never by asking the mount."""
    # space, tab, newline and backslash are written as three octal digits
    escaped = re.sub(r"[ \t\n\\]", lambda found: f"\\{ord(found[0]):03o}", str(path))
    table = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    return any(line.split(" ")[4] == escaped for line in table.split("\n") if line)


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


# ---- running things ------------------------------------------------------------------------------


def copperfs(
    *arguments: str | Path, timeout_s: float = COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run the command; the caller looks at the exit code."""
    return run([*COPPERFS, *map(str, arguments)], timeout_s=timeout_s)


def run(
    command: Sequence[str | Path],
    *,
    timeout_s: float = COMMAND_TIMEOUT_S,
    cwd: str | Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command, in English, and return what it said."""
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="surrogateescape",
        timeout=timeout_s,
        check=False,
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
    )


# The interpreter may lie where only root may read, so whoever becomes another user does so after
# it has imported what it needs.
BECOME = """if True:
    import ctypes, errno, fcntl, json, os, struct, sys, traceback, encodings.ascii, linecache
    os.setgroups([])
    os.setresgid({user}, {user}, {user})
    os.setresuid({user}, {user}, {user})
"""


def python(
    script: str, *arguments: str | Path, user: int | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run a Python script in a process of its own, as another user if asked."""
    become = "" if user is None else BECOME.format(user=user)
    return run([sys.executable, "-c", become + script, *arguments], timeout_s=timeout_s)


def start_python(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start a Python script; the caller waits for it."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# ---- the mount -----------------------------------------------------------------------------------


class Mount:
    """A mount of *source*, from ``with`` until its end."""

    def __init__(self, source: Path, mountpoint: Path, *flags: str) -> None:
        self.source = source
        self.mountpoint = mountpoint
        self.flags = flags
        self.log = mountpoint.with_name(mountpoint.name + ".log")
        self.pid = 0

    def __truediv__(self, name: str) -> Path:
        return self.mountpoint / name

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.remove()
        if kind is None:
            self.check_log()

    def start(self) -> None:
        self.mountpoint.mkdir(exist_ok=True)
        done = copperfs(
            "mount", self.mountpoint, "--source", self.source, "--log-file", self.log, *self.flags
        )
        assert done.returncode == 0, done.stderr
        self.pid = self._find_pid()

    def check_log(self) -> None:
        """A daemon that logged a bug has failed the test, whatever the test saw."""
        if self.log.exists():
            text = self.log.read_text(errors="replace")
            assert "a bug:" not in text, text
            assert "Traceback" not in text, text

    def umount(self, *flags: str) -> subprocess.CompletedProcess[str]:
        return copperfs("umount", self.mountpoint, *flags)

    def stats(self) -> dict[str, Any]:
        return self._ask("stats", "--json")

    def reset(self) -> None:
        self._ask("stats", "--reset", "--json")

    def clear(self) -> dict[str, Any]:
        return self._ask("clear", "--json")

    def requests(self) -> int:
        """How many requests the handlers, that is Python, have seen."""
        return int(self.stats()["handlers"]["requests"])

    def kill(self) -> None:
        """The daemon ends as by the kernel's out-of-memory killer."""
        os.kill(self.pid, signal.SIGKILL)
        eventually(lambda: not is_running(self.pid), "the killed daemon is gone")

    def remove(self) -> None:
        """Whatever state it is in."""
        if is_mounted(self.mountpoint) and self.umount().returncode != 0:
            self.umount("--lazy")
        while is_mounted(self.mountpoint):
            subprocess.run(["umount", "-l", self.mountpoint], check=True, timeout=30)
        if self.pid:
            with contextlib.suppress(AssertionError):
                eventually(lambda: not is_running(self.pid), "the daemon has ended", 10)
            if is_running(self.pid):
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError("the daemon outlived its mount by 10 s")

    def _ask(self, command: str, *flags: str) -> dict[str, Any]:
        done = copperfs(command, self.mountpoint, *flags)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def _find_pid(self) -> int:
        """The daemon, by what it holds open: plain mounts cannot be asked."""
        if "--front-threads" not in self.flags:
            return int(self.stats()["pid"])
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and b"copperfs.runtime.daemon" in (
                    process / "cmdline"
                ).read_bytes().split(b"\0"):
                    logs = {os.readlink(each) for each in (process / "fd").iterdir()}
                    if str(self.log.resolve()) in logs:
                        return int(process.name)
        raise AssertionError("no daemon found")


def watch(mount: Mount, *flags: str) -> subprocess.Popen[str]:
    """``copperfs stats --watch``, when it has shown two documents."""
    watching = subprocess.Popen(
        [*COPPERFS, "stats", *flags, "--watch", "--json", str(mount.mountpoint)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert watching.stdout is not None
    shown = 0
    while shown < 2:
        shown += watching.stdout.readline().startswith("{")
    return watching


@contextlib.contextmanager
def bind_mounted(source: Path, mountpoint: Path) -> Iterator[Path]:
    """The kernel's own read-only view of *source*, which ours has to equal."""
    mountpoint.mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", source, mountpoint], check=True, timeout=30)
    try:
        subprocess.run(
            ["mount", "-o", "remount,bind,ro,nosuid,nodev", mountpoint], check=True, timeout=30
        )
        yield mountpoint
    finally:
        subprocess.run(["umount", "-l", mountpoint], check=True, timeout=30)
