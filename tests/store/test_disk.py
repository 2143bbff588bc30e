"""Disk store: restarts, directories that it refuses, and disks that are full, fail or hang."""

import errno
import itertools
import math
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path as FilePath

import pytest
import trio
import trio.testing

from copperfs.chunkstore.disk_format import LOCK_TEXT
from copperfs.chunkstore.disk_ops import Files, RealFiles
from copperfs.chunkstore.disk_store import (
    PROBE_BYTES,
    DiskLimits,
    DiskStore,
    Inherited,
    open_store,
)
from copperfs.daemon.chunk_disk import ChunkDisk
from copperfs.daemon.daemon_blobs import DaemonBlobs
from copperfs.model.errors import StoreError
from copperfs.model.types import FetchId
from copperfs.node.events import DiskLoaded, DiskRecovered, Event, Stored
from copperfs.node.membership.failure_detector import Timeouts
from tests.bench.dataset import give_back
from tests.net.world import trio_test
from tests.store.faulty import FaultyFiles, ShortFiles
from tests.store.lab import (
    AMPLE,
    CHUNK_BYTES,
    COST,
    SIZE,
    SOURCE,
    chunk,
    chunk_files,
    disk_bytes,
    disk_store,
    fill,
    holds_bytes,
    key,
    limits,
)

ExpectWarning = Callable[[str], None]
DEGRADED = "nothing more is written to"
WITHIN_S = 20.0

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(WITHIN_S):
        while not condition():  # noqa: ASYNC110  # what it waits for happens on disk
            await trio.sleep(0.01)


async def recovered(store: DiskStore) -> None:
    await until(lambda: store.statistics().degraded_since is None)


# ---- restarts ------------------------------------------------------------------------------------


@trio_test
async def test_a_restart_finds_everything_oldest_first_without_looking_into_it(
    tmp_path: FilePath,
) -> None:
    async with disk_store(tmp_path / "store") as store:
        await fill(store, range(50))
        held = store.statistics().held_bytes
    files = FaultyFiles()
    async with disk_store(tmp_path / "store", limits(50), files) as store:
        assert store.statistics().held_bytes == held
        assert store.statistics().held_chunks == 50
        assert "preadv" not in files.done[files.done.index("names") + 4 :]
        await fill(store, range(50, 60))  # ten have to go
        for number in range(60):
            assert await holds_bytes(store, number) == (number >= 10)
        assert store.statistics().erasures == 0


@trio_test
async def test_a_smaller_budget_is_kept_after_a_restart(tmp_path: FilePath) -> None:
    async with disk_store(tmp_path / "store") as store:
        await fill(store, range(50))
    async with disk_store(tmp_path / "store", limits(7)) as store:
        await store.wait_moved()
        assert disk_bytes(tmp_path / "store") <= 7 * COST
        assert [number for number in range(50) if store.holds(key(number))] == list(range(43, 50))


@pytest.mark.parametrize("changed", ["source", "chunk_bytes", "version"])
@trio_test
async def test_what_is_not_the_same_any_more_is_not_used(tmp_path: FilePath, changed: str) -> None:
    async with disk_store(tmp_path / "store") as store:
        await fill(store, range(5))
    source = b"/another" if changed == "source" else SOURCE
    size = CHUNK_BYTES // 2 if changed == "chunk_bytes" else CHUNK_BYTES
    version = 2 if changed == "version" else 1
    async with disk_store(tmp_path / "store", limits(5), source=source, chunk_bytes=size) as store:
        assert await store.read(key(1, version)) is None
        store.put_nowait(key(1, version), chunk(1, version=version))  # this evicts an old one
        await store.wait_moved()
        assert await holds_bytes(store, 1, version=version)
        assert store.statistics().held_chunks == 5


@trio_test
async def test_what_was_not_finished_is_removed_and_what_is_not_ours_is_left(
    tmp_path: FilePath,
) -> None:
    path = tmp_path / "store"
    async with disk_store(path) as store:
        await fill(store, range(3))
    half = chunk_files(path)[0]
    (path / "tmp" / half.name).write_bytes(b"half of it")
    (path / "tmp" / "note").write_text("mine")
    (path / "chunks" / "note").write_text("mine")
    (half.parent / "note").write_text("mine")
    async with disk_store(path) as store:
        assert [each.name for each in (path / "tmp").iterdir()] == ["note"]
        assert store.statistics().held_chunks == 3
        await fill(store, range(3, 6))
    assert (half.parent / "note").exists()
    assert (path / "chunks" / "note").exists()


@trio_test
async def test_of_two_files_of_one_chunk_the_older_one_is_deleted(tmp_path: FilePath) -> None:
    path = tmp_path / "store"
    async with disk_store(path) as store:
        await fill(store, range(1))
    (file,) = chunk_files(path)
    name, serial, size = file.name.split(".")
    newer = file.with_name(f"{name}.{int(serial, 16) + 5:x}.{size}")
    file.rename(newer)
    file.write_bytes(b"old")
    async with disk_store(path) as store:
        await store.wait_moved()
        assert chunk_files(path) == [newer]
        assert await holds_bytes(store, 0)
        await fill(store, range(1, 2))
    assert {each.name.split(".")[1] for each in chunk_files(path)} == {"6", "7"}


