"""`python -m tests.standin SOURCE MOUNTPOINT --control SOCKET`: the stand-in's process.

It prints "ready" when the mount answers. It ends, unmounting, on SIGTERM or SIGINT, on the request
"stop", when the mount is taken away, and with `--exit-with-stdin` when its standard input closes,
so that a test runner that is killed leaves nothing mounted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys

import trio

from tests.standin import control, handshake
from tests.standin.faults import Faults
from tests.standin.filesystem import PassThrough


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.standin", description=__doc__)
    parser.add_argument("source")
    parser.add_argument("mountpoint")
    parser.add_argument("--control", required=True, metavar="SOCKET")
    parser.add_argument("--per-op", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--per-read", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument(
        "--timeout",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="for which the kernel may keep entries and attributes",
    )
    parser.add_argument(
        "--page-cache", action="store_true", help="let the kernel keep file contents"
    )
    parser.add_argument("--exit-with-stdin", action="store_true")
    return parser.parse_args()


async def stop_on_signal(stop: trio.Event) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            stop.set()


async def stop_with_stdin(stop: trio.Event) -> None:
    while True:
        await trio.lowlevel.wait_readable(sys.stdin.fileno())
        if not os.read(sys.stdin.fileno(), 4096):
            stop.set()
            return


async def run(options: argparse.Namespace) -> None:
    faults = Faults(options.per_op, options.per_read)
    stop = trio.Event()
    operations = PassThrough(
        options.source, faults, timeout_s=options.timeout, page_cache=options.page_cache
    )
    fuse_fd = handshake.mount(
        options.mountpoint, name=f"standin:{os.getpid()}", allow_other=os.geteuid() == 0
    )
    async with trio.open_nursery() as nursery:

        async def serve_until_gone(task_status: trio.TaskStatus[None]) -> None:
            await handshake.serve(operations, fuse_fd, task_status)
            stop.set()

        nursery.start_soon(stop_on_signal, stop)
        if options.exit_with_stdin:
            nursery.start_soon(stop_with_stdin, stop)
        await nursery.start(control.listen, faults, stop, options.control)
        await nursery.start(serve_until_gone)
        print("ready", flush=True)
        await stop.wait()
        # In a child process, with the loop running: what is under way is answered first.
        await trio.run_process(unmount_command(options), check=False, capture_stderr=True)
        nursery.cancel_scope.cancel()


def unmount_command(options: argparse.Namespace) -> list[str]:
    return ["fusermount3", "-uz", "--", options.mountpoint]


def main() -> None:
    options = arguments()
    try:
        trio.run(run, options)
    finally:
        # Leaves no dead mount behind, whatever went wrong; fails, as it should, when there is none.
        subprocess.run(unmount_command(options), stderr=subprocess.DEVNULL, check=False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(options.control)


if __name__ == "__main__":
    main()
