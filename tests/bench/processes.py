"""Benchmark processes and mounts: started, watched and always ended, by pid and by path only.

CPU time is read from the process's CPU clock (nanoseconds, ended threads included), since the ticks
of `/proc/PID/stat` are 10 ms.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

MOUNT_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 10.0
POLL_S = 0.005


class CannotMeasureError(Exception):
    """Not available here; the reason is for the reader."""


def is_mounted(path: Path) -> bool:
    """By the kernel's table: a stat would hang where a filesystem hangs."""
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            raw = line.split(b" ")[4]
            shown = re.sub(rb"\\(\d{3})", lambda match: bytes([int(match[1], 8)]), raw)
            if shown == os.fsencode(path):
                return True
    return False


def unmount(path: Path) -> None:
    as_root = os.geteuid() == 0
    polite = ["umount", str(path)] if as_root else ["fusermount3", "-u", "--", str(path)]
    lazy = ["umount", "-l", str(path)] if as_root else ["fusermount3", "-uz", "--", str(path)]
    for command in (polite, lazy):
        if not is_mounted(path):
            return
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False, timeout=EXIT_TIMEOUT_S)
    if is_mounted(path):
        raise CannotMeasureError(f"{path} cannot be unmounted")


def process_tree(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    total = 0.0
    for pid in pids:
        # See clock_getcpuclockid(3) and the kernel's posix-timers.h.
        with contextlib.suppress(OSError):
            total += time.clock_gettime((~pid << 3) | 2)
    return total


def pss_bytes(pids: Sequence[int]) -> int:
    """Shared pages count by their share."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += 1024 * sum(
                int(value) for value in re.findall(r"^Pss: +(\d+)", rollup, re.MULTILINE)
            )
    return total


def end(process: subprocess.Popen[bytes]) -> None:
    for insist in (None, signal.SIGTERM, signal.SIGKILL):
        if insist is not None:
            process.send_signal(insist)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_TIMEOUT_S if insist is None else EXIT_TIMEOUT_S / 2)
            return


@contextlib.contextmanager
def mountpoint() -> Iterator[Path]:
    """An empty directory, removed afterwards, never through a mount."""
    base = Path(tempfile.mkdtemp(prefix="copperfs-bench-")).resolve()
    path = base / "mnt"
    path.mkdir()
    try:
        yield path
    finally:
        if is_mounted(path):
            unmount(path)
        path.rmdir()
        base.rmdir()


@contextlib.contextmanager
def daemon(
    command: Sequence[str], path: Path, extra_env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a FUSE daemon in the foreground until the block ends; enter when it has mounted."""
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(extra_env or {})},
                # Ctrl-C is for the harness, which unmounts in its own order.
                start_new_session=True,
            )
        except OSError as error:
            raise CannotMeasureError(f"{command[0]}: {error}") from None
        try:
            deadline = time.monotonic() + MOUNT_TIMEOUT_S
            while not is_mounted(path):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    said = log.read().decode(errors="replace").strip()[-2000:]
                    raise CannotMeasureError(f"{' '.join(command)} did not mount: {said}")
                time.sleep(POLL_S)
            os.stat(path)  # answered only when the daemon serves
            yield process
        finally:
            try:
                unmount(path)
            finally:
                end(process)
