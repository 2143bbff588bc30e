"""Probe: reports as JSON which features for the front this kernel offers, for the table of
docs/kernels.md.

Run by root, it mounts /dev/fuse, reads the kernel's INIT, answers it, and sends one notification.
It imports nothing of the project.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import sys
import tempfile
import threading
from pathlib import Path

INIT = struct.Struct("<IIIIII")  # no more than major, minor, max_readahead, flags, flags2
HEADER_BYTES = 40
INIT_EXT = 30
# The first nine bits of INIT are used, see copperfs/native/front/init.c.
FLAGS = {
    "ASYNC_READ": 0,
    "AUTO_INVAL_DATA": 12,
    "DO_READDIRPLUS": 13,
    "READDIRPLUS_AUTO": 14,
    "NO_OPEN_SUPPORT": 17,
    "PARALLEL_DIROPS": 18,
    "MAX_PAGES": 22,
    "CACHE_SYMLINKS": 23,
    "NO_OPENDIR_SUPPORT": 24,
    "PASSTHROUGH": 37,
    "OVER_IO_URING": 41,
}
NOTIFY_INC_EPOCH = 8
SYS_OPENAT2 = 437


def _outcome(action: object) -> str:
    assert callable(action)
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "yes"


def fuse() -> dict[str, object]:
    """The kernel's INIT, and whether it takes FUSE_NOTIFY_INC_EPOCH."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("/dev/fuse", os.O_RDWR)
    with tempfile.TemporaryDirectory() as directory:
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"probe", os.fsencode(directory), b"fuse.probe", 0, options):
            raise OSError(ctypes.get_errno(), "mount")
        try:
            request = os.read(fd, 1 << 17)
            unique = struct.unpack_from("<Q", request, 8)[0]
            body = request[HEADER_BYTES:].ljust(INIT.size, b"\0")
            major, minor, _, flags, flags2, _ = INIT.unpack_from(body)
            if flags >> INIT_EXT & 1:
                flags |= flags2 << 32
            # no flags, writes of a page
            answer = struct.pack("<IIIIHHIIHHI28x", 7, min(minor, 31), 0, 0, 0, 0, 4096, 1, 0, 0, 0)
            os.write(fd, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
            notification = struct.pack("<IiQ", 16, NOTIFY_INC_EPOCH, 0)
            epoch = _outcome(lambda: os.write(fd, notification))
        finally:
            # before the unmount, which may send the root a request, and would wait
            os.close(fd)
            libc.umount2(os.fsencode(directory), 2)
    offered = {name: bool(flags >> bit & 1) for name, bit in FLAGS.items()}
    return {
        "protocol": f"{major}.{minor}", "INIT": f"{flags:#x}", "NOTIFY_INC_EPOCH": epoch, **offered,
    }  # fmt: skip


def others() -> dict[str, object]:
    libc = ctypes.CDLL(None, use_errno=True)
    how = (ctypes.c_uint64 * 3)(os.O_PATH, 0, 0x08 | 0x04)  # RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS
    directory = os.open("/", os.O_PATH)
    got = libc.syscall(SYS_OPENAT2, directory, b".", ctypes.byref(how), ctypes.sizeof(how))
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"content")
        file.flush()
        nowait = _outcome(lambda: os.preadv(file.fileno(), [bytearray(7)], 0, os.RWF_NOWAIT))
    return {
        "openat2": "yes" if got >= 0 else errno.errorcode[ctypes.get_errno()],
        "RWF_NOWAIT": nowait,
    }


def main() -> None:
    """If a kernel never answers, this ends after a minute."""
    timer = threading.Timer(60, os._exit, [1])
    timer.daemon = True
    timer.start()
    found = {"kernel": os.uname().release, **fuse(), **others()}
    text = json.dumps(found)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
