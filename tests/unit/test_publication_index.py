"""Publication index, with a front end that only records its calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from copperfs.fuse.publication_index import ASKED_ABOUT_MAX, PublicationIndex
from copperfs.model.types import Path, Version
from copperfs.native.blob import Blob
from copperfs.node.actions import ObjectKey

if TYPE_CHECKING:
    from copperfs.native import Front

FILES = 2 * ASKED_ABOUT_MAX + 5


class NotingFront:
    """As if the kernel had asked for all of it."""

    def __init__(self) -> None:
        self.asked_about: list[int] = []

    def publish_object(self, number: int, blob: Blob) -> bool:
        return True

    def withdraw(self, number: int) -> None:
        pass

    def touched(self, numbers: Iterable[int]) -> list[int]:
        self.asked_about = list(numbers)
        return self.asked_about

    def touched_chunks(self) -> list[tuple[int, int]]:
        return []


def key(number: int) -> ObjectKey:
    return ObjectKey(Path(b"lib/%d" % number), Version(1, number, 0, number))


def test_the_front_is_asked_about_some_at_a_time_and_in_turn_about_all() -> None:
    front = NotingFront()
    publications = PublicationIndex(cast("Front", front))
    blob = cast(Blob, None)
    for number in range(FILES):
        publications.publish_object_for(number, key(number), blob)
    found: list[object] = []
    for _ in range(3):
        found += publications.used()
        assert 0 < len(front.asked_about) <= ASKED_ABOUT_MAX
    assert sorted(map(repr, found)) == sorted(repr(key(number)) for number in range(FILES))
    assert publications.used(), "and again from the beginning"


def test_what_was_withdrawn_meanwhile_is_not_asked_about() -> None:
    front = NotingFront()
    publications = PublicationIndex(cast("Front", front))
    for number in range(FILES):
        publications.publish_object_for(number, key(number), cast(Blob, None))
    publications.used()
    for number in range(FILES):
        publications.withdraw(key(number))
    assert publications.used() == []
    assert not front.asked_about
