"""Test mount: a mount for a ``with`` statement, a read-only bind mount to compare it with, and
waiting.

``Mount`` runs the real command. Leaving the ``with`` always unmounts: lazily if a test has left a
file open or killed the daemon.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.model.errors import ControlError
from tests.mount.keepers import kill_with_keeper
from tests.patience import PATIENCE

PROJECT = Path(__file__).resolve().parents[2]
# The program that an installation puts into bin.
COPPERFS = [str(Path(sys.executable).with_name("copperfs"))]
COMMAND_TIMEOUT_S = 60.0 * PATIENCE
# Only a test that fails waits this long.
WAIT_S = ENDS_WITHIN_S = 60.0 * PATIENCE
LOOKERS = (
    ["py-spy", "dump", "--pid"],
    ["gdb", "-batch", "-ex", "thread apply all bt", "-p"],
)
NOBODY = 65534


# ---- waiting and asking --------------------------------------------------------------------------


def eventually(
    condition: Callable[[], object], what: str | Callable[[], str], within_s: float = WAIT_S
) -> None:
    """Fail with *what* if *condition* never holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"after {within_s} s still not: {said}")
        time.sleep(0.01)


def errno_of(action: Callable[[], object]) -> int | None:
    try:
        action()
    except OSError as error:
        return error.errno
    return None


def outcome_of(action: Callable[[], object]) -> str:
    return name_of(errno_of(action))


def name_of(code: int | None) -> str:
    return "success" if code is None else errno.errorcode.get(code, str(code))


def told_of_a_read(code: int) -> int:
    """The error that a read through the page cache shows when the daemon answers with *code*: from
    Linux 6.19 on iomap keeps no error with a folio, so all become EIO."""
    return code if kernel_release() < (6, 19) else errno.EIO


def kernel_release() -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", os.uname().release)[:2])


def is_mounted(path: Path) -> bool:
    """By the kernel's table, never by asking the mount."""
    # whitespace and backslash are written as three octal digits
    escaped = re.sub(r"[ \t\n\\]", lambda found: f"\\{ord(found[0]):03o}", str(path))
    table = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    return any(line.split(" ")[4] == escaped for line in table.split("\n") if line)


def device_of(mountpoint: Path) -> str | None:
    """By the kernel's table; None if nothing is mounted there."""
    table = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    found = [line.split(" ") for line in table.split("\n") if line]
    return next((each[2] for each in found if each[4] == str(mountpoint)), None)


def namespaces_with(device: str | None) -> list[str]:
    """Other mount namespaces with a copy of the mount, which keep its daemon running; each with one
    of its processes."""
    seen = {os.readlink("/proc/self/ns/mnt")}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            namespace = os.readlink(process / "ns" / "mnt")
            if namespace in seen:
                continue
            seen.add(namespace)
            table = (process / "mountinfo").read_text(errors="surrogateescape")
            if any(line.split(" ")[2] == device for line in table.split("\n") if line):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append(f"process {process.name} ({os.fsdecode(command).strip()})")
    return found


def where_it_stands(pid: int) -> str:
    """What the kernel does for each thread, and Python's stack if py-spy or gdb is installed."""
    said = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            name, state = (task / "comm").read_text().strip(), (task / "wchan").read_text()
            said.append(f"thread {task.name} ({name}): {state}")
            said.append((task / "stack").read_text())
    look = next((each for each in LOOKERS if shutil.which(each[0])), None)
    if look is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            said.append(run([*look, str(pid)], timeout_s=30).stdout)
    return "\n".join(said)


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


# ---- running things ------------------------------------------------------------------------------


