"""Large files and datasets in a job of real daemons: in chunks, from the nodes' data tier.

``test_chunked_reads.py`` tests how the mount shows chunks that are evicted or never arrive.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.mount.conftest import Mounter
from tests.mount.doubts import Watch
from tests.mount.helpers import Mount, python, run
from tests.mount.jobs import Job

pytestmark = pytest.mark.mount

KIB, MIB, TIB = 1 << 10, 1 << 20, 1 << 40
CHUNK = 64 * KIB
NODES = 3
FLAGS = ("--chunk-size", "64KiB", "--tree-max", "256KiB", "--security", "none")

Starter = Callable[..., Job]


@pytest.fixture
def job(tmp_path: Path, source: Path) -> Iterator[Starter]:
    with ExitStack() as stack:
        events = ("--events", str(tmp_path / "events-%h"))
        yield lambda *flags, **only: stack.enter_context(
            Job(source, tmp_path / "job", NODES, *FLAGS, *events, *flags, **only)
        )


def write(path: Path, size: int) -> bytes:
    random = Random(size)
    content = b"".join(random.randbytes(min(MIB, size - at)) for at in range(0, size, MIB))
    path.write_bytes(content)
    return content


def at_once(job: Job, read: Callable[[Mount], Any]) -> list[Any]:
    with ThreadPoolExecutor(NODES) as nodes:
        return list(nodes.map(read, job.nodes))


def total(job: Job) -> dict[str, Any]:
    summed: dict[str, Any] = job.all_stats()["total"]["tier"]
    return summed


def watch(job: Job, tmp_path: Path) -> Watch:
    events = {node: tmp_path / f"events-n{node}" for node in range(NODES)}
    return Watch(lambda node: job.ask(node, "stats"), events)


def check_chunks_read(job: Job, watched: Watch, least: int) -> None:
    """The source gave this many chunks, and more only in place of suspected nodes."""
    doubts = watched.doubts()
    doubts.allow(total(job)["hits"]["source"] - least, doubts.reads, "chunks read")


def read_at(path: Path, offset: int, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)


def test_a_file_that_all_nodes_read_at_once_is_read_from_the_source_once(
    source: Path, job: Starter, tmp_path: Path
) -> None:
    content = write(source / "large", 80 * CHUNK + 1234)
    nodes = job()
    watched = watch(nodes, tmp_path)
    assert at_once(nodes, lambda node: (node / "large").read_bytes()) == [content] * NODES
    check_chunks_read(nodes, watched, 81)


def test_of_a_file_of_terabytes_only_what_is_read_is_fetched(
    source: Path, job: Starter, tmp_path: Path
) -> None:
    places = [5, 12345 * MIB + 17, TIB - 5, 2 * TIB - 100]
    with open(source / "huge", "wb") as file:
        file.truncate(2 * TIB)
        for number, place in enumerate(places):
            os.pwrite(file.fileno(), b"%07d" % number, place)
    nodes = job()
    watched = watch(nodes, tmp_path)
    for node in nodes.nodes:
        for number, place in enumerate(places):
            assert read_at(node / "huge", place, 7) == b"%07d" % number
    check_chunks_read(nodes, watched, len(places) + 1)  # one of them lies in two chunks
    assert total(nodes)["ahead"] == 0


def test_mappings_libraries_and_programs(source: Path, job: Starter) -> None:
    content = write(source / "large", 30 * CHUNK + 5)
    library = next(Path("/lib").glob("*-linux-gnu/libm.so.6")).resolve()
    shutil.copy(library, source / "libmine.so")
    shutil.copy("/bin/bash", source / "shell")
    assert library.stat().st_size > 256 * KIB
    nodes = job()
    for node in nodes.nodes:
        random = Random(3)
        with (
            open(node / "large", "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        ):
            for _ in range(200):
                at = random.randrange(len(content))
                assert mapped[at] == content[at]
        call = "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).floor; "
        call += "f.restype = ctypes.c_double; print(f(ctypes.c_double(2.5)))"
        done = python(call, node / "libmine.so")
        assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr
        done = run([node / "shell", "-c", "echo $((6 * 7))"])
        assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_who_reads_on_is_given_what_comes_next(source: Path, job: Starter, tmp_path: Path) -> None:
    """Each read of a cached chunk is one hit or one request, and no wait."""
    content = write(source / "large", 64 * CHUNK)
    nodes = job()
    watched = watch(nodes, tmp_path)
    for at in range(0, len(content), CHUNK):
        assert read_at(nodes[0] / "large", at, CHUNK) == content[at : at + CHUNK]
    assert total(nodes)["ahead"] > 50
    check_chunks_read(nodes, watched, 64)


def test_who_jumps_about_is_given_what_is_asked_for_also_across_chunks(
    source: Path, job: Starter, tmp_path: Path
) -> None:
    """A read that began in one chunk and ended in the next had fetched two more ahead."""
    content = write(source / "large", 200 * CHUNK)
    nodes = job()
    watched = watch(nodes, tmp_path)
    places = [index * CHUNK - 100 for index in range(20, 200, 20)]
    for node in nodes.nodes:
        for place in places:
            assert read_at(node / "large", place, 300) == content[place : place + 300]
    assert total(nodes)["ahead"] == 0
    check_chunks_read(nodes, watched, 2 * len(places))


def test_small_files_of_a_dataset_are_chunked_as_well(
    source: Path, job: Starter, tmp_path: Path
) -> None:
    (source / "data").mkdir()
    contents = {f"{count}": write(source / "data" / f"{count}", count) for count in range(1, 200)}
    (source / "data" / "empty").write_bytes(b"")
    nodes = job("--ring", str(source / "data"))
    watched = watch(nodes, tmp_path)
    for node in nodes.nodes:
        for name, content in contents.items():
            assert (node / "data" / name).read_bytes() == content
        assert (node / "data" / "empty").read_bytes() == b""
    check_chunks_read(nodes, watched, len(contents))
    assert total(nodes)["hits"]["peer"] > len(contents) // 2


def test_a_changed_file_shows_after_clear(source: Path, job: Starter) -> None:
    before = write(source / "large", 20 * CHUNK)
    nodes = job()
    at_once(nodes, lambda node: (node / "large").read_bytes())
    after = write(source / "large", 20 * CHUNK + 1)
    nodes[0].clear()
    assert at_once(nodes, lambda node: (node / "large").read_bytes()) == [after] * NODES
    assert before != after[: len(before)]


def test_with_less_memory_than_the_file_has_it_is_still_read(source: Path, job: Starter) -> None:
    """More than three times what the nodes keep passes through them at once."""
    content = write(source / "large", 320 * MIB)
    nodes = job("--chunk-size", "1MiB", "--tier-memory", "1MiB")

    def read(node: Mount) -> int:
        random, read = Random(str(node.mountpoint)), 0
        with open(node / "large", "rb") as file:
            while piece := file.read(MIB):
                assert piece == content[read : read + len(piece)]
                read += len(piece)
            for _ in range(50):
                at, size = random.randrange(len(content)), random.randrange(3 * MIB)
                assert os.pread(file.fileno(), size, at) == content[at : at + size]
        return read

    assert at_once(nodes, read) == [len(content)] * NODES
    assert total(nodes)["memory"]["evictions"] > 0


def test_a_node_alone_reads_a_dataset_through_its_disk_and_not_by_itself(
    source: Path, mounted: Mounter, tmp_path: Path
) -> None:
    """The front leaves these small files to the node."""
    (source / "data").mkdir()
    contents = {f"{count}": write(source / "data" / f"{count}", count) for count in range(1, 30)}
    mount = mounted("--tier-dir", str(tmp_path / "tier"), "--ring", str(source / "data"))
    for name, content in contents.items():
        assert (mount / "data" / name).read_bytes() == content
    assert mount.stats()["tier"]["hits"]["source"] == len(contents)


def test_a_library_stays_mapped_when_its_chunks_are_gone(source: Path, job: Starter) -> None:
    found = next(Path("/lib").glob("*-linux-gnu/libm.so.6")).resolve()
    shutil.copy(found, source / "libmine.so")
    nodes = job()
    library = ctypes.CDLL(str(nodes[0] / "libmine.so"))
    try:
        nodes[0].clear()
        library.floor.restype = ctypes.c_double
        library.tgamma.restype = ctypes.c_double
        assert library.floor(ctypes.c_double(2.5)) == 2.0
        assert library.tgamma(ctypes.c_double(5.0)) == pytest.approx(24.0)
    finally:
        ctypes.CDLL(None).dlclose(ctypes.c_void_p(library._handle))
