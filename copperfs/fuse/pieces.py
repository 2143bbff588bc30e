"""The bytes of one read, put together from what the core answers.

A file is held whole, or in chunks, of which a read may span several. Which of the two it is, and
how large its chunks are, only the first answer tells: so a read asks for its first byte, and then
for the chunks that are still missing, all at once. An object counts as a chunk with the whole file
in it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from copperfs.blob import Blob
from copperfs.core.actions import AnswerChunk, AnswerObject
from copperfs.core.events import Read
from copperfs.fuse.answers import SourceError
from copperfs.types import Path, RequestId, Version


@dataclass(slots=True)
class Pieces:
    """What is there of ``size`` bytes from ``offset``, in a file of ``file_size``."""

    offset: int
    size: int
    file_size: int
    _chunk_bytes: int = 0
    """0 until the first one has come."""
    _blobs: dict[int, Blob] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return max(self.offset, min(self.offset + self.size, self.file_size))

    @property
    def first_byte(self) -> int:
        """Where to ask for the first chunk; within the file, whatever is read."""
        return min(self.offset, max(0, self.file_size - 1))

    def question(
        self, path: Path, version: Version, at: int, *, leads: bool
    ) -> Callable[[RequestId], Read]:
        """For the chunk there. The one that *leads* tells how much is read."""
        size = max(1, self.end - at) if leads else 0
        return lambda request: Read(request, path, version, offset=at, size=size)

    def take(self, answer: AnswerObject | AnswerChunk, blob: Blob) -> None:
        if isinstance(answer, AnswerChunk):
            self._chunk_bytes = answer.chunk_bytes
            self._blobs[answer.key.index] = blob
        else:
            self._chunk_bytes = max(1, self.file_size)
            self._blobs[0] = blob

    def missing(self) -> list[int]:
        """Where to ask for the chunks that have not come. Nothing before the first one has."""
        if not self._chunk_bytes:
            return []
        return [
            max(self.offset, index * self._chunk_bytes)
            for index in self._spanned()
            if index not in self._blobs
        ]

    def joined(self) -> bytes | None:
        """The bytes; None if any is missing."""
        if not self._chunk_bytes or self.missing():
            return None
        return b"".join(self._views())

    def _spanned(self) -> range:
        if self.offset >= self.end:
            return range(0)
        return range(self.offset // self._chunk_bytes, (self.end - 1) // self._chunk_bytes + 1)

    def _views(self) -> list[memoryview]:
        views = []
        for index in self._spanned():
            begin = index * self._chunk_bytes
            views.append(self._blobs[index].view[max(0, self.offset - begin) : self.end - begin])
        return views


async def ask_at_each(ask: Callable[[int], Awaitable[object]], offsets: Sequence[int]) -> None:
    """Ask at all of these at once. With the first that fails, the others are given up.

    The questions are put in this order, by which the core knows who reads on; tasks that are
    started together trio runs in any order.
    """
    if len(offsets) == 1:  # nearly always, and a nursery costs as much as the question
        await ask(offsets[0])
        return
    errors: list[SourceError] = []

    async with trio.open_nursery() as nursery:

        async def ask_at(offset: int) -> None:
            try:
                await ask(offset)
            except SourceError as error:
                errors.append(error)
                nursery.cancel_scope.cancel()

        for offset in offsets:
            nursery.start_soon(ask_at, offset)
            await trio.lowlevel.checkpoint()  # it has asked before the next one is started
    if errors:
        raise errors[0]
