"""A log that is rotated, and one that somebody else has prepared."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from copperfs.cli.this_node import at_mountpoint, on_this_node
from copperfs.config import Settings
from copperfs.errors import MountError
from copperfs.fuse.own_files import open_to_append
from copperfs.runtime.chronicle import Chronicle
from copperfs.runtime.logfile import LogFile
from copperfs.types import NodeId
from tests.unit.test_chronicle import roster

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


def test_after_it_was_renamed_a_new_one_is_begun_with_the_next_message(
    tmp_path: Path, log: logging.Logger
) -> None:
    path = tmp_path / "log"
    log.addHandler(LogFile(str(path)))
    for count in range(3):
        log.info("message %d", count)
        path.rename(tmp_path / f"log.{count}")
    assert not path.exists()
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
    log.addHandler(LogFile(str(path)))
    path.rename(old)
    path.symlink_to(tmp_path / "precious")
    for count in range(2):
        log.info("message %d", count)
    why = f"{path} cannot be opened anew, and the log goes on in the old file: "
    assert old.read_text() == f"{why}it is a symbolic link\nmessage 0\nmessage 1\n"
    assert not (tmp_path / "precious").exists()
    path.unlink()
    log.info("message 2")
    assert path.read_text() == "message 2\n"


def test_standard_error_moves_along(tmp_path: Path) -> None:
    """libfuse and Python itself write there."""
    script = """if True:
        import logging, os, sys
        from copperfs.runtime.logfile import LogFile
        log = logging.Logger("test")
        log.addHandler(LogFile(sys.argv[1]))
        os.write(2, b"first\\n")
        os.rename(sys.argv[1], sys.argv[1] + ".1")
        log.info("message")
        os.write(2, b"second\\n")
    """
    path = tmp_path / "log"
    with path.open("ab") as stderr:
        subprocess.run([sys.executable, "-c", script, path], stderr=stderr, check=True)
    assert (tmp_path / "log.1").read_text() == "first\n"
    assert path.read_text() == "message\nsecond\n"


# ---- of somebody else ----------------------------------------------------------------------------


@pytest.fixture(params=["link", "dangling link", "another user's", "hard link", "fifo"])
def prepared(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What somebody else has put where the log is to be."""
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
    events = Chronicle(NodeId(0), roster(), str(prepared))
    with pytest.raises(MountError, match="cannot be written: "):
        events.open()
    assert sorted(os.listdir(prepared.parent)) == before
    assert (prepared.parent / "precious").read_text() == "precious"


def test_a_device_may_be_written_to() -> None:
    os.close(open_to_append("/dev/null"))


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
