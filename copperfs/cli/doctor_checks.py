"""Doctor checks: what ``copperfs doctor`` examines on this node, one function for each check.

*failed* says that mounts will not work as requested, *warning* that they work with less. A check
that may hang runs in a subprocess.
"""

import ctypes
import importlib
import os
import re
import resource
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from importlib import metadata
from pathlib import Path

from copperfs.cli.subprocess_deadline import Aside, python_aside, run_aside
from copperfs.config.settings import Settings, format_size
from copperfs.launch.available_memory import cgroup_limits
from copperfs.model.errors import CopperError, NotBuiltError

ASIDE_S = 5.0
CONNECTS_WITHIN_S = 2.0
# FUSE_NO_OPENDIR_SUPPORT came with 5.1, reads of 1 MiB and cached link targets with 4.20.
KERNEL_MIN = (5, 1)
# Debian 11 and RHEL 9 have libfuse 3.10; older ones were never tried.
LIBFUSE_MIN = (3, 10)
# Open files, and up to 512 (``REACHED_MAX``) connections to chunk owners. Each node of the job adds
# one, since it may connect to this one.
DESCRIPTORS_MIN = 2048
PROCESSES_MIN = 512
# The limit of the rendezvous, with some room.
CLOCK_SKEW_MAX_S = 10.0
_TIME_ERROR = 5  # adjtimex: the clock is not synchronised


