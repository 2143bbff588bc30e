"""A blob: immutable bytes outside the Python heap, shared with the threads of the front.

The C type is in ``_blob.c``; where it could not be built, this module's own does the same for
Python alone. Fill ``view``, then ``seal(size)``, and from then on nobody writes to it.
"""

from typing import Protocol

from copperfs.compiled import names_in


class Blob(Protocol):
    """Some bytes: filled once, then read by many."""

    @property
    def view(self) -> memoryview: ...
    def seal(self, size: int, /) -> None: ...
    def __len__(self) -> int: ...


class FileBlob(Blob, Protocol):
    """What was read of the source."""

    def mentioned(self, names: tuple[bytes, ...], /) -> tuple[bytes, ...]:
        """Those of *names* that are in it, as compiled Python has what a module imports."""
        ...


class PlainBlob:
    """The blob of a mount without the C extension."""

    def __init__(self, capacity: int, /) -> None:
        self._view = memoryview(bytearray(capacity))

    @property
    def view(self) -> memoryview:
        return self._view

    def seal(self, size: int, /) -> None:
        if self._view.readonly or not 0 <= size <= len(self._view):
            raise ValueError("a blob is sealed once, within its capacity")
        self._view = self._view[:size].toreadonly()

    def mentioned(self, names: tuple[bytes, ...], /) -> tuple[bytes, ...]:
        there = names_in(bytes(self._view)) if names else frozenset()
        return tuple(name for name in names if name in there)

    def __len__(self) -> int:
        return len(self._view)

    @classmethod
    def adopt(cls, lender: memoryview, /) -> "PlainBlob":
        blob = cls(0)
        blob._view = lender.toreadonly()
        return blob


try:
    from copperfs._blob import Blob as SharedBlob
except ImportError:
    BLOBS_ARE_SHARED = False
else:
    BLOBS_ARE_SHARED = True


def new_blob(capacity: int) -> FileBlob:
    """An empty blob of the best kind there is."""
    return SharedBlob(capacity) if BLOBS_ARE_SHARED else PlainBlob(capacity)


def adopted(lender: memoryview) -> Blob:
    """A blob of bytes that are another object's, and that nobody changes any more."""
    return SharedBlob.adopt(lender) if BLOBS_ARE_SHARED else PlainBlob.adopt(lender)
