"""Warm-up walk: every wanted file of a set is found once, and what cannot be listed is counted."""

import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import trio
import trio.testing

from copperfs.daemon.engine import Engine
from copperfs.daemon.warmup_walk import LISTS_AT_ONCE, DatasetWalk, where_to_walk
from copperfs.fuse.node_port import SourceError
from copperfs.model.listing import pack_listing
from copperfs.model.types import Path, RequestId, join
from copperfs.node.actions import AnswerListing
from copperfs.node.requests.path_policy import Policy
from tests.unit.node_lab import directory, file

Tree = dict[bytes, dict[bytes, bool]]
"""Directories by path; whether each name in them is a directory."""


class Mount:
    """Lists the directories of a tree, as an engine does."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.node = SimpleNamespace(policy=Policy(b"/src", b"/mnt"))
        self.listed: list[bytes] = []
        self.at_once = self.at_once_max = 0

    async def ask(self, make_request: Callable[[RequestId], Any], take: Callable[..., Any]) -> Any:
        path = make_request(RequestId(1)).path
        self.listed.append(path)
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        await trio.sleep(0.001)
        self.at_once -= 1
        if path not in self.tree:
            raise SourceError(errno.EACCES)
        rows = [
            (name, directory() if is_one else file(5)) for name, is_one in self.tree[path].items()
        ]
        return take(AnswerListing(RequestId(1), path, pack_listing(rows), None), None, None)


def found_by(walk: DatasetWalk, *paths: bytes) -> list[bytes]:
    found: list[bytes] = []

    async def main() -> None:
        async with walk.over(where_to_walk([*map(Path, paths)])) as directories:
            async for path, listing, names in directories:
                files = [name for name, entry in listing.rows() if entry.attributes.is_file()]
                found.extend(join(path, each) for each in files if names is None or each in names)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return sorted(found)


TREE: Tree = {
    b"": {b"env": True, b"top": False},
    b"env": {b"a": False, b"b": False, b"lib": True, b"closed": True},
    b"env/lib": {b"c": False, b"deep": True},
    b"env/lib/deep": {b"d": False},
}


def walk_of(tree: Tree, *, below: bool = True) -> tuple[DatasetWalk, Mount]:
    mount = Mount(tree)
    return DatasetWalk(cast(Engine, mount), below), mount


def test_a_directory_comes_with_all_that_is_below_it_and_a_file_alone() -> None:
    walk, _ = walk_of(TREE)
    assert found_by(walk, b"env/lib", b"env/a") == [b"env/a", b"env/lib/c", b"env/lib/deep/d"]
    assert not walk.errors
    assert not walk.missing


def test_the_root_is_all_and_what_cannot_be_listed_is_counted_by_its_error() -> None:
    walk, _ = walk_of(TREE)
    everything = [b"env/a", b"env/b", b"env/lib/c", b"env/lib/deep/d", b"top"]
    assert found_by(walk, b"", b"env/a") == everything
    assert walk.errors == {errno.EACCES: 1}


def test_a_path_below_another_one_is_not_walked_twice() -> None:
    walk, mount = walk_of(TREE)
    assert found_by(walk, b"env/lib/deep/d", b"env/lib", b"env/lib/deep") == [
        b"env/lib/c",
        b"env/lib/deep/d",
    ]
    assert sorted(mount.listed) == [b"env", b"env/lib", b"env/lib/deep"]


def test_names_that_are_not_there_are_counted() -> None:
    walk, _ = walk_of(TREE)
    assert found_by(walk, b"env/none", b"env/b", b"nowhere/x", b"nowhere/y") == [b"env/b"]
    assert walk.missing == 3


def test_where_only_files_are_wanted_a_directory_is_missing() -> None:
    walk, _ = walk_of(TREE, below=False)
    assert found_by(walk, b"env/lib", b"env/a") == [b"env/a"]
    assert walk.missing == 1


def test_many_directories_are_listed_at_a_time_but_not_all() -> None:
    names = [b"d%d" % number for number in range(200)]
    tree: Tree = {b"": dict.fromkeys(names, True)}
    tree |= {each: {b"x": True, b"f": False} for each in names}
    tree |= {each + b"/x": {b"g": False} for each in names}
    walk, mount = walk_of(tree)
    assert len(found_by(walk, b"")) == 400
    assert mount.at_once_max == LISTS_AT_ONCE
    assert len(mount.listed) == len(set(mount.listed)) == 401


def test_a_walk_ends_with_its_block_and_is_not_far_ahead_of_its_reader() -> None:
    names = [b"d%d" % number for number in range(200)]
    tree: Tree = {b"": dict.fromkeys(names, True)} | {each: {b"f": False} for each in names}
    walk, mount = walk_of(tree)

    async def main() -> None:
        async with walk.over(where_to_walk([Path(b"")])) as found:
            await found.receive()
            await found.receive()
            await trio.sleep(60)
            assert len(mount.listed) <= LISTS_AT_ONCE + 2

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not mount.at_once
