"""Test cluster: started by the command line, and operations through its mounts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import xxhash

from copperfs.fuse.ioctl import IoctlRequest
from tests.mount.doubts import Watch
from tests.mount.helpers import asked, copperfs, eventually, is_mounted, is_running
from tests.standin import StandIn

IMPORT_WITHIN_S = 120.0
# No live node is suspected, however late it is. Only for a test that is about something else and
# needs a job in which no node is late; the test says why. Other tests use ``doubts``.
PATIENT = ("--hedge-after", "20", "--dead-after", "60")


class Cluster:
    def __init__(self, directory: Path, nodes: int, source: Path, *flags: str) -> None:
        self.directory = directory
        self.nodes = nodes
        self.source = source
        self.flags = flags

    def mnt(self, node: int) -> Path:
        return self.directory / f"node{node}" / "mnt"

    def log(self, node: int) -> Path:
        return self.directory / f"node{node}" / "log"

    @property
    def mountpoints(self) -> list[Path]:
        return [self.mnt(node) for node in range(self.nodes)]

    def __enter__(self) -> Self:
        try:
            done = self.up()
            assert done.returncode == 0, done.stderr
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        logs = [self.log(node) for node in range(self.nodes)]
        said = {each: each.read_text(errors="replace") for each in logs if each.exists()}
        self.remove()
        if kind is None:
            for log, text in said.items():
                assert "a bug:" not in text, f"{log}:\n{text}"
                assert "Traceback" not in text, f"{log}:\n{text}"

    def up(self) -> subprocess.CompletedProcess[str]:
        words = ["cluster", "up", "-n", str(self.nodes), "--dir", str(self.directory)]
        return copperfs(*words, "--source", self.source, *self.flags)

    def down(self) -> subprocess.CompletedProcess[str]:
        return copperfs("cluster", "down", "--dir", self.directory)

    def status(self) -> dict[str, Any]:
        done = copperfs("cluster", "status", "--json", "--dir", self.directory)
        status: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode == 0) == status["well"]
        return status

    def pid(self, node: int) -> int:
        state = json.loads((self.directory / "cluster.json").read_text())
        return int(state["nodes"][node]["pid"])

    def kill(self, node: int, number: signal.Signals = signal.SIGKILL) -> None:
        pid = self.pid(node)
        os.kill(pid, number)
        if number != signal.SIGSTOP:
            eventually(lambda: not is_running(pid), "the daemon has ended")

    def stats(self, node: int) -> dict[str, Any]:
        statistics: dict[str, Any] = asked(self.mnt(node), IoctlRequest.STATISTICS)
        return statistics

    def reset(self) -> None:
        for node in range(self.nodes):
            asked(self.mnt(node), IoctlRequest.RESET)

    def watch(self, dead: Collection[int] = ()) -> Watch:
        """Suspicions from now on (``tests/mount/doubts.py``). *dead* were killed before."""
        living = [node for node in range(self.nodes) if node not in dead]
        events = {node: self.directory / f"node{node}" / "events" for node in living}
        return Watch(self.stats, events, len(dead))

    def everywhere(self) -> list[int]:
        return list(range(self.nodes))

    def remove(self) -> None:
        """End the cluster in any state; by the ids of its processes, if the command fails."""
        pids: list[int] = []
        with contextlib.suppress(OSError, ValueError, KeyError):
            state = json.loads((self.directory / "cluster.json").read_text())
            pids = [each["pid"] for each in state["nodes"] if each["pid"]]
        done = self.down()
        left = [each for each in self.mountpoints if is_mounted(each)]
        running = [each for each in pids if is_running(each)]
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        for each in left:
            subprocess.run(["umount", "-l", each], check=False, timeout=30)
        assert done.returncode == 0, done.stderr
        assert not left, f"still mounted: {left}"
        assert not running, f"still running: {running}"


# ---- reads through the mounts --------------------------------------------------------------------


def at_once(command: Sequence[str], mountpoints: Sequence[Path]) -> list[str]:
    """On all nodes at the same time, with the mount as PYTHONPATH; return the outputs."""
    processes = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(each), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        for each in mountpoints
    ]
    try:
        said = [each.communicate(timeout=IMPORT_WITHIN_S) for each in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, complaint) in zip(processes, said, strict=True):
        assert process.returncode == 0, complaint
    return [printed for printed, _ in said]


def import_at_once(module: str, mountpoints: Sequence[Path]) -> None:
    # -S: no site-packages; -P: no current directory.
    program = f"import {module}, sys; print(sys.modules[{module.partition('.')[0]!r}].__file__)"
    said = at_once([sys.executable, "-S", "-P", "-c", program], mountpoints)
    for path, mountpoint in zip(said, mountpoints, strict=True):
        assert path.startswith(f"{mountpoint}/"), (path, mountpoint)


def digests(directory: Path) -> dict[str, str]:
    """xxh3 of every file, the target of every link, the mode of every directory, by path."""
    found = {}
    for above, directories, files in os.walk(directory):
        for name in [*directories, *files]:
            path = Path(above, name)
            key = str(path.relative_to(directory))
            if path.is_symlink():
                found[key] = f"-> {os.readlink(path)}"
            elif path.is_dir():
                found[key] = f"directory {path.stat().st_mode:o}"
            else:
                found[key] = xxhash.xxh3_128_hexdigest(path.read_bytes())
    return found


def digests_at_once(mountpoints: Sequence[Path]) -> list[dict[str, str]]:
    with ThreadPoolExecutor(len(mountpoints)) as pool:
        return list(pool.map(digests, mountpoints))


@contextlib.contextmanager
def stopped_in_the_middle(standin: StandIn) -> Iterator[None]:
    """Once 50 files were opened no read of the source ends before the block does."""
    eventually(lambda: standin.counts().total("open") > 50, "they are in the middle")
    hung = standin.hang("**", ops=["read"])
    try:
        yield
    finally:
        standin.release(hung)


def fill(source: Path, name: str, files: int = 20) -> None:
    numbers = random.Random(name)
    (source / name).mkdir()
    for index in range(files):
        (source / name / f"f{index}").write_bytes(numbers.randbytes(numbers.randrange(200_000)))
