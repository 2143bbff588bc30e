"""`store`: reads chunks of 1 MiB from the store into blobs, beside one file of the same bytes.

The yardstick reads the file with one thread, MiB by MiB into the same buffer. The store opens a
file for each chunk, reads it into fresh memory and checks its digest, several at a time. A third
measure has one thread do the latter two with the one file. Cold: after the page cache was dropped
(`POSIX_FADV_DONTNEED`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path as FilePath

import trio

from copperfs.chunkstore.disk_store import DiskLimits, DiskStore, open_store
from copperfs.chunkstore.store_interface import Chunk
from copperfs.model.types import ChunkKey, Path, Version
from copperfs.native.blob import new_blob
from copperfs.wire.payload import digest
from tests.bench.lab import Context, make_file
from tests.bench.results import JUDGED, MIB, Measure, at_least

CHUNKS = 2048
AT_A_TIME = (1, 4, 8)
"""There are as many requests at once as threads; 4 is the default."""
DIRECT, BLOBS = "one file", "one file, blobs"


def run(context: Context) -> Iterator[Measure]:
    file = make_file(context.cache / "trees" / f"store-{CHUNKS}" / "file", CHUNKS * MIB)
    place = context.cache / "store"
    shutil.rmtree(place, ignore_errors=True)
    try:
        trio.run(fill, place, file)
        for state in ("warm", "cold"):
            rates: dict[str, list[float]] = {}
            for turn in range(context.repeats):
                context.progress(f"store, {state}, round {turn + 1} of {context.repeats}")
                prepare(state, file, place)
                rates.setdefault(DIRECT, []).append(timed(lambda: read_file(file)))
                prepare(state, file, place)
                rates.setdefault(BLOBS, []).append(timed(lambda: read_file_into_blobs(file)))
                for readers in AT_A_TIME:
                    prepare(state, file, place)
                    name = JUDGED if readers == 4 else f"{JUDGED}, {readers} at a time"
                    rates.setdefault(name, []).append(trio.run(read_store, place, readers))
            yield Measure(
                "store",
                f"{CHUNKS} MiB, {state}",
                "bytes/s",
                rates,
                yardstick=DIRECT,
                target=at_least(0.5),
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)


def key(index: int) -> ChunkKey:
    return ChunkKey(Path(b"file"), Version(CHUNKS * MIB, 1, 2, 3), index)


@asynccontextmanager
async def opened(place: FilePath, readers: int) -> AsyncIterator[DiskStore]:
    limits = DiskLimits(2 * CHUNKS * MIB, free_bytes_min=0, readers=readers)
    store = await open_store(str(place), limits, source=b"bench", chunk_bytes=MIB)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


async def fill(place: FilePath, file: FilePath) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        async with opened(place, 1) as store:
            for index in range(CHUNKS):
                blob = new_blob(MIB)
                os.preadv(fd, [blob.view], index * MIB)
                blob.seal(MIB)
                assert store.put_nowait(key(index), Chunk(blob, digest(blob.view)))
                if index % 32 == 31:
                    await store.wait_moved()
            assert store.statistics().held_chunks == CHUNKS
    finally:
        os.close(fd)
    os.sync()  # dirty pages are not dropped


def prepare(state: str, file: FilePath, place: FilePath) -> None:
    for each in (file, *place.glob("chunks/*/*")):
        fd = os.open(each, os.O_RDONLY)
        try:
            if state == "cold":
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while os.read(fd, MIB):
                    pass
        finally:
            os.close(fd)


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return CHUNKS * MIB / (time.perf_counter() - start)


def read_file(file: FilePath) -> None:
    buffer = bytearray(MIB)
    fd = os.open(file, os.O_RDONLY)
    try:
        for index in range(CHUNKS):
            assert os.preadv(fd, [buffer], index * MIB) == MIB
    finally:
        os.close(fd)


def read_file_into_blobs(file: FilePath) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        for index in range(CHUNKS):
            blob = new_blob(MIB)
            assert os.preadv(fd, [blob.view], index * MIB) == MIB
            digest(blob.view)
    finally:
        os.close(fd)


async def read_store(place: FilePath, at_a_time: int) -> float:
    async with opened(place, at_a_time) as store:
        indexes = iter(range(CHUNKS))

        async def read() -> None:
            for index in indexes:
                assert await store.read(key(index)) is not None

        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(at_a_time):
                nursery.start_soon(read)
        return CHUNKS * MIB / (time.perf_counter() - start)
