"""Chunks of a file on the stand-in: the operations that reach its servers, counted there."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path as FilePath

import pytest
import trio

from copperfs.node.events import Failed
from copperfs.source.source_interface import BlobRead
from tests.standin import StandIn
from tests.unit.test_source_contract import chunk_of, content_of, make, settled

pytestmark = pytest.mark.mount

MIB = 1 << 20


@pytest.fixture(params=[False, True], ids=["direct", "cached"])
def standin(request: pytest.FixtureRequest, tmp_path: FilePath) -> Iterator[StandIn]:
    """Some filesystems are mounted without the kernel's page cache."""
    settled(tmp_path / "file", content_of(6 * MIB))
    with StandIn(tmp_path, page_cache=request.param) as running:
        yield running


@pytest.mark.parametrize("size", [64 * 1024, 256 * 1024, MIB])
@pytest.mark.parametrize("order", [[3], [0], [5], [0, 1, 2], [4, 2, 0]])
def test_nothing_but_the_chunks_is_read(order: list[int], size: int, standin: StandIn) -> None:
    """The kernel would read ahead after these, at once or after the next one."""
    content = content_of(6 * MIB)

    async def main() -> None:
        async with make(standin.mountpoint) as source:
            version = await source.version(b"file")
            standin.reset_counts()
            for index in order:
                at = index * size
                assert await source.chunk(b"file", version, at, size) == content[at : at + size]
            counts = standin.counts()
            assert counts.read_bytes == {"file": len(order) * size}
            assert counts.total("open", "file") == 1

    trio.run(main)


def test_a_whole_file_is_read_once(standin: StandIn) -> None:
    """Read-ahead goes to the page cache, where there is one."""

    async def main() -> None:
        async with make(standin.mountpoint) as source:
            version = await source.version(b"file")
            standin.reset_counts()
            assert await source.read(b"file", version) == content_of(6 * MIB)
            assert standin.counts().read_bytes == {"file": 6 * MIB}

    trio.run(main)


def test_a_chunk_that_cannot_be_read_is_tried_once_more_with_a_new_descriptor(
    standin: StandIn,
) -> None:
    """An evicted client of Lustre gets errors from open files, and from nothing else."""

    async def main() -> None:
        async with make(standin.mountpoint) as source:
            version = await source.version(b"file")
            await source.chunk(b"file", version, 0, 4096)
            standin.reset_counts()
            rule = standin.fail("file", errno.EIO, ops=["read"])
            assert await source.error_of(chunk_of(b"file", version, MIB, 4096)) == errno.EIO
            assert standin.counts().total("open", "file") == 1
            standin.release(rule)
            outcome = await source.fetch(chunk_of(b"file", version, MIB, 4096))
            assert isinstance(outcome, BlobRead)
            assert standin.counts().total("open", "file") == 2

    trio.run(main)


def test_descriptors_are_released_on_the_servers(standin: StandIn) -> None:
    async def main() -> None:
        async with make(standin.mountpoint) as source:
            version = await source.version(b"file")
            await source.chunk(b"file", version, 0, 4096)
            standin.reset_counts()
            source.fetcher.close_unused(0.0)
            with trio.fail_after(20):
                while not standin.counts().total("release", "file"):
                    await trio.lowlevel.checkpoint()
            assert not [each for each in os.listdir("/proc/self/fd") if leads_to_file(each)]

    def leads_to_file(fd: str) -> bool:
        try:
            return os.readlink(f"/proc/self/fd/{fd}") == str(standin.mountpoint / "file")
        except OSError:
            return False

    trio.run(main)


def test_a_file_that_hangs_leaves_threads_for_the_others(tmp_path: FilePath) -> None:
    """Without a deadline that would replace them; then with one that is over at once."""
    settled(tmp_path / "hung", content_of(MIB))
    settled(tmp_path / "other", content_of(MIB))

    async def main() -> None:
        async with make(slow.mountpoint, concurrency=4) as source:
            hung, other = await source.version(b"hung"), await source.version(b"other")
            rule = slow.hang("hung", ops=["read"])
            chunks = [source.start(chunk_of(b"hung", hung, n * 4096, 4096)) for n in range(40)]
            await trio.to_thread.run_sync(slow.wait_for_hanging, 2)
            assert await source.chunk(b"other", other, 0, 4096) == content_of(MIB)[:4096]
            assert source.fetcher.statistics().busy == 2
            slow.release(rule)
            for each in chunks:
                assert isinstance(await source.outcome(each), BlobRead)
        async with make(slow.mountpoint, concurrency=4, deadline_s=0.0) as source:
            rule = slow.hang("hung", ops=["read"])
            chunks = []
            # one after the other, since no request waits for an open file
            for n in range(2):
                chunks.append(source.start(chunk_of(b"hung", hung, n * 4096, 4096)))
                await trio.to_thread.run_sync(slow.wait_for_hanging, n + 1)
            for index in range(200):
                error = await source.error_of(chunk_of(b"hung", hung, index * 4096, 4096))
                assert error == errno.EIO
            assert await source.chunk(b"other", other, 0, 4096) == content_of(MIB)[:4096]
            source.fetcher.replace_stuck()
            assert source.fetcher.statistics().stuck == 2
            slow.release(rule)
            for each in chunks:
                assert isinstance(await source.outcome(each), BlobRead)
            assert await source.chunk(b"hung", hung, 0, 4096) == content_of(MIB)[:4096]

    with StandIn(tmp_path) as slow:
        trio.run(main)


def test_chunks_that_wait_behind_some_that_hang_fail_with_them(tmp_path: FilePath) -> None:
    settled(tmp_path / "hung", content_of(MIB))

    async def main() -> None:
        async with make(slow.mountpoint, concurrency=4, deadline_s=1.0) as source:
            hung = await source.version(b"hung")
            rule = slow.hang("hung", ops=["read"])
            chunks = [source.start(chunk_of(b"hung", hung, n * 4096, 4096)) for n in range(10)]
            with trio.fail_after(30):
                while len(source.arrived) < 8:  # as the engine does each second
                    await trio.sleep(0.05)
                    source.fetcher.replace_stuck()
            for each in chunks[2:]:
                assert source.arrived.pop(each) == Failed(each, errno.EIO)
            slow.release(rule)
            for each in chunks[:2]:
                assert isinstance(await source.outcome(each), BlobRead)

    with StandIn(tmp_path) as slow:
        trio.run(main)
