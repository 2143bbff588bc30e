"""The keeper by itself: a process of the test is its daemon, and scripts are its standbys."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from copperfs.daemon.handover import memory_file
from copperfs.daemon.keeper import program
from tests.mount.helpers import eventually, is_running

TAKEOVERS_MAX = 2
TRIES_AT_ONCE = 10 + TAKEOVERS_MAX

HEADER_BYTES = 1 << 16
# Of a daemon: it starts the keeper, passes on what it hears from it, and waits to be killed.
DAEMON = """
import os, socket, subprocess, sys
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
program, state, *command = sys.argv[1:]
words = ["copperfs-keeper", str(theirs.fileno()), str(os.getpid()), "0", "2", *command]
keeper = subprocess.Popen(words, executable=program, pass_fds=[theirs.fileno()], cwd="/")
theirs.close()
socket.send_fds(ours, [b"H"], [int(state)])
print(keeper.pid, flush=True)
while message := ours.recv(1000):
    print(message.decode(), flush=True)
"""
STANDBY = """#!/bin/sh
echo try >>{where}/tries
test -e {where}/works || exit 1
exec {python} -c '
import socket, sys
keeper = socket.socket(fileno=int(sys.argv[1]))
keeper.send(b"R")
message = keeper.recv(1000)
open("{where}/taken", "wb").write(message)
keeper.recv(1000)
' "$1"
"""


class Keeper:
    def __init__(self, where: Path, before: str = "") -> None:
        self.where = where
        path = program()
        assert path is not None
        standby = where / "standby"
        standby.write_text(STANDBY.format(where=where, python=sys.executable))
        standby.chmod(0o755)
        state = memory_file("state")
        os.truncate(state, HEADER_BYTES)
        with (where / "log").open("wb") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, "-c", before + DAEMON, path, str(state), str(standby)],
                stdout=subprocess.PIPE, stderr=log, text=True, pass_fds=[state],
            )  # fmt: skip
        os.close(state)
        self.pid = int(self.says())

    def says(self) -> str:
        assert self.daemon.stdout is not None
        return self.daemon.stdout.readline().strip()

    def wait_paused(self) -> None:
        """It has told its daemon that standbys fail, and the last of them has ended."""
        assert self.says() == "B1"
        eventually(lambda: self.tries() == TRIES_AT_ONCE + 1, "one more was started")
        self.wait_alone()

    def wait_alone(self) -> None:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        eventually(lambda: children.read_text() == "", "the standby has ended")

    def tries(self) -> int:
        path = self.where / "tries"
        return path.read_text().count("try") if path.exists() else 0

    def log(self) -> str:
        return (self.where / "log").read_text()

    def let_standbys_work(self) -> None:
        (self.where / "works").touch()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.daemon.kill()
        self.daemon.communicate()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    keeper = Keeper(tmp_path)
    yield keeper
    keeper.end()


def test_standbys_that_fail_are_tried_more_seldom_but_also_when_the_daemon_dies(
    keeper: Keeper,
) -> None:
    keeper.wait_paused()
    assert "the standby daemons end by themselves" in keeper.log()
    keeper.let_standbys_work()
    keeper.daemon.kill()
    taken = keeper.where / "taken"
    eventually(lambda: taken.exists() and taken.stat().st_size > 0, "another goes on")
    assert taken.read_bytes().split()[:2] in ([b"Tdeath", b"1"], [b"Tsignal-9", b"1"])


@pytest.mark.long
def test_standbys_that_have_failed_are_tried_again(keeper: Keeper) -> None:
    keeper.wait_paused()
    keeper.let_standbys_work()
    assert keeper.says() == "B0"
    assert keeper.tries() == TRIES_AT_ONCE + 2
    assert "ready again" in keeper.log()


def test_a_mount_whose_standbys_cannot_begin_ends_with_its_daemon(keeper: Keeper) -> None:
    keeper.wait_paused()
    keeper.daemon.kill()
    eventually(lambda: not is_running(keeper.pid), "the keeper has given up")


# ---- without pidfds ------------------------------------------------------------------------------

# Of a daemon: for it and its children pidfd_open fails for each process that begins later.
NO_LATER_PIDFDS = """
import ctypes, errno, os, struct
LOAD, EQUAL, ABOVE, RETURN, PIDFD_OPEN = 0x20, 0x15, 0x25, 0x06, 434
lines = [
    (LOAD, 0, 0, 0),  # the number of the call
    (EQUAL, 0, 3, PIDFD_OPEN),
    (LOAD, 0, 0, 16),  # its first argument
    (ABOVE, 0, 1, os.getpid()),
    (RETURN, 0, 0, 0x00050000 | errno.EMFILE),
    (RETURN, 0, 0, 0x7FFF0000),
]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in lines))
whole = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(filters))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, whole) == 0, ctypes.get_errno()  # PR_SET_SECCOMP
"""


def test_a_standby_of_which_no_end_would_be_seen_is_none(tmp_path: Path) -> None:
    (tmp_path / "works").touch()
    keeper = Keeper(tmp_path, NO_LATER_PIDFDS)
    try:
        eventually(lambda: "end by themselves" in keeper.log(), "it has given up for now")
        assert keeper.tries() <= TRIES_AT_ONCE + 1
        keeper.wait_alone()
    finally:
        keeper.end()
