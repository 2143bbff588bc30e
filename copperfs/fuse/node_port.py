"""Node port: what the handlers need of the node. ``Engine`` (``daemon/engine.py``) implements it.

The function that consumes an answer runs while the node's actions are performed, in their order. A
later action may evict the answer: it must have been published before, or it would stay published
for good.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from copperfs.model.listing import Listing
from copperfs.model.types import Path, RequestId
from copperfs.native.blob import Blob
from copperfs.node.actions import (
    AnswerChunk,
    AnswerEntry,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    ObjectKey,
)
from copperfs.node.events import NodeRequest

T = TypeVar("T")

Answered = AnswerEntry | AnswerListing | AnswerObject | AnswerChunk | AnswerHandle
Content = Blob | int | None
"""The bytes behind an object or a chunk, the descriptor behind a handle."""
Deliver = Callable[[Answered, Content, Callable[[float | None], float | None]], T]
"""The last argument turns a time of the node's clock into seconds from now."""


class SourceError(Exception):
    def __init__(self, errno: int) -> None:
        super().__init__(errno)
        self.errno = errno


class NodePort(Protocol):
    async def ask(
        self, make_request: Callable[[RequestId], NodeRequest], deliver: "Deliver[T]"
    ) -> T:
        """SourceError if there is no answer."""
        ...

    def take(self, key: ObjectKey, blob: Blob, *, ahead: bool, used: bool) -> None:
        """The front has read this. *ahead*: before any request for it; *used*: a request has used
        it since."""
        ...

    def take_listing(self, path: Path, listing: Listing, epoch: int, *, ahead: bool) -> None: ...

    def replaced(self, path: Path) -> None:
        """The kernel knows *path* as another directory than the one that was listed."""
        ...

    async def wait_kernel_told(self, path: Path) -> None:
        """The kernel then knows that it has to look *path* up again; waits a moment at most."""
        ...
