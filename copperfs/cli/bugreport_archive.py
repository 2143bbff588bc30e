"""Bug report archive: gathers the content of ``copperfs bugreport`` and writes it.

Each source that may hang is read in a subprocess (``subprocess_deadline.py``), all at once and with
one deadline; the report names those that time out. A subprocess reads ``/proc`` before them: for
some of its files the kernel waits for a process that holds its own memory map, and a hanging
process may hold it.

The report has paths, but no contents of files and no secrets: of a key file only the path, and only
variables of copperfs, schedulers and launchers.
"""

import io
import json
import os
import platform
import re
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import IO

from copperfs import __version__
from copperfs.cli.subprocess_deadline import Aside, copperfs_aside, python_aside
from copperfs.model.errors import OutputError

# The whole command must be done within ten seconds.
PROCESSES_S, DEADLINE_S = 2.0, 5.5
FILE_MAX = 4 << 20
LOG_TAIL = 512 << 10
THREADS_MAX = 300
PACKAGES = (
    *("copperfs", "pyfuse3", "trio", "rich", "pyzmq", "msgpack", "xxhash", "ClusterShell"),
    "mpi4py",
)
_VARIABLES = re.compile(
    r"(COPPERFS_|SLURM_|PBS_|FLUX_|LSB_|OMPI_COMM|PMI_RANK|PMI_SIZE|PMIX_RANK|MPI_LOCAL|PALS_"
    r"|LANG|LC_|PATH$|LD_LIBRARY_PATH$|PYTHONPATH$)"
)
_MEMORY_LOG = "/memfd:copperfs-log "
# SLURM_JWT lets its holder act as its user.
_SECRET = re.compile(r"JWT|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|_KEY$")


@dataclass(slots=True)
class GatheredFiles:
    files: dict[str, bytes] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)


def gather(mountpoints: Sequence[str], environ: Mapping[str, str]) -> GatheredFiles:
    gathered = GatheredFiles()
    with ExitStack() as stack:
        logs = _processes(stack, gathered)
        asked = _ask(stack, mountpoints, logs)
        gathered.files["about.json"] = _json(_about(environ))
        gathered.files["mounts.txt"] = _read(Path("/proc/self/mountinfo"))
        for name, content in _waiting():
            gathered.files[name] = content
        deadline = time.monotonic() + DEADLINE_S
        for each in asked:
            gathered.files[each.name] = each.wait(gathered, deadline - time.monotonic())
    return gathered


def _processes(stack: ExitStack, gathered: GatheredFiles) -> dict[int, list[str]]:
    """Returns the paths of the daemons' logs."""
    script = "from copperfs.cli.bugreport_archive import print_processes; print_processes()"
    asked = _Asked.start(stack, "daemons.txt", python_aside(script))
    said = asked.wait(gathered, PROCESSES_S).splitlines()
    logs = {}
    for line in said:
        try:
            pid, name, content = json.loads(line)
        except ValueError:  # the last words of the subprocess
            gathered.files["daemons.txt"] = line + b"\n"
            continue
        if name == "logs":
            logs[pid] = content
        else:
            gathered.files[name] = content.encode("utf-8", "backslashreplace")
    return logs


def write(gathered: GatheredFiles, path: str, *, new: bool) -> None:
    """Write a .tar.gz that only its owner can read; OutputError if that fails. *new*: fail if the
    file exists, since in a shared directory another user may have prepared it."""
    top = Path(path).name.partition(".")[0]
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if new else os.O_TRUNC)
    try:
        fd = os.open(path, flags, 0o600)
        with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.fchmod(fd, 0o600)  # it may have existed, readable by others
            for name, content in sorted(gathered.files.items()):
                about = tarfile.TarInfo(f"{top}/{name}")
                about.size, about.mode, about.mtime = len(content), 0o600, int(time.time())
                archive.addfile(about, io.BytesIO(content))
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}; give another --output"
        ) from None


# ---- subprocesses --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    name: str
    aside: Aside
    output: IO[str]

    @classmethod
    def start(cls, stack: ExitStack, name: str, command: Sequence[str]) -> "_Asked":
        """The output goes to a file: a pipe would fill while the report waits for others."""
        output = stack.enter_context(
            tempfile.TemporaryFile(  # noqa: SIM115 - it ends with the stack
                "w+", errors="backslashreplace", dir=_scratch()
            )
        )
        return cls(name, Aside.start(command, output=output), output)

    def wait(self, gathered: GatheredFiles, within_s: float) -> bytes:
        said = self.aside.said(max(within_s, 0.01))
        self.output.seek(0)
        content = self.output.read(FILE_MAX).encode("utf-8", "replace")
        if said.code is None:
            gathered.silent.append(self.name)
            content += f"\n(did not end within {within_s:.1f} s)\n".encode()
        elif said.code or said.errors:
            content += f"\n(exit code {said.code})\n{said.errors}".encode()
        return content