def copperfs(
    *arguments: str | Path, timeout_s: float = COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    return run([*COPPERFS, *map(str, arguments)], timeout_s=timeout_s)


def run(
    command: Sequence[str | Path],
    *,
    timeout_s: float = COMMAND_TIMEOUT_S,
    cwd: str | Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
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


def asked(mountpoint: Path, request: IoctlRequest, within_s: float = COMMAND_TIMEOUT_S) -> Any:
    """The JSON of ``copperfs stats --json`` and its like, without a process for each: tests ask
    some thousand times."""
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(ask_mount(str(mountpoint), request))
        except ControlError as error:
            found.append(error)

    # A reader that waits for a hanging daemon is freed only by the end of the process.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(within_s)
    assert found, f"{mountpoint} did not answer within {within_s} s"
    assert not isinstance(found[0], ControlError), str(found[0])
    return found[0]


# The interpreter may lie where only root may read, so a process changes its user after its imports.
BECOME = """if True:
    import ctypes, errno, fcntl, json, os, struct, sys, traceback, encodings.ascii, linecache
    os.setgroups([])
    os.setresgid({user}, {user}, {user})
    os.setresuid({user}, {user}, {user})
"""


def python(
    script: str,
    *arguments: str | Path,
    user: int | None = None,
    timeout_s: float = COMMAND_TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    become = "" if user is None else BECOME.format(user=user)
    return run([sys.executable, "-c", become + script, *arguments], timeout_s=timeout_s)


def start_python(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# ---- the mount -----------------------------------------------------------------------------------


class Mount:
    def __init__(self, source: Path, mountpoint: Path, *flags: str) -> None:
        self.source = source
        self.mountpoint = mountpoint
        self.flags = flags
        self.log = mountpoint.with_name(mountpoint.name + ".log")
        self.pid = 0
        self._device: str | None = None

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
        self._device = device_of(self.mountpoint)

    def check_log(self) -> None:
        """A bug in the daemon's log fails the test."""
        if self.log.exists():
            text = self.log.read_text(errors="replace")
            assert "a bug:" not in text, text
            assert "Traceback" not in text, text

    def umount(self, *flags: str) -> subprocess.CompletedProcess[str]:
        return copperfs("umount", self.mountpoint, *flags)

    def stats(self) -> dict[str, Any]:
        answer: dict[str, Any] = asked(self.mountpoint, IoctlRequest.STATISTICS)
        return answer

    def reset(self) -> None:
        asked(self.mountpoint, IoctlRequest.RESET)

    def clear(self) -> dict[str, Any]:
        answer: dict[str, Any] = asked(self.mountpoint, IoctlRequest.CLEAR)
        assert not answer.get("missing"), answer
        return answer

    def requests(self) -> int:
        return int(self.stats()["handlers"]["requests"])

    def kill(self) -> None:
        kill_with_keeper(self.pid)
        eventually(lambda: not is_running(self.pid), "the killed daemon is gone")

    def remove(self) -> None:
        if is_mounted(self.mountpoint) and self.umount().returncode != 0:
            self.umount("--lazy")
        while is_mounted(self.mountpoint):
            subprocess.run(["umount", "-l", self.mountpoint], check=True, timeout=30)
        if self.pid:
            with contextlib.suppress(AssertionError):
                eventually(lambda: not is_running(self.pid), "the daemon has ended", ENDS_WITHIN_S)
            if is_running(self.pid):
                self.end_outliving()

    def end_outliving(self) -> None:
        """End a daemon whose mount is gone here. It rightly runs on if another mount namespace has
        a copy."""
        copied = namespaces_with(self._device)
        stands = "" if copied else where_it_stands(self.pid)
        with contextlib.suppress(ProcessLookupError):
            kill_with_keeper(self.pid)
        told = f"the daemon outlived its mount by {ENDS_WITHIN_S} s:\n{stands}"
        assert copied or not stands, told

    def _find_pid(self) -> int:
        return int(self.stats()["pid"])


def watch(mount: Mount, *flags: str) -> subprocess.Popen[str]:
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
    """The kernel's own view of *source*, which our mount has to equal."""
    mountpoint.mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", source, mountpoint], check=True, timeout=30)
    try:
        subprocess.run(
            ["mount", "-o", "remount,bind,ro,nosuid,nodev", mountpoint], check=True, timeout=30
        )
        yield mountpoint
    finally:
        subprocess.run(["umount", "-l", mountpoint], check=True, timeout=30)
