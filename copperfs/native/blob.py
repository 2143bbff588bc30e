"""Blob: immutable bytes outside the Python heap, shared with the front.

Fill ``view``, then call ``seal(size)``.
"""

from typing import Protocol

from copperfs import native


class Blob(Protocol):
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
    return native.Blob(capacity)


def adopted(lender: memoryview) -> Blob:
    """A blob of bytes that another object owns and no longer changes."""
    return native.Blob.adopt(lender)
