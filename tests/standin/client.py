"""`StandIn`: a `pfs-sim` process of the test's own, which it always removes.

Each step is bounded in time: ask the process to stop; kill it by its pid, which fails every request
that waits on the mount; unmount lazily what is left. If the test's process dies, the stand-in ends
by itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from copperfs.fuse.daemon_start import Started, started
from copperfs.fuse.mounting import absolute, mount_at, unmount
from copperfs.lab.pfs_sim.pfs_client import PfsSim
from copperfs.lab.pfs_sim.pfs_settings import PfsSettings
from copperfs.model.errors import ControlError, MountError
from tests.patience import PATIENCE

START_TIMEOUT_S = 20.0 * PATIENCE
STOP_TIMEOUT_S = 5.0 * PATIENCE


class StandIn(PfsSim):
    """It is mounted at `mountpoint`, by default a new directory, or at several `mountpoints`: each
    is a client with caches of its own."""

    def __init__(
        self,
        source: str | os.PathLike[str],
        mountpoint: str | os.PathLike[str] | None = None,
        *,
        mountpoints: Sequence[str | os.PathLike[str]] = (),
        per_op_s: float = 0.0,
        per_read_s: float = 0.0,
        servers: int = 0,
        bandwidth_bytes: int = 0,
        timeout_s: float = 0.0,
        page_cache: bool = False,
        own_inodes: bool = False,
    ) -> None:
        self._own = Path(tempfile.mkdtemp(prefix="standin-"))
        super().__init__(self._own / "control")
        self.source = Path(source)
        given = [*([mountpoint] if mountpoint is not None else []), *mountpoints]
        self.mountpoints = [Path(each) for each in given] or [self._own / "mnt"]
        self.mountpoint = self.mountpoints[0]
        self._log = self._own / "log"
        self._life = ExitStack()
        self._daemon: Started | None = None
        self._settings = PfsSettings(
            directory=str(self.source.absolute()),
            mountpoints=tuple(str(each.absolute()) for each in self.mountpoints),
            latency_s=per_op_s,
            servers=servers,
            read_latency_s=per_read_s,
            bandwidth_bytes=bandwidth_bytes,
            cache_s=timeout_s,
            page_cache=page_cache,
            own_inodes=own_inodes,
            permissions=False,  # without caches it would cost a getattr for every directory
            allow_other=os.geteuid() == 0,
            control=self.control,
            tied=True,
        )

    # --- life ------------------------------------------------------------------------------------

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
        assert self._daemon is not None, "not started"
        return self._daemon.process.pid

    def start(self) -> None:
        assert self._daemon is None, "already started"
        for mountpoint in self.mountpoints:
            mountpoint.mkdir(exist_ok=True)
        try:
            with self._log.open("w") as log:
                self._daemon = self._life.enter_context(
                    started(
                        "copperfs.lab.pfs_sim.pfs_daemon",
                        [self._settings.to_json()],
                        shown=str(self.mountpoint),
                        stderr=log.fileno(),
                        timeout_s=START_TIMEOUT_S,
                    )
                )
        except BaseException as error:
            if said := self._log.read_text():
                error.add_note(said)
            self.stop()
            raise

    def kill(self) -> None:
        """As a crash would; the mount then answers ENOTCONN."""
        if self._daemon is not None:
            self._daemon.process.kill()
            self._daemon.process.wait()

    def unmount(self) -> None:
        for mountpoint in map(absolute, self._settings.mountpoints):
            while mount_at(mountpoint) is not None:
                try:
                    unmount(mountpoint, lazy=True)
                except MountError:
                    if mount_at(mountpoint) is not None:  # otherwise it had just gone by itself
                        raise

    def stop(self) -> None:
        if self._daemon is not None and self._daemon.process.poll() is None:
            with contextlib.suppress(ControlError):
                super().stop()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._daemon.process.wait(STOP_TIMEOUT_S)
        self.kill()
        self._life.close()
        self._daemon = None
        self.unmount()
        # Never rmtree a directory on which a filesystem may be mounted.
        with contextlib.suppress(FileNotFoundError, OSError):
            (self._own / "mnt").rmdir()
        if not (self._own / "mnt").exists():
            shutil.rmtree(self._own, ignore_errors=True)

    # --- steering --------------------------------------------------------------------------------

    def set_latency(
        self, *, per_op_s: float | None = None, per_read_s: float | None = None
    ) -> None:
        self.set(latency_s=per_op_s, read_latency_s=per_read_s)

    def heal(self) -> None:
        super().heal()
        self.set_latency(per_op_s=0.0, per_read_s=0.0)

    def reset_counts(self) -> None:
        self.reset()