@trio_test
async def test_short_reads_and_writes_are_finished(tmp_path: FilePath) -> None:
    for _ in range(2):
        async with disk_store(tmp_path / "store", files=ShortFiles()) as store:
            await fill(store, range(3))
            for number in range(3):
                assert await holds_bytes(store, number)
            assert (await store.scrub()).erasures == 0


LARGE = (70_000, 1 << 20, (1 << 20) - 1)


async def all_hold(path: FilePath, files: Files | None) -> None:
    async with disk_store(path, files=files) as store:
        for number, size in enumerate(LARGE):
            store.put_nowait(key(number), chunk(number, size))
        await store.wait_moved()
        os.sync()
        for file in chunk_files(path):
            give_back(file)
        for number, size in enumerate(LARGE):
            assert await holds_bytes(store, number, size)
        assert (await store.scrub()).erasures == 0


def is_cached(file: FilePath) -> bool:
    fd = os.open(file, os.O_RDONLY)
    try:
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


@trio_test
async def test_large_chunks_are_read_past_the_cache_of_the_kernel(tmp_path: FilePath) -> None:
    await all_hold(tmp_path / "store", None)
    assert [is_cached(each) for each in chunk_files(tmp_path / "store")] == [False] * len(LARGE)
    await all_hold(tmp_path / "store", ShortFiles())  # as if the native load could not be built
    assert [is_cached(each) for each in chunk_files(tmp_path / "store")] == [True] * len(LARGE)


