"""Protection classes: how many nodes keep each chunk of the data tier, by the prefix of its path.

``--protect PREFIX=CLASS`` gives a class to all files below a prefix; the longest prefix of a path
wins. There are two classes:

* ``none``: the owner alone keeps the chunk. This is the class of every other path;
* ``copies:K``: K nodes keep it, the owner being one of them (ReStore).

A class says nothing about a chunk's key: a tier that was kept stays valid when classes change.
"""

import re
from dataclasses import dataclass

from copperfs.model.types import Path, is_below

COPIES_MIN, COPIES_MAX = 2, 8
"""With 8 copies of each chunk a tier holds an eighth of what it would without."""
CODED = re.compile(r"auto|rs:.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Protection:
    """Pairs of a prefix and the number of nodes that keep a chunk below it, the longest first."""

    classes: tuple[tuple[Path, int], ...] = ()

    def copies_of(self, path: Path) -> int:
        for prefix, copies in self.classes:
            if is_below(path, prefix):
                return copies
        return 1

    def __bool__(self) -> bool:
        return any(copies > 1 for _, copies in self.classes)


UNPROTECTED = Protection()


def protection_of(classes: dict[Path, int]) -> Protection:
    return Protection(tuple(sorted(classes.items(), key=lambda each: (-len(each[0]), each[0]))))


def parse_class(text: str) -> int:
    """The number of nodes that keep a chunk; ValueError says what is wrong with the text."""
    if text == "none":
        return 1
    if CODED.fullmatch(text):
        raise ValueError(
            f"there is no class {text!r} yet: write none, or copies:K with K from {COPIES_MIN} to "
            f"{COPIES_MAX}"
        )
    match = re.fullmatch(r"copies:(\d{1,3})", text, re.ASCII)
    if match is None or not COPIES_MIN <= int(match[1]) <= COPIES_MAX:
        raise ValueError(
            f"{text!r} is no class of protection: write none, or copies:K with K from {COPIES_MIN} "
            f"to {COPIES_MAX}"
        )
    return int(match[1])


def split_class(text: str) -> tuple[str, int]:
    """``/lus/dataset=copies:2`` as the prefix and the number of nodes. The prefix may have ``=`` in
    it, and a class has none."""
    prefix, equals, name = text.rpartition("=")
    if not equals or not prefix.startswith("/"):
        raise ValueError(f"{text!r} names no class for a path; write /lus/dataset=copies:2")
    return prefix.rstrip("/") or "/", parse_class(name)
