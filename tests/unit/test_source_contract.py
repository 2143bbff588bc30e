"""Source contract: what every fetcher does, with real files.

``Gate`` makes events happen at a chosen moment: the kernel holds an open or a read until the test
releases it (fanotify).
"""

import ctypes
import errno
import marshal
import os
import pickle
import select
import socket
import stat
import struct
import subprocess
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import MAGIC_NUMBER
from pathlib import Path as FilePath

import pytest
import trio
import trio.testing

from copperfs.model.listing import Listing
from copperfs.model.types import ROOT, Attributes, Entry, FetchId, Path, Version
from copperfs.node.actions import (
    ListSource,
    LookupSource,
    OpenForBypass,
    ReadChunk,
    ReadSource,
    SourceAction,
)
from copperfs.node.events import Failed, SourceListed, SourceLookedUp, SourceOpened
from copperfs.source.source_interface import Arrived, BlobRead, Fetcher
from copperfs.source.source_pool import PoolFetcher
from tests.mount.helpers import eventually
from tests.unit.test_types import times_of

WITHIN_S = 20.0
FILES_MAX, STUCK_MAX = 64, 128
LISTING_MAX = 100
OLD_NS = 1_000_000_000 * 10**9

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@dataclass
class Source:
    fetcher: Fetcher
    arrived: dict[FetchId, Arrived] = field(default_factory=dict)
    _news: trio.Event = field(default_factory=trio.Event)
    _last: int = 0

    def arrive(self, outcome: Arrived) -> None:
        assert outcome.fetch not in self.arrived, "an outcome arrives once"
        self.arrived[outcome.fetch] = outcome
        self._news.set()

    def start(self, fetch: Callable[[FetchId], SourceAction]) -> FetchId:
        self._last += 1
        number = FetchId(self._last)
        self.fetcher.start(fetch(number))
        assert number not in self.arrived, "never within the call"
        return number

    async def outcome(self, number: FetchId) -> Arrived:
        with trio.fail_after(WITHIN_S):
            while number not in self.arrived:
                self._news = trio.Event()
                await self._news.wait()
        return self.arrived.pop(number)

    async def fetch(self, fetch: Callable[[FetchId], SourceAction]) -> Arrived:
        return await self.outcome(self.start(fetch))

    # --- as a test writes it ---------------------------------------------------------------------

    async def scan(self, path: bytes = b"") -> Listing:
        outcome = await self.fetch(lambda n: ListSource(n, Path(path)))
        assert isinstance(outcome, SourceListed), outcome
        return outcome.listing

    async def look(self, path: bytes) -> Entry | None:
        outcome = await self.fetch(lambda n: LookupSource(n, Path(path)))
        assert isinstance(outcome, SourceLookedUp), outcome
        return outcome.entry

    async def version(self, path: bytes) -> Version:
        entry = await self.look(path)
        assert entry is not None
        return entry.attributes.version

    async def read(self, path: bytes, version: Version | None = None) -> bytes:
        wanted = version or await self.version(path)
        outcome = await self.fetch(lambda n: ReadSource(n, Path(path), wanted))
        assert isinstance(outcome, BlobRead), outcome
        return bytes(outcome.blob.view)

    async def mentioned(self, path: bytes, names: tuple[bytes, ...]) -> tuple[bytes, ...]:
        version = await self.version(path)
        self._last += 1
        self.fetcher.start(ReadSource(FetchId(self._last), Path(path), version), names)
        outcome = await self.outcome(FetchId(self._last))
        assert isinstance(outcome, BlobRead), outcome
        return outcome.mentioned

    async def open(self, path: bytes, version: Version | None = None) -> int:
        wanted = version or await self.version(path)
        outcome = await self.fetch(lambda n: OpenForBypass(n, Path(path), wanted))
        assert isinstance(outcome, SourceOpened), outcome
        return int(outcome.handle)

    async def chunk(self, path: bytes, version: Version, offset: int, length: int) -> bytes:
        outcome = await self.fetch(chunk_of(path, version, offset, length))
        assert isinstance(outcome, BlobRead), outcome
        return bytes(outcome.blob.view)

    async def error_of(self, fetch: Callable[[FetchId], SourceAction]) -> int:
        outcome = await self.fetch(fetch)
        assert isinstance(outcome, Failed), outcome
        return outcome.error


def scan_of(path: bytes) -> Callable[[FetchId], SourceAction]:
    return lambda number: ListSource(number, Path(path))


def look_at(path: bytes) -> Callable[[FetchId], SourceAction]:
    return lambda number: LookupSource(number, Path(path))


def read_of(path: bytes, version: Version) -> Callable[[FetchId], SourceAction]:
    return lambda number: ReadSource(number, Path(path), version)


def open_of(path: bytes, version: Version) -> Callable[[FetchId], SourceAction]:
    return lambda number: OpenForBypass(number, Path(path), version)


def chunk_of(
    path: bytes, version: Version, offset: int = 0, length: int = 5
) -> Callable[[FetchId], SourceAction]:
    return lambda number: ReadChunk(number, Path(path), version, offset, length)


@asynccontextmanager
async def make(
    root: FilePath | bytes,
    *,
    untouchable: frozenset[Path] = frozenset(),
    concurrency: int = 4,
    deadline_s: float = 60.0,
) -> AsyncIterator[Source]:
    fetcher = PoolFetcher(
        os.fsencode(root),
        listing_max=LISTING_MAX,
        concurrency=concurrency,
        deadline_s=deadline_s,
        untouchable=lambda: untouchable,
    )
    source = Source(fetcher)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run, source.arrive)
        yield source
        nursery.cancel_scope.cancel()
    fetcher.close()


Play = Callable[[Source], Awaitable[None]]


@pytest.fixture
def with_source(tmp_path: FilePath) -> Callable[[Play], None]:
    def run(play: Play) -> None:
        async def main() -> None:
            async with make(tmp_path) as source:
                await play(source)

        trio.run(main)

    return run


def settled(path: FilePath, content: bytes) -> FilePath:
    path.write_bytes(content)
    os.utime(path, ns=(OLD_NS, OLD_NS))
    return path


# ---- entries -------------------------------------------------------------------------------------