@pytest.fixture
def ramfs(tmp_path: FilePath) -> Iterator[FilePath]:
    subprocess.run(["mount", "-t", "ramfs", "none", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@as_root
@trio_test
async def test_a_filesystem_that_has_no_way_past_the_cache_is_read_through_it(
    ramfs: FilePath,
) -> None:
    os.close(os.open(ramfs / "file", os.O_CREAT))
    with pytest.raises(OSError, match="Invalid argument"):
        os.open(ramfs / "file", os.O_RDONLY | os.O_DIRECT)

    class Roomy(RealFiles):
        def free_bytes(self, fd: int) -> int:
            return 1 << 40  # it does not report the space

    await all_hold(ramfs / "store", Roomy())


def test_what_is_loaded_at_once_is_what_is_loaded_in_steps(tmp_path: FilePath) -> None:
    """All lengths around page boundaries, in page-aligned buffers and in others."""
    raw = random.Random("load").randbytes(3 * 4096)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        for size in (0, 1, 4095, 4096, 4097, 8192, 3 * 4096 - 1, 3 * 4096):
            (tmp_path / "file").write_bytes(raw[:size])
            for head_bytes in (0, 4096):
                for skipped, stated in itertools.product((0, 1, 512), (size, size + 1)):
                    if stated < head_bytes:
                        continue
                    found = []
                    for load in (RealFiles().load, FaultyFiles().load):
                        rest = memoryview(mmap.mmap(-1, 4 * 4096))[skipped:]
                        head = load("file", directory, stated, head_bytes, rest)
                        whole = None if head is None else head + rest[: size - head_bytes]
                        found.append(whole)
                    assert found == [raw[:size] if stated == size else None] * 2
    finally:
        os.close(directory)


def test_what_cannot_be_loaded_is_an_error(tmp_path: FilePath) -> None:
    (tmp_path / "link").symlink_to("file")
    directory = os.open(tmp_path, os.O_RDONLY)
    rest = memoryview(bytearray(4096))
    try:
        for files in (RealFiles(), FaultyFiles()):
            for name, number in (("nothing", errno.ENOENT), ("link", errno.ELOOP)):
                with pytest.raises(OSError, match=os.strerror(number)) as raised:
                    files.load(name, directory, 1, 0, rest)
                assert raised.value.errno == number
    finally:
        os.close(directory)
    with pytest.raises(ValueError, match="does not fit"):
        RealFiles().load("file", directory, 4097, 0, rest)


# ---- damage --------------------------------------------------------------------------------------


def flip(file: FilePath, offset: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[offset] ^= 1
    file.write_bytes(raw)


def put_a_link(file: FilePath) -> None:
    """The content is intact, but others could choose where the link leads."""
    file.rename(file.with_name("x"))
    file.symlink_to("x")


def put_a_directory(file: FilePath) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: dict[str, Callable[[FilePath], object]] = {
    "magic": lambda file: flip(file, 0),
    "header": lambda file: flip(file, 70),
    "first byte": lambda file: flip(file, 4096),
    "last byte": lambda file: flip(file, -1),
    "cut": lambda file: os.truncate(file, file.stat().st_size - 1),
    "longer": lambda file: os.truncate(file, file.stat().st_size + 1),
    "empty": lambda file: os.truncate(file, 0),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "gone": FilePath.unlink,
    "a link": put_a_link,
    "a directory": put_a_directory,
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("found_by", ["read", "scrub"])
@trio_test
async def test_a_damaged_chunk_is_an_erasure(
    tmp_path: FilePath, how: str, found_by: str, expected_warnings: ExpectWarning
) -> None:
    if how == "a directory":  # unlink does not remove it, so the disk counts as broken
        expected_warnings(DEGRADED)
    path = tmp_path / "store"
    async with disk_store(path) as store:
        await fill(store, range(1))
        (victim,) = chunk_files(path)
        await fill(store, range(1, 3))
    async with disk_store(path) as store:
        DAMAGE[how](victim)
        if found_by == "read":
            assert await store.read(key(0)) is None
        else:
            assert (await store.scrub()).erasures == 1
        assert store.statistics().erasures == 1
        assert not store.holds(key(0))
        for number in (1, 2):
            assert await holds_bytes(store, number)
        await store.wait_moved()
        if how != "a directory":
            assert victim not in chunk_files(path)
            await fill(store, range(1))
            assert await holds_bytes(store, 0)


@trio_test
async def test_the_file_of_another_chunk_is_an_erasure(tmp_path: FilePath) -> None:
    path = tmp_path / "store"
    async with disk_store(path) as store:
        await fill(store, range(1))
        (first,) = chunk_files(path)
        await fill(store, range(1, 2))
        (second,) = set(chunk_files(path)) - {first}
        first.write_bytes(second.read_bytes())  # intact, and of the same size
        assert await store.read(key(0)) is None
        assert store.statistics().erasures == 1
        await store.wait_moved()
        second.write_bytes(b"")
    async with disk_store(path) as store:
        assert (await store.scrub()).erasures == 1


def on_standing_clock(main: Callable[[], Awaitable[None]]) -> None:
    """The clock jumps ahead whenever everything sleeps. A wait for the disk has no deadline here,
    because its time would pass as well."""
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_scrub_keeps_to_its_rate(tmp_path: FilePath) -> None:
    async def main() -> None:
        async with disk_store(
            tmp_path / "store", replace(AMPLE, deadline_s=math.inf, read_deadline_s=math.inf)
        ) as store:
            await fill(store, range(10))
            before = trio.current_time()
            assert (await store.scrub(1000)).chunks == 10
            assert trio.current_time() - before == pytest.approx(9 * (4096 + SIZE) / 1000)

    on_standing_clock(main)


# ---- the mover -----------------------------------------------------------------------------------


@trio_test
async def test_the_backlog_is_bounded_in_bytes(tmp_path: FilePath) -> None:
    files = FaultyFiles()
    budget = replace(AMPLE, backlog_bytes_max=5 * SIZE)
    async with disk_store(tmp_path / "store", budget, files) as store:
        files.hold("writev")
        taken = [store.put_nowait(key(number), chunk(number)) for number in range(8)]
        assert taken == [True] * 5 + [False] * 3
        assert store.statistics().backlog_bytes == 5 * SIZE
        assert store.statistics().refused == 3
        for number in range(5):
            assert await holds_bytes(store, number), "from the backlog"
        files.let_go("writev")
        await store.wait_moved()
        assert store.put_nowait(key(7), chunk(7))
        assert store.statistics().writes == 5


@trio_test
async def test_a_disk_that_fails_says_so_of_all_that_it_was_given_and_when_it_is_back(
    tmp_path: FilePath, expected_warnings: ExpectWarning
) -> None:
    files = FaultyFiles()
    over: list[bool] = []
    is_back = trio.Event()
    expected_warnings(DEGRADED)
    async with disk_store(tmp_path / "store", AMPLE, files) as store:
        store.recovered = is_back.set
        files.failing["writev"] = errno.EIO
        for number in range(5):
            assert store.put_nowait(key(number), chunk(number), over.append)
        await until(lambda: store.statistics().degraded_since is not None)
        assert over == [False] * 5
        assert not store.put_nowait(key(9), chunk(9), over.append)
        files.failing.clear()
        with trio.fail_after(10):
            await is_back.wait()
        assert store.put_nowait(key(9), chunk(9), over.append)
        await store.wait_moved()
        assert over[5:] == [True]


def test_the_mover_keeps_to_its_rate(tmp_path: FilePath) -> None:
    async def main() -> None:
        a_chunk_a_second = replace(AMPLE, mover_rate_bytes_s=4096 + SIZE, deadline_s=math.inf)
        async with disk_store(tmp_path / "store", a_chunk_a_second) as store:
            before = trio.current_time()
            await fill(store, range(5))
            assert trio.current_time() - before == pytest.approx(4.0)

    on_standing_clock(main)


@trio_test
async def test_what_is_being_read_is_not_evicted(tmp_path: FilePath) -> None:
    files = FaultyFiles()
    async with disk_store(tmp_path / "store", limits(3), files) as store:
        await fill(store, range(3))
        files.hold("preadv")
        async with trio.open_nursery() as nursery:
            served = []

            async def read() -> None:
                served.append(await holds_bytes(store, 0))

            nursery.start_soon(read)
            await until(lambda: files.done[-1] == "preadv")
            # Chunk 0 was used last, and these evict everything else.
            for number in range(3, 9):
                await fill(store, range(number, number + 1))
            assert store.holds(key(0))
            assert disk_bytes(tmp_path / "store") <= 3 * COST
            files.let_go("preadv")
        assert served == [True]
        await fill(store, range(9, 12))
        assert not store.holds(key(0)), "it is nobody's any more"


@trio_test
async def test_a_reader_that_was_cancelled_still_reads(tmp_path: FilePath) -> None:
    files = FaultyFiles()
    async with disk_store(tmp_path / "store", limits(2), files) as store:
        await fill(store, range(2))
        files.hold("preadv")
        with trio.move_on_after(0.05):
            await store.read(key(0))
        await fill(store, range(2, 5))
        assert store.holds(key(0)), "its thread has it open"
        files.let_go("preadv")
        await trio.sleep(0.05)
        await fill(store, range(5, 8))
        assert not store.holds(key(0))


@trio_test
async def test_the_disk_never_holds_more_than_the_budget(tmp_path: FilePath) -> None:
    path, files = tmp_path / "store", FaultyFiles()
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, disk_bytes(path))

    async with disk_store(path, limits(5), files) as store:
        first = len(files.done)
        files.at = dict.fromkeys(range(first, first + 2000), look)
        for number in range(30):
            await fill(store, range(number, number + 1))
    assert 4 * COST < most <= 5 * COST


@trio_test
async def test_a_chunk_dropped_while_it_is_written_is_not_kept(tmp_path: FilePath) -> None:
    files = FaultyFiles()
    async with disk_store(tmp_path / "store", files=files) as store:
        files.hold("rename")
        store.put_nowait(key(1), chunk(1))
        await until(lambda: files.done[-1] == "rename")
        assert store.drop(key(1))
        assert not store.holds(key(1))
        files.let_go("rename")
        await until(lambda: not chunk_files(tmp_path / "store") and store.statistics().writes)
        await until(lambda: store.statistics().held_bytes == 0)


# ---- room ----------------------------------------------------------------------------------------


@trio_test
async def test_what_has_to_stay_free_is_made_room_for(
    tmp_path: FilePath, expected_warnings: ExpectWarning
) -> None:
    files = FaultyFiles()
    budget = limits(50, free_bytes_min=1 << 30)
    async with disk_store(tmp_path / "store", budget, files) as store:
        await fill(store, range(10))
        start = 1 << 30
        # Others fill the disk; the chunks that the store deletes are free again.
        held = store.statistics().held_bytes

        def free_now() -> None:
            deleted = held - disk_bytes(tmp_path / "store")
            files.free = start - 2 * COST + deleted

        files.at = {len(files.done) + 1 + step: free_now for step in range(200)}
        await fill(store, range(10, 11))
        assert await holds_bytes(store, 10)
        assert [number for number in range(10) if store.holds(key(number))] == list(range(3, 10))
        assert store.statistics().degradations == 0
        # No chunk is left to evict, and the room is still too little.
        files.at, files.free = {}, 0
        expected_warnings(DEGRADED + ".*others need")
        assert store.put_nowait(key(20), chunk(20))
        await until(lambda: store.statistics().degraded_since is not None)
        assert not store.put_nowait(key(21), chunk(21))
        assert store.statistics().held_chunks == 0
        files.free = start + 2 * PROBE_BYTES
        await recovered(store)
        await fill(store, range(22, 23))
        assert await holds_bytes(store, 22)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@trio_test
async def test_a_write_without_room_that_nobody_foresaw_pushes_out_the_oldest(
    tmp_path: FilePath, number: int
) -> None:
    files = FaultyFiles()

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    async with disk_store(tmp_path / "store", files=files) as store:
        await fill(store, range(5))
        before = len(files.done)
        await fill(store, range(5, 6))
        steps = files.done[before:]
        # The next chunk takes the same steps; writev fails once, and the store evicts a chunk.
        first = len(files.done) + steps.index("writev") + 1
        files.at = {first: fail}
        await fill(store, range(6, 7))
        assert not store.holds(key(0))
        for each in range(1, 7):
            assert await holds_bytes(store, each)
        assert (store.statistics().evictions, store.statistics().degradations) == (1, 0)
        assert not list((tmp_path / "store" / "tmp").iterdir())


@pytest.fixture
def small_disk(tmp_path: FilePath) -> Iterator[FilePath]:
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", mount], check=True)
    yield mount
    subprocess.run(["umount", mount], check=True)


@as_root
@pytest.mark.mount
@trio_test
async def test_a_disk_that_others_fill_pushes_chunks_out_and_nobody_sees_an_error(
    small_disk: FilePath, expected_warnings: ExpectWarning
) -> None:
    path = small_disk / "store"
    async with disk_store(path) as store:  # the budget is far above the filesystem's size
        for number in range(300):
            await fill(store, range(number, number + 1))
            assert await holds_bytes(store, number)
        stats = store.statistics()
        assert stats.degradations == 0
        assert 100 < stats.held_chunks < 130
        assert stats.held_chunks == len(chunk_files(path)), "nothing else is left"
        for number in range(300):
            store.drop(key(number))
        await store.wait_moved()
        with suppress(OSError), (small_disk / "others").open("wb", buffering=0) as others:
            while others.write(bytes(4096)):
                pass
        expected_warnings(DEGRADED + ".*others need")
        store.put_nowait(key(1), chunk(1))
        await until(lambda: store.statistics().degraded_since is not None)
        assert not list((path / "tmp").iterdir())
        (small_disk / "others").unlink()
        await recovered(store)
        await fill(store, range(5))
        assert await holds_bytes(store, 4)


@as_root
@pytest.mark.mount
@trio_test
async def test_a_disk_that_becomes_read_only_still_reads_and_recovers(
    small_disk: FilePath, expected_warnings: ExpectWarning
) -> None:
    expected_warnings(DEGRADED + ".*Read-only")
    async with disk_store(small_disk / "store") as store:
        await fill(store, range(5))
        await trio.run_process(["mount", "-o", "remount,ro", small_disk])
        assert store.put_nowait(key(5), chunk(5))
        await until(lambda: store.statistics().degraded_since is not None)
        assert not store.put_nowait(key(6), chunk(6))
        for number in range(6):
            assert await holds_bytes(store, number) == (number < 5)
        await trio.run_process(["mount", "-o", "remount,rw", small_disk])
        await recovered(store)
        await fill(store, range(5, 7))
        assert await holds_bytes(store, 6)
        assert store.statistics().degradations == 1


@as_root
@pytest.mark.mount
@trio_test
async def test_a_store_on_a_disk_that_cannot_be_written_starts_degraded(
    small_disk: FilePath, expected_warnings: ExpectWarning
) -> None:
    expected_warnings(DEGRADED + ".*Read-only")
    await trio.run_process(["mount", "-o", "remount,ro", small_disk])
    async with disk_store(small_disk / "store") as store:
        assert not store.put_nowait(key(1), chunk(1))
        assert await store.read(key(1)) is None
        await trio.run_process(["mount", "-o", "remount,rw", small_disk])
        await recovered(store)
        await fill(store, range(1, 2))
        assert await holds_bytes(store, 1)


@as_root
@pytest.mark.mount
@trio_test
async def test_when_a_disk_is_unmounted_the_one_below_is_not_filled(
    tmp_path: FilePath, expected_warnings: ExpectWarning
) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    await trio.run_process(["mount", "-t", "tmpfs", "none", mount])
    expected_warnings(DEGRADED)
    files = FaultyFiles()
    async with disk_store(mount / "store", files=files) as store:
        await fill(store, range(1))
        await trio.run_process(["umount", "-l", mount])
        files.failing["writev"] = errno.EIO
        assert store.put_nowait(key(1), chunk(1))
        await until(lambda: store.statistics().degraded_since is not None)
        files.failing.clear()
        probed = len(files.done)
        await until(lambda: len(files.done) > probed + 20)
        assert store.statistics().degraded_since is not None
        assert not list(mount.iterdir())


@as_root
@pytest.mark.mount
@trio_test
async def test_a_successor_does_not_fill_the_disk_below_an_unmounted_one(
    tmp_path: FilePath, expected_warnings: ExpectWarning
) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    disk = tmp_path / "another name"
    disk.mkdir()
    await trio.run_process(["mount", "-t", "tmpfs", "none", disk])
    try:
        await trio.run_process(["mount", "--bind", disk, mount])
        async with disk_store(mount / "store") as store:
            await fill(store, range(1))
            device = store.device
        await trio.run_process(["umount", mount])
        expected_warnings(DEGRADED)
        files = FaultyFiles()
        async with disk_store(
            mount / "store", files=files, inherited=Inherited(None, device)
        ) as store:
            probed = len(files.done)
            await until(lambda: len(files.done) > probed + 20)
            assert (store.device, list(mount.iterdir())) == (device, [])
            await trio.run_process(["mount", "--bind", disk, mount])
            await recovered(store)
            assert await holds_bytes(store, 0)
        await trio.run_process(["umount", mount])
    finally:
        await trio.run_process(["umount", disk])


@trio_test
async def test_a_successor_begins_without_a_directory_that_cannot_be_used(
    tmp_path: FilePath, expected_warnings: ExpectWarning
) -> None:
    expected_warnings(DEGRADED + ".*does not exist")
    above = tmp_path / "above"
    async with disk_store(above / "store", inherited=Inherited(None, None)) as store:
        assert not store.put_nowait(key(0), chunk(0))
        above.mkdir()
        await recovered(store)
        await fill(store, range(1))


@trio_test
async def test_a_directory_that_was_removed_is_made_again(
    tmp_path: FilePath, expected_warnings: ExpectWarning
) -> None:
    expected_warnings(DEGRADED)
    path = tmp_path / "store"
    async with disk_store(path) as store:
        await fill(store, range(5))
        path.rename(tmp_path / "elsewhere")
        await trio.run_process(["rm", "-r", tmp_path / "elsewhere"])
        assert await store.read(key(1)) is None
        store.put_nowait(key(7), chunk(7))
        await until(lambda: store.statistics().degraded_since is not None)
        await recovered(store)
        assert store.statistics().held_chunks == 0
        await fill(store, range(5))
        assert await holds_bytes(store, 1)
        with pytest.raises(StoreError, match="Another copperfs daemon"):
            await open_store(str(path), AMPLE, source=SOURCE, chunk_bytes=CHUNK_BYTES)


# ---- every operation, made to fail ---------------------------------------------------------------

WRITING = ("open", "writev", "rename", "free_bytes")


@pytest.mark.parametrize("operation", WRITING)
@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EDQUOT, errno.ENOSPC])
@trio_test
async def test_a_write_that_fails_is_no_error_of_anybody(
    tmp_path: FilePath, operation: str, number: int, expected_warnings: ExpectWarning
) -> None:
    expected_warnings(DEGRADED)
    files = FaultyFiles()
    async with disk_store(tmp_path / "store", files=files) as store:
        files.failing[operation] = number
        assert store.put_nowait(key(1), chunk(1))
        await until(lambda: store.statistics().degraded_since is not None)
        assert store.statistics().backlog_bytes == 0
        assert not store.put_nowait(key(2), chunk(2))
        assert await store.read(key(1)) is None
        files.failing.clear()
        await recovered(store)
        assert not list((tmp_path / "store" / "tmp").iterdir())
        await fill(store, range(3))
        assert await holds_bytes(store, 2)
        assert store.statistics().erasures == 0
        assert store.statistics().held_bytes == disk_bytes(tmp_path / "store")


@trio_test
async def test_what_cannot_be_deleted_still_counts_and_is_deleted_later(
    tmp_path: FilePath, expected_warnings: ExpectWarning
) -> None:
    expected_warnings(DEGRADED)
    files = FaultyFiles()
    async with disk_store(tmp_path / "store", limits(5), files) as store:
        await fill(store, range(5))
        files.failing["unlink"] = errno.EIO
        store.drop(key(0))
        await until(lambda: store.statistics().degraded_since is not None)
        assert store.statistics().held_bytes == 5 * COST == disk_bytes(tmp_path / "store")
        files.failing.clear()
        await recovered(store)
        await store.wait_moved()
        assert store.statistics().held_bytes == 4 * COST == disk_bytes(tmp_path / "store")


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
@trio_test
async def test_a_read_that_fails_is_an_erasure_unless_it_is_our_own_trouble(
    tmp_path: FilePath, number: int
) -> None:
    files = FaultyFiles()
    async with disk_store(tmp_path / "store", files=files) as store:
        await fill(store, range(2))
        files.failing["open" if number == errno.EMFILE else "preadv"] = number
        assert await store.read(key(0)) is None
        assert (await store.scrub()).chunks == (0 if number == errno.EMFILE else 1)
        files.failing.clear()
        own = number == errno.EMFILE
        assert store.statistics().erasures == (0 if own else 2)
        assert await holds_bytes(store, 0) == own


@trio_test
async def test_every_single_operation_may_fail_once(
    tmp_path: FilePath, expected_warnings: ExpectWarning
) -> None:
    """The n-th operation, for every n of a short life. No reader gets an error or a wrong byte, and
    afterwards the counts match the disk."""

    def fail() -> None:
        raise OSError(errno.EIO, "at the chosen moment")

    expected_warnings(DEGRADED)  # for some of the steps
    step = 0
    while True:
        step += 1
        path = tmp_path / f"store{step}"
        files = FaultyFiles(at={step: fail})
        async with disk_store(path, limits(4), files) as store:
            for number in range(6):
                store.put_nowait(key(number), chunk(number))
                await store.wait_moved()
                await holds_bytes(store, number)
                await holds_bytes(store, number - 2)
            await store.scrub()
            ended = step > len(files.done)
            if store.statistics().degraded_since is None:
                await store.wait_moved()
                assert store.statistics().held_bytes == disk_bytes(path) <= 4 * COST
        async with disk_store(path, limits(4)) as store:
            await store.wait_moved()
            assert store.statistics().held_bytes == disk_bytes(path) <= 4 * COST
            assert not list((path / "tmp").iterdir())
            for number in range(6):
                await holds_bytes(store, number)
        if ended:
            break
    assert step > 60


# ---- a disk that hangs ---------------------------------------------------------------------------


@trio_test
async def test_a_disk_that_hangs_is_given_up_and_used_again_when_it_comes_back(
    tmp_path: FilePath, expected_warnings: ExpectWarning
) -> None:
    expected_warnings(DEGRADED + ".*does not answer")
    files = FaultyFiles()
    budget = replace(AMPLE, readers=2, deadline_s=0.1, read_deadline_s=0.1)
    async with disk_store(tmp_path / "store", budget, files) as store:
        await fill(store, range(5))
        files.hold("preadv")
        files.hold("writev")
        store.put_nowait(key(9), chunk(9))
        for number in range(5):
            assert await store.read(key(number)) is None
        assert store.statistics().late == 5
        await until(lambda: store.statistics().degraded_since is not None)
        assert not store.put_nowait(key(10), chunk(10))
        files.let_go("preadv")
        files.let_go("writev")
        await recovered(store)
        for number in range(5):
            assert await holds_bytes(store, number)
        assert store.statistics().erasures == 0
        await store.wait_moved()
        await until(lambda: store.statistics().held_bytes == disk_bytes(tmp_path / "store"))
        assert not store.holds(key(9)), "it was given up, and what came of it is deleted"


def test_reads_of_a_disk_that_hangs_go_to_the_source_before_those_who_ask_turn_away(
    tmp_path: FilePath,
) -> None:
    """As in the node, which reads a chunk from the source if it is not loaded."""
    files = FaultyFiles()
    loaded: list[tuple[Event, float]] = []

    async def fetched(tier: ChunkDisk, *numbers: int) -> float:
        loaded.clear()
        before = trio.current_time()
        for number in numbers:
            tier.load(FetchId(number), key(number))
        await until(lambda: len(loaded) == len(numbers))
        assert {event for event, _ in loaded} == {DiskLoaded(FetchId(n), None) for n in numbers}
        return max(at for _, at in loaded) - before

    async def main() -> None:
        # A daemon's limits, but no deadline for writes, because this clock jumps.
        limits = DiskLimits(64 << 20, free_bytes_min=0, deadline_s=math.inf)
        store = await open_store(
            str(tmp_path / "store"), limits, source=SOURCE, chunk_bytes=CHUNK_BYTES, files=files
        )
        post = lambda event: loaded.append((event, trio.current_time()))  # noqa: E731
        tier = ChunkDisk(store, DaemonBlobs(), post)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tier.run)
            await tier.wait_begun()
            await fill(store, range(12))
            files.hold("preadv")
            assert await fetched(tier, *range(8)) < Timeouts().slow_s / 2
            assert await fetched(tier, *range(8, 12)) < 0.1, "at once while it hangs"
            assert store.statistics().late == 12
            files.let_go("preadv")
            await until(lambda: not store._readers.late)
            assert await holds_bytes(store, 0)
            nursery.cancel_scope.cancel()

    on_standing_clock(main)


