"""The board: what the handlers have published to the front, and where.

The core knows paths and versions, the front knows node numbers. This is the only place that holds
both: it publishes an answer for the node that was asked about, and remembers under which numbers,
so that what the core evicts can be withdrawn.

Everything here is called on trio's thread, as part of performing the core's actions; nothing here
waits. What makes the kernel forget may wait for a reply of the handlers themselves (a deadlock if
it were done here), so ``look_again`` only says what a worker thread is to do.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from copperfs.blob import Blob
from copperfs.core.actions import CacheKey, ListingKey, ObjectKey
from copperfs.core.listing import Listing
from copperfs.fuse.answers import Asker
from copperfs.types import Attributes, ChunkKey, Entry, Path

if TYPE_CHECKING:
    from copperfs.fuse._front import Front

log = logging.getLogger(__name__)

FOREVER_S = -1.0
# A path has one number, or two for a while after a change; more have mostly been forgotten.
NUMBERS_MAX = 4
# So many things the front is asked about at once: 2 ms. Of 120,000 it took 30 ms to ask for all,
# each second, and nobody hears this node meanwhile.
ASKED_ABOUT_MAX = 8192


@dataclass(slots=True)
class Board:
    front: "Front"
    _where: dict[CacheKey, set[int]] = field(default_factory=dict)
    _chunked: dict[ObjectKey, set[int]] = field(default_factory=dict)
    """Files of which chunks are published. Which ones they are the front knows."""
    _files: dict[int, ObjectKey] = field(default_factory=dict)
    """The same by number."""
    _asks_about: list[CacheKey] = field(default_factory=list)
    """What the front is still to be asked about in this round; some of it may be gone by then."""

    def node(self, number: int) -> tuple[Path, Attributes] | None:
        """What a node number stands for; None if the kernel has forgotten it."""
        found = self.front.node(number)
        return None if found is None else (Path(found[0]), Attributes(found[1]))

    def is_untouched(self, number: int) -> bool:
        """Whether no request was told a name in this directory."""
        return self.front.is_untouched(number)

    def is_attached(self, number: int) -> bool:
        """Whether its path leads to no newer number, as far as is known."""
        return self.front.is_attached(number)

    def attributes_at(self, path: Path) -> Attributes | None:
        """Of the number that *path* leads to."""
        number = self.front.find(path)
        found = None if number is None else self.node(number)
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
        """Where to ask for those chunks of what is read that are not published; nothing if it is
        not known that there are any."""
        return self.front.missing_chunks(number, offset, size)

    # What no request of this node has asked for yet.

    def publish_object(self, key: ObjectKey, blob: Blob) -> None:
        """As a file of its directory's listing, if that is published."""
        number = self.front.publish_file(key.path, key.version, blob)
        if number is not None:
            self._note(key, number)

    def publish_chunk(self, key: ChunkKey, chunk_bytes: int, blob: Blob) -> None:
        """Of a file that is being read: other chunks of it are published."""
        for number in tuple(self._chunked.get(ObjectKey(key.path, key.version), ())):
            self.publish_chunk_for(number, key, chunk_bytes, blob)

    def publish_listing(self, path: Path, listing: Listing) -> None:
        """As a directory of the listing that it is found in, if that is published."""
        number = self.front.publish_directory(path, listing.packed)
        if number is not None:
            self._note(ListingKey(path), number)

    def publish_handle(self, number: int, fd: int) -> None:
        """Takes the descriptor."""
        self.front.publish_handle(number, fd)

    def hear(self, asker: Asker) -> None:
        """Tell the core what the front has fetched without asking, and give back the credit for it
        once the core has made room."""
        try:
            fetched = self.front.fetched()
        except MemoryError:
            log.warning("no memory to hear what was read without asking; it is heard of later")
            return
        for number, path, attributes, content, epoch, credit, ahead, used in fetched:
            version = Attributes(attributes).version
            if isinstance(content, bytes):
                self._note(ListingKey(Path(path)), number)
                asker.take_listing(Path(path), Listing(content, version), epoch, ahead=ahead)
            else:
                key = ObjectKey(Path(path), version)
                self._note(key, number)
                asker.take(key, content, ahead=ahead, used=used)
            self.front.add_credit(credit)

    def _note(self, key: CacheKey, number: int) -> None:
        numbers = self._where.setdefault(key, set())
        if len(numbers) >= NUMBERS_MAX:
            numbers -= {each for each in numbers if self.front.node(each) is None}
        numbers.add(number)

    # --- letting go ------------------------------------------------------------------------------

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
                numbers.discard(number)  # the last one, or the kernel has forgotten the node
                del self._files[number]
        if not numbers:
            self._chunked.pop(file, None)

    def withdraw_all(self) -> None:
        self._where.clear()
        self._chunked.clear()
        self._files.clear()
        self.front.clear()

    def used(self) -> list[CacheKey | ChunkKey]:
        """What the front has answered from since it was last asked; of very much some each time."""
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
        """What a worker thread is to do so that the kernel looks *path* up again."""
        number = self.front.find(path)
        if number is None:
            return None
        return lambda: self.front.invalidate_node(number)

    def invalidate_all(self) -> tuple[int, Callable[[], int] | None]:
        """Have the kernel look everything up again; called in a worker thread. How many names it
        was told of, and what tells it of the rest, for which lookups under way have to end."""
        told, left = self.front.invalidate_all()
        return told, None if left is None else partial(self.front.invalidate_later, left)


def _seconds(fresh_s: float | None) -> float:
    return FOREVER_S if fresh_s is None else max(0.0, fresh_s)
