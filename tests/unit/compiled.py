"""Scan of compiled Python: the names that a file mentions; the reference for ``bytecode_names.c``.

A name counts if the module itself uses it, outside its functions and classes, or if it is in a
tuple of the module's constants, where ``from . import name`` puts it. So the scan finds what the
module imports at its own import. It splits names at their dots.

It follows the marshal format of CPython 3.8 to 3.14, and does not call marshal, which must not be
given bytes that it did not write. Malformed or newer data ends the scan, which keeps the names
found before. It reads each string once, so a file made to be slow takes at most two steps for each
of its bytes.
"""

import re
from dataclasses import dataclass, field

HEADER_BYTES = 16
# From this "magic number" on, a code object begins with five numbers, not six.
CODE_OF_3_11 = 3450
DEPTH_MAX = 60
_REF = 0x80
_NAMES = re.compile(rb"[A-Za-z0-9_.]*")
_SKIPPED = dict.fromkeys(b"NFTS.", 0) | {ord("i"): 4, ord("I"): 8, ord("g"): 8, ord("y"): 16}
_NO_TUPLE = 1000
# The width of the count in bytes, and the container's depth of tuples.
_COUNTED = {ord(")"): (1, 1), ord("("): (4, 1)} | dict.fromkeys(b"[<>", (4, _NO_TUPLE))
_OTHER, _CONSTANTS, _NAMES_USED = 0, 2, 1
"""Parts of a code object; names stand at this depth in tuples."""
_TEXTS = dict.fromkeys(b"zZ", 1) | dict.fromkeys(b"utaA", 4)


class _EndOfWalkError(Exception):
    """The scan does not understand the next bytes."""


@dataclass(slots=True)
class _Walk:
    data: bytes
    at: int = HEADER_BYTES
    depth: int = 0
    codes: int = 0
    tuples: int = 0
    part: int = _OTHER
    refs: list[bytes | None] = field(default_factory=list)
    """Objects that a reference may name, in order; None for a non-string, or a string already
    read."""
    names: set[bytes] = field(default_factory=set)
    steps: int = 0

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
            case "l":  # digits of two bytes; their number carries the sign
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
        return bool(self.part) and self.codes == 1 and self.tuples == self.part

    def _text(self, text: bytes) -> None:
        self.steps += len(text)
        if _NAMES.fullmatch(text):
            self.names.update(text.split(b"."))


def walked(data: bytes) -> _Walk:
    walk = _Walk(data)
    try:
        if len(data) >= HEADER_BYTES:
            walk.object()
    except _EndOfWalkError:
        pass
    return walk


def names_in(data: bytes) -> frozenset[bytes]:
    return frozenset(walked(data).names - {b""})
