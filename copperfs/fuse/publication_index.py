"""Publication index: records what the handlers have published to the front, and under which
numbers.

The node knows paths and versions, the front knows inode numbers. Only this index holds both, so
that content that the node evicts can be withdrawn.

All methods run on trio's thread, and none waits. A notification of the kernel may wait for a reply
of the handlers themselves, so ``look_again`` only returns the work for a worker thread.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from copperfs.fuse.node_port import NodePort
from copperfs.model.listing import Listing
from copperfs.model.types import Attributes, ChunkKey, Entry, Path
from copperfs.native import Front
from copperfs.native.blob import Blob
from copperfs.node.actions import CacheKey, ListingKey, ObjectKey

log = logging.getLogger(__name__)

FOREVER_S = -1.0
# A path has one number, or two for a while after a change.
NUMBERS_MAX = 4
# One query of this size takes 2 ms. For 120,000 entries it took 30 ms each second, during which
# this node does not read its messages.
ASKED_ABOUT_MAX = 8192


@dataclass(slots=True)
class PublicationIndex:
    front: Front
    _where: dict[CacheKey, set[int]] = field(default_factory=dict)
    _chunked: dict[ObjectKey, set[int]] = field(default_factory=dict)
    """Files with published chunks. The front knows which chunks."""
    invalidated: Callable[[], object] = lambda: None
    """Called in a worker thread, once the kernel was told to look all names up again."""
    _files: dict[int, ObjectKey] = field(default_factory=dict)
    _asks_about: list[CacheKey] = field(default_factory=list)
    """Still to query in this round; some may be gone by then."""

    def inode(self, number: int) -> tuple[Path, Attributes] | None:
        found = self.front.inode(number)
        return None if found is None else (Path(found[0]), Attributes(found[1]))

    def is_untouched(self, number: int) -> bool:
        """Whether no request was told a name in this directory."""
        return self.front.is_untouched(number)

    def is_attached(self, number: int) -> bool:
        """Whether its path leads to no newer number, as far as is known."""
        return self.front.is_attached(number)

    def attributes_at(self, path: Path) -> Attributes | None:
        number = self.front.find(path)
        found = None if number is None else self.inode(number)
        return None if found is None else found[1]

    # --- publishing ------------------------------------------------------------------------------

    def publish_listing_for(
        self,
        number: int,
        path: Path,
        listing: Listing,
        fresh_s: float | None,
        *,
        granted: bool,
        granted_below: bool,
        read_ahead: bool,
    ) -> None:
        if self.front.publish_listing(
            number, listing.packed, _seconds(fresh_s), granted, granted_below, read_ahead
        ):
            self._note(ListingKey(path), number)

    def publish_entry(
        self, directory: int, name: bytes, entry: Entry | None, fresh_s: float | None
    ) -> None:
        attributes = None if entry is None else entry.attributes.packed
        target = b"" if entry is None else entry.target
        self.front.publish_entry(directory, name, attributes, target, _seconds(fresh_s))

    def publish_attributes(
        self, number: int, attributes: Attributes, fresh_s: float | None
    ) -> None:
        self.front.publish_attributes(number, attributes.packed, _seconds(fresh_s))

    def publish_object_for(self, number: int, key: ObjectKey, blob: Blob) -> None:
        if self.front.publish_object(number, blob):
            self._note(key, number)

    def publish_chunk_for(self, number: int, key: ChunkKey, chunk_bytes: int, blob: Blob) -> None:
        if not self.front.publish_chunk(number, key.index, chunk_bytes, blob):
            return
        if number not in self._files:
            file = ObjectKey(key.path, key.version)
            self._files[number] = file
            self._chunked.setdefault(file, set()).add(number)

    def missing_chunks(self, number: int, offset: int, size: int) -> list[int]:
        """Empty if the file is not known to have chunks."""
        return self.front.missing_chunks(number, offset, size)

    # Content that no request of this node has asked for yet.

    def publish_object(self, key: ObjectKey, blob: Blob) -> None:
        """Only if the listing of its directory is published."""
        number = self.front.publish_file(key.path, key.version, blob)
        if number is not None:
            self._note(key, number)

    def publish_chunk(self, key: ChunkKey, chunk_bytes: int, blob: Blob) -> None:
        """For a file that is being read: other chunks of it are published."""
        for number in tuple(self._chunked.get(ObjectKey(key.path, key.version), ())):
            self.publish_chunk_for(number, key, chunk_bytes, blob)

    def publish_listing(self, path: Path, listing: Listing) -> None:
        """Only if the listing of its parent is published."""
        number = self.front.publish_directory(path, listing.packed)
        if number is not None:
            self._note(ListingKey(path), number)

    def publish_handle(self, number: int, fd: int) -> None:
        """Takes the descriptor."""
        self.front.publish_handle(number, fd)

    def publish_statfs(self, found: os.statvfs_result) -> None:
        """Zero would mean a filesystem that does not count."""
        self.front.publish_statfs(
            max(found.f_blocks, 1),
            found.f_bfree,
            found.f_bavail,
            max(found.f_files, 1),
            found.f_ffree,
            found.f_bsize,
            found.f_namemax,
            found.f_frsize,
        )

    def pass_on_fetched(self, node: NodePort) -> None:
        """Pass to the node what the front has fetched without it, and give the allowance back once
        the node has made room."""
        try:
            fetched = self.front.fetched()
        except MemoryError:
            log.warning("no memory to hear what was read without asking; it is heard of later")
            return
        for number, path, attributes, content, epoch, allowance, ahead, used in fetched:
            version = Attributes(attributes).version
            if isinstance(content, bytes):
                self._note(ListingKey(Path(path)), number)
                node.take_listing(Path(path), Listing(content, version), epoch, ahead=ahead)
            else:
                key = ObjectKey(Path(path), version)
                self._note(key, number)
                node.take(key, content, ahead=ahead, used=used)
            self.front.add_allowance(allowance)

    def _note(self, key: CacheKey, number: int) -> None:
        numbers = self._where.setdefault(key, set())
        if len(numbers) >= NUMBERS_MAX:
            numbers -= {each for each in numbers if self.front.inode(each) is None}
        numbers.add(number)

    # --- withdrawing -----------------------------------------------------------------------------

    def withdraw(self, key: CacheKey | ChunkKey) -> None:
        if isinstance(key, ChunkKey):
            self._withdraw_chunk(key)
            return
        for number in self._where.pop(key, ()):
            self.front.withdraw(number)

    def _withdraw_chunk(self, key: ChunkKey) -> None:
        file = ObjectKey(key.path, key.version)
        numbers = self._chunked.get(file, set())
        for number in tuple(numbers):
            if not self.front.withdraw_chunk(number, key.index):
                numbers.discard(number)  # the last chunk, or the inode is forgotten
                del self._files[number]
        if not numbers:
            self._chunked.pop(file, None)

    def withdraw_all(self, epoch: int) -> None:
        self._where.clear()
        self._chunked.clear()
        self._files.clear()
        self.front.clear(epoch)

    def used(self) -> list[CacheKey | ChunkKey]:
        """A long list is queried in rounds."""
        if not self._asks_about:
            self._asks_about = list(self._where)
        some = self._asks_about[-ASKED_ABOUT_MAX:]
        del self._asks_about[-ASKED_ABOUT_MAX:]
        owners = {number: key for key in some for number in self._where.get(key, ())}
        used: list[CacheKey | ChunkKey] = [owners[number] for number in self.front.touched(owners)]
        for number, index in self.front.touched_chunks():
            file = self._files.get(number)
            if file is not None:
                used.append(ChunkKey(file.path, file.version, index))
        return used

    def look_again(self, path: Path) -> Callable[[], object] | None:
        """For a worker thread: makes the kernel look *path* up again."""
        number = self.front.find(path)
        if number is None:
            return None
        return lambda: self.front.invalidate_name_of(number)

    def invalidate_all(self) -> tuple[int, Callable[[], int] | None]:
        """In a worker thread. Returns the number of names told, and a function for the rest, which
        has to wait for lookups under way."""
        told, left = self.front.invalidate_all()
        self.invalidated()
        return told, None if left is None else partial(self._invalidate_later, left)

    def _invalidate_later(self, left: bytes) -> int:
        told = self.front.invalidate_later(left)
        self.invalidated()
        return told


def _seconds(fresh_s: float | None) -> float:
    return FOREVER_S if fresh_s is None else max(0.0, fresh_s)
