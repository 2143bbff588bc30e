"""What a compiled Python file mentions; ``mentions.h`` says it in C.

What the module itself, not a function or class in it, uses by name, and what it has in tuples of
constants, as ``from . import name`` does: what it imports when it is imported is there, what its
functions import when they are called, and what its texts speak of, is not. Names are taken apart at
their dots.

The file is walked through as marshal would read it, of CPython 3.8 to 3.14; marshal itself must not
be given what it did not write. What is malformed, or newer, ends the walk: nothing more is
mentioned. Each string is looked at once, however often it is referred to: a file that was made to
be slow takes no more steps than it has bytes, twice.
"""

import re
from dataclasses import dataclass, field

HEADER_BYTES = 16
# The "magic number" from which on code has five numbers at its beginning, not six.
CODE_OF_3_11 = 3450
DEPTH_MAX = 60
_REF = 0x80
_NAMES = re.compile(rb"[A-Za-z0-9_.]*")
_SKIPPED = dict.fromkeys(b"NFTS.", 0) | {ord("i"): 4, ord("I"): 8, ord("g"): 8, ord("y"): 16}
_NO_TUPLE = 1000
# How many bytes the count has, and what it is for the depth of tuples.
_COUNTED = {ord(")"): (1, 1), ord("("): (4, 1)} | dict.fromkeys(b"[<>", (4, _NO_TUPLE))
_OTHER, _CONSTANTS, _NAMES_USED = 0, 2, 1
"""Parts of code; how deep in tuples names are there."""
_TEXTS = dict.fromkeys(b"zZ", 1) | dict.fromkeys(b"utaA", 4)


class _EndOfWalkError(Exception):
    """What comes is not understood."""


@dataclass(slots=True)
class _Walk:
    data: bytes
    at: int = HEADER_BYTES
    depth: int = 0
    codes: int = 0
    tuples: int = 0
    part: int = _OTHER
    refs: list[bytes | None] = field(default_factory=list)
    """What may be referred to, in its order; None if it is no string, or was looked at."""
    names: set[bytes] = field(default_factory=set)
    steps: int = 0
    """Bytes of the strings that were looked at; only tests ask."""

    def skip(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise _EndOfWalkError
        skipped = self.data[self.at : end]
        self.at = end
        return skipped

    def number(self, size: int) -> int:
        return int.from_bytes(self.skip(size), "little")

    def objects(self, count: int) -> None:
        for _ in range(count):
            self.object()

    def object(self) -> None:
        if self.depth == DEPTH_MAX:
            raise _EndOfWalkError
        (kind,) = self.skip(1)
        place = None
        if kind & _REF:
            place = len(self.refs)
            self.refs.append(None)
        self.depth += 1
        self._kind(kind & ~_REF, place)
        self.depth -= 1

    def _kind(self, kind: int, place: int | None) -> None:
        if kind in _SKIPPED:
            self.skip(_SKIPPED[kind])
        elif kind in _TEXTS:
            text = self.skip(self.number(_TEXTS[kind]))
            if self._names_are_here():
                self._text(text)
            elif place is not None:
                self.refs[place] = text
        elif kind in _COUNTED:
            size, tuples = _COUNTED[kind]
            self.tuples += tuples
            self.objects(self.number(size))
            self.tuples -= tuples
        else:
            self._other(chr(kind))

    def _other(self, kind: str) -> None:
        match kind:
            case "l":  # digits of two bytes; the sign is that of their number
                digits = self.number(4)
                self.skip(2 * min(digits, (1 << 32) - digits))
            case "f":
                self.skip(self.number(1))
            case "x":
                self.skip(self.number(1))
                self.skip(self.number(1))
            case "s":
                self.skip(self.number(4))
            case "{":
                self.tuples += _NO_TUPLE
                while self.data[self.at : self.at + 1] not in (b"0", b""):
                    self.objects(2)
                self.tuples -= _NO_TUPLE
                self.skip(1)
            case ":":
                self.objects(3)
            case "c":
                self._code()
            case "r":
                index = self.number(4)
                if index >= len(self.refs):
                    raise _EndOfWalkError
                text = self.refs[index]
                if text is not None and self._names_are_here():
                    self._text(text)
                    self.refs[index] = None  # once is enough
            case _:
                raise _EndOfWalkError

    def _code(self) -> None:
        """Its code, constants, names, five more, and where its lines are."""
        before_3_11 = int.from_bytes(self.data[:2], "little") < CODE_OF_3_11
        outer = self.tuples, self.part
        self.codes += 1
        self.tuples = 0
        self.skip(24 if before_3_11 else 20)
        for self.part, count in ((_OTHER, 1), (_CONSTANTS, 1), (_NAMES_USED, 1), (_OTHER, 5)):
            self.objects(count)
        self.skip(4)
        self.objects(1 if before_3_11 else 2)
        self.codes -= 1
        self.tuples, self.part = outer

    def _names_are_here(self) -> bool:
        """Whether what comes here is a mention."""
        return bool(self.part) and self.codes == 1 and self.tuples == self.part

    def _text(self, text: bytes) -> None:
        self.steps += len(text)
        if _NAMES.fullmatch(text):
            self.names.update(text.split(b"."))


def walked(data: bytes) -> _Walk:
    """What was found in this compiled file, and what that took."""
    walk = _Walk(data)
    try:
        if len(data) >= HEADER_BYTES:
            walk.object()
    except _EndOfWalkError:
        pass
    return walk


def names_in(data: bytes) -> frozenset[bytes]:
    """All names that this compiled file mentions."""
    return frozenset(walked(data).names - {b""})
