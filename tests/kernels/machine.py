"""QEMU guest: boots a kernel with this machine's own files, without KVM.

The root is this machine's ``/`` by 9p, read-only, under an overlay on a scratch disk that is made
anew for each boot. The interpreter, ``.venv`` and the project are a snapshot (image.py). So a guest
runs what the host would, and cannot damage it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kernels import image

QEMU = "qemu-system-x86_64"
MEMORY = "2G"
SCRATCH_BYTES = 4 << 30  # a sparse file
NICE = 10  # two threads of emulation must not slow other work down

# No mitigations of attacks, and the host's clock.
KERNEL_PARAMETERS = (
    "console=ttyS0 panic=-1 oops=panic quiet mitigations=off tsc=reliable no_timer_check "
    "random.trust_cpu=on rdinit=/init"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``end`` is the guest's result, None if it wrote none."""

    end: dict[str, Any] | None
    seconds: float
    cpu_seconds: float
    timed_out: bool


def _scratch_disk(path: Path) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as disk:
        disk.truncate(SCRATCH_BYTES)
    subprocess.run(
        ["mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,lazy_journal_init=1", path],
        check=True, timeout=60,
        env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
    )  # fmt: skip


def _command(kernel: Path, initramfs: Path, disks: list[str], shared: Path, cpus: int) -> list[str]:
    def share(name: str, path: Path, *more: str) -> list[str]:
        options = ",".join(["local", f"id={name}", f"path={path}", "security_model=none", *more])
        return ["-fsdev", options, "-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]

    return [
        QEMU, "-accel", "tcg,thread=multi,tb-size=512", "-machine", "q35", "-cpu", "max,la57=off",
        "-smp", str(cpus), "-m", MEMORY, "-nodefaults", "-no-user-config", "-display", "none",
        "-no-reboot", "-serial", f"file:{shared / 'console'}",
        "-kernel", str(kernel), "-initrd", str(initramfs), "-append", KERNEL_PARAMETERS,
        *(part for each in disks for part in ("-drive", f"format=raw,if=virtio,{each}")),
        *share("root", Path("/"), "readonly=on", "multidevs=remap"),
        *share("result", shared),
    ]  # fmt: skip


def boot(
    package: Path, order: dict[str, Any], shared: Path, deadline_s: float, cpus: int
) -> Outcome:
    shared.mkdir(parents=True, exist_ok=True)
    for each in ("end.json", "offers.json", "log", "console"):
        (shared / each).unlink(missing_ok=True)
    (shared / "order.json").write_text(json.dumps(order))
    kernel = next(iter(package.glob("**/vmlinuz*")))
    initramfs, scratch, snapshot = (package / n for n in ("initramfs", "scratch", "snapshot"))
    guest = Path(__file__).with_name("guest.py")
    image.make(package, Path(sys.executable), guest, image.snapshot(snapshot), initramfs)
    _scratch_disk(scratch)
    disks = [f"file={scratch},cache=unsafe,discard=unmap", f"file={snapshot},readonly=on"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    timed_out = False
    with subprocess.Popen(
        ["nice", "-n", str(NICE), *_command(kernel, initramfs, disks, shared, cpus)],
        stdin=subprocess.DEVNULL,
    ) as qemu:
        try:
            qemu.wait(deadline_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            qemu.kill()
    seconds = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    scratch.unlink()
    snapshot.unlink()
    end = None
    if (shared / "end.json").exists():
        end = json.loads((shared / "end.json").read_text())
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(end, round(seconds, 1), round(used, 1), timed_out)
