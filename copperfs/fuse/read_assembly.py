"""Assembles the bytes of one read from the node's answers.

A read may span several chunks, and only the first answer tells how large they are. So a read
requests its first byte, and then all missing chunks at once. An object counts as a chunk that holds
the whole file.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from copperfs.fuse.node_port import SourceError
from copperfs.model.types import Path, RequestId, Version
from copperfs.native.blob import Blob
from copperfs.node.actions import AnswerChunk, AnswerObject
from copperfs.node.events import ReadRequest
from copperfs.node.requests.chunk_layout import ChunkLayout


@dataclass(slots=True)
class Pieces:
    offset: int
    size: int
    file_size: int
    _layout: ChunkLayout | None = None
    """None until the first chunk has come."""
    _blobs: dict[int, Blob] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return max(self.offset, min(self.offset + self.size, self.file_size))

    @property
    def first_byte(self) -> int:
        """Within the file, wherever the read begins."""
        return min(self.offset, max(0, self.file_size - 1))

    def make_request(
        self, path: Path, version: Version, at: int, *, leads: bool
    ) -> Callable[[RequestId], ReadRequest]:
        """The one that *leads* tells how much is read."""
        size = max(1, self.end - at) if leads else 0
        return lambda request: ReadRequest(request, path, version, offset=at, size=size)

    def take(self, answer: AnswerObject | AnswerChunk, blob: Blob) -> None:
        if isinstance(answer, AnswerChunk):
            self._layout = ChunkLayout(self.file_size, answer.chunk_bytes)
            self._blobs[answer.key.index] = blob
        else:
            self._layout = ChunkLayout(self.file_size, max(1, self.file_size))
            self._blobs[0] = blob

    def missing(self) -> list[int]:
        layout = self._layout
        if layout is None:
            return []
        return [
            max(self.offset, layout.offset_of(index))
            for index in layout.spanned(self.offset, self.end)
            if index not in self._blobs
        ]

    def joined(self) -> bytes | None:
        if self._layout is None or self.missing():
            return None
        return b"".join(self._views(self._layout))

    def _views(self, layout: ChunkLayout) -> list[memoryview]:
        views = []
        for index in layout.spanned(self.offset, self.end):
            begin = layout.offset_of(index)
            views.append(self._blobs[index].view[max(0, self.offset - begin) : self.end - begin])
        return views


async def ask_at_each(ask: Callable[[int], Awaitable[object]], offsets: Sequence[int]) -> None:
    """When the first one fails, the others are cancelled.

    The order tells the node that a reader continues; trio starts tasks in any order.
    """
    if len(offsets) == 1:  # nearly always, and a nursery costs as much as the request
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
            await trio.lowlevel.checkpoint()  # its request is put first
    if errors:
        raise errors[0]
