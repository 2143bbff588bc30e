"""Files that come in chunks, on real mounts, as readers, mappings and programs see them.

A stand-in for the node (``chunked.py``) says which chunk is evicted or has to wait, and when.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.mount.chunked import ChunkedMount
from tests.mount.helpers import errno_of, eventually, is_mounted, outcome_of, run

pytestmark = pytest.mark.mount

KIB, MIB, TIB = 1 << 10, 1 << 20, 1 << 40
CHUNK = 64 * KIB
READERS = 10

ChunkMounter = Callable[..., ChunkedMount]


@pytest.fixture
def chunked(tmp_path: Path, source: Path) -> Iterator[ChunkMounter]:
    with ExitStack() as stack:

        def mount(**settings: Any) -> ChunkedMount:
            return stack.enter_context(ChunkedMount(source, tmp_path / "mnt", **settings))

        yield mount


def write(path: Path, size: int) -> bytes:
    content = Random(size).randbytes(size)
    path.write_bytes(content)
    return content


@contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def past_the_page_cache(path: Path) -> Iterator[int]:
    """Each read is one request, without read-ahead."""
    with opened(path, os.O_DIRECT) as fd:
        yield fd


@contextmanager
def readers_of(mount: ChunkedMount, count: int) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(count) as readers:
        try:
            yield readers
        finally:
            with suppress(OSError, ValueError):  # it has ended
                mount.tell(hold=[])


def chunks_of(name: str, *indices: int) -> dict[str, int]:
    return {f"{name}:{index}": 1 for index in indices}


# --- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [CHUNK + 1, 5 * CHUNK - 1, 5 * CHUNK, 40 * CHUNK + 4097])
def test_a_file_is_read_from_the_source_once_in_chunks(
    source: Path, chunked: ChunkMounter, size: int
) -> None:
    content = write(source / "large", size)
    mount = chunked()
    assert (mount / "large").read_bytes() == content
    assert mount.tell()["read"] == chunks_of("large", *range(-(-size // CHUNK)))


def test_reads_that_span_chunks_and_end_with_the_file(source: Path, chunked: ChunkMounter) -> None:
    size = 7 * CHUNK + 1000
    content = write(source / "large", size)
    mount = chunked()
    random = Random(7)
    reads = [(0, 0), (0, 1), (CHUNK - 1, 2), (CHUNK, CHUNK), (CHUNK - 1, CHUNK + 2), (0, size)]
    reads += [(size - 1, 1), (size - 1, 5000), (size, 100), (size + CHUNK, 10), (7 * CHUNK, MIB)]
    reads += [(random.randrange(size + 10), random.randrange(4 * CHUNK)) for _ in range(100)]
    with past_the_page_cache(mount / "large") as direct, opened(mount / "large") as buffered:
        for offset, length in reads:
            expected = content[offset : offset + length]
            assert os.pread(direct, length, offset) == expected, (offset, length)
            assert os.pread(buffered, length, offset) == expected, (offset, length)


def test_of_a_file_of_terabytes_only_what_is_read_is_fetched(
    source: Path, chunked: ChunkMounter
) -> None:
    places = [0, 12345 * MIB + 17, TIB - 5, TIB + CHUNK, 2 * TIB - 100]
    with open(source / "huge", "wb") as file:
        file.truncate(2 * TIB)
        for number, place in enumerate(places):
            os.pwrite(file.fileno(), b"%07d" % number, place)
    mount = chunked()
    with past_the_page_cache(mount / "huge") as fd:
        for number, place in enumerate(places):
            assert os.pread(fd, 7, place) == b"%07d" % number
    wanted = {at // CHUNK for place in places for at in (place, place + 6)}
    assert mount.tell()["read"] == chunks_of("huge", *wanted)


def test_chunks_are_asked_for_once_and_then_answered_by_the_front(
    source: Path, chunked: ChunkMounter
) -> None:
    content = write(source / "large", 10 * CHUNK)
    mount = chunked()
    with past_the_page_cache(mount / "large") as fd:
        for _ in range(3):
            assert os.pread(fd, 10 * CHUNK, 0) == content
            assert os.pread(fd, 100, 5 * CHUNK - 50) == content[5 * CHUNK - 50 :][:100]
    assert mount.tell()["asked"] == 10
    eventually(lambda: _reads(mount)["miss"] == 1, "the front has counted the one that was asked")


def _reads(mount: ChunkedMount) -> dict[str, int]:
    return {how: each["count"] for how, each in mount.stats()["operations"]["read"].items()}


def test_only_the_chunks_that_are_missing_are_asked_for(
    source: Path, chunked: ChunkMounter
) -> None:
    content = write(source / "large", 10 * CHUNK)
    mount = chunked()
    with past_the_page_cache(mount / "large") as fd:
        os.pread(fd, 1, 2 * CHUNK)
        os.pread(fd, 1, 4 * CHUNK)
        assert mount.tell()["asked"] == 2
        assert os.pread(fd, 5 * CHUNK, CHUNK + 1) == content[CHUNK + 1 :][: 5 * CHUNK]
    assert mount.tell()["asked"] == 2 + 4
    assert mount.tell()["read"] == chunks_of("large", *range(1, 7))


def test_a_sequential_reader_makes_large_requests(source: Path, chunked: ChunkMounter) -> None:
    size = 64 * MIB
    write(source / "large", size)
    mount = chunked(above=MIB, chunk_bytes=MIB)
    path = mount / "large"
    path.read_bytes()
    with opened(path) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    mount.reset()
    path.read_bytes()
    assert _reads(mount)["hit"] <= size // MIB + 10


# --- mappings, libraries, programs ----------------------------------------------------------------


def test_a_mapping_is_read_at_random(source: Path, chunked: ChunkMounter) -> None:
    size = 30 * CHUNK + 123
    content = write(source / "large", size)
    mount = chunked(budget=3)
    random = Random(1)
    with opened(mount / "large") as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
        for _ in range(300):
            at = random.randrange(size)
            assert mapped[at] == content[at]
        assert mapped[:] == content


def test_a_library_is_loaded_and_called(source: Path, chunked: ChunkMounter) -> None:
    found = next(Path("/lib").glob("*-linux-gnu/libm.so.6")).resolve()
    assert found.stat().st_size > 4 * CHUNK
    shutil.copy(found, source / "libmine.so")
    mount = chunked(budget=3)
    library = ctypes.CDLL(str(mount / "libmine.so"))
    try:
        library.floor.restype = ctypes.c_double
        assert library.floor(ctypes.c_double(2.5)) == 2.0
        assert str(mount / "libmine.so") in Path("/proc/self/maps").read_text()
    finally:
        _unload(library)


def _unload(library: ctypes.CDLL) -> None:
    handle = ctypes.c_void_p(library._handle)
    assert ctypes.CDLL(None).dlclose(handle) == 0


def test_a_program_runs(source: Path, chunked: ChunkMounter) -> None:
    shutil.copy("/bin/bash", source / "shell")
    assert (source / "shell").stat().st_size > 4 * CHUNK
    mount = chunked(budget=3)
    done = run([mount / "shell", "-c", "echo $((6 * 7))"])
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


# --- many at a time -------------------------------------------------------------------------------


def test_many_readers_of_one_chunk_wait_together(source: Path, chunked: ChunkMounter) -> None:
    content = write(source / "large", 4 * CHUNK)
    mount = chunked()
    mount.tell(hold=[2])

    def read(number: int) -> bytes:
        with past_the_page_cache(mount / "large") as fd:
            return os.pread(fd, 100, 2 * CHUNK + number)

    with readers_of(mount, READERS) as readers:
        waiting = [readers.submit(read, number) for number in range(READERS)]
        mount.wait_for_waiting(READERS)
        with past_the_page_cache(mount / "large") as fd:  # meanwhile others go on
            assert os.pread(fd, CHUNK, CHUNK) == content[CHUNK : 2 * CHUNK]
        assert not any(each.done() for each in waiting)
        mount.tell(hold=[])
        for number, each in enumerate(waiting):
            assert each.result(20) == content[2 * CHUNK + number :][:100]
    assert mount.tell()["read"] == chunks_of("large", 1, 2)


def test_all_chunks_of_a_read_are_asked_for_at_once(source: Path, chunked: ChunkMounter) -> None:
    content = write(source / "large", 8 * CHUNK)
    mount = chunked()
    mount.tell(hold=[1, 2, 3, 4])
    with past_the_page_cache(mount / "large") as fd, readers_of(mount, 1) as reader:
        os.pread(fd, 1, 0)  # from here on the kernel knows that there are chunks
        reading = reader.submit(os.pread, fd, 5 * CHUNK, 0)
        mount.wait_for_waiting(4)
        mount.tell(hold=[])
        assert reading.result(20) == content[: 5 * CHUNK]


def test_readers_at_random_while_chunks_come_and_go(source: Path, chunked: ChunkMounter) -> None:
    size = 60 * CHUNK + 77
    content = write(source / "large", size)
    mount = chunked(budget=4)
    stop = threading.Event()

    def read(seed: int) -> int:
        random = Random(seed)
        count = 0
        with past_the_page_cache(mount / "large") as fd:
            while not stop.is_set() or count < 30:
                offset, length = random.randrange(size), random.randrange(6 * CHUNK)
                assert os.pread(fd, length, offset) == content[offset : offset + length]
                count += 1
        return count

    with readers_of(mount, 6) as readers:
        reading = [readers.submit(read, seed) for seed in range(6)]
        for _ in range(20):
            mount.tell(budget=0)
            mount.tell(budget=4)
            mount.clear()
        stop.set()
        assert all(each.result(60) >= 30 for each in reading)


# --- release --------------------------------------------------------------------------------------


def test_what_is_evicted_before_it_is_used_is_answered_in_full(
    source: Path, chunked: ChunkMounter
) -> None:
    content = write(source / "large", 20 * CHUNK + 5)
    mount = chunked(budget=0)  # evicted in the same step that answers with it
    assert (mount / "large").read_bytes() == content
    with past_the_page_cache(mount / "large") as fd:
        assert os.pread(fd, 9 * CHUNK, CHUNK // 2) == content[CHUNK // 2 :][: 9 * CHUNK]
    assert mount.tell()["held"] == 0
    assert mount.tell()["blobs"] == 0
    assert mount.stats()["front"]["full_replies"] > 0


def test_what_is_evicted_is_asked_for_again(source: Path, chunked: ChunkMounter) -> None:
    content = write(source / "large", 4 * CHUNK)
    mount = chunked()
    with past_the_page_cache(mount / "large") as fd:
        for _ in range(2):
            assert os.pread(fd, 4 * CHUNK, 0) == content
            mount.tell(budget=0)
            mount.tell(budget=100)
        assert os.pread(fd, 100, CHUNK) == content[CHUNK : CHUNK + 100]
    assert mount.tell()["read"] == {"large:0": 2, "large:1": 3, "large:2": 2, "large:3": 2}


def test_nothing_is_kept_of_what_was_evicted(source: Path, chunked: ChunkMounter) -> None:
    content = write(source / "large", 96 * MIB)
    mount = chunked(above=MIB, chunk_bytes=MIB, budget=4)
    with past_the_page_cache(mount / "large") as fd:
        os.pread(fd, 4 * MIB, 0)
        before = _resident(mount.pid)
        for offset in range(0, len(content), MIB):
            assert os.pread(fd, MIB, offset) == content[offset : offset + MIB]
    assert _resident(mount.pid) - before < 24 * MIB


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/statm").read_text()
    return int(status.split()[1]) * mmap.PAGESIZE


def test_nothing_is_kept_of_what_the_kernel_has_forgotten(
    source: Path, chunked: ChunkMounter
) -> None:
    """The publication index may say so of a number that no file has any more."""
    write(source / "large", 4 * CHUNK)
    mount = chunked()
    (mount / "large").read_bytes()
    os.utime(source / "large", (1, 1))  # another version, and so another number
    mount.clear()
    assert (mount / "large").stat().st_mtime == 1
    (mount / "large").read_bytes()
    mount.tell(budget=0)
    assert mount.tell()["blobs"] == 0
    mount.tell(budget=100)
    (mount / "large").read_bytes()


def test_what_the_front_answers_from_is_reported_as_used(
    source: Path, chunked: ChunkMounter
) -> None:
    write(source / "large", 40 * CHUNK)
    mount = chunked()
    with past_the_page_cache(mount / "large") as fd:
        os.pread(fd, 40 * CHUNK, 0)
        eventually(lambda: len(mount.tell()["used"]) == 40, "all were used once")
        mount.tell(reset=True)
        for index in (3, 17, 18):
            os.pread(fd, 10, index * CHUNK + 5)
        os.pread(fd, CHUNK, 30 * CHUNK + 1)
        eventually(lambda: len(mount.tell()["used"]) == 5, "those that were used since")
    assert mount.tell()["used"] == [3, 17, 18, 30, 31]


def test_clear_forgets_chunks(source: Path, chunked: ChunkMounter) -> None:
    content = write(source / "large", 3 * CHUNK)
    mount = chunked()
    assert (mount / "large").read_bytes() == content
    mount.clear()
    assert mount.tell()["held"] == 0
    changed = write(source / "large", 3 * CHUNK + 1)
    mount.clear()
    assert (mount / "large").read_bytes() == changed


# --- errors ---------------------------------------------------------------------------------------


def test_an_error_of_one_chunk_is_told_to_who_reads_it(source: Path, chunked: ChunkMounter) -> None:
    content = write(source / "large", 8 * CHUNK)
    mount = chunked()
    mount.tell(fail={2: errno.ENOMEM})
    with past_the_page_cache(mount / "large") as fd:
        assert os.pread(fd, 2 * CHUNK, 0) == content[: 2 * CHUNK]
        assert errno_of(lambda: os.pread(fd, 100, 2 * CHUNK)) == errno.ENOMEM
        assert os.pread(fd, 5 * CHUNK, 3 * CHUNK) == content[3 * CHUNK :]
        # an error may cut a read short, but what comes before it is returned
        mount.tell(fail={})
        assert os.pread(fd, 8 * CHUNK, 0) == content


def test_with_the_first_error_a_read_waits_for_nothing_else(
    source: Path, chunked: ChunkMounter
) -> None:
    write(source / "large", 8 * CHUNK)
    mount = chunked()
    mount.tell(hold=[1, 3], fail={2: errno.ENOMEM})
    with past_the_page_cache(mount / "large") as fd, readers_of(mount, 1) as reader:
        os.pread(fd, 1, 0)
        reading = reader.submit(lambda: errno_of(lambda: os.pread(fd, 3 * CHUNK, CHUNK)))
        assert reading.result(20) == errno.ENOMEM


def test_a_chunk_that_never_comes_ends_with_the_deadline(
    source: Path, chunked: ChunkMounter
) -> None:
    content = write(source / "large", 4 * CHUNK)
    mount = chunked(source_deadline_s=1.0)
    mount.tell(hold=[1])
    with past_the_page_cache(mount / "large") as fd:
        assert errno_of(lambda: os.pread(fd, 10, CHUNK)) == errno.ETIMEDOUT
        mount.tell(hold=[])
        # for a moment, a reader that has just timed out does not wait again
        eventually(lambda: errno_of(lambda: os.pread(fd, 10, 0)) is None, "it is read again")
        assert os.pread(fd, 4 * CHUNK, 0) == content


def test_a_reader_that_waits_for_a_chunk_can_be_killed(source: Path, chunked: ChunkMounter) -> None:
    write(source / "large", 4 * CHUNK)
    mount = chunked()
    mount.tell(hold=[1])
    pid = os.fork()
    if pid == 0:
        with open(mount / "large", "rb") as file:
            file.seek(CHUNK)
            file.read(1)
        os._exit(0)
    mount.wait_for_waiting(1)
    os.kill(pid, 9)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == 9


@pytest.mark.parametrize("how", ["umount", "SIGTERM"])
def test_the_mount_ends_while_readers_wait_for_chunks(
    source: Path, chunked: ChunkMounter, how: str
) -> None:
    write(source / "large", 4 * CHUNK)
    mount = chunked()
    mount.tell(hold=[0, 1])

    def read(offset: int) -> None:
        with past_the_page_cache(mount / "large") as fd:
            os.pread(fd, 3 * CHUNK, offset)

    with readers_of(mount, 4) as readers:
        reading: list[Future[str]] = [
            readers.submit(outcome_of, partial(read, at)) for at in (0, 10, CHUNK, CHUNK + 5)
        ]
        mount.wait_for_waiting(4)
        if how == "umount":
            assert mount.umount("--lazy").returncode == 0
        os.kill(mount.pid, 15)
        assert {each.result(20) for each in reading} <= {"ENOTCONN", "ECONNABORTED"}
    eventually(lambda: not is_mounted(mount.mountpoint), "it is unmounted")
    assert mount.process is not None
    assert mount.process.wait(20) == 0


def test_a_file_that_changes_while_it_is_read_never_shows_two_versions(
    source: Path, chunked: ChunkMounter
) -> None:
    before = write(source / "large", 8 * CHUNK)
    mount = chunked()
    with past_the_page_cache(mount / "large") as fd:
        assert os.pread(fd, 2 * CHUNK, 0) == before[: 2 * CHUNK]
        (source / "large").write_bytes(before[::-1])
        os.utime(source / "large", (5, 5))
        assert errno_of(lambda: os.pread(fd, 10, 5 * CHUNK)) == errno.ESTALE
        assert os.pread(fd, 100, CHUNK) == before[CHUNK : CHUNK + 100]
