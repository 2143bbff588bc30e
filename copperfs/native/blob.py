"""Blob: immutable bytes outside the Python heap, shared with the threads of the front.

Fill ``view``, then call ``seal(size)``; from then on no code writes to it.
"""

from typing import Protocol

from copperfs import native


class Blob(Protocol):
    """Bytes that are filled once, then read by many."""

    @property
    def view(self) -> memoryview: ...
    def seal(self, size: int, /) -> None: ...
    def __len__(self) -> int: ...


class FileBlob(Blob, Protocol):
    """Bytes that were read from the source."""

    def mentioned(self, names: tuple[bytes, ...], /) -> tuple[bytes, ...]:
        """The *names* that these bytes, as a compiled Python file, mention for import."""
        ...


def new_blob(capacity: int) -> FileBlob:
    """An empty blob."""
    return native.Blob(capacity)


def adopted(lender: memoryview) -> Blob:
    """A blob of bytes that belong to another object, and that no longer change."""
    return native.Blob.adopt(lender)
