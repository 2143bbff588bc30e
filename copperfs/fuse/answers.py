"""The seam between the handlers and whoever runs the core.

The handlers put a question and say what is to be done with the answer. That is done while the
core's actions are being performed, in their order: an answer that is evicted by a later action must
have been published before, or it would be published for good.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from copperfs.blob import Blob
from copperfs.core.actions import (
    AnswerChunk,
    AnswerEntry,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    ObjectKey,
)
from copperfs.core.events import Question
from copperfs.core.listing import Listing
from copperfs.types import Path, RequestId

T = TypeVar("T")

Answered = AnswerEntry | AnswerListing | AnswerObject | AnswerChunk | AnswerHandle
Content = Blob | int | None
"""The bytes behind an object or a chunk, the descriptor behind a handle."""
Deliver = Callable[[Answered, Content, Callable[[float | None], float | None]], T]
"""Takes an answer, its content, and what turns a time of the core's clock into seconds from now."""


class SourceError(Exception):
    """The question has no answer but an errno."""

    def __init__(self, errno: int) -> None:
        super().__init__(errno)
        self.errno = errno


class Asker(Protocol):
    """Runs the core."""

    async def ask(self, question: Callable[[RequestId], Question], deliver: "Deliver[T]") -> T:
        """Put a question; what *deliver* made of the answer. SourceError if there is none."""
        ...

    def take(self, key: ObjectKey, blob: Blob, *, ahead: bool, used: bool) -> None:
        """The front has read this without asking. *ahead*: before anybody had asked for it; *used*:
        somebody has since."""
        ...

    def take_listing(self, path: Path, listing: Listing, epoch: int, *, ahead: bool) -> None:
        """The front has listed this without asking. *ahead*: before anybody had asked for it."""
        ...

    def replaced(self, path: Path) -> None:
        """The kernel knows *path* as another directory than the one that was listed; it will be
        told to look again."""
        ...

    async def wait_kernel_told(self, path: Path) -> None:
        """Until the kernel knows that it has to look *path* up again; for a moment at most."""
        ...
