"""A daemon that is killed and cannot end, since a thread of it hangs in the kernel, is passed over
(--takeover)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from copperfs.config.settings import MIB
from copperfs.fuse.ioctl import IoctlRequest
from tests.mount.conftest import Mounter
from tests.mount.helpers import Mount, asked, copperfs, eventually, is_running
from tests.mount.keepers import is_ready, keeper_of
from tests.mount.test_takeover import TAKEOVER, successor

CHUNKS = 6
# The store leaves one GiB free.
DISK_BYTES = 3 << 30
MEMORY = 400 * MIB

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own."""
    image, where = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=1", image], check=True)
    where.mkdir()
    subprocess.run(["mount", "-o", "loop", image, where], check=True)
    yield where
    subprocess.run(["umount", "-l", where], check=True)


@contextlib.contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Its writers sleep in the kernel, where no signal reaches them."""
    subprocess.run(["fsfreeze", "-f", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", disk], check=True)


def hangs(pid: int) -> bool:
    """Whether a thread sleeps uninterruptibly."""
    found = [each.read_text().rpartition(")")[2].split()[0] for each in stats_of(pid)]
    return "D" in found


def stats_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").glob("*/stat"))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def metrics_at(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def memory_of(mount: Mount) -> int:
    return int(asked(mount.mountpoint, IoctlRequest.CONFIGURATION)["memory_bytes"])


@as_root
@pytest.mark.parametrize("hang_after", ["1", "none"])
def test_a_killed_daemon_that_cannot_end_holds_nothing_that_its_successor_needs(
    mounted: Mounter, source: Path, disk: Path, hang_after: str
) -> None:
    """Its tier, the port of its metrics, its budget. Its disk sleeps; later it wakes up."""
    content = os.urandom(CHUNKS * MIB)
    (source / "large").write_bytes(content)
    (source / "small").write_bytes(b"small")
    port = free_port()
    tier = ("--tier-dir", str(disk / "tier"), "--tree-max", "1MiB", "--memory", f"{MEMORY}")
    flags = (*TAKEOVER, *tier, "--hang-after", hang_after, "--metrics", str(port))
    mount = mounted(*flags)
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    undying = mount.pid
    with frozen(disk):
        assert (mount / "large").read_bytes() == content
        eventually(lambda: hangs(undying), "a write to the disk hangs")
        os.kill(undying, signal.SIGKILL)
        begun = time.monotonic()
        assert (mount / "small").read_bytes() == b"small"
        assert time.monotonic() - begun < 6
        mount.pid = successor(mount)
        assert hangs(undying)
        assert f'mountpoint="{mount.mountpoint}"' in metrics_at(port)
        assert memory_of(mount) == MEMORY // 2
        assert "cannot end" in mount.log.read_text()
        assert mount.stats()["tier"]["disk"]["degraded"] == 1
    eventually(lambda: not hangs(undying), "it has ended")
    eventually(lambda: mount.stats()["tier"]["disk"]["degraded"] == 0, "the disk is used again")
    fd = os.open(mount / "large", os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(fd, MIB, 0) == content[:MIB]
    os.close(fd)
    eventually(lambda: mount.stats()["tier"]["disk"]["held"] > 0, "chunks are written")
    # What it held is free once the mount has ended, and not sooner.
    assert "Another copperfs daemon" in refused(mount, *tier)
    keeper = keeper_of(mount.pid)
    assert mount.umount().returncode == 0
    eventually(lambda: not is_running(keeper), "the keeper has ended")
    mounted(*flags)


def refused(mount: Mount, *flags: str) -> str:
    """The sentence by which another mount is refused."""
    where = mount.mountpoint.with_name("other")
    where.mkdir()
    done = copperfs("mount", where, "--source", mount.source, *flags)
    assert done.returncode == 1
    where.rmdir()
    return done.stderr
