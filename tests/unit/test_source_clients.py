"""Source contract for a filesystem that several clients mount, with differing device numbers:
versions do not contain these, and every client shows the same attributes. The clients are mounts of
one stand-in."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path as FilePath

import pytest
import trio

from copperfs.model.types import FILESYSTEM, Entry
from copperfs.node.events import SourceListed
from tests.descriptors import no_descriptor_left
from tests.mount.helpers import run
from tests.standin import StandIn
from tests.unit.test_source_contract import Source, make, read_of, scan_of, settled

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount"),
]


class Lab:
    """Two clients of one directory, and two sources that may have one at ``a b/fs``."""

    def __init__(self, top: FilePath, stack: ExitStack, *, own_inodes: bool = False) -> None:
        self.real = top / "real"
        (self.real / "d").mkdir(parents=True)
        settled(self.real / "file", b"hello")
        settled(self.real / "d" / "other", b"other")
        self.clients = [top / "client0", top / "client1"]
        self.sources = [top / "source0", top / "source1"]
        for source in self.sources:
            (source / "a b" / "fs").mkdir(parents=True)
        stack.enter_context(StandIn(self.real, mountpoints=self.clients, own_inodes=own_inodes))
        self._stack = stack
        self._at: dict[FilePath, ExitStack] = {}

    def at(self, source: int, name: str = "a b/fs") -> FilePath:
        return self.sources[source] / name

    def mount(self, client: int, at: FilePath) -> None:
        if at in self._at:
            self._at[at].close()
        self._at[at] = self._stack.enter_context(ExitStack())
        done = run(["mount", "--bind", self.clients[client], at])
        assert done.returncode == 0, done.stderr
        self._at[at].callback(run, ["umount", "-l", at])


@pytest.fixture
def lab(tmp_path: FilePath) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


def tag(entry: Entry | None) -> int:
    assert entry is not None
    return entry.attributes.unpack()[-1] & FILESYSTEM


async def seen(source: Source) -> list[object]:
    listings = [await source.scan(b"a b/fs"), await source.scan(b"a b/fs/d")]
    rows = [(name, entry) for each in listings for name, entry in each.rows()]
    rows += [(name, entry) for name, _ in rows[:1] if (entry := await source.look(b"a b/fs"))]
    told = [(name, entry.attributes.version, tag(entry)) for name, entry in rows]
    return [*sorted(told), *[each.directory for each in listings]]


def test_all_clients_see_the_same_versions_and_the_same_filesystem(lab: Lab) -> None:
    lab.mount(0, lab.at(0))
    lab.mount(1, lab.at(1))
    assert os.stat(lab.at(0)).st_dev != os.stat(lab.at(1)).st_dev

    async def main() -> None:
        async with make(lab.sources[0]) as one, make(lab.sources[1]) as other:
            assert await seen(one) == await seen(other)
            assert tag(await one.look(b"a b/fs/file"))

    trio.run(main)


def test_what_one_client_has_seen_another_one_reads(lab: Lab) -> None:
    lab.mount(0, lab.at(0))
    lab.mount(1, lab.at(1))

    async def main() -> None:
        async with make(lab.sources[0]) as one, make(lab.sources[1]) as other:
            version = await one.version(b"a b/fs/file")
            assert version.inode == (lab.real / "file").stat().st_ino
            assert await other.read(b"a b/fs/file", version) == b"hello"
            assert await other.chunk(b"a b/fs/file", version, 0, 5) == b"hello"
            os.close(await other.open(b"a b/fs/file", version))

    trio.run(main)


def test_a_remount_changes_nothing(lab: Lab) -> None:
    lab.mount(0, lab.at(0))

    async def main() -> None:
        async with make(lab.sources[0]) as source:
            before, version = await seen(source), await source.version(b"a b/fs/file")
            lab.mount(1, lab.at(0))
            assert await source.read(b"a b/fs/file", version) == b"hello"
            assert await source.chunk(b"a b/fs/file", version, 0, 5) == b"hello"
            assert await seen(source) == before

    trio.run(main)


def test_the_source_itself_may_be_mounted_anew(lab: Lab) -> None:
    at = lab.sources[0]
    lab.mount(0, at)

    async def main() -> None:
        async with make(at) as source:
            version = await source.version(b"file")
            before = os.stat(at).st_dev
            lab.mount(1, at)
            assert os.stat(at).st_dev != before
            assert tag(await source.look(b"file")) == 0
            assert tag(await source.look(b"")) == 0
            assert await source.read(b"file", version) == b"hello"
            assert [tag(entry) for _, entry in (await source.scan()).rows()] == [0, 0]

    trio.run(main)


def test_filesystems_are_told_apart(lab: Lab) -> None:
    for name, client in (("x", 0), ("y", 1)):
        lab.at(0, name).mkdir()
        lab.mount(client, lab.at(0, name))

    async def main() -> None:
        async with make(lab.sources[0]) as source:
            x, y = await source.look(b"x/file"), await source.look(b"y/file")
            assert 0 != tag(x) != tag(y) != 0
            # the same filesystem at a second place is not another one
            lab.at(0, "z").mkdir()
            lab.mount(0, lab.at(0, "z"))
            assert tag(await source.look(b"z/file")) == tag(x)
            assert [tag(each) for _, each in (await source.scan(b"x")).rows()] == [tag(x)] * 2

    trio.run(main)


@pytest.mark.parametrize("left", range(1, 5))
def test_a_filesystem_keeps_its_tag_where_descriptors_are_used_up(left: int, lab: Lab) -> None:
    lab.mount(0, lab.at(0, "a b"))

    async def main() -> None:
        async with make(lab.sources[0]) as source, make(lab.sources[0]) as other:
            expected = [tag(entry) for _, entry in (await other.scan()).rows()]
            with no_descriptor_left(but=left):
                scan = source.start(scan_of(b""))
                with trio.move_on_after(0.3):
                    while scan not in source.arrived:  # noqa: ASYNC110 - a thread's
                        await trio.sleep(0.001)
            outcome = await source.outcome(scan)
            assert isinstance(outcome, SourceListed)
            assert [tag(entry) for _, entry in outcome.listing.rows()] == expected != [0]

    trio.run(main)


def test_inode_numbers_are_left_out_where_each_client_has_its_own(tmp_path: FilePath) -> None:
    async def main(lab: Lab) -> None:
        async with make(lab.sources[0]) as one, make(lab.sources[1]) as other:
            version = await one.version(b"a b/fs/file")
            assert await other.error_of(read_of(b"a b/fs/file", version)) == errno.ESTALE
            for each in (one, other):
                each.fetcher.ignore_inodes()
            assert await seen(one) == await seen(other)
            shared = await one.version(b"a b/fs/file")
            assert shared == version._replace(inode=0)
            assert await other.read(b"a b/fs/file", shared) == b"hello"
            assert await other.chunk(b"a b/fs/file", shared, 0, 5) == b"hello"
            os.close(await other.open(b"a b/fs/file", shared))
            # a reader with an older version, with a number, still gets the file
            assert await one.read(b"a b/fs/file", version) == b"hello"
            found = await one.look(b"a b/fs/file")
            assert found is not None
            assert found.attributes.inode == os.stat(lab.at(0) / "file").st_ino
            os.utime(lab.real / "file", ns=(1, 1))
            assert await other.error_of(read_of(b"a b/fs/file", shared)) == errno.ESTALE

    with ExitStack() as stack:
        lab = Lab(tmp_path, stack, own_inodes=True)
        lab.mount(0, lab.at(0))
        lab.mount(1, lab.at(1))
        trio.run(main, lab)