@trio_test
async def test_the_core_is_told_in_order_what_was_written_and_whether_the_disk_takes_chunks(
    tmp_path: FilePath, expected_warnings: ExpectWarning
) -> None:
    expected_warnings(DEGRADED)
    files, told = FaultyFiles(), list[Event]()
    hasty = replace(AMPLE, deadline_s=0.1, probe_min_s=0.01)
    store = await open_store(
        str(tmp_path / "store"), hasty, source=SOURCE, chunk_bytes=CHUNK_BYTES, files=files
    )
    blobs = DaemonBlobs()
    tier = ChunkDisk(store, blobs, told.append)

    def give(number: int) -> None:
        each = chunk(number)
        tier.save(key(number), blobs.keep_blob(each.blob, each.digest))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tier.run)
        await tier.wait_begun()
        await fill(store, range(1))
        give(0)
        store.recovered()  # in the same step, as may happen
        await until(lambda: len(told) == 2)
        assert told == [Stored(key(0), written=True), DiskRecovered()]
        told.clear()
        files.hold("writev")
        give(1)
        await until(lambda: store.statistics().degraded_since is not None)
        give(0)
        await until(lambda: len(told) == 2)
        assert told == [
            Stored(key(1), written=False, is_degraded=True),
            Stored(key(0), written=True, is_degraded=True),
        ]
        files.let_go("writev")
        await until(lambda: len(told) == 3)
        assert told[2] == DiskRecovered()
        nursery.cancel_scope.cancel()