def as_the_system_says(path: FilePath | bytes) -> Attributes:
    return Attributes.from_stat(os.lstat(path))


def make_one_of_each(directory: FilePath) -> dict[bytes, bytes]:
    settled(directory / "file", b"hello")
    (directory / "empty").touch()
    (directory / "directory").mkdir()
    (directory / "link").symlink_to("file")
    (directory / "absolute").symlink_to("/etc/hostname")
    (directory / "dangling").symlink_to("nowhere/at/all")
    os.symlink(b"\xff\xfe", bytes(directory / "bytes"))
    os.mkfifo(directory / "fifo")
    os.link(directory / "file", directory / "hard")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(directory / "socket"))
    if os.geteuid() == 0:
        os.mknod(directory / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(directory / "block", stat.S_IFBLK | 0o600, os.makedev(259, 0x12345))
    names = os.listdir(bytes(directory))
    return {name: target_of(os.path.join(bytes(directory), name)) for name in names}


def target_of(path: bytes) -> bytes:
    return os.readlink(path) if os.path.islink(path) else b""


def test_a_listing_shows_everything_as_the_system_does(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    targets = make_one_of_each(tmp_path)

    async def play(source: Source) -> None:
        listing = await source.scan()
        assert not listing.bare
        assert listing.absolute_symlinks == 1
        assert {name: entry.target for name, entry in listing.rows()} == targets
        for name, entry in listing.rows():
            assert entry.attributes == as_the_system_says(os.path.join(bytes(tmp_path), name))

    with_source(play)


def test_a_look_shows_the_same_as_a_listing(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    make_one_of_each(tmp_path)

    async def play(source: Source) -> None:
        for name, entry in (await source.scan()).rows():
            assert await source.look(name) == entry

    with_source(play)


def test_the_root_can_be_looked_at_and_listed(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    async def play(source: Source) -> None:
        assert await source.look(ROOT) == Entry(as_the_system_says(tmp_path))
        assert (await source.scan(ROOT)).count == 0

    with_source(play)


def test_a_source_may_be_the_root_of_the_system() -> None:
    async def main() -> None:
        async with make(b"/") as source:
            root, etc = await source.look(b""), await source.look(b"etc")
            assert root is not None
            assert root.attributes.is_directory()
            assert etc is not None
            assert etc.attributes.is_directory()
            assert b"etc" in await source.scan(b"")

    trio.run(main)


NAMES = [b"\xff\x80", b"new\nline", b" ", b"\\", b"-rf", "\N{SNOWMAN}".encode(), b"n" * 255]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_any_bytes(
    name: bytes, with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    settled(FilePath(os.fsdecode(os.path.join(bytes(tmp_path), name))), b"content")

    async def play(source: Source) -> None:
        assert [found for found, _ in (await source.scan()).rows()] == [name]
        assert await source.look(name) is not None
        assert await source.read(name) == b"content"

    with_source(play)


def test_times_before_1970_and_after_2038_are_exact(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    for name, time_ns in ("before", -1_500_000_001), ("after", 5_000_000_000_123_456_789):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(time_ns, time_ns))

    async def play(source: Source) -> None:
        for name in b"before", b"after":
            status = os.stat(os.path.join(bytes(tmp_path), name))
            entry = await source.look(name)
            assert entry is not None
            times = times_of(entry.attributes)
            assert times == (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
            assert await source.read(name) == b""

    with_source(play)


def test_what_is_not_there_is_no_error(with_source: Callable[[Play], None]) -> None:
    async def play(source: Source) -> None:
        assert await source.look(b"missing") is None
        assert await source.look(b"missing/further") is None

    with_source(play)


def test_errors_are_what_the_system_says(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    settled(tmp_path / "file", b"")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        assert await source.error_of(scan_of(b"missing")) == errno.ENOENT
        assert await source.error_of(scan_of(b"file")) == errno.ENOTDIR
        assert await source.error_of(look_at(b"file/x")) == errno.ENOTDIR
        assert await source.error_of(look_at(b"n" * 256)) == errno.ENAMETOOLONG
        assert await source.error_of(read_of(b"missing", version)) == errno.ENOENT
        assert await source.error_of(open_of(b"file/x", version)) == errno.ENOTDIR

    with_source(play)


def test_a_path_may_be_longer_than_a_system_call_takes(tmp_path: FilePath) -> None:
    parts = [b"%02d" % number + b"x" * 253 for number in range(40)]
    directory = os.open(tmp_path, os.O_RDONLY)
    for part in parts:
        os.mkdir(part, dir_fd=directory)
        below = os.open(part, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    with open(os.open(b"file", os.O_CREAT | os.O_WRONLY, dir_fd=directory), "wb") as deep:
        deep.write(b"deep")
    os.symlink(b"file", b"link", dir_fd=directory)
    os.close(directory)

    async def main() -> None:
        async with make(tmp_path) as source:
            for depth in range(len(parts)):
                listing = await source.scan(b"/".join(parts[:depth]))
                assert [name for name, _ in listing.rows()] == [parts[depth]]
            bottom = b"/".join(parts)
            assert len(bottom) > 2 * 4096
            assert {name for name, _ in (await source.scan(bottom)).rows()} == {b"file", b"link"}
            link = await source.look(bottom + b"/link")
            assert link is not None
            assert link.target == b"file"
            assert await source.look(bottom + b"/missing") is None
            assert await source.read(bottom + b"/file") == b"deep"
            os.close(await source.open(bottom + b"/file"))

    trio.run(main)
    subprocess.run(["rm", "-rf", tmp_path / os.fsdecode(parts[0])], check=True)


@pytest.mark.parametrize("length", range(4090, 4100))
def test_paths_around_the_limit_of_a_system_call_are_reached(
    length: int, tmp_path: FilePath
) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    path = b""
    while len(bytes(tmp_path)) + 1 + len(path) < length:
        # the last name is between 1 and 251 bytes long, so that one more always fits
        left = length - len(bytes(tmp_path)) - 1 - len(path)
        name = b"n" * (left if left <= 200 else min(200, left - 2))
        os.mkdir(name, dir_fd=directory)
        below = os.open(name, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
        path += name + (b"/" if len(name) < left else b"")
    os.close(directory)
    assert len(bytes(tmp_path)) + 1 + len(path) == length

    async def main() -> None:
        async with make(tmp_path) as source:
            entry = await source.look(path)
            assert entry is not None
            assert entry.attributes.is_directory()
            assert (await source.scan(path)).count == 0

    trio.run(main)
    subprocess.run(["rm", "-rf", tmp_path / os.fsdecode(path.split(b"/")[0])], check=True)


# ---- below the root, and nowhere else ------------------------------------------------------------


def linked_dir(directory: FilePath) -> None:
    directory.rename(directory.with_name("moved"))
    directory.symlink_to("moved")


@pytest.mark.parametrize("below", [b"", b"/inner", b"/inner/most"])
def test_a_link_in_the_place_of_a_directory_leads_nowhere(
    below: bytes, with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    (tmp_path / "dir" / "inner" / "most").mkdir(parents=True)
    directory = b"dir" + below
    settled(tmp_path / os.fsdecode(directory) / "file", b"hello")
    (tmp_path / os.fsdecode(directory) / "link").symlink_to("file")

    async def play(source: Source) -> None:
        version = await source.version(directory + b"/file")
        linked_dir(tmp_path / "dir")
        assert await source.error_of(scan_of(directory)) == errno.ENOTDIR
        assert await source.error_of(look_at(directory + b"/file")) == errno.ENOTDIR
        assert await source.error_of(look_at(directory + b"/link")) == errno.ENOTDIR
        assert await source.error_of(look_at(directory + b"/missing")) == errno.ENOTDIR
        assert await source.error_of(read_of(directory + b"/file", version)) == errno.ENOTDIR
        assert await source.error_of(open_of(directory + b"/file", version)) == errno.ENOTDIR
        assert await source.error_of(chunk_of(directory + b"/file", version)) == errno.ENOTDIR
        link = await source.look(b"dir")
        assert link is not None
        assert link.target == b"moved"

    with_source(play)


def test_nothing_above_the_root_is_reached(tmp_path: FilePath) -> None:
    settled(tmp_path / "secret", b"secret")
    (tmp_path / "root" / "dir").mkdir(parents=True)

    async def main() -> None:
        async with make(tmp_path / "root") as source:
            for way in (b"..", b"dir/../..", b"dir/.."):
                assert await source.error_of(scan_of(way)) == errno.EXDEV
                assert await source.error_of(look_at(way + b"/secret")) == errno.EXDEV

    trio.run(main)


def test_a_root_that_is_a_link_is_followed(tmp_path: FilePath) -> None:
    (tmp_path / "root").mkdir()
    settled(tmp_path / "root" / "file", b"hello")
    (tmp_path / "link").symlink_to("root")

    async def main() -> None:
        async with make(tmp_path / "link") as source:
            assert (await source.scan(b"")).count == 1
            root = await source.look(b"")
            assert root is not None
            assert root.attributes.is_directory()
            assert await source.read(b"file") == b"hello"

    trio.run(main)


def unmount(directory: FilePath) -> None:
    """The kernel refuses while a file there is open."""
    subprocess.run(["umount", directory], check=True)


def mount_memory(directory: FilePath, name: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", directory], check=True)
    settled(directory / name, os.fsencode(name))


@as_root
def test_what_is_mounted_below_the_root_is_reached(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    (tmp_path / "dir" / "mounted").mkdir(parents=True)
    mount_memory(tmp_path / "dir" / "mounted", "file")

    async def play(source: Source) -> None:
        names = [name for name, _ in (await source.scan(b"dir/mounted")).rows()]
        assert names == [b"file"]
        assert await source.read(b"dir/mounted/file") == b"file"

    try:
        with_source(play)
    finally:
        unmount(tmp_path / "dir" / "mounted")


@as_root
def test_a_root_that_is_mounted_again_is_found(tmp_path: FilePath) -> None:
    root = tmp_path / "above" / "root"
    root.mkdir(parents=True)
    mount_memory(root, "before")

    async def main() -> None:
        async with make(root) as source:
            assert await source.read(b"before") == b"before"
            unmount(root)
            assert await source.look(b"before") is None
            mount_memory(root, "after")
            assert [name for name, _ in (await source.scan(b"")).rows()] == [b"after"]
            assert await source.read(b"after") == b"after"
            unmount(root)
            root.parent.rename(tmp_path / "elsewhere")
            root.mkdir(parents=True)
            settled(root / "another", b"another")
            assert await source.read(b"another") == b"another"

    try:
        trio.run(main)
    finally:
        subprocess.run(["umount", "-lq", root], check=False)


# ---- large directories ---------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "bare"), [(LISTING_MAX, False), (LISTING_MAX + 1, True)])
def test_a_listing_of_too_many_names_is_bare(
    count: int, bare: bool, with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    names = {b"%d" % number for number in range(count)}
    for name in names:
        os.mknod(os.path.join(bytes(tmp_path), name))

    async def play(source: Source) -> None:
        listing = await source.scan()
        assert listing.bare is bare
        assert {name for name, _ in listing.rows()} == names
        assert source.fetcher.counts()["stat"] == (0 if bare else count)

    with_source(play)


def test_a_bare_listing_has_types_and_inode_numbers(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    for number in range(LISTING_MAX):
        (tmp_path / str(number)).touch()
    make_one_of_each(tmp_path)

    async def play(source: Source) -> None:
        listing = await source.scan()
        assert listing.bare
        for name, entry in listing.rows():
            status = os.lstat(os.path.join(bytes(tmp_path), name))
            assert entry.attributes.inode == status.st_ino
            kind = stat.S_IFMT(status.st_mode)
            assert entry.attributes.mode == kind, name

    with_source(play)


# ---- directories that may not be listed, or not be searched --------------------------------------


def as_nobody(work: Callable[[], None]) -> None:
    """In a child with the uid and gid 65534; raises here what it raises."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            work()
            told = ""
        except BaseException:  # noqa: BLE001 - told to the parent
            told = traceback.format_exc()
        os.write(writing, pickle.dumps(told)[-60_000:])
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as told_by_child:
        told = pickle.loads(told_by_child.read())
    os.waitpid(child, 0)
    assert not told, told


@pytest.fixture
def open_tmp_path(tmp_path: FilePath) -> FilePath:
    for each in [tmp_path, *tmp_path.parents]:
        if each.stat().st_mode & 0o005 != 0o005:
            each.chmod(each.stat().st_mode | 0o055)
    return tmp_path


@as_root
def test_a_directory_that_may_only_be_searched_is_searched(open_tmp_path: FilePath) -> None:
    hidden = open_tmp_path / "hidden"
    hidden.mkdir()
    settled(hidden / "file", b"found")
    hidden.chmod(0o711)

    async def main() -> None:
        async with make(open_tmp_path) as source:
            assert await source.error_of(scan_of(b"hidden")) == errno.EACCES
            assert await source.look(b"hidden/missing") is None
            assert await source.read(b"hidden/file") == b"found"

    as_nobody(lambda: trio.run(main))


@as_root
def test_a_directory_that_may_only_be_listed_has_a_bare_listing(open_tmp_path: FilePath) -> None:
    shown = open_tmp_path / "shown"
    shown.mkdir()
    (shown / "file").touch()
    (shown / "directory").mkdir()
    shown.chmod(0o744)

    async def main() -> None:
        async with make(open_tmp_path) as source:
            listing = await source.scan(b"shown")
            assert listing.bare
            modes = {name: entry.attributes.mode for name, entry in listing.rows()}
            assert modes == {b"file": stat.S_IFREG, b"directory": stat.S_IFDIR}
            assert await source.error_of(look_at(b"shown/file")) == errno.EACCES

    as_nobody(lambda: trio.run(main))


@as_root
def test_a_file_that_may_not_be_read_is_shown_and_not_read(open_tmp_path: FilePath) -> None:
    settled(open_tmp_path / "secret", b"secret").chmod(0o600)

    async def main() -> None:
        async with make(open_tmp_path) as source:
            assert not (await source.scan()).bare
            version = await source.version(b"secret")
            assert await source.error_of(read_of(b"secret", version)) == errno.EACCES
            assert await source.error_of(open_of(b"secret", version)) == errno.EACCES

    as_nobody(lambda: trio.run(main))


# ---- bytes ---------------------------------------------------------------------------------------

MIB = 1 << 20


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, 3 * MIB + 5])
def test_a_file_is_read_whole(
    size: int, with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    content = bytes(each % 251 for each in range(size % 4096)) + b"x" * (size - size % 4096)
    settled(tmp_path / "file", content)

    async def play(source: Source) -> None:
        assert await source.read(b"file") == content
        counts = source.fetcher.counts()
        assert counts["open"] == 1
        assert counts["read_bytes"] == size

    with_source(play)


def test_holes_are_zeros(with_source: Callable[[Play], None], tmp_path: FilePath) -> None:
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.seek(2 * MIB)
        sparse.write(b"end")
        sparse.truncate(4 * MIB)

    async def play(source: Source) -> None:
        entry = await source.look(b"sparse")
        assert entry is not None
        assert entry.attributes.unpack()[2] == os.stat(tmp_path / "sparse").st_blocks
        expected = bytes(2 * MIB) + b"end" + bytes(2 * MIB - 3)
        assert await source.read(b"sparse") == expected

    with_source(play)


def test_an_open_file_is_the_file(with_source: Callable[[Play], None], tmp_path: FilePath) -> None:
    settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        fd = await source.open(b"file")
        try:
            assert os.pread(fd, 100, 1) == b"ello"
            assert not os.get_inheritable(fd)
        finally:
            os.close(fd)

    with_source(play)


# ---- versions ------------------------------------------------------------------------------------


def replace_by_link(path: FilePath) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def replace_by_directory(path: FilePath) -> None:
    path.unlink()
    path.mkdir()


def replace_by_fifo(path: FilePath) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_socket(path: FilePath) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def replace_by_same(path: FilePath) -> None:
    path.rename(path.with_name("away"))
    settled(path, b"hello")


def shrink(path: FilePath) -> None:
    os.truncate(path, 1)


def grow(path: FilePath) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def write_in_place(path: FilePath) -> None:
    with path.open("r+b") as file:
        file.write(b"HELLO")


def touch(path: FilePath) -> None:
    os.utime(path, ns=(OLD_NS, OLD_NS + 1))


REPLACEMENTS = [replace_by_link, replace_by_directory, replace_by_fifo, replace_by_socket]
CHANGES = [replace_by_same, shrink, grow, write_in_place, touch]


@pytest.mark.parametrize("change", [*REPLACEMENTS, *CHANGES], ids=lambda change: change.__name__)
def test_a_file_that_changed_before_it_was_wanted_is_stale(
    change: Callable[[FilePath], None],
    with_source: Callable[[Play], None],
    tmp_path: FilePath,
) -> None:
    path = settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        change(path)
        assert await source.error_of(read_of(b"file", version)) == errno.ESTALE
        assert await source.error_of(open_of(b"file", version)) == errno.ESTALE
        assert await source.error_of(chunk_of(b"file", version)) == errno.ESTALE

    with_source(play)


@pytest.mark.parametrize("change", [*REPLACEMENTS, *CHANGES], ids=lambda change: change.__name__)
def test_a_file_that_changed_after_its_first_chunk_is_stale(
    change: Callable[[FilePath], None],
    with_source: Callable[[Play], None],
    tmp_path: FilePath,
) -> None:
    path = settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        assert await source.chunk(b"file", version, 0, 1) == b"h"
        change(path)
        assert await source.error_of(chunk_of(b"file", version)) == errno.ESTALE
        assert not open_on(path)
        assert not open_on(path.with_name("away"))

    with_source(play)


def test_a_file_that_vanished_is_not_there(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    path = settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        path.unlink()
        assert await source.error_of(read_of(b"file", version)) == errno.ENOENT
        assert await source.error_of(open_of(b"file", version)) == errno.ENOENT
        assert await source.error_of(chunk_of(b"file", version)) == errno.ENOENT

    with_source(play)


def test_a_file_that_vanished_after_its_first_chunk_is_not_there(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    path = settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        assert await source.chunk(b"file", version, 0, 1) == b"h"
        path.unlink()
        assert await source.error_of(chunk_of(b"file", version)) == errno.ENOENT
        assert not open_on(path)

    with_source(play)


# ---- recent changes ------------------------------------------------------------------------------

TICK_S = 0.02
AGE_S = 0.5
AHEAD_S = 3600


@pytest.fixture
def ahead(tmp_path: FilePath) -> Iterator[FilePath]:
    """A file changed an hour in the future, as on a server whose clock is ahead."""
    image, root = tmp_path / "image", tmp_path / "ahead"
    with image.open("wb") as file:
        file.truncate(4 * MIB)
    root.mkdir()
    (tmp_path / "content").write_bytes(b"hello")
    later = time.strftime("%Y%m%d%H%M%S", time.gmtime(time.time() + AHEAD_S))
    commands = f"write {tmp_path / 'content'} file\nset_inode_field file ctime {later}\n"
    with suppress(FileNotFoundError):
        subprocess.run(["mke2fs", "-q", "-t", "ext4", image], check=True)
        subprocess.run(
            ["debugfs", "-w", "-f", "-", image], input=commands, text=True, check=True,
            capture_output=True,
        )  # fmt: skip
        if subprocess.run(["mount", "-o", "loop", image, root], check=False).returncode == 0:
            yield root
            subprocess.run(["umount", root], check=True)
            return
    pytest.skip("needs e2fsprogs, and a loop device")


@as_root
def test_a_change_in_the_future_is_left_to_settle(ahead: FilePath) -> None:
    """The wait lasts one tick. A second change within the tick would leave no trace. Only the wait
    itself is observable, and it is never shorter."""

    async def main() -> None:
        async with make(ahead) as source:
            version = await source.version(b"file")
            assert version.ctime_ns > time.time_ns() + (AHEAD_S // 2) * 10**9
            for fetch in (
                read_of(b"file", version),
                open_of(b"file", version),
                chunk_of(b"file", version),
            ):
                began = time.monotonic()
                outcome = await source.fetch(fetch)
                assert TICK_S <= time.monotonic() - began < AHEAD_S / 2
                if isinstance(outcome, SourceOpened):
                    os.close(outcome.handle)
                else:
                    assert isinstance(outcome, BlobRead)
                    assert bytes(outcome.blob.view) == b"hello"
            source.fetcher.close_unused(0.0)
            with trio.fail_after(WITHIN_S):
                while open_on(ahead / "file"):
                    await trio.lowlevel.checkpoint()

    trio.run(main)


def test_a_change_of_the_last_seconds_is_left_to_settle(tmp_path: FilePath) -> None:
    """The source's clock may be behind: a change of this moment then seems older."""
    path = tmp_path / "file"

    async def main() -> None:
        async with make(tmp_path) as source:
            while True:  # until it was in time; the machine may stand still now and then
                path.write_bytes(b"hello")
                version = await source.version(b"file")
                await trio.sleep(AGE_S)  # no call sets a ctime
                began = time.monotonic()
                os.close(await source.open(b"file", version))
                took_s = time.monotonic() - began
                if time.time_ns() - version.ctime_ns < 2_000_000_000:
                    assert took_s >= TICK_S
                    return

    trio.run(main)


def test_a_descriptor_is_given_when_the_version_has_settled(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    """Its receiver reads the file directly."""
    path = tmp_path / "file"

    async def play(source: Source) -> None:
        for _ in range(20):
            path.write_bytes(b"hello")
            version = await source.version(b"file")
            os.close(await source.open(b"file", version))
            assert time.time_ns() - version.ctime_ns >= TICK_S * 10**9

    with_source(play)


# ---- concurrent changes --------------------------------------------------------------------------

FAN_CLASS_CONTENT, FAN_CLOEXEC, FAN_NONBLOCK = 4, 1, 2
FAN_MARK_ADD = 1
FAN_OPEN_PERM, FAN_ACCESS_PERM = 0x10000, 0x20000
FAN_ALLOW = 1
AT_FDCWD = -100
# length, version, reserved, header length, mask, descriptor, pid
_EVENT = struct.Struct("<IBBHQii")


class Gate:
    """Until the test lets it through (fanotify(7))."""

    def __init__(self, path: FilePath, what: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC | FAN_NONBLOCK, os.O_RDONLY)
        mask = ctypes.c_uint64(what)
        if self.fd < 0 or libc.fanotify_mark(self.fd, FAN_MARK_ADD, mask, AT_FDCWD, bytes(path)):
            self.close()
            pytest.skip(f"fanotify: {os.strerror(ctypes.get_errno())}")

    async def wait_until_held(self) -> Callable[[], None]:
        with trio.fail_after(WITHIN_S):
            await trio.lowlevel.wait_readable(self.fd)
        _, _, _, _, _, opened, _ = _EVENT.unpack(os.read(self.fd, _EVENT.size))

        def let_through() -> None:
            os.write(self.fd, struct.pack("<iI", opened, FAN_ALLOW))
            os.close(opened)

        return let_through

    def nobody_is_held(self) -> bool:
        return not select.select([self.fd], [], [], 0)[0]

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@pytest.fixture
def gate_at() -> Iterator[Callable[[FilePath, int], Gate]]:
    gates = []

    def build(path: FilePath, what: int) -> Gate:
        gates.append(Gate(path, what))
        return gates[-1]

    yield build
    for gate in gates:
        gate.close()


GateAt = Callable[[FilePath, int], Gate]


@as_root
@pytest.mark.parametrize("change", CHANGES[1:], ids=lambda change: change.__name__)
def test_a_file_that_changes_while_it_is_read_is_stale(
    change: Callable[[FilePath], None],
    with_source: Callable[[Play], None],
    tmp_path: FilePath,
    gate_at: GateAt,
) -> None:
    path = settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        gate = gate_at(path, FAN_ACCESS_PERM)
        read = source.start(read_of(b"file", version))
        let_through = await gate.wait_until_held()
        change(path)
        let_through()
        gate.close()
        assert await source.outcome(read) == Failed(read, errno.ESTALE)

    with_source(play)


@as_root
@pytest.mark.parametrize("change", CHANGES[1:], ids=lambda change: change.__name__)
@pytest.mark.parametrize("kept", [False, True])
def test_a_file_that_changes_while_a_chunk_is_read_is_stale(
    kept: bool,
    change: Callable[[FilePath], None],
    with_source: Callable[[Play], None],
    tmp_path: FilePath,
    gate_at: GateAt,
) -> None:
    path = settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        gate = gate_at(path, FAN_ACCESS_PERM)
        if kept:
            first = source.start(chunk_of(b"file", version, 0, 1))
            (await gate.wait_until_held())()
            assert isinstance(await source.outcome(first), BlobRead)
        read = source.start(chunk_of(b"file", version))
        let_through = await gate.wait_until_held()
        change(path)
        let_through()
        gate.close()
        assert await source.outcome(read) == Failed(read, errno.ESTALE)

    with_source(play)


@as_root
def test_a_file_that_is_replaced_while_it_is_read_is_refused(
    with_source: Callable[[Play], None], tmp_path: FilePath, gate_at: GateAt
) -> None:
    """The old file differs only in its change time, as after a write."""
    path = settled(tmp_path / "file", b"hello")
    os.link(path, tmp_path / "other")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        gate = gate_at(path, FAN_ACCESS_PERM)
        read = source.start(read_of(b"file", version))
        let_through = await gate.wait_until_held()
        settled(tmp_path / "new", b"HELLO").rename(path)
        let_through()
        gate.close()
        assert await source.outcome(read) == Failed(read, errno.ESTALE)

    with_source(play)


# ---- chunks --------------------------------------------------------------------------------------


def content_of(size: int) -> bytes:
    """No two places are alike for as long as a page."""
    return b"".join(b"%07d\n" % at for at in range(0, size, 8))[:size]


def open_on(path: FilePath) -> list[int]:
    found = []
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{each}").removesuffix(" (deleted)") == str(path):
                found.append(int(each))
    return found


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, MIB), (MIB, MIB), (2 * MIB, 77), (4096, 65536), (8192, 200_000), (MIB + 5, 3), (7, 0)],
)
def test_a_chunk_is_so_many_bytes_of_the_file(
    offset: int, length: int, with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    content = content_of(2 * MIB + 77)
    settled(tmp_path / "file", content)

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        assert await source.chunk(b"file", version, offset, length) == content[offset:][:length]
        assert source.fetcher.counts()["read_bytes"] == length

    with_source(play)


@pytest.mark.parametrize(("offset", "length"), [(0, 6), (4, 2), (5, 1), (4096, 4096)])
def test_a_chunk_beyond_the_end_is_stale(
    offset: int, length: int, with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        assert await source.error_of(chunk_of(b"file", version, offset, length)) == errno.ESTALE

    with_source(play)


def test_a_file_is_opened_once_for_its_chunks(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    content = content_of(40_000)
    path = settled(tmp_path / "file", content)
    settled(tmp_path / "other", content)

    async def play(source: Source) -> None:
        versions = {name: await source.version(name) for name in (b"file", b"other")}
        source.fetcher.reset_counts()
        for at in range(0, 40_000, 4000):
            for name, version in versions.items():
                assert await source.chunk(name, version, at, 4000) == content[at : at + 4000]
        counts = source.fetcher.counts()
        assert counts == {
            "open": 2,
            "read": 20,
            "read_bytes": 80_000,
            "stat": 0,
            "scandir": 0,
            "seek": 0,
        }
        [fd] = open_on(path)
        assert not os.get_inheritable(fd)

    with_source(play)
    # Its threads close them, and end in their own time on a loaded machine.
    eventually(lambda: not open_on(path), "with the fetcher its descriptors are closed")


@as_root
def test_chunks_that_are_wanted_at_once_wait_for_one_open(
    with_source: Callable[[Play], None], tmp_path: FilePath, gate_at: GateAt
) -> None:
    path = settled(tmp_path / "file", b"hello, world")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        gate = gate_at(path, FAN_OPEN_PERM)
        started = [source.start(chunk_of(b"file", version, at, 3)) for at in range(0, 12, 3)]
        let_through = await gate.wait_until_held()
        while source.fetcher.statistics().busy < 2:  # of the four; the rest is for other files
            await trio.lowlevel.checkpoint()
        let_through()
        read = [await source.outcome(each) for each in started]
        assert b"".join(bytes(r.blob.view) for r in read if isinstance(r, BlobRead)) == (
            b"hello, world"
        )
        assert gate.nobody_is_held()
        assert source.fetcher.counts()["open"] == 1

    with_source(play)


@as_root
def test_who_waits_for_an_open_that_hangs_has_a_deadline(
    tmp_path: FilePath, gate_at: GateAt
) -> None:
    path = settled(tmp_path / "file", b"hello")

    async def main() -> None:
        async with make(tmp_path, deadline_s=0.1) as source:
            version = await source.version(b"file")
            gate = gate_at(path, FAN_OPEN_PERM)
            opening = source.start(chunk_of(b"file", version))
            let_through = await gate.wait_until_held()
            waiting = source.start(chunk_of(b"file", version))
            assert await source.outcome(waiting) == Failed(waiting, errno.ETIMEDOUT)
            assert gate.nobody_is_held()
            let_through()
            gate.close()
            assert isinstance(await source.outcome(opening), BlobRead)
            assert await source.chunk(b"file", version, 0, 5) == b"hello"

    trio.run(main)


@as_root
def test_who_waited_for_an_open_that_failed_opens_the_file(
    with_source: Callable[[Play], None], tmp_path: FilePath, gate_at: GateAt
) -> None:
    path = settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        wrong = await source.version(b"file")
        touch(path)
        version = await source.version(b"file")
        gate = gate_at(path, FAN_OPEN_PERM)
        started = [source.start(chunk_of(b"file", each)) for each in (wrong, wrong, version)]
        for _ in started:
            (await gate.wait_until_held())()
        outcomes = [await source.outcome(each) for each in started]
        assert outcomes[:2] == [Failed(each, errno.ESTALE) for each in started[:2]]
        assert isinstance(outcomes[2], BlobRead)

    with_source(play)


def test_a_file_that_nobody_reads_any_more_is_closed(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    path = settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        assert await source.chunk(b"file", version, 0, 5) == b"hello"
        source.fetcher.close_unused(1000.0)
        assert await source.chunk(b"file", version, 1, 4) == b"ello"
        assert source.fetcher.counts()["open"] == 1
        await closed(source, path)
        assert await source.chunk(b"file", version, 2, 3) == b"llo"
        assert source.fetcher.counts()["open"] == 2

    with_source(play)


async def closed(source: Source, path: FilePath) -> None:
    source.fetcher.close_unused(0.0)
    with trio.fail_after(WITHIN_S):
        while open_on(path):
            await trio.lowlevel.checkpoint()


@as_root
def test_a_file_that_is_being_read_is_not_closed(
    with_source: Callable[[Play], None], tmp_path: FilePath, gate_at: GateAt
) -> None:
    path = settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        gate = gate_at(path, FAN_ACCESS_PERM)
        read = source.start(chunk_of(b"file", version))
        let_through = await gate.wait_until_held()
        source.fetcher.close_unused(0.0)
        let_through()
        assert isinstance(await source.outcome(read), BlobRead)
        assert open_on(path)
        await closed(source, path)

    with_source(play)


def test_only_so_many_files_are_kept_open(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    paths = [settled(tmp_path / f"{number}", b"hello") for number in range(FILES_MAX + 5)]

    async def play(source: Source) -> None:
        versions = [await source.version(os.fsencode(path.name)) for path in paths]
        for path, version in zip(paths, versions, strict=True):
            await source.chunk(os.fsencode(path.name), version, 0, 5)
        assert [len(open_on(path)) for path in paths] == [0] * 5 + [1] * FILES_MAX
        source.fetcher.reset_counts()
        for path, version in zip(paths[5:], versions[5:], strict=True):
            await source.chunk(os.fsencode(path.name), version, 0, 5)
        assert source.fetcher.counts()["open"] == 0

    with_source(play)


def test_a_descriptor_that_lost_its_file_is_not_the_end(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    path = settled(tmp_path / "file", b"hello")

    async def play(source: Source) -> None:
        version = await source.version(b"file")
        await source.chunk(b"file", version, 0, 5)
        # as after the eviction of a client of Lustre: open files give errors, the path does not
        [fd] = open_on(path)
        reading, writing = os.pipe()
        os.dup2(reading, fd)
        assert await source.chunk(b"file", version, 0, 5) == b"hello"
        assert source.fetcher.counts()["open"] == 2
        os.close(reading)
        os.close(writing)

    with_source(play)


# ---- the way back into the mount -----------------------------------------------------------------


@pytest.fixture
def with_a_way_back(tmp_path: FilePath) -> Callable[[Play], None]:
    (tmp_path / "d" / "mnt").mkdir(parents=True)
    settled(tmp_path / "d" / "mnt" / "file", b"")
    settled(tmp_path / "d" / "other", b"")
    (tmp_path / "d" / "mnt").chmod(0o700)

    def run(play: Play) -> None:
        async def main() -> None:
            async with make(tmp_path, untouchable=frozenset({Path(b"d/mnt")})) as source:
                await play(source)

        trio.run(main)

    return run


def test_the_way_back_is_shown_as_a_closed_directory(
    with_a_way_back: Callable[[Play], None], tmp_path: FilePath
) -> None:
    async def play(source: Source) -> None:
        entry = await source.look(b"d/mnt")
        assert entry is not None
        assert entry.attributes.mode == stat.S_IFDIR
        assert source.fetcher.counts()["stat"] == 0
        listing = await source.scan(b"d")
        assert {name for name, _ in listing.rows()} == {b"mnt", b"other"}
        assert not listing.bare
        shown = listing.find(b"mnt")
        assert shown is not None
        inode = os.stat(tmp_path / "d" / "mnt").st_ino
        assert shown.attributes == Attributes.bare(inode, stat.S_IFDIR)

    with_a_way_back(play)


def test_nothing_is_fetched_from_beyond_the_way_back(
    with_a_way_back: Callable[[Play], None],
) -> None:
    async def play(source: Source) -> None:
        version = await source.version(b"d/other")
        assert await source.error_of(scan_of(b"d/mnt")) == errno.ELOOP
        assert await source.error_of(look_at(b"d/mnt/file")) == errno.ELOOP
        assert await source.error_of(read_of(b"d/mnt/file", version)) == errno.ELOOP
        assert await source.error_of(open_of(b"d/mnt/file", version)) == errno.ELOOP
        assert await source.error_of(chunk_of(b"d/mnt/file", version)) == errno.ELOOP
        assert source.fetcher.counts()["scandir"] == source.fetcher.counts()["open"] == 0

    with_a_way_back(play)


def test_the_way_back_in_a_large_directory_is_shown_too(
    with_a_way_back: Callable[[Play], None], tmp_path: FilePath
) -> None:
    for number in range(LISTING_MAX + 1):
        (tmp_path / "d" / str(number)).touch()

    async def play(source: Source) -> None:
        listing = await source.scan(b"d")
        assert listing.bare
        shown = listing.find(b"mnt")
        assert shown is not None
        assert shown.attributes.mode == stat.S_IFDIR

    with_a_way_back(play)


# ---- counts --------------------------------------------------------------------------------------


def test_what_reaches_the_source_is_counted(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    settled(tmp_path / "file", b"hello")
    settled(tmp_path / "other", b"")

    async def play(source: Source) -> None:
        zero = {"open": 0, "read": 0, "read_bytes": 0, "stat": 0, "scandir": 0, "seek": 0}
        assert source.fetcher.counts() == zero
        await source.scan()
        assert source.fetcher.counts() == zero | {"scandir": 1, "stat": 2}
        version = await source.version(b"file")
        await source.look(b"missing")
        assert source.fetcher.counts() == zero | {"scandir": 1, "stat": 4}
        source.fetcher.reset_counts()
        await source.read(b"file", version)
        assert source.fetcher.counts() == zero | {"open": 1, "read": 1, "read_bytes": 5}
        os.close(await source.open(b"file", version))
        assert source.fetcher.counts() == zero | {"open": 2, "read": 1, "read_bytes": 5}
        source.fetcher.reset_counts()
        assert source.fetcher.counts() == zero

    with_source(play)


# ---- many at once, and hung ones -----------------------------------------------------------------


def test_many_fetches_at_once_all_arrive(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    for number in range(50):
        settled(tmp_path / str(number), b"%d" % number)

    async def play(source: Source) -> None:
        versions = [await source.version(b"%d" % number) for number in range(50)]
        started = [
            (number, source.start(read_of(b"%d" % number, versions[number])))
            for number in range(50)
            for _ in range(20)
        ]
        for number, fetch in started:
            outcome = await source.outcome(fetch)
            assert isinstance(outcome, BlobRead)
            assert bytes(outcome.blob.view) == b"%d" % number
        assert source.fetcher.statistics().threads <= 4

    with_source(play)


@as_root
def test_work_beyond_the_threads_waits_for_one(tmp_path: FilePath, gate_at: GateAt) -> None:
    path = settled(tmp_path / "slow", b"")
    settled(tmp_path / "quick", b"hello")

    async def main() -> None:
        async with make(tmp_path, concurrency=1) as source:
            versions = [await source.version(name) for name in (b"slow", b"quick")]
            gate = gate_at(path, FAN_OPEN_PERM)
            slow = source.start(read_of(b"slow", versions[0]))
            let_through = await gate.wait_until_held()
            quick = source.start(read_of(b"quick", versions[1]))
            pool = source.fetcher.statistics()
            assert (pool.threads, pool.busy, pool.queued, pool.stuck) == (1, 1, 1, 0)
            let_through()
            assert isinstance(await source.outcome(slow), BlobRead)
            assert isinstance(await source.outcome(quick), BlobRead)

    trio.run(main)


@as_root
def test_a_thread_that_hangs_beyond_its_deadline_is_replaced(
    tmp_path: FilePath, gate_at: GateAt
) -> None:
    path = settled(tmp_path / "hung", b"late")
    settled(tmp_path / "quick", b"hello")

    async def main() -> None:
        # without a deadline whatever runs when something else begins counts as hung
        async with make(tmp_path, concurrency=1, deadline_s=0.0) as source:
            versions = [await source.version(name) for name in (b"hung", b"quick")]
            gate = gate_at(path, FAN_OPEN_PERM)
            hung, held = [], []
            for _ in range(3):
                hung.append(source.start(read_of(b"hung", versions[0])))
                held.append(await gate.wait_until_held())
            assert await source.read(b"quick", versions[1]) == b"hello"
            pool = source.fetcher.statistics()
            assert (pool.threads, pool.stuck) == (4, 3)
            for let_through in held:
                let_through()
            for fetch in hung:
                outcome = await source.outcome(fetch)
                assert isinstance(outcome, BlobRead)
                assert bytes(outcome.blob.view) == b"late"
            assert source.fetcher.statistics().stuck == 0

    trio.run(main)


@as_root
def test_when_too_many_threads_hang_the_source_is_taken_for_hung(
    tmp_path: FilePath, gate_at: GateAt
) -> None:
    path = settled(tmp_path / "hung", b"late")

    async def main() -> None:
        async with make(tmp_path, concurrency=1, deadline_s=0.0) as source:
            version = await source.version(b"hung")
            gate = gate_at(path, FAN_OPEN_PERM)
            hung, held = [], []
            for _ in range(STUCK_MAX):
                hung.append(source.start(read_of(b"hung", version)))
                held.append(await gate.wait_until_held())
            assert await source.error_of(look_at(b"")) == errno.EIO
            assert source.fetcher.statistics().stuck == STUCK_MAX
            for let_through in held:
                let_through()
            gate.close()
            for fetch in hung:
                assert isinstance(await source.outcome(fetch), BlobRead)
            assert await source.look(b"hung") is not None

    trio.run(main)


def test_what_is_started_before_anybody_listens_arrives_too(tmp_path: FilePath) -> None:
    async def main() -> None:
        fetcher = PoolFetcher(
            bytes(tmp_path),
            listing_max=LISTING_MAX,
            concurrency=1,
            deadline_s=60.0,
            untouchable=lambda: frozenset({Path(b"mnt")}),
        )
        source = Source(fetcher)
        fetches = [source.start(look_at(b"")), source.start(look_at(b"mnt"))]
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetcher.run, source.arrive)
            for fetch in fetches:
                assert isinstance(await source.outcome(fetch), SourceLookedUp)
            nursery.cancel_scope.cancel()
        fetcher.close()

    trio.run(main)


def test_a_handle_that_nobody_takes_is_closed(tmp_path: FilePath) -> None:
    settled(tmp_path / "file", b"")

    async def main() -> None:
        async with make(tmp_path) as source:
            fetch = open_of(b"file", await source.version(b"file"))
            outcome = await source.fetch(fetch)
            assert isinstance(outcome, SourceOpened)
            # the handle is the only descriptor of the pipe's writing end: closing it ends the pipe
            reading, writing = os.pipe()
            os.dup2(writing, outcome.handle)
            os.close(writing)
            source.fetcher.close_handle(outcome.handle)
            with trio.fail_after(WITHIN_S):
                await trio.lowlevel.wait_readable(reading)
            assert os.read(reading, 1) == b""
            os.close(reading)

    trio.run(main)


def test_what_is_looked_for_in_a_file_comes_with_it(
    with_source: Callable[[Play], None], tmp_path: FilePath
) -> None:
    code = compile("import package.core\nfrom . import lib", "x.py", "exec")
    settled(tmp_path / "m.pyc", MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
    settled(tmp_path / "n.pyc", b"nothing of Python's")

    async def play(source: Source) -> None:
        names = (b"lib", b"none", b"", b"x" * 300, b"core", b"lib")
        assert await source.mentioned(b"m.pyc", names) == (b"lib", b"core", b"lib")
        assert await source.mentioned(b"m.pyc", ()) == ()
        assert await source.mentioned(b"m.pyc", (b"",)) == ()
        assert await source.mentioned(b"n.pyc", names) == ()

    with_source(play)
