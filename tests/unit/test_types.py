"""Basic types: paths, attributes and versions."""

import os
import stat
from pathlib import Path as FilePath

from hypothesis import given
from hypothesis import strategies as st

from copperfs.model.types import (
    ATTRIBUTES_BYTES,
    OWN_INODE,
    ROOT,
    Attributes,
    Path,
    is_below,
    join,
    split,
)
from tests.unit.node_lab import file

names = st.binary(min_size=1, max_size=20).filter(lambda name: b"/" not in name)
paths = st.lists(names, max_size=4).map(lambda parts: Path(b"/".join(parts)))
packed = st.binary(min_size=ATTRIBUTES_BYTES, max_size=ATTRIBUTES_BYTES)


def status(mode: int, inode: int, nlink: int, size: int, times_ns: tuple[int, ...]) -> object:
    atime_ns, mtime_ns, ctime_ns = times_ns
    values = {
        "st_atime_ns": atime_ns,
        "st_mtime_ns": mtime_ns,
        "st_ctime_ns": ctime_ns,
        "st_blocks": size // 512,
        "st_rdev": 0,
        "st_blksize": 4096,
    }
    return os.stat_result((mode, inode, 0, nlink, 1, 2, size, 0, 0, 0), values)


u64 = st.integers(0, 2**63 - 1)
times = st.integers(-(2**33) * 10**9, 2**33 * 10**9)


def times_of(attributes: Attributes) -> tuple[int, ...]:
    """The times of access, modification and change."""
    fields = attributes.unpack()
    # Seconds are signed numbers of 64 bits.
    return tuple(
        ((fields[n] ^ 1 << 63) - (1 << 63)) * 1_000_000_000 + fields[n + 3] for n in (3, 4, 5)
    )


@given(u64, u64, st.tuples(times, times, times))
def test_what_stat_tells_comes_out_again(
    inode: int, size: int, times_ns: tuple[int, int, int]
) -> None:
    told = status(stat.S_IFREG | 0o640, inode, 3, size, times_ns)
    assert isinstance(told, os.stat_result)
    attributes = Attributes.from_stat(told)
    assert (attributes.inode, attributes.size) == (inode, size)
    assert attributes.mode == stat.S_IFREG | 0o640
    assert times_of(attributes) == times_ns
    assert attributes.version == (size, times_ns[1], times_ns[2], inode)
    assert attributes.unpack()[10:13] == (3, 1, 2)


def test_a_real_file_comes_out_again(tmp_path: FilePath) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    found = os.stat(tmp_path / "file")
    attributes = Attributes.from_stat(found)
    expected = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    assert times_of(attributes) == expected
    assert attributes.version == (5, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def test_an_inode_number_that_only_one_client_knows_is_no_part_of_the_version(
    tmp_path: FilePath,
) -> None:
    status = os.stat(tmp_path)
    known, own = Attributes.from_stat(status, 77), Attributes.from_stat(status, OWN_INODE | 77)
    assert known.inode == own.inode == status.st_ino
    assert known.version.inode == status.st_ino
    assert own.version == known.version._replace(inode=0)


@given(packed, u64)
def test_the_size_can_be_changed_alone(content: bytes, size: int) -> None:
    before = Attributes(content)
    after = before.with_size(size)
    assert after.size == size
    assert after.with_size(before.size) == before


@given(packed, st.integers(0, 2**32 - 1))
def test_the_mode_can_be_changed_alone(content: bytes, mode: int) -> None:
    before = Attributes(content)
    after = before.with_mode(mode)
    assert after.mode == mode
    assert after.with_mode(before.mode) == before


def test_types_are_told_apart() -> None:
    assert Attributes.bare(1, stat.S_IFDIR).is_directory()
    assert not Attributes.bare(1, stat.S_IFLNK).is_file()
    assert not file().attributes.is_directory()
    assert file().attributes.is_file()
    # a socket has a bit of both
    assert not Attributes.bare(1, stat.S_IFSOCK).is_directory()
    assert not Attributes.bare(1, stat.S_IFSOCK).is_file()


@given(paths, names)
def test_what_is_joined_can_be_split(directory: Path, name: bytes) -> None:
    assert split(join(directory, name)) == (directory, name)


def test_the_root_has_no_name() -> None:
    assert split(ROOT) == (ROOT, b"")
    assert join(ROOT, b"a") == b"a"


@given(paths, names)
def test_everything_is_below_its_directories(directory: Path, name: bytes) -> None:
    path = join(directory, name)
    assert is_below(path, path)
    assert is_below(path, directory)
    assert is_below(path, ROOT)
    assert not is_below(directory, path)


def test_below_is_meant_of_paths_not_of_strings() -> None:
    assert not is_below(b"ab", b"a")
    assert is_below(b"a/b", b"a")