@trio_test
async def test_a_disk_that_hangs_at_the_beginning_is_not_waited_for(
    tmp_path: FilePath, expected_warnings: ExpectWarning
) -> None:
    expected_warnings(DEGRADED + ".*does not answer")
    async with disk_store(tmp_path / "store") as store:
        await fill(store, range(3))
    files = FaultyFiles()
    files.hold("lock")
    async with disk_store(tmp_path / "store", replace(AMPLE, deadline_s=0.1), files) as store:
        assert not store.put_nowait(key(9), chunk(9))
        assert await store.read(key(1)) is None
        files.let_go("lock")
        await recovered(store)
        for number in range(3):
            assert await holds_bytes(store, number)


# ---- whose directory -----------------------------------------------------------------------------


async def refusal(path: FilePath) -> str:
    with pytest.raises(StoreError) as caught:
        await open_store(str(path), AMPLE, source=SOURCE, chunk_bytes=CHUNK_BYTES)
    return str(caught.value)


@trio_test
async def test_two_stores_in_one_directory_are_refused_until_the_first_has_ended(
    tmp_path: FilePath,
) -> None:
    path = tmp_path / "store"
    async with disk_store(path) as store:
        await fill(store, range(1))
        assert "Another copperfs daemon" in await refusal(path)
        assert await holds_bytes(store, 0)
    async with disk_store(path) as store:
        assert await holds_bytes(store, 0)


