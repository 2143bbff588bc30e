"""FUSE handlers: a pyfuse3 filesystem that sees only the requests that the front could not answer.

Each handler asks the node, publishes the answer to the front, and tells the front to try again
(RETRY, decision 2). A read that was tried before (WITH_BYTES) gets its bytes.
"""

import errno
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pyfuse3

from copperfs.fuse.node_port import Answered, Content, NodePort, SourceError
from copperfs.fuse.publication_index import PublicationIndex
from copperfs.fuse.read_assembly import Pieces, ask_at_each
from copperfs.fuse.statfs import Statfs
from copperfs.model.errors import CopperError
from copperfs.model.listing import Listing
from copperfs.model.types import ROOT, Attributes, Entry, Path, RequestId, join, split
from copperfs.native import RETRY
from copperfs.node.actions import (
    AnswerChunk,
    AnswerEntry,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    ObjectKey,
)
from copperfs.node.events import ListRequest, LookupRequest, NodeRequest

log = logging.getLogger(__name__)

# FRONT_WITH_BYTES of front/front.h.
WITH_BYTES = 1 << 63

# The kernel is told of these before the caller, so that a new lookup helps.
LOOK_AGAIN = (errno.ESTALE, errno.ENOENT, errno.ENOTDIR)

Remaining = Callable[[float | None], float | None]
T = TypeVar("T")


async def guarded(work: Awaitable[T]) -> T:
    """Errors become errnos, and a bug becomes EIO, with its traceback."""
    try:
        return await work
    except SourceError as error:
        raise pyfuse3.FUSEError(error.errno) from None
    except (pyfuse3.FUSEError, CopperError):
        raise
    except Exception:
        log.exception("a bug: a handler failed in an unforeseen way")
        raise pyfuse3.FUSEError(errno.EIO) from None


async def gone_is_stale(listing: Awaitable[T]) -> T:
    """The C library takes ENOENT from a directory that is being read for its end, and would show it
    as empty."""
    try:
        return await listing
    except SourceError as error:
        if error.errno == errno.ENOENT:
            raise SourceError(errno.ESTALE) from None
        raise


def is_listing_of(path: Path, known: Attributes, listing: Listing) -> bool:
    """The kernel checks rights against *known*, and another directory may be closed to the user.
    The root may be mounted again."""
    directory = listing.directory
    return directory is None or path == ROOT or not directory.is_another_than(known.version)


async def as_stale(node: NodePort, path: Path, error: SourceError) -> SourceError:
    """ENOTDIR becomes ESTALE: the kernel repeats the path walk for that error alone."""
    if error.errno in LOOK_AGAIN:
        await node.wait_kernel_told(path)
    return SourceError(errno.ESTALE) if error.errno == errno.ENOTDIR else error


async def replaced(node: NodePort, path: Path, *, attached: bool) -> SourceError:
    """A request for a number that is not *attached* comes from the old directory, and what others
    hold of the new one is true."""
    if attached:
        node.replaced(path)
    await node.wait_kernel_told(path)
    return SourceError(errno.ESTALE)


def may_become(new: Attributes, known: Attributes, allow_other: bool) -> bool:
    """Without ``--allow-other`` the daemon's own user is the only one."""
    return new.is_directory() and (not allow_other or is_as_open(new, known))


async def leads_as_known(
    look_at: Callable[[Path], Awaitable[Entry | None]],
    known_at: Callable[[Path], Attributes | None],
    path: Path,
) -> bool:
    """Whether all directories above *path* are as the kernel knows them. Their rights still count
    for a process that is inside already."""
    path, _ = split(path)
    while path:
        known, entry = known_at(path), await look_at(path)
        if known is None or entry is None:
            return False
        if entry.attributes.version.is_another_than(known.version):
            return False
        path, _ = split(path)
    return True


def is_as_open(new: Attributes, known: Attributes) -> bool:
    """Whether *new* lets every user list and search that *known* lets."""
    (new_mode, *new_owner), (known_mode, *known_owner) = (
        (each.unpack()[9], *each.unpack()[11:13]) for each in (new, known)
    )
    if new_owner == known_owner:
        return known_mode & ~new_mode & 0o555 == 0
    somebody = (known_mode | known_mode >> 3 | known_mode >> 6) & 0o5
    everybody = new_mode & new_mode >> 3 & new_mode >> 6
    return somebody & ~everybody == 0


