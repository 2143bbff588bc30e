"""Default budget: the share of a disk that a store takes without an option for it."""

import errno
import os
from pathlib import Path as FilePath

import pytest
import trio

from copperfs.chunkstore.default_budget import default_budget_bytes
from tests.store.lab import chunk, disk_store, key


@pytest.fixture
def free_bytes(monkeypatch: pytest.MonkeyPatch) -> int:
    """Every disk reports this, since others write to the real one."""
    real = os.statvfs("/")

    def statvfs(path: str) -> os.statvfs_result:
        assert os.path.isdir(path)
        values = list(real)
        values[1], values[4] = 4096, 1000
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", statvfs)
    return 4096 * 1000


def test_it_is_half_of_what_is_free_also_where_the_directory_is_to_be_made(
    tmp_path: FilePath, free_bytes: int
) -> None:
    assert default_budget_bytes(str(tmp_path)) == free_bytes // 2
    assert default_budget_bytes(str(tmp_path / "not" / "yet")) == free_bytes // 2


def test_what_an_earlier_store_has_left_is_free(tmp_path: FilePath, free_bytes: int) -> None:
    async def fill() -> None:
        async with disk_store(tmp_path / "store") as store:
            for number in range(20):
                assert store.put_nowait(key(number), chunk(number))
            await store.wait_moved()

    trio.run(fill)
    sizes = [each.stat().st_size for each in (tmp_path / "store" / "chunks").rglob("*.*")]
    assert len(sizes) == 20
    (tmp_path / "store" / "chunks" / "somebody's").write_text("else")
    assert default_budget_bytes(str(tmp_path / "store")) == (free_bytes + sum(sizes)) // 2


def test_a_disk_that_cannot_be_asked_has_no_room(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> os.statvfs_result:
        raise OSError(errno.EIO, path)

    monkeypatch.setattr(os, "statvfs", fail)
    assert default_budget_bytes(str(tmp_path)) == 0