class CheckVerdict(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: CheckVerdict
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CheckedMachine:
    """Where the checks look; tests use their own files."""

    settings: Settings
    peers: Sequence[str] = ()
    """HOST or HOST:PORT, besides those of the hostfile."""
    nodes: int = 1
    """Nodes of the job, as far as known in advance."""
    port: int = 4711
    mountpoint: str | None = None
    uid: int = field(default_factory=os.geteuid)
    fuse_device: str = "/dev/fuse"
    fuse_conf: str = "/etc/fuse.conf"
    release: str = field(default_factory=lambda: os.uname().release)
    meminfo: str = "/proc/meminfo"
    root: str = "/"
    """Where ``/proc`` and ``/sys`` are."""
    path: str | None = None
    """PATH; None means this process's."""
    libfuse: str | None = None
    """The library; None means the one that pyfuse3 is bound to."""


def ok(name: str, found: str) -> Check:
    return Check(name, CheckVerdict.OK, found)


def warning(name: str, found: str, remedy: str) -> Check:
    return Check(name, CheckVerdict.WARNING, found, remedy)


def failed(name: str, found: str, remedy: str) -> Check:
    return Check(name, CheckVerdict.FAILED, found, remedy)


# ---- mounting ------------------------------------------------------------------------------------


def device(machine: CheckedMachine) -> Iterator[Check]:
    name, path = "/dev/fuse", machine.fuse_device
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield failed(
            name,
            "missing",
            "an administrator loads it: modprobe fuse; a container needs --device /dev/fuse",
        )
    except OSError as error:
        yield failed(
            name,
            f"cannot be opened: {error.strerror}",
            "an administrator gives access: chmod 0666 /dev/fuse",
        )
    else:
        os.close(fd)
        yield ok(name, "can be opened")


def fusermount(machine: CheckedMachine) -> Iterator[Check]:
    from copperfs.fuse.mounting import fusermount_path

    name = "fusermount3"
    found = fusermount_path(machine.path, machine.libfuse)
    if found is None:
        if machine.uid == 0:
            yield ok(name, "missing, and not needed by root")
        else:
            yield failed(name, "missing", "install the package fuse3")
        return
    said = run_aside([found, "--version"], ASIDE_S).output.strip().rpartition(" ")[2]
    if machine.uid != 0 and not os.stat(found).st_mode & stat.S_ISUID:
        yield failed(
            name,
            f"{found} {said} is not setuid root",
            f"an administrator installs the package fuse3, or: chmod u+s {found}",
        )
        return
    yield ok(name, f"{found} {said}")


def user_allow_other(machine: CheckedMachine) -> Iterator[Check]:
    name = "user_allow_other"
    try:
        lines = Path(machine.fuse_conf).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    if any(line.strip() == name for line in lines):
        yield ok(name, f"set in {machine.fuse_conf}")
    elif machine.uid == 0:
        yield ok(name, "not set, and not needed by root")
    elif machine.settings.allow_other:
        yield failed(
            name,
            "not set, but --allow-other is",
            "leave out --allow-other, or an "
            f"administrator adds the line user_allow_other to {machine.fuse_conf}",
        )
    else:
        yield ok(name, "not set; only --allow-other needs it")


def in_place(machine: CheckedMachine) -> Iterator[Check]:
    """Tries what ``copperfs run --in-place`` does, but for the daemon."""
    from copperfs.fuse.mounting import FSTYPE
    from copperfs.inplace.namespace import CannotBeInPlace, FuseOptions, Namespace

    name = "in place"
    try:
        made = Namespace.make("doctor", FuseOptions(FSTYPE, "doctor", allow_other=False))
    except CannotBeInPlace as error:
        what, _, advice = str(error).partition("; ")
        yield warning(
            name,
            f"copperfs run rewrites variables: {what}",
            advice or "copperfs run --in-place never keeps it so",
        )
    else:
        made.close()
        yield ok(name, "copperfs run can show files at their own paths")


def kernel(machine: CheckedMachine) -> Iterator[Check]:
    found = re.match(r"(\d+)\.(\d+)", machine.release)
    if found and (int(found[1]), int(found[2])) >= KERNEL_MIN:
        yield ok("kernel", machine.release)
    else:
        yield warning(
            "kernel",
            machine.release,
            "works, but opens of directories reach the daemon before Linux 5.1",
        )


def libfuse(machine: CheckedMachine) -> Iterator[Check]:
    name = "libfuse"
    try:
        from copperfs.fuse.mounting import libfuse_path

        path = libfuse_path()
        bound = metadata.version("pyfuse3")
    except (ImportError, CopperError) as error:
        yield failed(
            name,
            f"pyfuse3 cannot be used: {error}",
            "install libfuse3-dev and pkg-config, then: pip install --force-reinstall pyfuse3",
        )
        return
    library = ctypes.CDLL(path)
    library.fuse_pkgversion.restype = ctypes.c_char_p
    version = (library.fuse_pkgversion() or b"").decode()
    shown = f"{version or 'of an unknown version'} ({path}), pyfuse3 {bound}"
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers and numbers < LIBFUSE_MIN:
        yield warning(name, shown, "never tried with one so old; 3.10 or later")
    else:
        yield ok(name, shown)


def extension(machine: CheckedMachine) -> Iterator[Check]:
    name = "C extension"
    try:
        importlib.import_module("copperfs.native")
    except NotBuiltError as error:
        what, _, advice = str(error).partition("; ")
        yield failed(name, what, advice)
    else:
        yield ok(name, "it can be loaded")


def startup(machine: CheckedMachine) -> Iterator[Check]:
    from copperfs.startup.state import BundleState, bundle_state

    name = "startup"
    again = "install copperfs again with pip, not editable"
    match bundle_state():
        case BundleState.USED:
            yield _start_of_python(name, again)
        case BundleState.EDITABLE:
            yield ok(name, "module by module: the installation is editable")
        case BundleState.OUTDATED:
            found = (
                "each run reads hundreds of files: dependencies were replaced since copperfs was"
            )
            yield warning(name, f"{found} installed", again)
        case BundleState.MISSING:
            yield warning(name, "each run reads hundreds of files: there is no bundle", again)


def _start_of_python(name: str, again: str) -> Check:
    from copperfs.startup.state import LibraryState, library_state

    shared = "each run reads hundreds of files: Python is on a shared filesystem, and"
    state = library_state()
    if state is LibraryState.USED:
        return ok(name, "from two files, with its dependencies and the standard library")
    if not _is_on_shared_filesystem(sys.executable):
        return ok(name, "from one file, with its dependencies")
    match state:
        case LibraryState.USABLE:
            remedy = "set a locale of UTF-8; memory files have to be executable"
            return warning(name, f"{shared} was not started from memory", remedy)
        case LibraryState.OTHER_PYTHON:
            return warning(name, f"{shared} is another one than copperfs was built with", again)
    return warning(name, f"{shared} there is no bundle of its standard library", again)


def _is_on_shared_filesystem(path: str) -> bool:
    """As the program ``copperfs`` finds out."""
    from copperfs.daemon.path_policy_from_mounts import LOCAL_FILESYSTEMS
    from copperfs.fuse.mounting import mounts

    number = os.stat(path).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    return any(each.device == device and each.fstype not in LOCAL_FILESYSTEMS for each in mounts())


def read_ahead(machine: CheckedMachine) -> Iterator[Check]:
    """Without a mount, it checks whether mounting can raise the value."""
    name = "page-cache readahead"
    from copperfs.fuse.mounting import absolute, mount_at

    mounted = None if machine.mountpoint is None else mount_at(absolute(machine.mountpoint))
    if mounted is not None:
        with suppress(OSError, ValueError):
            kib = int(Path(f"/sys/class/bdi/{mounted.device}/read_ahead_kb").read_text())
            if kib >= 1024:
                yield ok(name, f"{kib} KiB")
                return
            yield warning(name, f"{kib} KiB", _RAISE_READ_AHEAD)
            return
    if machine.uid == 0 and os.access("/sys/class/bdi", os.W_OK):
        yield ok(name, "is raised to 1024 KiB when root mounts")
    else:
        yield warning(name, "128 KiB, unless root raises it", _RAISE_READ_AHEAD)


_RAISE_READ_AHEAD = (
    "large files are read in more and smaller requests; an administrator can add a udev rule: "
    'SUBSYSTEM=="bdi", ACTION=="add", ATTR{read_ahead_kb}="1024"'
)


def mount_state(machine: CheckedMachine) -> Iterator[Check]:
    """Other users' mounts refuse the check."""
    from copperfs.fuse.mounting import FSTYPE, absolute, mounts, owner_of

    name = "mounts"
    asked = {
        os.fsdecode(each.mountpoint): Aside.start(
            python_aside("import os, sys; os.statvfs(sys.argv[1])", os.fsdecode(each.mountpoint))
        )
        for each in mounts()
        if each.fstype == FSTYPE and machine.uid in (0, owner_of(each))
    }
    mounted_there = machine.mountpoint and absolute(machine.mountpoint)
    deadline = time.monotonic() + ASIDE_S
    well = 0
    for mountpoint, aside in asked.items():
        said = aside.said(max(deadline - time.monotonic(), 0.1))
        if said.code is None:
            # Other mounts can still be made.
            yield (failed if mounted_there == mountpoint else warning)(
                name,
                f"{mountpoint} does not answer",
                f"copperfs bugreport {mountpoint}, then: copperfs umount --lazy {mountpoint}",
            )
        elif said.code:
            yield warning(name, f"the daemon of {mountpoint} is gone", "copperfs umount --stale")
        else:
            well += 1
    if not asked:
        yield ok(name, "none of copperfs")
    elif well == len(asked):
        yield ok(name, f"{well} of copperfs, which answer")


# ---- the machine ---------------------------------------------------------------------------------


def limits(machine: CheckedMachine) -> Iterator[Check]:
    name = "ulimits"
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    low = False
    for what, flag, value, least in (
        ("descriptors", "-n", descriptors, DESCRIPTORS_MIN + machine.nodes),
        ("threads", "-u", processes, PROCESSES_MIN),
    ):
        if value != resource.RLIM_INFINITY and value < least:
            low = True
            yield warning(
                name,
                f"at most {value} {what}",
                f"have the hard limit raised to {least} "
                f"or more (ulimit -H {flag}, /etc/security/limits.conf)",
            )
    if address_space != resource.RLIM_INFINITY:
        low = True
        yield warning(
            name,
            f"at most {format_size(address_space)} of address space",
            "ulimit -v unlimited before mounting: threads and --memory count against it",
        )
    if not low:
        yield ok(name, f"{_limit(descriptors)} descriptors, {_limit(processes)} threads")


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def clock(machine: CheckedMachine) -> Iterator[Check]:
    """The rendezvous uses the shared filesystem's clock."""
    name = "clock"
    directory = machine.settings.rendezvous or os.path.expanduser("~")
    script = (
        "import os, sys, tempfile, time\n"
        "with tempfile.TemporaryFile(dir=sys.argv[1]) as file:\n"
        "    os.write(file.fileno(), b'.')\n"
        "    print(os.fstat(file.fileno()).st_mtime - time.time())"
    )
    said = run_aside(python_aside(script, directory), ASIDE_S)
    if said.code is None:
        yield failed(
            name,
            f"{directory} does not answer",
            "have its filesystem looked at, or give another --rendezvous",
        )
        return
    buffer = ctypes.create_string_buffer(512)
    unsynchronised = ctypes.CDLL(None, use_errno=True).adjtimex(buffer) == _TIME_ERROR
    synchronised = (
        "the kernel does not know it to be synchronised" if unsynchronised else ("synchronised")
    )
    if said.code:
        yield ok(name, f"{synchronised}; {directory} cannot be written, so not compared with it")
        return
    skew_s = float(said.output)
    if abs(skew_s) > CLOCK_SKEW_MAX_S:
        yield failed(
            name,
            f"{abs(skew_s):.0f} s {'behind' if skew_s > 0 else 'ahead of'} that of {directory}",
            "synchronise it (chronyd); a rendezvous needs clocks that agree within a minute",
        )
    else:
        yield ok(name, f"{synchronised}; agrees with that of {directory}")


def memory(machine: CheckedMachine) -> Iterator[Check]:
    name, wanted = "free memory", machine.settings.memory_bytes
    text = Path(machine.meminfo).read_text()
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    available = int(found[1]) * 1024 if found else 0
    shown = f"{_gib(available)} available, --memory is {_gib(wanted)}"
    limits = cgroup_limits(machine.root)
    if limits:
        least = min(limits, key=lambda each: each.size_bytes)
        shown += f", the job's cgroup has {_gib(least.size_bytes)} ({least.where})"
        available = min(available, least.size_bytes)
    if wanted > available:
        yield failed(name, shown, "give a smaller --memory")
    elif wanted > available // 2:
        yield warning(
            name, shown, "that is more than half; a smaller --memory leaves the application more"
        )
    else:
        yield ok(name, shown)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def temporary(machine: CheckedMachine) -> Iterator[Check]:
    """``copperfs run`` mounts there."""
    try:
        with tempfile.TemporaryDirectory(dir="/tmp", prefix="copperfs-doctor-"):
            pass
    except OSError as error:
        yield warning(
            "/tmp",
            f"no directory can be made: {error.strerror}",
            "give copperfs run a --mountpoint",
        )
    else:
        yield ok("/tmp", "can be written")


def source(machine: CheckedMachine) -> Iterator[Check]:
    name, path = "source", machine.settings.source
    script = "import os, sys; print(len(os.listdir(sys.argv[1])))"
    began = time.monotonic()
    said = run_aside(python_aside(script, path), ASIDE_S)
    if said.code is None:
        yield failed(
            name, f"{path} does not answer within {ASIDE_S:.0f} s", "have its filesystem looked at"
        )
    elif said.code:
        yield failed(
            name, f"{path} cannot be listed", "give --source a directory that you may read"
        )
    else:
        took = time.monotonic() - began
        yield ok(name, f"{path} was listed within {took:.1f} s")


LOCAL_CHECKS: tuple[Callable[[CheckedMachine], Iterator[Check]], ...] = (
    device,
    fusermount,
    user_allow_other,
    in_place,
    kernel,
    libfuse,
    extension,
    startup,
    read_ahead,
    mount_state,
    source,
    temporary,
    memory,
    limits,
    clock,
)