class FrontHandlers(pyfuse3.Operations):
    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self,
        node_port: NodePort,
        publications: PublicationIndex,
        statfs: Statfs,
        *,
        allow_other: bool,
    ) -> None:
        super().__init__()
        self._node_port = node_port
        self._publications = publications
        self._statfs = statfs
        self._allow_other = allow_other

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        await guarded(self._look_up(parent_inode, name))
        raise pyfuse3.FUSEError(RETRY)

    async def getattr(
        self, inode: int, ctx: pyfuse3.RequestContext | None = None
    ) -> pyfuse3.EntryAttributes:
        await guarded(self._refresh(inode))
        raise pyfuse3.FUSEError(RETRY)

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        await guarded(self._list(fh & ~WITH_BYTES))
        raise pyfuse3.FUSEError(RETRY)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return await guarded(
            self._read(fh & ~WITH_BYTES, off, size, with_bytes=bool(fh & WITH_BYTES))
        )

    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return await guarded(self._target(inode))

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        found = await self._statfs.current()
        self._publications.publish_statfs(found)
        return as_statvfs(found)

    # --- how -------------------------------------------------------------------------------------

    def _inode(self, number: int) -> tuple[Path, Attributes]:
        found = self._publications.inode(number)
        if found is None:
            raise SourceError(errno.ESTALE)
        return found

    async def _ask(
        self,
        path: Path,
        make_request: Callable[[RequestId], NodeRequest],
        deliver: Callable[[Answered, Content, Remaining], T],
    ) -> T:
        # The front may have listed the answer, and forwards the request if it cannot publish that.
        self._publications.pass_on_fetched(self._node_port)
        try:
            return await self._node_port.ask(make_request, deliver)
        except SourceError as error:
            raise await as_stale(self._node_port, path, error) from None

    async def _look_up(self, parent: int, name: bytes) -> None:
        directory, known = self._inode(parent)
        path = join(directory, name)

        def publish(answer: Answered, _: Content, remaining: Remaining) -> bool:
            if isinstance(answer, AnswerListing):
                return self._publish_listing(parent, known, answer, remaining)
            if isinstance(answer, AnswerEntry):
                if not self._publications.is_attached(parent):
                    return False  # the name would belong to the newer directory
                left = remaining(answer.fresh_until)
                self._publications.publish_entry(parent, name, answer.entry, left)
            return True

        if not await self._ask(path, lambda request: LookupRequest(request, path), publish):
            known = await self._known_anew(parent, directory, known)
            if not await self._ask(path, lambda request: LookupRequest(request, path), publish):
                raise await self._replaced(parent, directory)

    async def _refresh(self, number: int) -> None:
        """Only a directory's attributes expire."""
        path, before = self._inode(number)

        def publish(answer: Answered, _: Content, remaining: Remaining) -> bool:
            if not isinstance(answer, AnswerEntry | AnswerListing):
                return False
            entry = entry_of(answer, path)
            if entry is None:
                return False
            if entry.attributes.version.is_another_than(before.version) and path != ROOT:
                return False
            left = remaining(answer.fresh_until)
            self._publications.publish_attributes(number, entry.attributes, left)
            return True

        if not await self._ask(path, lambda request: LookupRequest(request, path), publish):
            raise SourceError(errno.ESTALE)

    async def _list(self, number: int) -> None:
        path, known = self._inode(number)

        def publish(answer: Answered, _: Content, remaining: Remaining) -> bool:
            assert isinstance(answer, AnswerListing)
            return self._publish_listing(number, known, answer, remaining)

        if not await gone_is_stale(
            self._ask(path, lambda request: ListRequest(request, path), publish)
        ):
            known = await self._known_anew(number, path, known)
            if not await gone_is_stale(
                self._ask(path, lambda request: ListRequest(request, path), publish)
            ):
                raise await self._replaced(number, path)

    async def _known_anew(self, number: int, path: Path, known: Attributes) -> Attributes:
        """Autofs may mount a directory at its first listing. ESTALE if its path or rights differ,
        or a request was told a name in the old one (decision 81)."""

        def publish(answer: Answered, _: Content, remaining: Remaining) -> Attributes | None:
            assert isinstance(answer, AnswerEntry | AnswerListing)
            entry = entry_of(answer, path)
            if entry is None or not may_become(entry.attributes, known, self._allow_other):
                return None
            left = remaining(answer.fresh_until)
            self._publications.publish_attributes(number, entry.attributes, left)
            return entry.attributes

        found = None
        if (
            self._publications.is_untouched(number)
            and self._publications.is_attached(number)
            and await leads_as_known(self._look_at, self._publications.attributes_at, path)
        ):
            found = await self._ask(path, lambda request: LookupRequest(request, path), publish)
        if found is None:
            raise await self._replaced(number, path)
        return found

    async def _replaced(self, number: int, path: Path) -> SourceError:
        return await replaced(
            self._node_port, path, attached=self._publications.is_attached(number)
        )

    async def _look_at(self, path: Path) -> Entry | None:
        def take(answer: Answered, _: Content, __: Remaining) -> Entry | None:
            assert isinstance(answer, AnswerEntry | AnswerListing)
            return entry_of(answer, path)

        return await self._ask(path, lambda request: LookupRequest(request, path), take)

    def _publish_listing(
        self, number: int, known: Attributes, answer: AnswerListing, remaining: Remaining
    ) -> bool:
        """False: it is of another directory than the kernel knows."""
        if not is_listing_of(answer.directory, known, answer.listing):
            return False
        left = remaining(answer.fresh_until)
        self._publications.publish_listing_for(
            number,
            answer.directory,
            answer.listing,
            left,
            granted=answer.granted,
            granted_below=answer.granted_below,
            read_ahead=answer.read_ahead,
        )
        return True

    async def _read(self, number: int, offset: int, size: int, *, with_bytes: bool) -> bytes:
        path, attributes = self._inode(number)
        version = attributes.version
        pieces = Pieces(offset, size, version.size)

        def publish(answer: Answered, content: Content, _: Remaining) -> None:
            if isinstance(answer, AnswerHandle):
                assert isinstance(content, int)
                self._publications.publish_handle(number, content)
                return
            assert content is not None
            assert not isinstance(content, int)
            if isinstance(answer, AnswerChunk):
                self._publications.publish_chunk_for(
                    number, answer.key, answer.chunk_bytes, content
                )
            else:
                assert isinstance(answer, AnswerObject)
                self._publications.publish_object_for(number, ObjectKey(path, version), content)
            pieces.take(answer, content)

        missing = [] if with_bytes else self._publications.missing_chunks(number, offset, size)
        first = missing[0] if missing else pieces.first_byte

        async def ask(at: int) -> None:
            await self._ask(
                path, pieces.make_request(path, version, at, leads=at == first), publish
            )

        if missing:
            await ask_at_each(ask, missing)
        else:
            await ask(first)
            await ask_at_each(ask, pieces.missing())
        data = pieces.joined() if with_bytes else None
        if data is None:
            raise pyfuse3.FUSEError(RETRY)
        return data

    async def _target(self, number: int) -> bytes:
        path, _ = self._inode(number)

        def take(answer: Answered, _: Content, __: Remaining) -> bytes | None:
            if not isinstance(answer, AnswerEntry | AnswerListing):
                return None
            entry = entry_of(answer, path)
            return entry.target if entry is not None else None

        target = await self._ask(path, lambda request: LookupRequest(request, path), take)
        if not target:
            raise SourceError(errno.ESTALE)
        return target


def entry_of(answer: AnswerEntry | AnswerListing, path: Path) -> Entry | None:
    if isinstance(answer, AnswerEntry):
        return answer.entry
    listing: Listing = answer.listing
    return listing.find(path[len(answer.directory) :].lstrip(b"/"))


def as_statvfs(found: os.statvfs_result) -> pyfuse3.StatvfsData:
    shown = pyfuse3.StatvfsData()
    shown.f_bsize = found.f_bsize
    shown.f_frsize = found.f_frsize
    shown.f_blocks = max(found.f_blocks, 1)
    shown.f_bfree = found.f_bfree
    shown.f_bavail = found.f_bavail
    shown.f_files = max(found.f_files, 1)
    shown.f_ffree = found.f_ffree
    shown.f_favail = found.f_favail
    shown.f_namemax = found.f_namemax
    return shown
