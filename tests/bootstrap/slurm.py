"""Slurm for one test: munged, slurmctld and several slurmds, all on this machine.

Everything lies below one directory, and ends with the ``with``. Slurm tracks steps by process
groups (``proctrack/pgid``), so a daemon with a session of its own outlives its step, as at sites
without cgroups (docs/launching.md).
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from tests.bootstrap.helpers import clean_environment
from tests.mount.helpers import eventually

PARTS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_CONF = """
ClusterName=copperfs
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={work}/munge/socket
CredType=cred/munge
StateSaveLocation={work}/state
SlurmdSpoolDir={work}/spool-%n
SlurmctldPidFile={work}/ctld.pid
SlurmdPidFile={work}/d-%n.pid
SlurmctldLogFile={work}/ctld.log
SlurmdLogFile={work}/d-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def lacking() -> list[str]:
    found = [f"{each} is not installed" for each in PARTS if shutil.which(each, path=_PATH) is None]
    return found if os.geteuid() == 0 else [*found, "it needs root"]


def free_ports(count: int) -> list[int]:
    """The kernel picks from other ports, above these, for sockets that ask for any."""
    with ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port = random.SystemRandom().randrange(20_000, 32_000)
            with suppress(OSError):
                stack.enter_context(socket.socket()).bind(("", port))
                found.append(port)
        return found


class Slurm:
    """*nodes* nodes, ``s0`` and so on, up within the ``with``."""

    def __init__(self, work: Path, nodes: int) -> None:
        self.work = work
        self.nodes = nodes
        self.conf = work / "slurm.conf"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            (self.work / "munge").mkdir(parents=True, mode=0o755)
            (self.work / "state").mkdir()
            self._write()
            self._start_munge(stack)
            self._start(stack, "slurmctld", "-D", "-f", str(self.conf))
            for number in range(self.nodes):
                self._start(stack, "slurmd", "-D", "-N", f"s{number}", "-f", str(self.conf))
            eventually(self._is_up, self._why_not, within_s=40)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def srun(self, *words: str | Path) -> list[str]:
        found = shutil.which("srun", path=_PATH)
        assert found is not None
        return [found, "-N", f"{self.nodes}", "--ntasks-per-node=1", *map(str, words)]

    @property
    def env(self) -> dict[str, str]:
        return clean_environment() | {"SLURM_CONF": str(self.conf), "PATH": _PATH}

    def _write(self) -> None:
        host = socket.gethostname().partition(".")[0]
        port, *ports = free_ports(1 + self.nodes)
        lines = [
            f"NodeName=s{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={own} CPUs=2"
            for number, own in enumerate(ports)
        ]
        text = _CONF.format(host=host, port=port, work=self.work, nodes="\n".join(lines))
        self.conf.write_text(text)

    def _start_munge(self, stack: ExitStack) -> None:
        own = self.work / "munge"
        (own / "key").write_bytes(os.urandom(128))
        (own / "key").chmod(0o600)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
        files["seed-file"] = "seed"
        flags = [f"--{flag}={own / name}" for flag, name in files.items()]
        self._start(stack, "munged", "--foreground", "--force", *flags)
        eventually((own / "socket").exists, "munged is up")

    def _start(self, stack: ExitStack, name: str, *flags: str) -> None:
        found = shutil.which(name, path=_PATH)
        assert found is not None
        output = stack.enter_context((self.work / f"{name}.out").open("ab"))
        process = subprocess.Popen(
            [found, *flags], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.env
        )
        stack.callback(_end, process)

    def _is_up(self) -> bool:
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%T %D"],
            env=self.env, capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        return done.stdout.split() == ["idle", str(self.nodes)]

    def _why_not(self) -> str:
        logs = [*self.work.glob("*.out"), *self.work.glob("*.log")]
        return "Slurm is up:\n" + "\n".join(each.read_text(errors="replace") for each in logs)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(15)
