"""Warmup walk: the files below the paths of a warm-up, and how collectives name them.

A walk lists up to ``LISTS_AT_ONCE`` directories at a time, and is no further ahead of its reader.
Of the directories that are left it keeps only the paths.
"""

import json
import os
import stat
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from copperfs.daemon.collective_ops import Result, pack
from copperfs.daemon.engine import Engine
from copperfs.fuse.node_port import Answered, Content, SourceError
from copperfs.model.listing import Listing
from copperfs.model.types import ROOT, Attributes, Path, Version, join, split
from copperfs.node.actions import AnswerListing
from copperfs.node.events import ListRequest
from copperfs.node.peer.messages import PATH_BYTES_MAX
from copperfs.node.requests.path_policy import Place

LISTS_AT_ONCE = 16
# A collective carries 64 KiB, packed, with other fields. Similar names pack a thousandfold, so the
# unpacked size is bounded as well.
ARGUMENT_BYTES_MAX = 48 << 10
UNPACKED_BYTES_MAX = 4 << 20

Wanted = dict[Path, set[bytes] | None]
"""The wanted names of each directory, and all that is below them; None means all names."""
Directories = dict[str, list[str] | None]
"""The same in a collective: files only."""


class WalkedDirectory(NamedTuple):
    """None means all files."""

    directory: Path
    listing: Listing
    names: set[bytes] | None


@dataclass(slots=True)
class DatasetWalk:
    engine: Engine
    below: bool = True
    """If not, only files are wanted."""
    errors: Counter[int] = field(default_factory=Counter)
    """The directories that could not be listed, by errno."""
    missing: int = 0
    _left: list[tuple[Path, set[bytes] | None]] = field(default_factory=list)
    _tasks: int = 0

    @asynccontextmanager
    async def over(
        self, wanted: Wanted
    ) -> AsyncGenerator[trio.MemoryReceiveChannel[WalkedDirectory]]:
        """The walk ends with the block."""
        self._left += wanted.items()
        send, receive = trio.open_memory_channel[WalkedDirectory](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run, send)
            yield receive
            nursery.cancel_scope.cancel()

    async def _run(self, send: trio.MemorySendChannel[WalkedDirectory]) -> None:
        with send:
            async with trio.open_nursery() as nursery:
                self._begin(nursery, send)

    def _begin(self, nursery: trio.Nursery, send: trio.MemorySendChannel[WalkedDirectory]) -> None:
        for _ in range(min(len(self._left), LISTS_AT_ONCE - self._tasks)):
            self._tasks += 1
            nursery.start_soon(self._visit, nursery, send)

    async def _visit(
        self, nursery: trio.Nursery, send: trio.MemorySendChannel[WalkedDirectory]
    ) -> None:
        while self._left:
            directory, names = self._left.pop()
            listing = await self._list(directory)
            if listing is None:
                self.missing += len(names or ())
                continue
            files, directories = self._sorted(listing, names)
            self._left += [(join(directory, name), None) for name in directories]
            self._begin(nursery, send)
            if files or not names:
                await send.send(WalkedDirectory(directory, listing, files))
        self._tasks -= 1

    def _sorted(
        self, listing: Listing, names: set[bytes] | None
    ) -> tuple[set[bytes] | None, list[bytes]]:
        if names is None:
            rows = listing.rows() if self.below else ()
            return None, [name for name, entry in rows if entry.attributes.is_directory()]
        files, directories = set(), []
        for name in names:
            entry = listing.find(name)
            if entry is not None and entry.attributes.is_file():
                files.add(name)
            elif entry is not None and entry.attributes.is_directory() and self.below:
                directories.append(name)
            else:
                self.missing += 1
        return files, directories

    async def _list(self, directory: Path) -> Listing | None:
        is_refused = self.engine.node.policy.place(directory) is Place.REFUSED
        if is_refused or len(directory) > PATH_BYTES_MAX:
            return None
        try:
            return await list_directory(self.engine, directory)
        except SourceError as error:
            self.errors[error.errno] += 1
            return None


async def list_directory(engine: Engine, directory: Path) -> Listing:

    def take(answer: Answered, _: Content, __: object) -> Listing:
        assert isinstance(answer, AnswerListing)
        return answer.listing

    return await engine.ask(lambda request: ListRequest(request, directory), take)


def where_to_walk(paths: Collection[Path]) -> Wanted:
    """What lies below another one of the paths comes with that one."""
    tops = set(paths)
    if ROOT in tops:
        return {ROOT: None}
    return by_directory(
        path for path in tops if not any(above in tops for above in directories_above(path))
    )


def by_directory(paths: Iterable[Path]) -> Wanted:
    """The paths must not be the root."""
    wanted: dict[Path, set[bytes]] = {}
    for directory, name in map(split, paths):
        wanted.setdefault(directory, set()).add(name)
    return {**wanted}


def directories_above(path: Path) -> Iterator[Path]:
    while path:
        path, _ = split(path)
        yield path


def files_in(
    directory: Path, listing: Listing, names: Collection[bytes] | None
) -> Iterator[tuple[Path, Version]]:
    """The files of a listing that can be read and are not empty, of *names* or all."""
    for name, entry in listing.rows():
        attributes = entry.attributes
        if (names is None or name in names) and attributes.size and is_readable(attributes):
            path = join(directory, name)
            if len(path) <= PATH_BYTES_MAX:
                yield path, attributes.version


def left_out(listing: Listing, names: Collection[bytes] | None) -> tuple[int, int]:
    unlisted = unreadable = 0
    for name, entry in listing.rows():
        if entry.attributes.is_file() and (names is None or name in names):
            if listing.bare or entry.unknown:
                unlisted += 1
            elif not is_readable(entry.attributes):
                unreadable += 1
    return unlisted, unreadable


def is_readable(attributes: Attributes) -> bool:
    if not attributes.is_file():
        return False
    _, uid, gid = attributes.unpack()[10:13]
    me = os.getuid()
    if me == 0:
        return True
    if uid == me:
        return bool(attributes.mode & stat.S_IRUSR)
    mine = gid == os.getgid() or gid in os.getgroups()
    return bool(attributes.mode & (stat.S_IRGRP if mine else stat.S_IROTH))


def text(path: bytes) -> str:
    """For JSON; bytes that are not UTF-8 become surrogates."""
    return path.decode("utf-8", "surrogateescape")


def octets(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def path_of(shown: str) -> Path:
    """A path from another process; ValueError if it leads out of the source."""
    path = octets(shown)
    parts = path.split(b"/")
    if path and (b"\0" in path or {b"", b".", b".."} & set(parts) or len(path) > PATH_BYTES_MAX):
        raise ValueError("no path below the source")
    return Path(path)


def listed(directories: Directories) -> Iterator[tuple[Path, set[bytes] | None]]:
    for shown, names in directories.items():
        yield path_of(shown), None if names is None else set(map(octets, names))


def fits(argument: Result) -> bool:
    unpacked = len(json.dumps(argument))
    return unpacked <= UNPACKED_BYTES_MAX and len(pack(argument)) <= ARGUMENT_BYTES_MAX


def in_messages(directories: Directories) -> Iterator[Directories]:
    if not directories:
        return
    if fits(directories):
        yield directories
        return
    items = list(directories.items())
    if len(items) > 1:
        half = len(items) // 2
        yield from in_messages(dict(items[:half]))
        yield from in_messages(dict(items[half:]))
        return
    (directory, names) = items[0]
    assert names is not None, "one directory alone always fits"
    half = len(names) // 2
    yield from in_messages({directory: names[:half]})
    yield from in_messages({directory: names[half:]})
