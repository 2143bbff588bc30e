"""Boot image of a guest: its initramfs, and a snapshot of the programs that it runs.

The initramfs has busybox, the modules in the order in which they load, and a script.

A module names those it needs in its section ``.modinfo`` (``depends=`` and ``softdep=pre:``).
Debian compresses modules from 6.12 on, and busybox's insmod cannot decompress them.

Opening a file by 9p takes a millisecond or two when emulated, and an interpreter opens hundreds.
Therefore a squashfs image, not compressed, has the interpreter, its environment and the project. It
is mounted over them, each under an overlay. This saved a quarter of QEMU's CPU time, and a work
tree may be edited while a guest runs.
"""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.kernels.guest import RESULT, SCRATCH

PROJECT = Path(__file__).resolve().parents[2]
SNAPSHOT_TIMEOUT_S = 300.0

# Their dependencies come before them. A built-in driver is no module and is left out.
MODULES = (
    "virtio_pci",
    "virtio_blk",
    "9pnet_virtio",
    "9p",
    "crc32c_generic",
    "ext4",
    "overlay",
    "fuse",
    "autofs4",
    "loop",
    "squashfs",
)

INIT = """#!/bin/sh
# The machine's own files, read-only by 9p, under an overlay on the scratch disk: the guest may
# write anywhere, and nothing of it is left.
export PATH=/bin
busybox mkdir -p /proc /sys /dev /lower /scratch /snapshot /root
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
while read module; do
    busybox insmod /modules/$module || echo "guest: $module could not be loaded"
done </modules/order
tries=0
while [ ! -b /dev/vdb ] && [ $tries -lt 100 ]; do busybox sleep 0.1; tries=$((tries + 1)); done
busybox mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=262144,ro root /lower &&
    busybox mount -t ext4 -o noatime /dev/vda /scratch &&
    busybox mkdir -p /scratch/upper /scratch/work /scratch/tests &&
    busybox mount -t overlay -o lowerdir=/lower,upperdir=/scratch/upper,workdir=/scratch/work \\
        overlay /root &&
    busybox mkdir -p /root@RESULT@ /root@SCRATCH@ &&
    busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 result /root@RESULT@ &&
    busybox mount --bind /scratch/tests /root@SCRATCH@ &&
    busybox mount -t squashfs -o ro /dev/vdb /snapshot &&
    @SNAPSHOTS@ &&
    busybox mount --move /dev /root/dev &&
    busybox mount --move /proc /root/proc &&
    busybox mount --move /sys /root/sys &&
    exec busybox switch_root /root @PYTHON@ -P -u @GUEST@
echo "guest: the root filesystem could not be mounted"
busybox poweroff -f
"""


class Broken(Exception):
    """The package lacks a file that a guest needs."""


def _modules(package: Path) -> dict[str, Path]:
    found = {}
    for path in package.glob("**/*.ko*"):
        found[path.name.partition(".ko")[0].replace("-", "_")] = path
    return found


def _built_in(package: Path) -> set[str]:
    return {
        Path(line).name.partition(".ko")[0].replace("-", "_")
        for path in package.glob("**/modules.builtin")
        for line in path.read_text().split()
    }


def _contents(path: Path) -> bytes:
    data = path.read_bytes()
    if path.name.endswith(".xz"):
        return lzma.decompress(data)
    if path.name.endswith(".gz"):
        return gzip.decompress(data)
    if not path.name.endswith(".ko"):
        raise Broken(f"{path.name} is compressed in a way that is not known here")
    return data


def _needs(data: bytes) -> list[str]:
    hard = re.findall(rb"\0depends=([^\0]*)\0", data)
    soft = re.findall(rb"\0softdep=pre: ([^\0]*)\0", data)
    names = [name for each in hard for name in each.split(b",")]
    names += [name for each in soft for name in each.split()]
    return [name.decode().replace("-", "_") for name in names if name]


