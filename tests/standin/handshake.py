"""Mounting, and the one thing that libfuse gets wrong for a slow filesystem.

libfuse up to 3.16 never tells the kernel that lookups in one directory may run in parallel, so
eight lookups of 20 ms would take 160 ms, which no network filesystem does. The answer to INIT has
to be corrected on its way. Steps, without touching libfuse or pyfuse3:

1. `fusermount3` mounts and hands over the `/dev/fuse` descriptor;
2. libfuse gets the mount point "/dev/fd/N", its documented way to use a ready descriptor, where N
   is one end of a socketpair;
3. INIT is carried from `/dev/fuse` to the socket by hand, and its answer back, corrected;
4. the pyfuse3 loop is cancelled, N is replaced by `/dev/fuse` itself with dup2, and the loop is
   started again. From here on nothing stands between libfuse and the kernel.

The kernel sends nothing else before INIT is answered, so nothing can be lost.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import subprocess

import pyfuse3
import trio

IN_HEADER_BYTES = 40  # struct fuse_in_header
OUT_HEADER_BYTES = 16  # struct fuse_out_header
ASYNC_READ = 1 << 0
PARALLEL_DIROPS = 1 << 18
MAX_BACKGROUND = 512
CONGESTION_THRESHOLD = 384
# More at once than any test starts; pyfuse3's own 99 would serialise a stampede.
TASKS_MAX = 2000


def mount(mountpoint: str, *, name: str, allow_other: bool) -> int:
    """Mount with fusermount3 and return the `/dev/fuse` descriptor."""
    # No default_permissions: with attribute timeouts of 0 the kernel would send a getattr for
    # every directory of every path, which no caching network client does.
    options = ["ro", "nosuid", "nodev", f"fsname={name}", "subtype=standin"]
    if allow_other:
        options.append("allow_other")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run(
            ["fusermount3", "-o", ",".join(options), "--", mountpoint],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            check=True,
        )
        descriptors = array.array("i", [0])
        _, control, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(descriptors.itemsize))
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors = array.array("i")
            descriptors.frombytes(data[: descriptors.itemsize])
            os.set_inheritable(descriptors[0], False)
            return descriptors[0]
    raise RuntimeError("fusermount3 mounted but handed over no descriptor")


def corrected(request: bytes, reply: bytes) -> bytes:
    """The answer to INIT with what the kernel offered and libfuse did not take."""
    (offered,) = struct.unpack_from("=I", request, IN_HEADER_BYTES + 12)
    (wanted,) = struct.unpack_from("=I", reply, OUT_HEADER_BYTES + 12)
    changed = bytearray(reply)
    struct.pack_into(
        "=IHH",
        changed,
        OUT_HEADER_BYTES + 12,
        wanted | (offered & (PARALLEL_DIROPS | ASYNC_READ)),
        MAX_BACKGROUND,
        CONGESTION_THRESHOLD,
    )
    return bytes(changed)


async def serve(
    operations: pyfuse3.Operations,
    fuse_fd: int,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Shake hands, then answer the kernel until the mount goes away."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        session_fd = theirs.detach()
        pyfuse3.init(operations, f"/dev/fd/{session_fd}", set())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_carry_init, ours, fuse_fd, nursery.cancel_scope)
            nursery.start_soon(pyfuse3.main)
    os.dup2(fuse_fd, session_fd, inheritable=False)
    # Only one descriptor may remain: closing the last one is what aborts the connection.
    os.close(fuse_fd)
    task_status.started()
    await pyfuse3.main(max_tasks=TASKS_MAX)


async def _carry_init(ours: socket.socket, fuse_fd: int, done: trio.CancelScope) -> None:
    await trio.lowlevel.wait_readable(fuse_fd)
    request = os.read(fuse_fd, 1 << 20)
    ours.send(request)
    await trio.lowlevel.wait_readable(ours)
    os.write(fuse_fd, corrected(request, ours.recv(1 << 16)))
    done.cancel()
