"""Log file: rotation, and paths that another user has prepared."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from copperfs.cli.preflight import at_mountpoint, on_this_node
from copperfs.config.settings import Settings
from copperfs.daemon import log_file as logfile
from copperfs.daemon.daemon_main import Daemon
from copperfs.daemon.failure_log import FailureLogWriter
from copperfs.daemon.log_file import LogFile
from copperfs.fuse.safe_open import open_to_append
from copperfs.model.errors import MountError
from copperfs.model.types import NodeId
from tests.unit.test_failure_log import roster

NOBODY = 65534


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("test_logfile")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    for handler in list(logger.handlers):
        handler.close()
        logger.removeHandler(handler)


def test_after_it_was_renamed_a_new_one_is_begun(tmp_path: Path, log: logging.Logger) -> None:
    path = tmp_path / "log"
    handler = LogFile(str(path))
    log.addHandler(handler)
    for count in range(3):
        log.info("message %d", count)
        path.rename(tmp_path / f"log.{count}")
        handler.look()
    handler.look()  # which changes nothing
    log.info("the last")
    assert path.read_text() == "the last\n"
    for count in range(3):
        assert (tmp_path / f"log.{count}").read_text() == f"message {count}\n"


def test_one_that_was_cut_goes_on_at_its_end(tmp_path: Path, log: logging.Logger) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    log.addHandler(LogFile(str(path)))
    log.info("first")
    assert path.read_text() == "before\nfirst\n"
    os.truncate(path, 0)
    log.info("second")
    assert path.read_text() == "second\n"


def test_where_no_new_one_can_be_opened_it_goes_on_in_the_old_one(
    tmp_path: Path, log: logging.Logger
) -> None:
    path, old = tmp_path / "log", tmp_path / "old"
    handler = LogFile(str(path))
    log.addHandler(handler)
    path.rename(old)
    path.symlink_to(tmp_path / "precious")
    for count in range(2):
        handler.look()
        log.info("message %d", count)
    why = f"{path} cannot be opened anew, and the log goes on in the old file: "
    assert old.read_text() == f"{why}it is a symbolic link\nmessage 0\nmessage 1\n"
    assert not (tmp_path / "precious").exists()
    path.unlink()
    handler.look()
    log.info("message 2")
    assert path.read_text() == "message 2\n"


def test_standard_error_moves_along(tmp_path: Path) -> None:
    """libfuse and Python itself write there."""
    script = """if True:
        import logging, os, sys
        from copperfs.daemon.log_file import LogFile
        log = logging.Logger("test")
        handler = LogFile(sys.argv[1])
        log.addHandler(handler)
        os.write(2, b"first\\n")
        os.rename(sys.argv[1], sys.argv[1] + ".1")
        handler.look()
        log.info("message")
        os.write(2, b"second\\n")
    """
    path = tmp_path / "log"
    with path.open("ab") as stderr:
        subprocess.run([sys.executable, "-c", script, path], stderr=stderr, check=True)
    assert (tmp_path / "log.1").read_text() == "first\n"
    assert path.read_text() == "message\nsecond\n"


# ---- on a filesystem that hangs ------------------------------------------------------------------


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogFile]:
    path = tmp_path / "log"
    handler, over = LogFile(str(path)), threading.Event()

    def hangs(real: Callable[..., Any], *words: Any, **named: Any) -> Any:
        if words[0] == str(path):
            assert over.wait(60)
        return real(*words, **named)

    monkeypatch.setattr(os, "stat", partial(hangs, os.stat))
    monkeypatch.setattr(logfile, "open_to_append", partial(hangs, open_to_append))
    logging.getLogger().addHandler(handler)
    yield handler
    over.set()
    logging.getLogger().removeHandler(handler)
    handler.close()


async def _logs_and_hears_sigterm(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    unmounted = trio.Event()
    monkeypatch.setattr(
        daemon, "_unmount_or_detach", lambda: trio.from_thread.run_sync(unmounted.set)
    )
    tell, told = trio.open_memory_channel[int](2)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon._logs.run)
            nursery.start_soon(daemon._run_signals, told)
            tell.send_nowait(signal.SIGHUP)
            await trio.testing.wait_all_tasks_blocked()
            message = partial(logging.getLogger().warning, "a message")
            await trio.to_thread.run_sync(message, abandon_on_cancel=True)
            tell.send_nowait(signal.SIGTERM)
            await unmounted.wait()
            nursery.cancel_scope.cancel()


def test_a_log_that_hangs_holds_up_neither_messages_nor_sigterm(
    hung: LogFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_file = str(tmp_path / "log")
    daemon = Daemon(Settings(mountpoint="/mnt", memory_bytes=1, log_file=log_file))
    trio.run(_logs_and_hears_sigterm, daemon, monkeypatch)
    assert "a message\n" in (tmp_path / "log").read_text()


# ---- of somebody else ----------------------------------------------------------------------------


@pytest.fixture(params=["link", "dangling link", "another user's", "hard link", "fifo"])
def prepared(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path, precious = tmp_path / "log", tmp_path / "precious"
    precious.write_text("precious")
    match request.param:
        case "link":
            path.symlink_to(precious)
        case "dangling link":
            path.symlink_to(tmp_path / "absent")
        case "another user's":
            path.write_text("of another")
            os.chown(path, NOBODY, NOBODY)
        case "hard link":
            path.hardlink_to(precious)
        case "fifo":
            os.mkfifo(path)
    return path


def test_what_somebody_else_has_prepared_is_not_written_to(prepared: Path) -> None:
    before = sorted(os.listdir(prepared.parent))
    with pytest.raises(OSError, match=r"it is|it belongs|it has|No such device"):
        open_to_append(str(prepared))
    with pytest.raises(MountError, match="cannot be written: "):
        LogFile(str(prepared))
    events = FailureLogWriter(NodeId(0), roster(), str(prepared))
    with pytest.raises(MountError, match="cannot be written: "):
        events.open()
    assert sorted(os.listdir(prepared.parent)) == before
    assert (prepared.parent / "precious").read_text() == "precious"


def test_a_device_may_be_written_to() -> None:
    os.close(open_to_append("/dev/null"))


def test_a_successor_does_not_wait_for_a_log_that_hangs(
    tmp_path: Path, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def open_late(path: str) -> int:
        released.wait()
        return open_to_append(path)

    monkeypatch.setattr(logfile, "open_to_append", open_late)
    monkeypatch.setattr(logfile, "OPENS_WITHIN_S", 0.05)
    old, path = tmp_path / "old", tmp_path / "log"
    before = os.dup(2)
    try:
        with open(old, "ab") as file:
            os.dup2(file.fileno(), 2)
        handler = LogFile(str(path), goes_on=True)
        log.addHandler(handler)
        handler.look_briefly()
        log.info("first")
        released.set()
        for each in threading.enumerate():
            if each.name == logfile.LOOK_THREAD:
                each.join(60)
        log.info("second")
    finally:
        released.set()
        os.dup2(before, 2)
        os.close(before)
    assert (old.read_text(), path.read_text()) == ("first\n", "second\n")


def test_users_and_mounts_have_logs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "/tmp/copperfs-%u-%h-%m"
    settings = Settings(
        mountpoint="m", memory_bytes=1, node_name="n7", log_file=name, events=name, metrics=name
    )
    found = set()
    for user in (0, 12345678):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        for mountpoint in ("/mnt/a", "/mnt/b"):
            shown = at_mountpoint(on_this_node(settings), mountpoint)
            assert shown.mountpoint == mountpoint
            assert shown.log_file == shown.events == shown.metrics
            found.add(shown.log_file)
    assert found == {
        f"/tmp/copperfs-{user}-n7-mnt-{mount}" for user in ("root", "12345678") for mount in "ab"
    }
    at_port = at_mountpoint(on_this_node(replace(settings, metrics="9400")), "/mnt")
    assert at_port.metrics == "9400"