def _ask(
    stack: ExitStack, mountpoints: Sequence[str], logs: Mapping[int, Sequence[str]]
) -> list[_Asked]:
    commands = {
        "doctor.txt": copperfs_aside("doctor"),
        "config.json": copperfs_aside("config", "show", "--json"),
        "kernel-log.txt": ["sh", "-c", "dmesg | grep -i -e fuse -e oom -e killed | tail -n 200"],
    }
    for number, mountpoint in enumerate(mountpoints):
        top = f"mount-{number}"
        commands |= {
            f"{top}/stats.json": copperfs_aside("stats", "--json", mountpoint),
            f"{top}/stats-all.json": copperfs_aside("stats", "--all", "--json", mountpoint),
            f"{top}/tree.json": copperfs_aside("tree", "--json", mountpoint),
            f"{top}/settings.json": copperfs_aside("config", "show", "--json", "--of", mountpoint),
        }
    for pid, paths in logs.items():
        for number, log in enumerate(paths):
            # The log may be on a filesystem that hangs.
            commands[f"daemon-{pid}/log-{number}.txt"] = ["tail", "-c", f"{LOG_TAIL}", "--", log]
    return [_Asked.start(stack, name, command) for name, command in commands.items()]


def _scratch() -> str:
    """In memory if possible: TMPDIR may hang."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"


# ---- this process --------------------------------------------------------------------------------


def _about(environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "version": 1,
        "copperfs": __version__,
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "uid": os.getuid(),
        "packages": {name: _version(name) for name in PACKAGES},
        "environment": {
            name: "(left out)" if _SECRET.search(name) else value
            for name, value in sorted(environ.items())
            if _VARIABLES.match(name)
        },
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def print_processes() -> None:
    """Runs in a subprocess; prints a line of JSON for each file."""
    for pid, role in sorted(processes_here().items()):
        for name, content in _of_process(pid):
            text = content.decode("utf-8", "backslashreplace")
            print(json.dumps([pid, f"{role}-{pid}/{name}", text]), flush=True)
        if role == "daemon":
            print(json.dumps([pid, "logs", _logs(pid)]), flush=True)


def processes_here() -> dict[int, str]:
    """Daemons, and with ``--takeover`` their keepers and standbys. Root gets those of all users."""
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                name = (process / "comm").read_bytes().strip()
                mine = os.geteuid() in (0, process.stat().st_uid)
                role = _role_of(words, name) if mine else None
                if role is not None:
                    found[int(process.name)] = role
    return found


def _role_of(words: Sequence[bytes], name: bytes) -> str | None:
    if words[0] == b"copperfs-keeper":
        return "keeper"
    if b"copperfs.daemon.standby" in words:
        return "standby" if name == b"copperfs-spare" else "daemon"
    return "daemon" if b"copperfs.daemon.daemon_main" in words else None


def _of_process(pid: int) -> Iterator[tuple[str, bytes]]:
    process = Path("/proc") / f"{pid}"
    for name in ("status", "limits", "smaps_rollup", "cgroup", "io"):
        yield f"{name}.txt", _read(process / name)
    fds = []
    with suppress(OSError):
        for each in sorted((process / "fd").iterdir(), key=lambda each: int(each.name)):
            with suppress(OSError):
                fds.append(f"{each.name} -> {os.readlink(each)}")
    yield "descriptors.txt", "\n".join(fds).encode("utf-8", "backslashreplace")
    threads = []
    with suppress(OSError):
        for task in sorted((process / "task").iterdir())[:THREADS_MAX]:
            parts = [_read(task / each).strip() for each in ("comm", "wchan", "syscall", "stack")]
            state = re.search(rb"^State:\s+(.*)$", _read(task / "status"), re.MULTILINE)
            threads.append(
                task.name.encode() + b" " + b"\n  ".join([state[1] if state else b"?", *parts])
            )
    yield "threads.txt", b"\n".join(threads)


def _logs(pid: int) -> list[str]:
    """Files that the daemon has open for appending."""
    found = []
    with suppress(OSError):
        for each in (Path("/proc") / f"{pid}" / "fd").iterdir():
            with suppress(OSError):
                path = os.readlink(each)
                flags = _read(each.parents[1] / "fdinfo" / each.name)
                octal = re.search(rb"^flags:\s+(\d+)", flags, re.MULTILINE)
                if path.startswith("/") and octal and int(octal[1], 8) & os.O_APPEND:
                    # The log in memory has no name of its own (log_file.py).
                    found.append(f"{each}" if path.startswith(_MEMORY_LOG) else path)
    return list(dict.fromkeys(path for path in found if not path.startswith("/dev/")))


def _waiting() -> Iterator[tuple[str, bytes]]:
    """The kernel names a connection by the mount's minor device number."""
    top = Path("/sys/fs/fuse/connections")
    lines = []
    with suppress(OSError):
        for each in sorted(top.iterdir()):
            with suppress(OSError):
                lines.append(f"{each.name}: {(each / 'waiting').read_text().strip()} waiting")
    yield "fuse-connections.txt", "\n".join(lines).encode()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(FILE_MAX)
    except OSError as error:
        return f"({error.strerror})".encode()


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode("ascii")