@trio_test
async def test_what_is_kept_is_for_its_owner_alone(tmp_path: FilePath) -> None:
    path = tmp_path / "store"
    async with disk_store(path) as store:
        await fill(store, range(3))
    found = [path, *path.rglob("*")]
    assert len(found) > 8
    for each in found:
        assert each.stat().st_mode & 0o777 == (0o700 if each.is_dir() else 0o600), each


@trio_test
async def test_what_an_older_version_has_kept_is_not_used(tmp_path: FilePath) -> None:
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    (path / "lock").write_bytes(b"copperfs store 1\n")
    assert "not written by this version" in await refusal(path)


@trio_test
async def test_a_link_is_refused_wherever_it_was_put(tmp_path: FilePath) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "link").symlink_to(victim)
    assert "symbolic link" in await refusal(tmp_path / "link")
    for name in ("tmp", "chunks"):
        path = tmp_path / f"with {name}"
        path.mkdir()
        (path / "lock").write_bytes(LOCK_TEXT)
        (path / name).symlink_to(victim)
        assert f"{path}/{name} is a symbolic link" in await refusal(path)
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "lock").symlink_to(victim / "made")
    assert "lock is not what copperfs has made" in await refusal(tmp_path / "third")
    assert not list(victim.iterdir())


@trio_test
async def test_a_link_in_the_place_of_a_fan_out_directory_is_removed(tmp_path: FilePath) -> None:
    path = tmp_path / "store"
    async with disk_store(path) as store:
        await fill(store, range(1))
    (file,) = chunk_files(path)
    file.parent.rename(tmp_path / "victim")
    file.parent.symlink_to(tmp_path / "victim")
    async with disk_store(path) as store:
        assert not store.holds(key(0))
        assert not file.parent.is_symlink()
        await fill(store, range(1))
        assert await holds_bytes(store, 0)
    assert (tmp_path / "victim" / file.name).exists()