def modules_in_order(package: Path) -> dict[str, bytes]:
    there = _modules(package)
    built_in = _built_in(package)
    loaded: dict[str, bytes] = {}

    def add(name: str, for_whom: str) -> None:
        if name in loaded or name in built_in:
            return
        if name not in there:
            # A soft dependency may be an alias, such as crypto-crc32c.
            if for_whom and "crypto" not in name:
                raise Broken(f"the kernel has no module {name}, which {for_whom} needs")
            return
        data = _contents(there[name])
        for need in _needs(data):
            add(need, name)
        loaded[name] = data

    for name in MODULES:
        add(name, "")
    for name in ("virtio_blk", "9p", "9pnet_virtio", "ext4", "overlay", "fuse"):
        if name not in loaded and name not in built_in:
            raise Broken(f"the kernel has no module {name}")
    return loaded


def _entry(name: str, mode: int, data: bytes, number: int) -> bytes:
    path = name.encode() + b"\0"
    fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0]
    header = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return header + bytes(-len(header) % 4) + data + bytes(-len(data) % 4)


def _entries(modules: dict[str, bytes], init: str) -> Iterator[tuple[str, int, bytes]]:
    busybox = shutil.which("busybox")
    if busybox is None:
        raise Broken("busybox is missing; install busybox-static")
    for directory in ("bin", "modules", "dev"):
        yield directory, stat.S_IFDIR | 0o755, b""
    yield "bin/busybox", stat.S_IFREG | 0o755, Path(busybox).read_bytes()
    yield "bin/sh", stat.S_IFLNK | 0o777, b"busybox"
    for name, data in modules.items():
        yield f"modules/{name}.ko", stat.S_IFREG | 0o644, data
    order = "".join(f"{name}.ko\n" for name in modules)
    yield "modules/order", stat.S_IFREG | 0o644, order.encode()
    yield "init", stat.S_IFREG | 0o755, init.encode()


def snapshot(into: Path) -> list[Path]:
    """A squashfs image of the directories that a guest runs from, which it returns."""
    base, environment = Path(sys.base_prefix), Path(sys.prefix)
    directories = [PROJECT]
    if base != Path("/usr"):
        directories.append(base)
    if not environment.is_relative_to(PROJECT):
        directories.append(environment)
    left_out = [
        *(PROJECT / each for each in (".git", "build", ".venv-*", ".*_cache", ".hypothesis")),
        *(environment / each for each in ("mpi", "torch", "lib/python*/site-packages/playwright")),
        *(base / "lib" / each for each in ("*.a", "python*/test", "python*/site-packages")),
    ]
    into.unlink(missing_ok=True)
    done = subprocess.run(
        ["mksquashfs", *(each.relative_to("/") for each in directories), into, "-no-strip",
         "-no-progress", "-quiet", "-noI", "-noD", "-noF", "-noX", "-wildcards",
         "-e", *(each.relative_to("/") for each in left_out)],
        cwd="/", capture_output=True, text=True, timeout=SNAPSHOT_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Broken(f"mksquashfs failed: {done.stderr.strip()}")
    return directories


def make(package: Path, python: Path, guest: Path, over: list[Path], into: Path) -> None:
    """An initramfs that ends in *guest*, run by *python*; *over* is in the snapshot."""
    init = INIT
    mounts = []
    for number, directory in enumerate(over):
        upper, work = f"/scratch/{number}/upper", f"/scratch/{number}/work"
        mounts += [
            f"busybox mkdir -p {upper} {work}",
            f"busybox mount -t overlay -o lowerdir=/snapshot{directory},upperdir={upper},"
            f"workdir={work} overlay /root{directory}",
        ]
    for word, said in {
        "PYTHON": python, "GUEST": guest, "RESULT": RESULT, "SCRATCH": SCRATCH,
        "SNAPSHOTS": " &&\n    ".join(mounts),
    }.items():  # fmt: skip
        init = init.replace(f"@{word}@", str(said))
    entries = [*_entries(modules_in_order(package), init), ("TRAILER!!!", 0, b"")]
    archive = b"".join(_entry(*each, number) for number, each in enumerate(entries, 1))
    into.write_bytes(gzip.compress(archive, compresslevel=1))
