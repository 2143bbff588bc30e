"""Sparse files: the mount shows where they have data, and reads only that from the source."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.mount.conftest import Mounter
from tests.mount.helpers import Mount, bind_mounted, name_of, outcome_of, start_python
from tests.mount.jobs import Job
from tests.standin import StandIn

MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40
PIECE = 64 * 1024
LIMITS = ("--tree-max", "1MiB")

either = pytest.mark.parametrize("way", ["bypassed", "in chunks"])


def flags_for(way: str, tmp_path: Path) -> tuple[str, ...]:
    return (*LIMITS, "--tier-dir", str(tmp_path / "tier")) if way == "in chunks" else LIMITS


def sparse(path: Path, size: int, *at: int, piece: int = PIECE) -> None:
    with path.open("wb") as file:
        file.truncate(size)
        for number, offset in enumerate(at):
            file.seek(offset)
            file.write(bytes([number % 255 + 1]) * min(piece, size - offset))


def seek(path: Path, offset: int, whence: int) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.lseek(fd, offset, whence)
    finally:
        os.close(fd)


def found_at(path: Path, offset: int, whence: int) -> int | str:
    try:
        return seek(path, offset, whence)
    except OSError as error:
        return name_of(error.errno)


def extents(path: Path) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    fd = os.open(path, os.O_RDONLY)
    try:
        at, size = 0, os.fstat(fd).st_size
        while at < size:
            try:
                data = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            at = os.lseek(fd, data, os.SEEK_HOLE)
            found.append((data, at))
    finally:
        os.close(fd)
    return found


def seeks(mount: Mount) -> int:
    return int(mount.stats()["source"]["seek"])


# ---- what programs see ---------------------------------------------------------------------------


@either
def test_holes_are_where_the_source_has_them(
    source: Path, mounted: Mounter, way: str, tmp_path: Path
) -> None:
    sparse(source / "ends", 2 * TIB, 0, TIB, 2 * TIB - PIECE)
    sparse(source / "middle", 2 * TIB, 3 * MIB, GIB + 4096)
    sparse(source / "nothing", TIB)
    mount = mounted(*flags_for(way, tmp_path))
    for name in ("ends", "middle", "nothing"):
        true = extents(source / name)
        assert extents(mount / name) == true
        near = {at + by for extent in true for at in extent for by in (-1, 0, 1)}
        for offset in near:
            for whence in (os.SEEK_DATA, os.SEEK_HOLE):
                assert found_at(mount / name, offset, whence) == found_at(
                    source / name, offset, whence
                ), (name, offset)
    assert (mount / "middle").stat().st_blocks == (source / "middle").stat().st_blocks


@either
@pytest.mark.parametrize("size", [0, 10, 3 * MIB, 5 * GIB])
def test_beyond_the_end_there_is_neither(
    source: Path, mounted: Mounter, way: str, size: int, tmp_path: Path
) -> None:
    sparse(source / "file", size, *[0] * (size > 0), piece=7)
    mount = mounted(*flags_for(way, tmp_path))
    for whence in (os.SEEK_DATA, os.SEEK_HOLE):
        for offset in (size, size + 1, TIB * 100, -1):
            asked = [found_at(root / "file", offset, whence) for root in (mount.mountpoint, source)]
            assert asked == ["ENXIO", "ENXIO"], offset


@pytest.mark.parametrize(
    "command",
    [
        ["tar", "-C", "{from}", "-S", "-cf", "{to}/archive", "file"],
        ["cp", "--sparse=always", "{from}/file", "{to}/copy"],
        ["cp", "{from}/file", "{to}/copy"],
    ],
    ids=["tar -S", "cp --sparse=always", "cp"],
)
def test_a_sparse_file_of_terabytes_is_copied_at_the_cost_of_its_data(
    source: Path, mounted: Mounter, tmp_path: Path, command: list[str]
) -> None:
    sparse(source / "file", 5 * TIB, 0, TIB, 3 * TIB + 4096, 5 * TIB - PIECE)
    mount = mounted(*LIMITS)
    to = tmp_path / "to"
    to.mkdir()
    words = [each.replace("{from}", str(mount.mountpoint)) for each in command]
    subprocess.run([each.replace("{to}", str(to)) for each in words], check=True, timeout=60)
    if (to / "archive").exists():
        subprocess.run(["tar", "-C", to, "-xSf", to / "archive"], check=True, timeout=60)
        (to / "file").rename(to / "copy")
    assert (to / "copy").stat().st_size == 5 * TIB
    assert extents(to / "copy") == extents(source / "file")
    for data, hole in extents(source / "file"):
        with (to / "copy").open("rb") as copy, (source / "file").open("rb") as file:
            copy.seek(data)
            file.seek(data)
            assert copy.read(hole - data) == file.read(hole - data)


# ---- reads of the source -------------------------------------------------------------------------


def test_what_cannot_have_holes_of_use_is_not_looked_at(source: Path, mounted: Mounter) -> None:
    sparse(source / "small", 100_000, 50_000)
    (source / "dense").write_bytes(os.urandom(3 * MIB))
    mount = mounted(*LIMITS)
    for name, size in (("small", 100_000), ("dense", 3 * MIB)):
        for offset in (0, 1, size - 1):
            assert seek(mount / name, offset, os.SEEK_DATA) == offset
            assert seek(mount / name, offset, os.SEEK_HOLE) == size
    stats = mount.stats()
    assert stats["source"]["seek"] == 0
    assert stats["source"]["open"] == 0


@either
def test_each_extent_is_asked_for_once(
    source: Path, mounted: Mounter, way: str, tmp_path: Path
) -> None:
    every = 2 * MIB
    sparse(source / "file", 100 * every, *range(0, 100 * every, every))
    sparse(source / "many", 400 * every, *range(0, 400 * every, every))
    true, many = extents(source / "file"), extents(source / "many")
    mount = mounted(*flags_for(way, tmp_path))
    for _ in range(3):
        assert extents(mount / "file") == true
    assert seeks(mount) <= 2 * len(true) + 1
    assert mount.stats()["source"]["open"] <= 1
    # more than are kept, but not one by one
    before = seeks(mount)
    assert extents(mount / "many") == many
    assert seeks(mount) - before <= 2 * len(many) + 1


def test_who_asks_once_costs_little(source: Path, mounted: Mounter) -> None:
    """grep seeks for data in each file."""
    sparse(source / "file", 1000 * MIB, *range(0, 1000 * MIB, 2 * MIB))
    mount = mounted(*LIMITS)
    assert seek(mount / "file", 0, os.SEEK_HOLE) == PIECE
    assert seeks(mount) <= 4


@pytest.mark.parametrize(("flag", "asks"), [("--fallback", 3), ("--no-fallback", 0)])
def test_in_a_job_a_node_asks_only_if_it_may_read_for_others(
    source: Path, tmp_path: Path, flag: str, asks: int
) -> None:
    sparse(source / "file", 10 * MIB, MIB)
    true = (MIB, MIB + PIECE) if asks else (0, 10 * MIB)
    with Job(source, tmp_path / "job", 2, *LIMITS, flag) as job:
        for node in job.nodes:
            assert extents(node / "file") == [true]
            assert seeks(node) == asks
            content = (node / "file").read_bytes()
            assert content == (source / "file").read_bytes()


# ---- when something is wrong ---------------------------------------------------------------------


@either
def test_of_a_file_that_changed_all_is_data_until_it_is_read(
    source: Path, mounted: Mounter, way: str, tmp_path: Path
) -> None:
    sparse(source / "file", GIB, 0)
    mount = mounted(*flags_for(way, tmp_path))
    with (mount / "file").open("rb") as file:
        sparse(source / "file", GIB, MIB)
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == GIB
        assert outcome_of(lambda: os.pread(file.fileno(), 10, 0)) == "ESTALE"
    mount.clear()
    assert extents(mount / "file") == [(MIB, MIB + PIECE)]


def test_a_source_without_holes_is_all_data(source: Path, mounted: Mounter) -> None:
    """The stand-in does not report holes, as NFS before 4.2."""
    sparse(source / "file", GIB, 0)
    with StandIn(source) as standin:
        mount = mounted(*LIMITS, of=standin.mountpoint)
        assert extents(mount / "file") == [(0, GIB)]
        assert mount.umount().returncode == 0


def test_a_source_that_hangs_makes_all_data_and_does_not_stop_others(
    source: Path, tmp_path: Path
) -> None:
    sparse(source / "file", GIB, 0)
    (source / "other").write_bytes(b"content")
    with (
        StandIn(source) as standin,
        Mount(standin.mountpoint, tmp_path / "mnt", *LIMITS, "--source-deadline", "2") as mount,
    ):
        os.stat(mount / "file")
        standin.hang("file", ops=["open"])
        script = """if True:
            import os, sys
            fd = os.open(sys.argv[1], os.O_RDONLY)
            print([os.lseek(fd, 100, whence) for whence in (os.SEEK_DATA, os.SEEK_HOLE)])
        """
        waits = start_python(script, mount / "file")
        standin.wait_for_hanging(1)
        assert (mount / "other").read_bytes() == b"content"
        said, _ = waits.communicate(timeout=30)
        assert said == f"[100, {GIB}]\n"
        standin.heal()
        assert extents(mount / "file") == [(0, GIB)]
        assert mount.stats()["front"]["overdue"] >= 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_daemon_does_not_wait_for_its_own_mount(source: Path, mounted: Mounter) -> None:
    """The known location of the file leads back into the mount by now."""
    (source / "directory").mkdir()
    sparse(source / "directory" / "file", GIB, 0)
    mount = mounted(*LIMITS)
    with (mount / "directory" / "file").open("rb") as file:
        with bind_mounted(mount / "directory", source / "directory"):
            assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == GIB
        mount.clear()
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == PIECE
