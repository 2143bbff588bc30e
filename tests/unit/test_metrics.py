"""Metrics: a failure to collect or write them neither ends a mount nor keeps it alive."""

import errno
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from copperfs.daemon import prometheus as metrics
from copperfs.daemon.prometheus import open_port, serve, write

WITHIN_S = 20.0


def no_descriptors() -> str:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Sometimes:
    def __init__(self, failures: int) -> None:
        self.failures = failures

    def __call__(self) -> str:
        self.failures -= 1
        return no_descriptors() if self.failures >= 0 else "there\n"


async def scraped(listener: socket.socket) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", listener.getsockname()[1])
    async with stream:
        await stream.send_all(b"GET /metrics HTTP/1.1\r\n\r\n")
        return b"".join([part async for part in stream])


def test_a_scrape_that_fails_hurts_nobody() -> None:
    async def main() -> None:
        listener = open_port(0)
        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, listener, Sometimes(1))
                assert (await scraped(listener)).startswith(b"HTTP/1.1 500 ")
                assert (await scraped(listener)).endswith(b"there\n")
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_file_that_cannot_be_filled_is_filled_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "FILE_EVERY_S", 0.01)
    path = tmp_path / "metrics"

    async def main() -> None:
        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, str(path), Sometimes(2))
                while not path.exists():  # noqa: ASYNC110
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

    trio.run(main)
    assert not path.exists()


def test_a_filesystem_that_hangs_does_not_keep_the_daemon_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()

    def hang(replaced: Callable[..., object]) -> Callable[..., object]:
        def waiting(*_: object) -> object:
            begun.set()
            released.wait()
            return replaced

        return waiting

    monkeypatch.setattr(metrics, "REMOVED_WITHIN_S", 0.1)
    monkeypatch.setattr(metrics, "_write_once", hang(metrics._write_once))
    monkeypatch.setattr(metrics, "_remove", hang(metrics._remove))

    async def main() -> None:
        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, str(tmp_path / "metrics"), lambda: "there\n")
                await trio.to_thread.run_sync(begun.wait)
                nursery.cancel_scope.cancel()

    timer = threading.Timer(WITHIN_S / 2, released.set)
    timer.start()
    trio.run(main)
    assert not released.is_set(), "it waited"
    timer.cancel()
    released.set()


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    path = tmp_path / "theirs"
    path.mkdir()
    path.chmod(0o777)
    return path


def test_a_temporary_name_that_somebody_else_has_foreseen_is_not_written_through(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, precious = theirs / "metrics", tmp_path / "precious"
    precious.write_text("precious")
    monkeypatch.setattr("copperfs.daemon.prometheus.secrets.token_hex", lambda _: "drawn")
    foreseen = Path(f"{path}.{os.getpid()}.drawn")
    foreseen.symlink_to(precious)
    assert metrics._write_once(str(path), "there\n", metrics._Ended()) == "File exists"
    foreseen.unlink()
    # another user keeps it open, to read and change what is written
    foreseen.write_text("prepared")
    assert metrics._write_once(str(path), "there\n", metrics._Ended()) == "File exists"
    assert (precious.read_text(), foreseen.read_text()) == ("precious", "prepared")
    assert not path.exists()


@pytest.mark.parametrize("kind", ["link", "another user's", "directory", "device"])
def test_what_is_not_ours_is_not_replaced_and_not_removed(theirs: Path, kind: str) -> None:
    path = theirs / "metrics"
    if kind == "link":
        path.symlink_to(theirs / "elsewhere")
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    else:
        path.write_text("of another")
        os.chown(path, 65534, 65534)
    before, ended = path.lstat(), metrics._Ended()
    assert metrics._write_once(str(path), "there\n", ended)
    metrics._remove(str(path), ended)
    assert os.path.samestat(path.lstat(), before)
    assert os.listdir(theirs) == ["metrics"], "nothing is left beside it"


def test_only_the_file_that_was_written_last_is_removed(theirs: Path) -> None:
    path, ended = theirs / "metrics", metrics._Ended()
    for _ in range(2):
        assert metrics._write_once(str(path), "there\n", ended) is None
    path.rename(theirs / "kept")
    path.write_text("of another mount")
    metrics._remove(str(path), ended)
    assert path.read_text() == "of another mount"
    (theirs / "kept").rename(path)
    metrics._remove(str(path), ended)
    assert os.listdir(theirs) == []