@trio_test
async def test_directories_that_others_can_write_to_are_refused(tmp_path: FilePath) -> None:
    path = tmp_path / "store"
    path.mkdir()
    for mode in (0o777, 0o720, 0o702):
        path.chmod(mode)
        assert "Others may write" in await refusal(path)
    path.chmod(0o755)
    async with disk_store(path) as store:
        await fill(store, range(1))


@as_root
@trio_test
async def test_the_directory_of_somebody_else_is_refused(tmp_path: FilePath) -> None:
    path = tmp_path / "store"
    path.mkdir()
    os.chown(path, 12345, -1)
    assert "belongs to somebody else (uid 12345)" in await refusal(path)


@trio_test
async def test_a_directory_that_is_something_else_is_refused_and_left_alone(
    tmp_path: FilePath,
) -> None:
    path = tmp_path / "home"
    (path / "tmp").mkdir(parents=True)
    (path / "tmp" / "thesis").write_text("years of work")
    assert "not empty" in await refusal(path)
    (path / "lock").write_text("of another program")
    assert "not written by this version" in await refusal(path)
    (tmp_path / "file").write_text("")
    assert "no directory" in await refusal(tmp_path / "file")
    assert f"{tmp_path}/no does not exist" in await refusal(tmp_path / "no" / "such")
    assert sorted(each.name for each in path.rglob("*")) == ["lock", "thesis", "tmp"]
    assert (path / "lock").read_text() == "of another program"


@trio_test
async def test_nothing_is_left_open(tmp_path: FilePath) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with disk_store(tmp_path / "store") as store:
            await fill(store, range(3))
            await refusal(tmp_path / "store")
    assert set(os.listdir("/proc/self/fd")) <= before


def test_the_store_is_no_concern_of_anything_above_it() -> None:
    """The store can be imported alone."""
    code = (
        "import sys, copperfs.chunkstore.disk_store\n"
        "print([m for m in sys.modules if 'copperfs.daemon' in m])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert out.stdout.strip() == "[]"
