"""The mount without the C front: everything in Python, on plain pyfuse3.

Used when the extension could not be built, or with ``--front-threads 0``. The kernel's caches are
used in the same way, so a warm node is as fast; what does reach the daemon costs two to five times
as much, and there are no ioctls, so ``copperfs stats`` and ``copperfs clear`` do not work.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyfuse3
import trio

from copperfs.blob import Blob
from copperfs.core.actions import (
    AnswerChunk,
    AnswerEntry,
    AnswerListing,
    AnswerObject,
    CacheKey,
    ObjectKey,
)
from copperfs.core.events import List, Look, Question
from copperfs.core.listing import Listing
from copperfs.fuse.answers import Answered, Asker, Content, Deliver, SourceError
from copperfs.fuse.handlers import (
    Remaining,
    as_stale,
    as_statvfs,
    entry_of,
    gone_is_stale,
    guarded,
    is_listing_of,
    leads_as_known,
    may_become,
    replaced,
)
from copperfs.fuse.inodes import Inode, Inodes
from copperfs.fuse.pieces import Pieces, ask_at_each
from copperfs.fuse.statfs import Statfs
from copperfs.types import Attributes, ChunkKey, Entry, Path, RequestId, join, split

FOREVER_S = 10 * 365 * 24 * 3600.0
NAME_MAX = 255
T = TypeVar("T")
HANDLES_MAX = 64


@dataclass(frozen=True, slots=True)
class _Found:
    """An answer about entries, for use after it was delivered."""

    entry: Entry | None = None
    listing: Listing | None = None
    fresh_s: float | None = None


@dataclass(slots=True)
class PlainPublications:
    """What the kernel has to be told. It is all that a mount without the front publishes to."""

    inodes: Inodes

    def withdraw(self, key: CacheKey | ChunkKey) -> None:
        """Nothing was published anywhere."""

    def withdraw_all(self) -> None:
        """Nothing was published anywhere."""

    def publish_object(self, key: ObjectKey, blob: Blob) -> None:
        """There is nowhere to publish to."""

    def publish_chunk(self, key: ChunkKey, chunk_bytes: int, blob: Blob) -> None:
        """There is nowhere to publish to."""

    def publish_listing(self, path: Path, listing: Listing) -> None:
        """There is nowhere to publish to."""

    def used(self) -> list[CacheKey | ChunkKey]:
        return []

    def look_again(self, path: Path) -> Callable[[], object] | None:
        directory, name = split(path)
        number = self.inodes.find(directory)
        if number is None or not name:
            return None
        return lambda: _invalidate(number, name)

    def invalidate_all(self) -> tuple[int, None]:
        told = 0
        for path in self.inodes.paths():
            directory, name = split(path)
            number = self.inodes.find(directory)
            told += number is not None and _invalidate(number, name)
        return told, None


def _invalidate(number: int, name: bytes) -> bool:
    try:
        pyfuse3.invalidate_entry(number, name)
    except OSError:
        return False  # the kernel does not know the name
    return True


@dataclass(slots=True)
class Handles:
    """Open files of the source, for what is too large to be held; the oldest is closed first."""

    _open: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def get(self, number: int) -> int | None:
        return self._open.get(number)

    def put(self, number: int, fd: int) -> None:
        self.close(number)
        self._open[number] = fd
        if len(self._open) > HANDLES_MAX:
            self.close(next(iter(self._open)))

    def close(self, number: int) -> None:
        fd = self._open.pop(number, None)
        if fd is not None:
            os.close(fd)


class PlainHandlers(pyfuse3.Operations):
    """Answers every request by itself."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self,
        asker: Asker,
        inodes: Inodes,
        statfs: Statfs,
        *,
        kernel_cache: bool = True,
        allow_other: bool,
    ) -> None:
        super().__init__()
        self.requests = 0
        self._asker = asker
        self._inodes = inodes
        self._statfs = statfs
        self._kernel_cache = kernel_cache
        self._allow_other = allow_other
        self._handles = Handles()

    # --- the requests ----------------------------------------------------------------------------

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return await guarded(self._look_up(parent_inode, name))

    async def getattr(
        self, inode: int, ctx: pyfuse3.RequestContext | None = None
    ) -> pyfuse3.EntryAttributes:
        return await guarded(self._attributes(inode))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for number, lookups in inode_list:
            self._inodes.forget(number, lookups)
            if self._inodes.get(number) is None:
                self._handles.close(number)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode, keep_cache=self._kernel_cache)

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        await guarded(self._list(fh, start_id, token))

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return await guarded(self._read(fh, off, size))

    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return self._inode(inode).target

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        return as_statvfs(await self._statfs.current())

    # --- how -------------------------------------------------------------------------------------

    def _inode(self, number: int) -> Inode:
        self.requests += 1
        inode = self._inodes.get(number)
        if inode is None:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return inode

    async def _find(self, path: Path) -> _Found:
        def take(answer: Answered, _: Content, remaining: Remaining) -> _Found:
            assert isinstance(answer, AnswerEntry | AnswerListing)
            listing = answer.listing if isinstance(answer, AnswerListing) else None
            return _Found(entry_of(answer, path), listing, remaining(answer.fresh_until))

        return await self._ask(path, lambda request: Look(request, path), take)

    async def _ask(
        self, path: Path, question: Callable[[RequestId], Question], deliver: Deliver[T]
    ) -> T:
        try:
            return await self._asker.ask(question, deliver)
        except SourceError as error:
            raise await as_stale(self._asker, path, error) from None

    async def _look_up(self, parent: int, name: bytes) -> pyfuse3.EntryAttributes:
        if len(name) > NAME_MAX:
            raise SourceError(errno.ENAMETOOLONG)
        directory = self._inode(parent)
        path = join(directory.path, name)
        found = await self._find(path)
        if found.listing is None and not self._inodes.is_attached(parent):
            raise await self._replaced(parent, directory.path)
        if found.listing is not None and not await self._is_of(parent, found.listing):
            found = await self._find(path)
            if found.listing is not None and not await self._is_of(parent, found.listing):
                raise await self._replaced(parent, directory.path)
        if found.entry is None:
            if not self._kernel_cache:
                raise pyfuse3.FUSEError(errno.ENOENT)
            missing = pyfuse3.EntryAttributes()
            missing.st_ino = 0  # the kernel remembers that there is no such name
            missing.entry_timeout = self._timeout(found.fresh_s)
            return missing
        number = self._inodes.obtain(path, found.entry)
        self._inodes.refer(number)
        return self._shown(number, found.entry.attributes, found.fresh_s)

    async def _attributes(self, number: int) -> pyfuse3.EntryAttributes:
        inode = self._inode(number)
        if not inode.attributes.is_directory():
            # a number stands for a version, which does not change
            return self._shown(number, inode.attributes, 0.0)
        found = await self._find(inode.path)
        if found.entry is None or not found.entry.attributes.is_directory():
            raise SourceError(errno.ESTALE)
        inode.attributes = found.entry.attributes
        return self._shown(number, inode.attributes, found.fresh_s)

    async def _look_at(self, path: Path) -> Entry | None:
        return (await self._find(path)).entry

    async def _replaced(self, number: int, path: Path) -> SourceError:
        return await replaced(self._asker, path, attached=self._inodes.is_attached(number))

    async def _is_of(self, number: int, listing: Listing) -> bool:
        """Whether it is of the directory that the kernel knows by this number; False if the number
        has become the new one's (``FrontHandlers._known_anew``), ESTALE if it cannot."""
        directory = self._inode(number)
        if is_listing_of(directory.path, directory.attributes, listing):
            return True
        found = None
        if (
            self._inodes.is_untouched(number)
            and self._inodes.is_attached(number)
            and await leads_as_known(self._look_at, self._inodes.attributes_at, directory.path)
        ):
            found = await self._look_at(directory.path)
        if found is None or not may_become(
            found.attributes, directory.attributes, self._allow_other
        ):
            raise await self._replaced(number, directory.path)
        directory.attributes = found.attributes
        return False

    async def _list(self, number: int, start: int, token: pyfuse3.ReaddirToken) -> None:
        inode = self._inode(number)

        def take(answer: Answered, _: Content, remaining: Remaining) -> _Found:
            assert isinstance(answer, AnswerListing)
            return _Found(listing=answer.listing, fresh_s=remaining(answer.fresh_until))

        found = await gone_is_stale(
            self._ask(inode.path, lambda request: List(request, inode.path), take)
        )
        assert found.listing is not None
        if not await self._is_of(number, found.listing):
            found = await gone_is_stale(
                self._ask(inode.path, lambda request: List(request, inode.path), take)
            )
            assert found.listing is not None
            if not await self._is_of(number, found.listing):
                raise await self._replaced(number, inode.path)
        assert found.listing is not None
        for cookie, name, row in found.listing.after(start):
            path, fresh_s, entry = join(inode.path, name), found.fresh_s, row
            if found.listing.bare:
                # pyfuse3 has no way to give a name without its attributes
                looked = await self._listed_bare(path, row)
                if looked is None:
                    continue
                entry = looked
            if entry.unknown:
                fresh_s = 0.0  # the kernel looks it up before it uses it
            child = self._inodes.obtain(path, entry)
            shown = self._shown(child, entry.attributes, fresh_s)
            if not pyfuse3.readdir_reply(token, name, shown, cookie):
                self._inodes.drop_unreferred(child)
                return
            self._inodes.refer(child)

    async def _listed_bare(self, path: Path, row: Entry) -> Entry | None:
        """An error of one entry hides neither the entry nor the others."""
        try:
            return (await self._find(path)).entry
        except SourceError:
            return Entry(row.attributes, unknown=True)

    async def _read(self, number: int, offset: int, size: int) -> bytes:
        inode = self._inode(number)
        version = inode.attributes.version
        fd = self._handles.get(number)
        if fd is None:
            data = await self._read_held(number, inode, Pieces(offset, size, version.size))
            if data is not None:
                return data
            fd = self._handles.get(number)
            assert fd is not None
        # a descriptor of its own, since the handle may be closed meanwhile
        duplicate = os.dup(fd)
        try:
            data = await trio.to_thread.run_sync(
                _read_version, duplicate, offset, size, (version.size, version.mtime_ns)
            )
        finally:
            os.close(duplicate)
        if data is None:
            self._handles.close(number)
            raise SourceError(errno.ESTALE)
        return data

    async def _read_held(self, number: int, inode: Inode, pieces: Pieces) -> bytes | None:
        """From what the core holds; None if it gives a handle."""
        if not inode.attributes.is_file():
            raise pyfuse3.FUSEError(errno.EINVAL)

        def take(answer: Answered, content: Content, _: Remaining) -> None:
            if isinstance(content, int):
                self._handles.put(number, content)
                return
            assert content is not None
            assert isinstance(answer, AnswerObject | AnswerChunk)
            pieces.take(answer, content)

        path, version, first = inode.path, inode.attributes.version, pieces.first_byte

        async def ask(at: int) -> None:
            await self._ask(path, pieces.question(path, version, at, leads=at == first), take)

        await ask(first)
        await ask_at_each(ask, pieces.missing())
        return pieces.joined()

    def _timeout(self, fresh_s: float | None) -> float:
        if not self._kernel_cache:
            return 0.0
        return FOREVER_S if fresh_s is None else max(0.0, fresh_s)

    def _shown(
        self, number: int, attributes: Attributes, fresh_s: float | None
    ) -> pyfuse3.EntryAttributes:
        shown = pyfuse3.EntryAttributes()
        values = attributes.unpack()
        shown.st_ino = number
        shown.st_size, shown.st_blocks = values[1], values[2]
        shown.st_atime_ns, shown.st_mtime_ns, shown.st_ctime_ns = attributes.times_ns
        shown.st_mode, shown.st_nlink = values[9], values[10]
        shown.st_uid, shown.st_gid = values[11], values[12]
        shown.st_rdev, shown.st_blksize = values[13], values[14]
        shown.entry_timeout = shown.attr_timeout = self._timeout(fresh_s)
        return shown


def _read_version(fd: int, offset: int, size: int, version: tuple[int, int]) -> bytes | None:
    """The bytes, if the file is still the version that it was; short only at its end."""
    parts = []
    while size > 0 and (part := os.pread(fd, size, offset)):
        parts.append(part)
        offset += len(part)
        size -= len(part)
    now = os.fstat(fd)
    return b"".join(parts) if (now.st_size, now.st_mtime_ns) == version else None
