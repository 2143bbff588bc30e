"""Standby: a daemon that has imported all it needs, and goes on with a mount when its daemon dies.

The keeper starts it (``startup/keeper.c``) as ``python -m copperfs.daemon.standby FD``.
"""

import errno
import logging
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from copperfs import __version__
from copperfs.config.settings import check_tier
from copperfs.daemon.core_dump import leave_out_memory
from copperfs.daemon.daemon_main import Daemon, check_timeouts, end, set_up_logging
from copperfs.daemon.handover import DESCRIPTORS_MAX, MESSAGE_MAX, Handover, Takeover
from copperfs.daemon.log_file import LogFile
from copperfs.daemon.memory_pressure import settings_after
from copperfs.daemon.shared_mount_server import Users
from copperfs.model.errors import CopperError

log = logging.getLogger(__name__)


def show_as(name: str) -> None:
    """In ``ps`` and ``top``."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def receive(keeper: socket.socket) -> tuple[bytes, list[int]]:
    """OSError if not all descriptors can be taken."""
    message, fds, flags, _ = socket.recv_fds(keeper, MESSAGE_MAX, DESCRIPTORS_MAX)
    if flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, "it has too few free descriptors (ulimit -n)")
    return message, fds


def judge(fds: list[int]) -> bytes:
    """Whether this process can go on with a handover: R, or N and the reason."""
    try:
        handover = Handover.from_fds(fds)
        handover.check_connection()
        check_tier(handover.settings)
        check_timeouts(handover.settings)
        if handover.settings.log_file is not None:
            LogFile(handover.settings.log_file).close()
        handover.close()
    except CopperError as error:
        return b"N" + str(error).encode(errors="backslashreplace")[: MESSAGE_MAX - 100]
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        # another version's words
        return f"Ncopperfs {__version__} does not understand its daemon: {error!r}".encode()
    return b"R"


def main() -> int:
    keeper = socket.socket(fileno=int(sys.argv[1]))
    keeper.set_inheritable(False)
    with suppress(ImportError):
        import copperfs.transport.zeromq  # noqa: F401  # for a job; it takes long to import
    show_as("copperfs-spare")
    try:
        keeper.send(b"R")
        message, fds = receive(keeper)
        while message[:1] == b"C":
            keeper.send(judge(fds))
            message, fds = receive(keeper)
    except OSError as error:
        sys.stderr.write(f"copperfs, a standby daemon, ends: {error}\n")
        return 1
    if not message:
        return 0  # the keeper has ended
    show_as("copperfs")
    keeper.setblocking(False)
    for each in fds:
        os.set_inheritable(each, False)
    try:
        takeover = Takeover.of_message(message, fds)
        before = takeover.handover
        set_up_logging(before.settings, to_stderr=before.settings.foreground, takes_over=True)
        leave_out_memory()
        users = None
        if before.users is not None:
            users = Users.resumed(before.users, before.users_fds, before.fuse_fd)
        settings = settings_after(takeover)
        Daemon(settings, before.launch, users, takeover, keeper).run(lambda: None)
    except CopperError as error:
        log.error("%s", error)
        return 1
    except BaseException:
        log.exception("a bug: the daemon failed in an unforeseen way")
        return 1
    return 0


if __name__ == "__main__":
    end(main())
