"""A daemon that has no free descriptor for a moment tells its keeper later, and lives on."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from copperfs.config.settings import Settings
from copperfs.daemon import handover
from copperfs.daemon.handover import MESSAGE_MAX, Handover
from copperfs.daemon.keeper import Keeper
from copperfs.daemon.succession import Succession


def nothing_heard(_: bytes) -> None:
    raise AssertionError


def no_descriptors(_: str) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_daemon_without_free_descriptors_tells_its_keeper_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(mountpoint=str(tmp_path), memory_bytes=1 << 30)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with closing(ours), closing(theirs), open(tmp_path / "fuse", "wb") as file:
        fd = file.fileno()
        root = os.fsencode(tmp_path)
        left = Handover(settings, None, root, 1, os.statvfs(tmp_path), "0:1", fd, fd)
        keeper = Keeper(settings, lambda: left, nothing_heard, "0", ours)
        with monkeypatch.context() as patch:
            patch.setattr(handover, "memory_file", no_descriptors)
            keeper.leave()
        owed = keeper.owes
        keeper.leave()
        assert (owed, keeper.owes) == (True, False)
        assert not caplog.records
        message, fds, _, _ = socket.recv_fds(theirs, MESSAGE_MAX, 10)
        assert (message, len(fds)) == (b"H", 3)
        for each in fds:
            os.close(each)


def test_a_successor_that_ends_at_once_leaves_nothing(tmp_path: Path) -> None:
    settings = Settings(mountpoint=str(tmp_path), memory_bytes=1 << 30)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(ours), closing(theirs):
        succession = Succession(settings, None, ours)
        succession.end()
        succession.changed()  # its tier has been opened meanwhile
        assert theirs.recv(MESSAGE_MAX) == b"E"
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(MESSAGE_MAX)
