"""A blob: immutable bytes outside the Python heap, shared with the threads of the front.

The C type is in ``_blob.c``; where it could not be built, this module's own does the same for
Python alone. Fill ``view``, then ``seal(size)``, and from then on nobody writes to it.
"""

from collections.abc import Sequence
from typing import Protocol

# Of a name that is looked for, and of a string that it is part of.
NAME_MAX = 255
_WORD = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.")


class Blob(Protocol):
    """Some bytes: filled once, then read by many."""

    @property
    def view(self) -> memoryview: ...
    def seal(self, size: int, /) -> None: ...
    def __len__(self) -> int: ...


class FileBlob(Blob, Protocol):
    """What was read of the source."""

    def mentions(self, name: bytes, /) -> bool:
        """Whether it has *name* as Python writes names into compiled files: as a string with its
        length before it, in one byte, or as a part between dots of such a string.

        Where the length itself could be a letter of a name (48 to 57, 65 to 90, 97 to 122, and 46
        and 95) it is taken for one: those are not found.
        """
        ...


_DOT = ord(".")


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

    def mentions(self, name: bytes, /) -> bool:
        data, at = bytes(self._view), -1
        while 0 < len(name) <= NAME_MAX:
            at = data.find(name, at + 1)
            if at < 0:
                break
            start = at
            while start and at - start < NAME_MAX and data[start - 1] in _WORD:
                start -= 1
            if not start or (start < at and data[at - 1] != _DOT):
                continue
            end, string_end = at + len(name), start + data[start - 1]
            if end == string_end:
                return True
            rest = data[end:string_end]
            if rest.startswith(b".") and string_end <= len(data) and _WORD.issuperset(rest):
                return True
        return False

    def __len__(self) -> int:
        return len(self._view)


try:
    from copperfs._blob import Blob as SharedBlob
except ImportError:
    BLOBS_ARE_SHARED = False
else:
    BLOBS_ARE_SHARED = True


def mentioned(blob: FileBlob, names: Sequence[bytes]) -> tuple[bytes, ...]:
    """Those of *names* that it mentions."""
    return tuple(name for name in names if blob.mentions(name))


def new_blob(capacity: int) -> FileBlob:
    """An empty blob of the best kind there is."""
    return SharedBlob(capacity) if BLOBS_ARE_SHARED else PlainBlob(capacity)
