"""Store laboratory: chunks whose bytes follow from their number, and stores that run for one
test.
"""

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path as FilePath

import trio

from copperfs.chunkstore.disk_ops import Files
from copperfs.chunkstore.disk_store import DiskLimits, DiskStore, Inherited, open_store
from copperfs.chunkstore.store_interface import Chunk, Store, in_pages
from copperfs.model.types import ChunkKey, Path, Version
from copperfs.native.blob import new_blob
from copperfs.wire.payload import digest

SOURCE = b"/some/source"
CHUNK_BYTES = 1 << 20
SIZE = 10_000
COST = in_pages(4096 + SIZE)
"""On disk; in memory it takes a page less."""
AMPLE = DiskLimits(64 << 20, free_bytes_min=0, probe_min_s=0.01, probe_max_s=0.01)


def many(times: int) -> int:
    """Scaled by the factor of ``make sanitize``."""
    return max(1, round(times * float(os.environ.get("COPPERFS_KILLS", "1"))))


def key(number: int, version: int = 1) -> ChunkKey:
    return ChunkKey(Path(b"data/file%d" % (number % 7)), Version(1 << 30, version, 2, 3), number)


def data_of(number: int, size: int = SIZE, version: int = 1) -> bytes:
    return random.Random(f"{number} {version}").randbytes(size)


def chunk_of(data: bytes) -> Chunk:
    blob = new_blob(len(data))
    blob.view[:] = data
    blob.seal(len(data))
    return Chunk(blob, digest(data))


def chunk(number: int, size: int = SIZE, version: int = 1) -> Chunk:
    return chunk_of(data_of(number, size, version))


def limits(chunks: int, **others: int | float) -> DiskLimits:
    return replace(AMPLE, budget_bytes=chunks * COST, **others)  # type: ignore[arg-type]


async def holds_bytes(store: Store, number: int, size: int = SIZE, version: int = 1) -> bool:
    found = await store.read(key(number, version))
    if found is None:
        return False
    wanted = data_of(number, size, version)
    assert found.digest == digest(wanted)
    assert bytes(found.blob.view) == wanted
    assert found.blob.view.readonly
    return True


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[Store]:
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def disk_store(
    path: FilePath,
    budget: DiskLimits = AMPLE,
    files: Files | None = None,
    *,
    source: bytes = SOURCE,
    chunk_bytes: int = CHUNK_BYTES,
    inherited: Inherited | None = None,
) -> AsyncIterator[DiskStore]:
    store = await open_store(
        str(path),
        budget,
        source=source,
        chunk_bytes=chunk_bytes,
        files=files,
        inherited=inherited,
    )
    async with running(store):
        yield store


async def fill(store: Store, numbers: range) -> None:
    for number in numbers:
        assert store.put_nowait(key(number), chunk(number))
    await store.wait_moved()


def chunk_files(path: FilePath) -> list[FilePath]:
    return sorted((path / "chunks").glob("*/*"))


def disk_bytes(path: FilePath) -> int:
    files = [*chunk_files(path), *(path / "tmp").iterdir()]
    return sum(in_pages(file.stat().st_size) for file in files)
