"""First process of the guest: makes a system of it, runs one command, powers off.

``order.json`` of the directory that guest and host share has the command; the output goes to
``log`` there and the result to ``end.json``. It imports nothing of the project.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
import traceback
from pathlib import Path

RESULT = Path("/result")  # the directory shared with the host
SCRATCH = Path("/scratch")  # ext4, empty at the start

MOUNTS = (
    ("tmpfs", "/run", "mode=0755"),
    ("tmpfs", "/dev/shm", "mode=1777"),
    ("devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=666"),
    ("cgroup2", "/sys/fs/cgroup", ""),
)
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
REBOOT_MAGIC = (0xFEE1DEAD, 672274793, 0x4321FEDC)  # power off


def make_a_system() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, where, options in MOUNTS:
        Path(where).mkdir(parents=True, exist_ok=True)
        if libc.mount(kind.encode(), where.encode(), kind.encode(), 0, options.encode()):
            print(f"guest: {where} was not mounted: {os.strerror(ctypes.get_errno())}", flush=True)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        with contextlib.suppress(FileExistsError):
            os.symlink(f"/proc/self/{target}", f"/dev/{name}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
    socket.sethostname("guest")
    SCRATCH.chmod(0o755)


def run(order: dict[str, object]) -> dict[str, object]:
    """Orphans are reaped meanwhile, which is the first process's duty."""
    command, environment = order["command"], order["environment"]
    assert isinstance(command, list)
    assert isinstance(environment, dict)
    started = time.monotonic()
    with (RESULT / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=str(order["directory"]), env=environment,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while True:
            ended, status = os.wait()
            if ended == process.pid:
                break
    used = os.times()
    return {
        "status": os.waitstatus_to_exitcode(status),
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(used.children_user + used.children_system, 1),
        "kernel": os.uname().release,
    }


def main() -> None:
    """Record how the order ended whatever happens."""
    try:
        make_a_system()
        probe = Path(__file__).with_name("probe.py")
        subprocess.run([sys.executable, "-P", probe, RESULT / "offers.json"], check=True,
                       env={"TMPDIR": str(SCRATCH)})  # fmt: skip
        end = run(json.loads((RESULT / "order.json").read_text()))
    except Exception:  # noqa: BLE001 - the host reads it in end.json
        end = {"status": None, "error": traceback.format_exc(), "kernel": os.uname().release}
    (RESULT / "end.json").write_text(json.dumps(end))
    os.sync()
    sys.stdout.flush()
    ctypes.CDLL(None).reboot(ctypes.c_int(REBOOT_MAGIC[2]))


if __name__ == "__main__":
    main()
